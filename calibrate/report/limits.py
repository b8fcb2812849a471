"""What a tolerance file must not be used for, said in sentences that follow from what it holds."""

from harness.records.tolerance import AxisStatus, Tolerance, ToleranceFile
from harness.records.verifier import Device

__all__ = ["arm_limits", "file_limits"]


def file_limits(file: ToleranceFile) -> tuple[str, ...]:
    """Return what holds for every tolerance of the file."""
    build = file.build.build_id.removeprefix("sha256:")[:16]
    facts = "other weights, tokenizer, prompt, library versions or kernels"
    return (
        f"Any other build than {build}, with {facts}: its records are unjudged.",
        _other_device(file),
        "Decisions unlike those it was measured on: the bounds hold for decisions drawn like them.",
        "Saying whether the verifier is right: only how far its scores move is bounded.",
        *((f"Replays judged after {file.expires_at}.",) if file.expires_at else ()),
    )


def arm_limits(tolerance: Tolerance) -> tuple[str, ...]:
    """Return what holds for one condition and batching mode."""
    batches, bound = tolerance.batches, tolerance.envelope
    padding = " or ".join(batches.sides)
    padded = f"padded {padding}" if padding else "unpadded"
    unknown = [a.axis for a in tolerance.axes if a.status is AxisStatus.NOT_EXERCISED]
    beyond = f"{bound.exceedance_rate_upper:.2%} (confidence {bound.confidence:.3g})"
    size = f"of up to {batches.max_rows} rows and {batches.max_width} tokens, {padded}"
    untried = f"Claims about {_listed(unknown)}: not exercised, nothing is known."
    return (
        f"Other batches than {batches.mode}, {size}.",
        f"A promise about every decision in other batches: up to {beyond} exceed the envelope.",
        *((untried,) if unknown else ()),
    )


def _other_device(file: ToleranceFile) -> str:
    build = file.build
    if build.device not in set(Device):
        return "Any other device: the server does not name its own, so a change goes unseen."
    cpu = ", a CPU" if build.device == Device.CPU else ""
    return f"Any other device than {build.device_name}{cpu}."


def _listed(names: list[str]) -> str:
    return ", ".join(name.replace("_", " ") for name in names)
