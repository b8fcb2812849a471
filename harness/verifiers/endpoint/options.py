"""What can be asked of a foreign server, and what cannot: pure.

Its precision is its operator's, who says which server runs which; its order of sums, its steps and
its cache are its own. Only who is sent together, in which order, is the client's.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from harness.conditions.condition import Condition
from harness.conditions.flight import Flight
from harness.conditions.reduction_order import ReductionOrderSpec
from harness.errors import ConfigError, UnsupportedConditionError, nearest
from harness.records.engine import Dialect, Endpoint
from harness.records.invocation import PrecisionName
from harness.records.verifier import (
    ExpectedGrade,
    Head,
    HeadDtype,
    LogOdds,
    Reward,
    VerifierSpec,
)

__all__ = ["endpoint_of", "refuse_ambiguous", "refuse_flight", "refuse_unsupported", "url_of"]


def endpoint_of(spec: VerifierSpec) -> Endpoint:
    """Return the spec's engine; raise UnsupportedConditionError when it is another kind."""
    if not isinstance(spec.engine, Endpoint):
        raise UnsupportedConditionError("verifier.engine: endpoint is needed here")
    return spec.engine


def url_of(engine: Endpoint, precision: PrecisionName) -> str:
    """Return the address of the server in `precision`; UnsupportedConditionError where none is."""
    if str(precision) not in engine.urls:
        raise UnsupportedConditionError(
            f"engine endpoint: no server for {precision}; a client cannot change a server's "
            f"precision: start one in {precision} and name it in engine.urls"
        )
    return engine.urls[str(precision)]


def refuse_unsupported(spec: VerifierSpec, condition: Condition) -> None:
    """Raise what an endpoint, if it is the engine, cannot do; ConfigError for an unknown mode."""
    engine = spec.engine
    if not isinstance(engine, Endpoint):
        return
    for name in engine.urls:
        if name not in set(PrecisionName):
            raise ConfigError(f"engine.urls: {name!r}; {nearest(name, map(str, PrecisionName))}")
    url_of(engine, condition.precision)
    for problem in _problems(spec.head, engine, condition):
        raise UnsupportedConditionError(f"engine endpoint: {problem}")


def refuse_flight(flight: Flight, num_rows: int, engine: Endpoint) -> None:
    """Raise UnsupportedConditionError for a flight that only an engine of ours can take."""
    plain, fields = Flight(), Flight.__struct_fields__
    asked = [name for name in fields if getattr(flight, name) != getattr(plain, name)]
    if asked:
        raise UnsupportedConditionError(
            f"{', '.join(asked)}: cannot be asked of a foreign server, only who is sent together; "
            "record the server (docs/serving.md), or take engine vllm"
        )
    if num_rows > engine.num_connections:
        raise UnsupportedConditionError(
            f"a flight of {num_rows} requests and {engine.num_connections} connections: raise "
            "engine.num_connections, or lower batching.max_rows"
        )


def refuse_ambiguous(texts: Sequence[str], vocabulary: Sequence[str]) -> None:
    """Raise UnsupportedConditionError when another token is written like one of the head's."""
    written = Counter(vocabulary)
    for text in texts:
        if written[text] > 1:
            raise UnsupportedConditionError(
                f"head: {written[text]} tokens are written {text!r}, and in dialect openai a "
                "server names a token by its text; take dialect vllm, or another token"
            )


def _problems(head: Head, engine: Endpoint, condition: Condition) -> Iterator[str]:
    if condition.reduction_order != ReductionOrderSpec(name="vendor"):
        yield "reduction_order: the server's own; write {name: vendor} and nothing more"
    if condition.precision_overrides:
        yield "precision_overrides: the server's switches are its operator's"
    if not isinstance(head, LogOdds | ExpectedGrade | Reward):
        yield (
            f"head {type(head).__name__}: log_odds, expected_grade and reward can be read off a "
            "server; for others use engine vllm or transformers"
        )
    if isinstance(head, Reward) and engine.dialect is not Dialect.VLLM:
        yield "head reward: /classify is vLLM's; take dialect vllm"
    if head.dtype is not HeadDtype.MODEL:
        yield f"head.dtype {head.dtype}: the server's operator chooses it; write model"
