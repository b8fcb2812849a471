"""How a context and a branch become text, and text becomes a row of tokens.

A chat prompt is rendered once, with its placeholders in it, so that every row is the same plain
template filled in, verbatim. Nothing is added that the config does not say. A branch token is one
that overlaps the branch's characters.
"""

from collections.abc import Sequence
from typing import Any

from harness.errors import ConfigError, InputFileError
from harness.records.document import Record
from harness.records.verifier import Overflow, Prompt
from harness.verifiers.protocol import EncodedRow, RowText

__all__ = ["PlainTemplate", "TokenLimit", "encode_rows", "plain_template"]


class PlainTemplate(Record, frozen=True, kw_only=True):
    """A prompt as one text with placeholders."""

    text: str
    """Text that holds ``{branch}`` once and ``{context}`` at most once."""
    add_special_tokens: bool
    """Whether the tokenizer adds its own tokens."""

    def fill(self, row: RowText) -> tuple[str, int, int]:
        """Return the row's text, and where the branch starts and ends in it, in characters."""
        before, _, after = self.text.partition("{branch}")
        before, after = (part.replace("{context}", row.context) for part in (before, after))
        return before + row.branch + after, len(before), len(before) + len(row.branch)


class TokenLimit(Record, frozen=True, kw_only=True):
    """The longest row, and what happens to longer ones."""

    max_tokens: int
    """Tokens in the longest row."""
    overflow: Overflow
    """What happens to longer rows."""


def plain_template(prompt: Prompt, tokenizer: Any) -> PlainTemplate:
    """Return `prompt` as plain text, its chat rendered with the placeholders in it.

    Raises ConfigError when the tokenizer has no chat template or it loses a placeholder.
    """
    if prompt.template is not None:
        return PlainTemplate(text=prompt.template, add_special_tokens=prompt.add_special_tokens)
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigError("prompt.chat: this tokenizer has no chat template; use prompt.template")
    messages = [{"role": message.role, "content": message.content} for message in prompt.chat]
    try:
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=prompt.add_generation_prompt
        )
    except Exception as error:
        raise ConfigError(f"prompt.chat: the chat template refuses it: {error}") from error
    _refuse_lost(prompt, text)
    return PlainTemplate(text=text, add_special_tokens=prompt.add_special_tokens)


def _refuse_lost(prompt: Prompt, rendered: str) -> None:
    written = "".join(message.content for message in prompt.chat)
    for field in ("{branch}", "{context}"):
        if rendered.count(field) != written.count(field):
            raise ConfigError(f"prompt.chat: the chat template loses or repeats {field}")


def encode_rows(
    template: PlainTemplate, texts: Sequence[RowText], tokenizer: Any, limit: TokenLimit
) -> list[EncodedRow]:
    """Tokenize `texts`.

    Raises InputFileError naming the row when it is too long, or when its branch has no token.
    """
    if not texts:
        return []
    filled = [template.fill(row) for row in texts]
    encoding = tokenizer(
        [text for text, _, _ in filled],
        add_special_tokens=template.add_special_tokens,
        return_offsets_mapping=True,
        return_attention_mask=False,
        return_token_type_ids=False,
    )
    rows = [
        _row(ids, offsets, span)
        for ids, offsets, (_, *span) in zip(
            encoding["input_ids"], encoding["offset_mapping"], filled, strict=True
        )
    ]
    for row, text in zip(rows, texts, strict=True):
        _refuse_double_bos(row, text, tokenizer)
    return [_limited(row, text, limit) for row, text in zip(rows, texts, strict=True)]


def _row(ids: list[int], offsets: list[tuple[int, int]], span: list[int]) -> EncodedRow:
    start, end = span
    inside = [at for at, (left, right) in enumerate(offsets) if right > start and left < end]
    first = inside[0] if inside else 0
    return EncodedRow(
        token_ids=tuple(ids), branch_start=first, branch_end=inside[-1] + 1 if inside else first
    )


def _limited(row: EncodedRow, text: RowText, limit: TokenLimit) -> EncodedRow:
    if row.branch_end == row.branch_start:
        raise InputFileError(f"{text.name}: the branch has no token; give it some text")
    excess = len(row.token_ids) - limit.max_tokens
    if excess <= 0:
        return row
    if limit.overflow is Overflow.ERROR:
        length = f"{len(row.token_ids)} tokens, {limit.max_tokens} allowed"
        advice = "shorten it, raise verifier.max_tokens, or set verifier.overflow: keep_end"
        raise InputFileError(f"{text.name}: the row is too long ({length}); {advice}")
    start = max(row.branch_start - excess, 0)
    if row.branch_end - excess <= start:
        raise InputFileError(f"{text.name}: truncation would drop the whole branch")
    return EncodedRow(
        token_ids=row.token_ids[excess:],
        branch_start=start,
        branch_end=row.branch_end - excess,
        num_dropped=excess,
    )


def _refuse_double_bos(row: EncodedRow, text: RowText, tokenizer: Any) -> None:
    bos = tokenizer.bos_token_id
    if bos is not None and row.token_ids[:2] == (bos, bos):
        advice = "the prompt writes it and the tokenizer adds it: set add_special_tokens: false"
        begins = f"the row begins with {tokenizer.bos_token!r} twice"
        raise ConfigError(f"prompt: {text.name}: {begins}; {advice}")
