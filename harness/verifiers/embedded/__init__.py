"""The small trained verifier that ships inside the package, and its labelled decisions.

Decides where those files lie on this machine, and nothing else: it loads no weights and imports
neither torch nor transformers, so a command can print a path or list decisions at no cost.
"""

from pathlib import Path

from harness.errors import ConfigError, nearest

__all__ = ["CHECKPOINTS", "checkpoint", "decisions_file"]

_HERE = Path(__file__).parent

CHECKPOINTS = ("lm", "reward")
"""`reward`: one logit, above 0 means right. `lm`: the same backbone with a language-model head."""


def checkpoint(name: str) -> Path:
    """Return the directory of an embedded checkpoint (config, safetensors, tokenizer).

    Raises ConfigError for a name that is not in `CHECKPOINTS`.
    """
    if name not in CHECKPOINTS:
        advice = nearest(name, CHECKPOINTS)
        raise ConfigError(f"no embedded checkpoint is named {name!r}: {advice}")
    return _HERE / name


def decisions_file() -> Path:
    """Return the JSON Lines file of 400 held-out decisions, one decision a line."""
    return _HERE / "decisions.jsonl"
