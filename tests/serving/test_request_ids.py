"""Engine ids and the client's ids behind them."""

import pytest

from harness.serving.request_ids import ClientRequest, client_request


@pytest.mark.parametrize(
    ("engine_id", "request_id", "prompt_index", "sample"),
    [
        ("cmpl-mine-0-1a2b3c4d", "mine", 0, 0),
        ("cmpl-mine-12-1a2b3c4d", "mine", 12, 0),
        ("classify-a-b-c-0-00000000", "a-b-c", 0, 0),
        ("score-x-1-1a2b3c4d", "x", 1, 0),
        ("pooling-x-0-1a2b3c4d", "x", 0, 0),
        ("generative-scoring-x-3-1a2b3c4d", "x", 3, 0),
        ("chatcmpl-x-0-1a2b3c4d", "x-0", 0, 0),
        ("chatcmpl-x-1a2b3c4d", "x", 0, 0),
        ("2_cmpl-x-0-1a2b3c4d", "x", 0, 2),
        ("r3-1a2b3c4d", "r3", 0, 0),
        ("17-1a2b3c4d", "17", 0, 0),
        ("cmpl-deadbeef-0-1a2b3c4d", "deadbeef", 0, 0),
    ],
)
def test_the_clients_id_is_found(
    engine_id: str, request_id: str, prompt_index: int, sample: int
) -> None:
    expected = ClientRequest(request_id=request_id, prompt_index=prompt_index, sample=sample)
    assert client_request(engine_id) == expected


def test_prompts_and_samples_of_one_id_have_names_of_their_own() -> None:
    ids = ("cmpl-x-0-1a2b3c4d", "cmpl-x-1-1a2b3c4d", "1_cmpl-x-0-1a2b3c4d", "1_cmpl-x-1-1a2b3c4d")
    assert [client_request(one).name for one in ids] == ["x", "x#1", "x#0.1", "x#1.1"]
