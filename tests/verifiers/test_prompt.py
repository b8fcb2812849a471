"""From a context and a branch to tokens: verbatim, the branch found again, nothing in silence."""

import json
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from harness.errors import ConfigError, InputFileError
from harness.records.verifier import Message, Overflow, Prompt
from harness.verifiers import EncodedRow, RowText
from harness.verifiers.embedded import checkpoint
from harness.verifiers.prompt import PlainTemplate, TokenLimit, encode_rows, plain_template

LIMIT = TokenLimit(max_tokens=500, overflow=Overflow.ERROR)
CHAT = (
    "{% for message in messages %}<bos>{{ message.role }}: {{ message.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
TALK = (
    Message(role="system", content="Judge {context}"),
    Message(role="user", content="Is it {branch}?"),
)
TOKENIZER: Any = AutoTokenizer.from_pretrained(checkpoint("reward"))


def with_chat(folder: Path, template: str = CHAT) -> Any:
    """A tokenizer with a chat template, as a checkpoint would bring it."""
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(checkpoint("reward") / name, folder / name)
    (folder / "chat_template.jinja").write_text(template)
    return AutoTokenizer.from_pretrained(folder)


def adding_bos(folder: Path) -> Any:
    """A tokenizer that adds its own BOS, as Llama's does."""
    with_chat(folder)
    plain = json.loads((folder / "tokenizer.json").read_text())
    bos = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
    plain["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [
            bos,
            {"Sequence": {"id": "A", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [1], "tokens": ["<bos>"]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(plain))
    return PreTrainedTokenizerFast.from_pretrained(folder)


def encode(
    template: str, *texts: RowText, tokenizer: Any = TOKENIZER, limit: TokenLimit = LIMIT
) -> list[EncodedRow]:
    return encode_rows(
        PlainTemplate(text=template, add_special_tokens=False), texts, tokenizer, limit
    )


def branch_text(row: EncodedRow) -> str:
    decoded: str = TOKENIZER.decode(row.token_ids[row.branch_start : row.branch_end])
    return decoded


def test_a_template_is_filled_and_nothing_is_added() -> None:
    (row,) = encode("<bos>{context}<sol>{branch}<eos>", RowText(context="2+2", branch="=4"))
    assert TOKENIZER.decode(row.token_ids) == "<bos>2+2<sol>=4<eos>"
    assert (row.branch_start, row.branch_end, row.num_dropped) == (5, 7, 0)


def test_a_chat_is_rendered_by_the_tokenizers_own_template(tmp_path: Path) -> None:
    tokenizer = with_chat(tmp_path)
    text = RowText(context="2+2", branch="4")
    for opening in (False, True):
        prompt = Prompt(chat=TALK, add_generation_prompt=opening)
        (row,) = encode_rows(plain_template(prompt, tokenizer), [text], tokenizer, LIMIT)
        messages = [
            {"role": "system", "content": "Judge 2+2"},
            {"role": "user", "content": "Is it 4?"},
        ]
        expected = tokenizer.apply_chat_template(
            messages, add_generation_prompt=opening, return_dict=False
        )
        assert list(row.token_ids) == expected
        assert branch_text(row) in {"4", " 4"}


BAD_CHATS = {
    "drops the system message": (
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
        r"loses or repeats \{context\}",
    ),
    "repeats the user's": (
        "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}",
        r"loses or repeats \{branch\}",
    ),
    "refuses": ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
}


@pytest.mark.parametrize("name", BAD_CHATS)
def test_a_chat_template_that_does_otherwise_is_refused(tmp_path: Path, name: str) -> None:
    template, message = BAD_CHATS[name]
    with pytest.raises(ConfigError, match=message):
        plain_template(Prompt(chat=TALK), with_chat(tmp_path, template))


def test_a_chat_needs_a_chat_template() -> None:
    with pytest.raises(ConfigError, match=r"no chat template; use prompt\.template"):
        plain_template(Prompt(chat=TALK), TOKENIZER)


def test_a_second_bos_is_refused(tmp_path: Path) -> None:
    tokenizer = adding_bos(tmp_path)
    text = RowText(context="c", branch="b", name="row 1")
    once = PlainTemplate(text="{context}{branch}", add_special_tokens=True)
    (row,) = encode_rows(once, [text], tokenizer, LIMIT)
    assert row.token_ids[0] == tokenizer.bos_token_id
    twice = PlainTemplate(text="<bos>{context}{branch}", add_special_tokens=True)
    with pytest.raises(ConfigError, match="row 1: the row begins with '<bos>' twice"):
        encode_rows(twice, [text], tokenizer, LIMIT)
    smuggled = RowText(context="<bos>c", branch="b", name="row 2")
    with pytest.raises(ConfigError, match="row 2: the row begins with '<bos>' twice"):
        encode_rows(once, [text, smuggled], tokenizer, LIMIT)


@pytest.mark.parametrize(
    "branch",
    ["{context}", "{branch}", "{}{0}%s", "é😀", "\u65e5\u672c", "a\u0301", "<sol>", "\n\n", " x "],
)
def test_a_branch_is_found_again_whatever_it_holds(branch: str) -> None:
    text = RowText(context="see {branch} and {context}.", branch=branch)
    (row,) = encode("<bos>{context}<sol>{branch}<eos>", text)
    assert branch_text(row) == unicodedata.normalize("NFC", branch)
    assert TOKENIZER.decode(row.token_ids[: row.branch_start]) == (
        "<bos>see {branch} and {context}.<sol>"
    )


@given(
    context=st.text(max_size=20),
    branch=st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable()),
)
def test_branch_tokens_are_those_that_touch_the_branch(context: str, branch: str) -> None:
    (row,) = encode("{context}|{branch}|", RowText(context=context, branch=branch))
    assert 0 <= row.branch_start < row.branch_end <= len(row.token_ids)
    covered = branch_text(row)
    assert unicodedata.normalize("NFC", branch).strip() in covered


def test_an_empty_branch_is_refused_by_name() -> None:
    with pytest.raises(InputFileError, match="row 7: the branch has no token"):
        encode("{context}{branch}", RowText(context="c", branch="", name="row 7"))


def test_a_row_that_is_too_long_is_refused_by_name() -> None:
    limit = TokenLimit(max_tokens=6, overflow=Overflow.ERROR)
    fits = RowText(context="123", branch="456", name="fits")
    assert len(encode("{context}{branch}", fits, limit=limit)[0].token_ids) == 6
    long = RowText(context="1234", branch="567", name="decision 'd', branch 'b'")
    message = r"decision 'd', branch 'b': the row is too long \(7 tokens, 6 allowed\)"
    with pytest.raises(InputFileError, match=message):
        encode("{context}{branch}", fits, long, limit=limit)


@pytest.mark.parametrize(
    ("max_tokens", "start", "end", "dropped"),
    [(8, 4, 7, 0), (7, 3, 6, 1), (4, 0, 3, 4), (2, 0, 1, 6)],
)
def test_keeping_the_end_is_counted(max_tokens: int, start: int, end: int, dropped: int) -> None:
    limit = TokenLimit(max_tokens=max_tokens, overflow=Overflow.KEEP_END)
    (row,) = encode("{context}{branch}|", RowText(context="1234", branch="567"), limit=limit)
    assert TOKENIZER.decode(row.token_ids) == "1234567|"[-max_tokens:]
    assert (row.branch_start, row.branch_end, row.num_dropped) == (start, end, dropped)


def test_a_branch_is_never_dropped_whole() -> None:
    limit = TokenLimit(max_tokens=1, overflow=Overflow.KEEP_END)
    with pytest.raises(InputFileError, match="row 7: truncation would drop the whole branch"):
        encode("{context}{branch}|", RowText(context="1", branch="5", name="row 7"), limit=limit)
