"""The server's side of a build: the engine's facts, with digests of what it loaded its model from.

The digests are of the checkpoint on the disk, read once and when first asked for. That the engine
loaded just these bytes is not checked: no one asks a running engine for its weights.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from harness.codec import digest
from harness.errors import InvalidRecordError
from harness.files import read_bytes
from harness.records.build import Build
from harness.records.document import Record
from harness.records.invocation import PrecisionMode, PrecisionName, ReductionOrder
from harness.records.verifier import VerifierSpec
from harness.serving.engine_facts import EngineFacts
from harness.verifiers.checkpoint import find_checkpoint

__all__ = ["ServerBuild", "build_of", "precision_of", "reduction_order_of", "server_build"]

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


class ServerBuild(Record, frozen=True, kw_only=True):
    """What a server says of itself."""

    facts: EngineFacts
    """As the engine resolved them."""
    weights_digest: str
    """As `Build` has it, of the checkpoint on the disk."""
    tokenizer_digest: str
    """Digest of the tokenizer's files."""


def server_build(facts: Mapping[str, Any]) -> ServerBuild:
    """Return the build of an engine with these `facts`, as its log has them.

    Raises ModelLoadError when its checkpoint cannot be read.
    """
    try:
        engine = msgspec.convert(facts, EngineFacts)
    except msgspec.ValidationError as error:
        raise InvalidRecordError(f"the step log's facts of its engine: {error}") from error
    return ServerBuild(
        facts=engine,
        weights_digest=find_checkpoint(engine.model, None).digest(),
        tokenizer_digest=_tokenizer_digest(Path(find_checkpoint(engine.tokenizer, None).folder)),
    )


def build_of(server: ServerBuild, verifier: VerifierSpec) -> Build:
    """Return the build that scores with `verifier` on this server are of."""
    facts = server.facts
    return Build(
        weights_digest=server.weights_digest,
        tokenizer_digest=server.tokenizer_digest,
        prompt_digest=digest(
            [verifier.prompt, verifier.max_tokens, verifier.overflow, verifier.reasoning_tokens]
        ),
        head_digest=digest(verifier.head),
        engine=facts.engine,
        libraries=facts.libraries,
        parallel_layout=facts.parallel_layout,
        device=facts.device,
        device_name=facts.device_name,
        device_capability=facts.device_capability,
        kernel_environment=facts.kernel_environment,
        verifier=verifier,
    )


def precision_of(facts: EngineFacts) -> PrecisionMode:
    """Return the precision mode of an engine; nothing was asked for, so nothing is requested."""
    try:
        name = PrecisionName(facts.dtype)
    except ValueError as error:
        raise InvalidRecordError(f"dtype {facts.dtype!r} is no precision mode") from error
    narrow = facts.precision.get("float32_matmul_precision", "highest") != "highest"
    if name is PrecisionName.FLOAT32 and narrow:
        name = PrecisionName.TF32
    return PrecisionMode(name=name, requested={}, resolved=facts.precision)


def reduction_order_of(facts: EngineFacts) -> ReductionOrder:
    """Return the reduction order of an engine: its libraries' own unless it says invariant."""
    invariant = facts.kernel_environment.get("VLLM_BATCH_INVARIANT") == "1"
    name = "batch_invariant" if invariant else "vendor"
    return ReductionOrder(name=name, requested={}, resolved=facts.order)


def _tokenizer_digest(folder: Path) -> str:
    present = [folder / name for name in _TOKENIZER_FILES if (folder / name).is_file()]
    return digest({path.name: read_bytes(path).hex() for path in present})
