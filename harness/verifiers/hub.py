"""Fetches a checkpoint from a hub, or from its local cache when the hub does not answer.

The hub is asked once, with a deadline, before anything is downloaded: the client library retries
for minutes when nothing answers.
"""

from pathlib import Path

from harness.errors import ModelLoadError

__all__ = ["fetch_checkpoint"]

ASK_TIMEOUT_S = 4.0
"""Deadline of the one question; the client may ask it twice."""

_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.py"]


def fetch_checkpoint(model: str, revision: str | None) -> Path:
    """Return the local folder of hub model `model`.

    Raises ModelLoadError when it is neither on the hub nor in the cache.
    """
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - not on the planner's side

    try:
        folder = snapshot_download(
            model,
            revision=revision,
            allow_patterns=_FILES,
            local_files_only=not _hub_answers(model, revision),
        )
    except Exception as error:
        cause = (str(error) or type(error).__name__).splitlines()[0]
        advice = "give a folder, embedded:reward or embedded:lm, or check the name and the network"
        raise ModelLoadError(
            f"model {model!r}: no such folder, and not from a hub ({cause}); {advice}"
        ) from error
    return Path(folder)


def _hub_answers(model: str, revision: str | None) -> bool:
    from huggingface_hub import HfApi  # noqa: PLC0415 - not on the planner's side
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

    try:
        HfApi().model_info(model, revision=revision, timeout=ASK_TIMEOUT_S)
    except HfHubHTTPError:
        return True  # an answer, if not the one that was hoped for: downloading says more
    except Exception:  # noqa: BLE001 - no network, a silent one, offline mode, no valid name
        return False
    return True
