"""Digests of what a slot of a serving engine computes from.

An engine sees token ids; it does not know which of them are the branch, so these digests are not
those of `harness.verifiers.protocol.EncodedRow`, and the two are never compared: a commit is
replayed on the engine that wrote it.

* `prompt_digest`: SHA-256 of the prompt's token ids as little-endian 32-bit integers, followed by
  whatever else the prompt is made of (the identifiers of images, an adapter's name), each behind a
  zero byte, which no token stream of whole integers can be confused with, since its length is told
  first. It stands for every slot that computes only prompt tokens;
* `sequence_digest`: SHA-256 of that digest and the tokens generated so far, for a slot that reaches
  beyond the prompt.

Which part of the sequence a slot computes is told by its token counts, not by its digest.
"""

import sys
from array import array
from collections.abc import Iterable, Sequence
from hashlib import sha256

__all__ = ["prompt_digest", "sequence_digest"]

_TOKEN = "I"  # noqa: S105 - a type code


def prompt_digest(token_ids: Sequence[int], others: Iterable[str] = ()) -> str:
    """Return the digest of a prompt; `others` name what it holds besides tokens."""
    total = sha256(len(token_ids).to_bytes(8, "little") + _bytes_of(token_ids))
    for other in others:
        total.update(b"\0" + other.encode())
    return f"sha256:{total.hexdigest()}"


def sequence_digest(prompt: str, generated: Sequence[int]) -> str:
    """Return the digest of a prompt, by its own, followed by `generated` tokens, if any."""
    if not generated:
        return prompt
    return f"sha256:{sha256(prompt.encode() + _bytes_of(generated)).hexdigest()}"


def _bytes_of(token_ids: Sequence[int]) -> bytes:
    tokens = array(_TOKEN, token_ids)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tobytes()
