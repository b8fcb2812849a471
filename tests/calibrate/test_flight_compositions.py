"""The compositions of flights: every row once, one thing varied at a time."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.compositions import Composition, plan_compositions
from calibrate.config import Sweep
from calibrate.flight_compositions import NUM_DECODED, FlightTraits, flight_traits
from harness.conditions.batching import RowShape
from harness.records.batching import Companions, InFlight
from harness.records.engine import Vllm
from harness.records.verifier import LogOdds, Reward
from tests.calibrate.example_runs import an_arm
from tests.verifiers.cases import a_spec

ALL = FlightTraits(decodes=True, caches_prefixes=True, chunks=True, num_reasoning=4)
SWEEP = Sweep(rows=(2, 5), reference_rows=4)
LENGTHS = [6 + at * 5 % 9 for at in range(40)]


def shapes(lengths: Sequence[int]) -> list[RowShape]:
    return [RowShape(num_tokens=n, decision_id=f"d{at // 3}") for at, n in enumerate(lengths)]


def planned(
    lengths: Sequence[int] = LENGTHS,
    traits: FlightTraits = ALL,
    batching: InFlight = InFlight(max_rows=8),  # noqa: B008 - frozen
) -> dict[str, Composition]:
    found = plan_compositions(shapes(lengths), an_arm(batching=batching), SWEEP, 0, traits)
    return {composition.name: composition for composition in found}


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=40),
    max_rows=st.integers(1, 12),
    traits=st.builds(
        FlightTraits,
        decodes=st.booleans(),
        caches_prefixes=st.booleans(),
        chunks=st.booleans(),
        num_reasoning=st.integers(0, 3),
    ),
)
def test_every_row_is_in_every_composition_once(
    lengths: list[int], max_rows: int, traits: FlightTraits
) -> None:
    for composition in planned(lengths, traits, InFlight(max_rows=max_rows)).values():
        seen = Counter(at for batch in composition.batches for at in batch.rows)
        assert seen == Counter(range(len(lengths))), composition.name
        for batch in composition.batches:
            assert batch.flight is not None
            assert len(batch.rows) <= max_rows
            assert batch.width == max(lengths[at] for at in batch.rows)
            assert len(batch.flight.arrivals) in (0, len(batch.rows))


def test_the_reference_is_repeated_in_the_same_and_in_a_fresh_process() -> None:
    found = planned()
    assert next(iter(found)) == "rows-4"
    assert found["again-rows-4"].batches == found["fresh-rows-4"].batches == found["rows-4"].batches


def test_neighbours_change_and_slots_and_shapes_do_not() -> None:
    one, other = (planned()[f"neighbours-4-{side}"] for side in "ab")
    moved = 0
    for left, right in zip(one.batches, other.batches, strict=True):
        assert [LENGTHS[at] for at in left.rows] == [LENGTHS[at] for at in right.rows]
        moved += left.rows != right.rows
    assert moved > len(one.batches) / 2


def test_budgets_cut_prompts_at_two_places() -> None:
    names = [name for name in planned() if name.startswith("chunks-4-")]
    assert len(names) == 2
    budgets = [planned()[name].batches[0].flight for name in names]
    for flight in budgets:
        assert flight is not None
        assert flight.token_budget is not None
        assert flight.token_budget < 4 * max(LENGTHS)


def test_the_shortest_prompts_are_beside_the_longest() -> None:
    for batch in planned()["mixed-4"].batches[:8]:
        lengths = [LENGTHS[at] for at in batch.rows]
        assert max(lengths[0::2]) <= min(lengths[1::2])


def test_others_prefill_while_a_request_generates() -> None:
    for batch in planned()["decoding-4"].batches:
        assert batch.flight is not None
        assert batch.flight.extra_tokens == NUM_DECODED
        assert batch.flight.arrivals == tuple(range(len(batch.rows)))


@pytest.mark.parametrize(
    ("changes", "absent"),
    [
        ({"decodes": False}, "decoding-"),
        ({"caches_prefixes": False}, "warm-"),
        ({"chunks": False}, "chunks-"),
        ({"chunks": False, "num_reasoning": 0}, "preempted-"),
    ],
)
def test_nothing_is_asked_of_an_engine_that_it_cannot_do(
    changes: dict[str, bool], absent: str
) -> None:
    traits = FlightTraits(**{"decodes": True, "caches_prefixes": True, "chunks": True} | changes)
    assert not [name for name in planned(traits=traits) if name.startswith(absent)]
    assert [name for name in planned() if name.startswith(absent)]


def test_a_flight_keeps_to_its_companions() -> None:
    rule = InFlight(max_rows=8, companions=Companions.SAME_DECISION)
    for batch in planned(batching=rule)["rows-4"].batches:
        assert len({at // 3 for at in batch.rows}) == 1


def test_requests_one_by_one_vary_in_nothing_but_their_moment() -> None:
    found = planned(traits=FlightTraits(), batching=InFlight(max_rows=1))
    assert {len(b.rows) for c in found.values() for b in c.batches} == {1}
    assert found["backwards"].batches == found["rows-1"].batches[::-1]


def test_traits_are_those_of_the_engine_and_the_head() -> None:
    odds = LogOdds(yes=("y",), no=("n",))
    judge = a_spec("m", odds, engine=Vllm(prefix_caching=True), reasoning_tokens=3)
    assert flight_traits(judge) == FlightTraits(
        decodes=True, caches_prefixes=True, chunks=True, num_reasoning=3
    )
    pooler = a_spec("m", Reward(), engine=Vllm(chunked_prefill=False))
    assert flight_traits(pooler) == FlightTraits()
    assert flight_traits(a_spec("m", Reward())) == FlightTraits()
