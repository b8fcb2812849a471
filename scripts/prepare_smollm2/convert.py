"""The model: one quantised GGUF file made into a plain bfloat16 checkpoint.

Decides that the result counts only when it computes what the loaded GGUF computes: equal logits,
bit for bit, and text that survives encoding and decoding. The directory appears whole or not at
all. transformers cannot save the object it loads from a GGUF, so the state moves to a plain model.
"""

import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import ConfigError, ModelLoadError

if TYPE_CHECKING:
    import torch

__all__ = ["check_libraries", "convert"]

_LIBRARIES = ("torch", "transformers", "gguf", "accelerate")

_PROBE = "To solve 12 + 345, we add:\n\nf(1) = 3, so f(6) = 29 and the answer is \\sqrt{2}."

_GGUF_ONLY = ("quantization_config", "_name_or_path", "_model_name_or_path", "architectures")
"""Config entries that speak of the file the weights came from."""


def check_libraries() -> None:
    """Raise ConfigError, naming the extra to install, when a library is missing."""
    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"reading the GGUF needs {', '.join(missing)}: pip install 'scorepin[smollm2]'"
        )


def convert(gguf: Path, directory: Path) -> None:
    """Write the model in the file `gguf` to the new `directory`.

    Raises ModelLoadError when the converted model is not the same function of its input.
    """
    check_libraries()
    tokenizer, loaded = _load(gguf)
    temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        _plain_copy(loaded).save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        _check_round_trip(temporary)
        _check_logits(tokenizer, loaded, temporary)
        _open_to_readers(temporary)
        temporary.replace(directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _open_to_readers(directory: Path) -> None:
    """Undo the private modes of temporary directories and of safetensors' writer."""
    directory.chmod(0o755)
    for path in directory.iterdir():
        path.chmod(0o644)


def _load(gguf: Path) -> tuple[Any, Any]:
    import torch  # noqa: PLC0415 - the check for libraries comes first
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    folder, name = gguf.parent, gguf.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.bfloat16)
    return tokenizer, model.eval()


def _plain_copy(loaded: Any) -> Any:
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, LlamaConfig  # noqa: PLC0415

    entries = loaded.config.to_dict()
    config = LlamaConfig(**{key: entries[key] for key in entries if key not in _GGUF_ONLY})
    maker: Any = AutoModelForCausalLM
    # Made in bfloat16, not cast: `.to` would round the rotary frequencies as well.
    plain = maker.from_config(config, dtype=torch.bfloat16)
    try:
        plain.load_state_dict(loaded.state_dict(), strict=True)
    except RuntimeError as error:
        # Some versions keep the weights packed; packed ones do not fit a plain model.
        raise ModelLoadError(
            f"the GGUF was not loaded as plain tensors ({error}); try transformers 5.24"
        ) from error
    return plain


def _check_round_trip(directory: Path) -> None:
    from transformers import AutoTokenizer  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(directory)
    decoded = tokenizer.decode(tokenizer(_PROBE, add_special_tokens=False).input_ids)
    if decoded != _PROBE:
        raise ModelLoadError(f"the tokenizer changes text: {_PROBE!r} came back as {decoded!r}")


def _check_logits(tokenizer: Any, loaded: Any, directory: Path) -> None:
    """Compare what was written, read back, with the model in the GGUF."""
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    written: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16)
    inputs = tokenizer(_PROBE, return_tensors="pt")
    expected, actual = _logits(loaded, inputs), _logits(written.eval(), inputs)
    if not bool(torch.isfinite(expected).all()):
        raise ModelLoadError("the GGUF gives logits that are not finite")
    if not torch.equal(expected, actual):
        difference = float((expected - actual).abs().max())
        raise ModelLoadError(f"the converted model's logits differ by up to {difference}")


def _logits(model: Any, inputs: Any) -> "torch.Tensor":
    import torch  # noqa: PLC0415

    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=inputs.input_ids).logits.float()
    return logits
