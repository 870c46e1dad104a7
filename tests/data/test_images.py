"""Images in the rows of data files: where they are, and which tokens stand for them."""

from __future__ import annotations

import base64
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from purerl.data.chat import Chat, image_ids, open_chat, tokenize_prompts
from purerl.data.examples import (
    DataSet,
    extract_answers,
    extract_prompt,
    prompts_at,
    read_examples,
    rows_at,
    tokenized_at,
)
from purerl.data.row_images import as_json, images_of, text_of
from purerl.data.split import is_validation
from purerl.data.turn_tokens import open_turns
from purerl.errors import ConfigError, DataError
from purerl.images import Image, hex_id
from purerl.models.processor import Processor, load_processor
from purerl.settings import Model
from tests.backends.tiny import write_model
from tests.backends.vision import FAMILIES, picture, tokenizer, user, write_vision_model

from .made import CHATML, write
from .made import tokenizer as text_tokenizer

FIRST, SECOND = picture(1), picture(2, (40, 16))
ANSWER = {"role": "assistant", "content": "two"}
_STRUCT = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def _text(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def _shown(messages: Any) -> str:
    """Messages as text, with the number of each image in place of it."""
    numbers = {Image(FIRST).id: "[1]", Image(SECOND).id: "[2]"}
    shown = []
    for message in messages:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        shown += [part["text"] if part["type"] == "text" else numbers[part["image"].id] for part in parts]
        shown.append("|")
    return "".join(shown)


def _read(path: Path, row: dict[str, Any], kind: str = "prompts", types: dict[str, Any] | None = None) -> DataSet:
    """A data set with this row, in a file beside the two images."""
    (path.parent / "files").mkdir(parents=True, exist_ok=True)
    (path.parent / "files" / "1.png").write_bytes(FIRST)
    (path.parent / "files" / "2.png").write_bytes(SECOND)
    if types:
        table = pa.Table.from_pylist([row])
        fields = [pa.field(f.name, types.get(f.name, f.type)) for f in table.schema]
        pyarrow.parquet.write_table(pa.Table.from_pylist([row], schema=pa.schema(fields)), path)
        return read_examples([str(path)], kind)
    return read_examples([write(path, [row])], kind)


BOTH = [{"bytes": FIRST, "path": None}, {"bytes": SECOND, "path": None}]
PLACES = [{"type": "image"}, {"type": "text", "text": "and"}, {"type": "image"}, {"type": "text", "text": "?"}]
PROMPTS: dict[str, tuple[dict[str, Any], str]] = {
    "verl": ({"prompt": [_text("<image>and<image>?")], "images": BOTH}, "[1]and[2]?|"),
    "TRL": ({"prompt": [_text("?")], "images": BOTH}, "[1][2]?|"),
    "TRL, one image": ({"prompt": [_text("?")], "image": {"bytes": FIRST, "path": "x.png"}}, "[1]?|"),
    "TRL, after a system prompt": (
        {"prompt": [{"role": "system", "content": "s"}, _text("?")], "image": {"bytes": FIRST, "path": None}},
        "s|[1]?|",
    ),
    "Hugging Face": ({"prompt": [{"role": "user", "content": PLACES}], "images": BOTH}, "[1]and[2]?|"),
    "bytes": ({"prompt": [_text("?")], "image": FIRST}, "[1]?|"),
    "lists of bytes": ({"prompt": [_text("?")], "images": [SECOND, FIRST]}, "[2][1]?|"),
    "own images": ({"prompt": [user(FIRST, "and", SECOND, "?")]}, "[1]and[2]?|"),
    "paths beside the file": ({"prompt": [_text("<image>?")], "images": ["files/1.png"]}, "[1]?|"),
    "path of a structure": ({"prompt": [_text("?")], "image": {"bytes": None, "path": "files/2.png"}}, "[2]?|"),
    "several messages": (
        {"prompt": [_text("a<image>"), ANSWER, _text("<image>b")], "images": BOTH},
        "a[1]|two|[2]b|",
    ),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_images_of_a_prompt_are_found(name: str, tmp_path: Path) -> None:
    row, shown = PROMPTS[name]
    data = _read(tmp_path / "rows.parquet", row, types={"image": _STRUCT} if "structure" in name else None)
    assert data.example_format.has_images
    [example] = rows_at(data, [0])
    assert _shown(extract_prompt(data.example_format, example)) == shown


JSON_LINES: dict[str, tuple[dict[str, Any], str]] = {
    "paths": ({"prompt": [_text("<image>and<image>?")], "images": ["files/1.png", "files/2.png"]}, "[1]and[2]?|"),
    "OpenAI": (
        {
            "prompt": [
                {"role": "system", "content": "s"},  # a string beside a list of parts
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "?"},
                        {"type": "image_url", "image_url": {"url": _url(SECOND)}},
                    ],
                },
            ]
        },
        "s|?[2]|",
    ),
    "Hugging Face's keys": (
        {
            "prompt": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image", "path": "files/1.png"},
                        {"type": "image", "base64": base64.b64encode(SECOND).decode()},
                        {"type": "text", "text": "?"},
                    ],
                }
            ]
        },
        "[1][2]?|",
    ),
}


@pytest.mark.parametrize("name", JSON_LINES)
def test_images_of_json_lines_are_found(name: str, tmp_path: Path) -> None:
    row, shown = JSON_LINES[name]
    data = _read(tmp_path / "rows.jsonl", row)
    assert _shown(extract_prompt(data.example_format, rows_at(data, [0])[0])) == shown


def test_images_are_taken_by_prompt_and_answers_in_turn(tmp_path: Path) -> None:
    conversation = [_text("<image>?"), ANSWER, _text("<image>!"), ANSWER]
    data = _read(tmp_path / "a.parquet", {"messages": conversation, "images": BOTH}, "demonstrations")
    [example] = rows_at(data, [0])
    assert _shown(extract_prompt(data.example_format, example)) == "[1]?|"
    assert [_shown(answer) for answer in extract_answers(data.example_format, example)] == ["two|[2]!|two|"]

    row = {"prompt": [_text("<image>?")], "chosen": [_text("<image>"), ANSWER], "rejected": [_text("<image>x"), ANSWER]}
    data = _read(tmp_path / "b.parquet", row | {"images": BOTH}, "preferences")
    [example] = rows_at(data, [0])
    answers = [_shown(answer) for answer in extract_answers(data.example_format, example)]
    assert answers == ["[2]|two|", "[2]x|two|"]

    row = {"chosen": [_text("<image>?"), ANSWER], "rejected": [_text("<image>?"), {**ANSWER, "content": "three"}]}
    data = _read(tmp_path / "c.parquet", row | {"images": BOTH[:1]}, "preferences")
    [example] = rows_at(data, [0])
    assert _shown(extract_prompt(data.example_format, example)) == "[1]?|"


NO_IMAGES = {
    "text beside a column of names": {"prompt": "2+2", "image": "python:3.11"},
    "messages beside a column of names": {"prompt": [_text("2+2")], "image": "python:3.11"},
    "parts that are text": {"prompt": [user("2", "+2")], "image": "python:3.11"},
}


@pytest.mark.parametrize("name", NO_IMAGES)
def test_other_columns_and_parts_are_no_images(name: str, tmp_path: Path) -> None:
    data = _read(tmp_path / "rows.parquet", NO_IMAGES[name])
    assert not data.example_format.has_images
    prompt = extract_prompt(data.example_format, rows_at(data, [0])[0])
    assert (prompt if isinstance(prompt, str) else prompt[0]["content"]) == "2+2"


WRONG = {
    "more images than places": ({"prompt": [_text("<image>?")], "images": BOTH}, "2 in the row, and 1 places"),
    "more places than images": ({"prompt": [_text("<image><image>?")], "image": FIRST}, "1 in the row, and 2 places"),
    "no user": ({"prompt": [{"role": "system", "content": "s"}], "image": FIRST}, "no message of the user"),
    "a URL": ({"prompt": [_text("<image>")], "images": ["https://a.b/c.png"]}, "the URL 'https://a.b/c.png'"),
    "no file": ({"prompt": [_text("<image>")], "images": ["files/3.png"]}, "No such file"),
    "a video": ({"prompt": [{"role": "user", "content": [{"type": "video"}]}]}, "need: the type text, image"),
    "base64": ({"prompt": [_text("<image>")], "images": ["data:image/png;base64,???"]}, "not valid"),
    "two ways": ({"prompt": [user(FIRST)], "image": SECOND}, "some in a column of their own, and some in messages"),
    "no image": ({"prompt": [_text("?")], "image": b"text"}, "no image in a format that Pillow reads"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_images_are_refused_with_the_row(name: str, tmp_path: Path, chat: Chat) -> None:
    row, message = WRONG[name]
    data = _read(tmp_path / "rows.parquet", row)
    with pytest.raises(DataError, match=r"row 0 of .*rows.parquet") as error:
        prompts_at(chat, data, [0], rows_at(data, [0]))
    assert message in str(error.value)


def test_images_beside_plain_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="prompts that are plain text"):
        _read(tmp_path / "rows.parquet", {"problem": "<image>?", "images": BOTH})


def test_text_and_images_may_be_in_one_run(tmp_path: Path) -> None:
    with_images = write(tmp_path / "a.parquet", [{"prompt": [_text("<image>?")], "images": BOTH[:1]}])
    without = write(tmp_path / "b.parquet", [{"prompt": [_text("?")]}])
    data = read_examples([without, with_images], "prompts")
    prompts = [extract_prompt(data.example_format, row) for row in rows_at(data, [0, 1])]
    assert list(map(_shown, prompts)) == ["?|", "[1]?|"]


def test_validation_set_depends_on_the_image() -> None:
    prompts = [[{"role": "user", "content": [{"type": "image", "image": Image(picture(k))}]}] for k in range(40)]
    chosen = [is_validation(prompt, fraction=0.3) for prompt in prompts]
    assert chosen == [is_validation(prompt, fraction=0.3) for prompt in prompts]
    assert 0 < sum(chosen) < 40


# --- tokens --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_vision_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def chat(path: str) -> Chat:
    return open_chat(tokenizer(), "messages", processor=load_processor(Model(path)))


def _message(*parts: str | bytes) -> dict[str, Any]:
    content = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": Image(part)}
        for part in parts
    ]
    return {"role": "user", "content": content}


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "gemma3"])
def test_tokens_are_those_of_the_processor(family: str, tmp_path: Path) -> None:
    processor = load_processor(Model(write_vision_model(tmp_path, family)))
    made = open_chat(tokenizer(FAMILIES[family]["placeholder"]), "messages", processor=processor)
    wide = picture(3, (60, 20))
    [prompt] = tokenize_prompts(made, [[_message("a ", FIRST, wide, " b", FIRST)]])
    pictures = [_pillow(data) for data in (FIRST, wide, FIRST)]
    encoded = processor._processor(text=[prompt.text], images=pictures, add_special_tokens=False)
    assert prompt.tokens == list(encoded["input_ids"][0])
    assert [image.id for image in prompt.images] == [Image(data).id for data in (FIRST, wide, FIRST)]
    ids = image_ids(made, prompt.tokens, prompt.images)
    runs = [ids[0], *(after for before, after in pairwise(ids) if after != before)]
    expected = [0, Image(FIRST).id, Image(wide).id, 0, Image(FIRST).id, 0]
    assert [each for each in runs if each] == [each for each in expected if each]
    assert sum(map(bool, ids)) == sum(len(processor.expansion(image)) for image in prompt.images)
    placeholders = [k for k, token in enumerate(prompt.tokens) if token == processor.image_token_id]
    assert all(ids[k] for k in placeholders)


def _pillow(data: bytes) -> Any:
    from purerl.images import decode

    return decode(data)


def test_text_alone_has_the_same_tokens_with_and_without_a_processor(chat: Chat) -> None:
    plain = open_chat(tokenizer(), "messages")
    for messages in ([_text("2+2?")], [_text("2+2?"), ANSWER, _text("3?")]):
        assert tokenize_prompts(chat, [messages]) == tokenize_prompts(plain, [messages])


def test_text_that_spells_the_placeholder_is_refused_or_escaped(chat: Chat) -> None:
    injected = [_message("<|image_pad|>", FIRST)]
    with pytest.raises(DataError, match=r"2 placeholders <\|image_pad\|> in the rendered text, and 1 images"):
        tokenize_prompts(chat, [injected])
    escaping = open_chat(tokenizer(), "messages", processor=chat.processor, special_tokens="escape")
    [prompt] = tokenize_prompts(escaping, [injected])
    ids = image_ids(escaping, prompt.tokens, prompt.images)
    assert sum(map(bool, ids)) == prompt.tokens.count(chat.processor.image_token_id) == 12


def test_a_template_that_shows_no_images_is_refused(chat: Chat) -> None:
    template = "{%- for message in messages -%}{{ message.content[-1].text }}{%- endfor -%}"
    words = tokenizer()
    words.chat_template = template
    silent = open_chat(words, "messages", processor=chat.processor)
    with pytest.raises(DataError, match="0 placeholders .* and 1 images"):
        tokenize_prompts(silent, [[_message(FIRST, "?")]])


def test_images_without_a_processor_are_refused() -> None:
    with pytest.raises(DataError, match="1 images"):
        tokenize_prompts(open_chat(tokenizer(), "messages"), [[_message(FIRST, "?")]])


def test_answers_after_images_are_learned_and_images_are_not(tmp_path: Path, chat: Chat) -> None:
    conversation = [_text("<image>?"), ANSWER, _text("<image>!"), ANSWER]
    data = _read(tmp_path / "a.parquet", {"messages": conversation, "images": BOTH}, "demonstrations")
    [example] = tokenized_at(chat, data, 0, rows_at(data, [0])[0])
    learned = [token for token, is_learned in zip(example.tokens, example.action, strict=True) if is_learned]
    assert chat.tokenizer.decode(learned) == "two<|im_end|>two<|im_end|>"
    assert example.images == [Image(FIRST), Image(SECOND)]
    [prompt] = tokenize_prompts(chat, [[_message(FIRST, "?")]])
    assert example.tokens[: len(prompt.tokens)] == prompt.tokens
    ids = image_ids(chat, example.tokens, example.images)
    assert not any(image and is_learned for image, is_learned in zip(ids, example.action, strict=True))
    assert [ids.count(Image(data).id) for data in (FIRST, SECOND)] == [12, 10]


def test_turns_continue_with_images(chat: Chat) -> None:
    turns = open_turns(chat)
    before = [_message(FIRST, "?")]
    prompt = turns.prompt(before)
    assert prompt == tokenize_prompts(chat, [before])[0]
    sampled = chat.tokenizer("two<|im_end|>", add_special_tokens=False)["input_ids"]
    added = turns.following(before, sampled, [_message("and ", SECOND)])
    whole = turns.prompt([*before, ANSWER, _message("and ", SECOND)])
    assert [*prompt.tokens, *sampled, *added] == whole.tokens
    assert [bool(each) for each in image_ids(chat, added, [Image(SECOND)])].count(True) == 10


def test_messages_as_json_have_the_ids_of_their_images() -> None:
    message = _message("a", FIRST)
    assert as_json(message)["content"][1] == {"type": "image", "image": hex_id(Image(FIRST).id)}
    assert text_of(message["content"]) == "a"
    assert images_of([message, ANSWER]) == [Image(FIRST)]


def test_a_text_model_has_no_processor(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="and images in its prompts"):
        load_processor(Model(write_model(tmp_path)))


def test_a_processor_that_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    path = Path(write_vision_model(tmp_path))
    (path / "preprocessor_config.json").unlink()
    with pytest.raises(ConfigError, match="no processor can be loaded from the directory"):
        load_processor(Model(str(path)))


def test_a_size_that_the_processor_refuses_is_an_error(chat: Chat) -> None:
    processor: Processor = chat.processor
    with pytest.raises(DataError, match="2000 x 4 pixels: absolute aspect ratio"):
        processor.expansion(Image(picture(0, (2000, 4))))


def test_text_templates_get_strings(tmp_path: Path) -> None:
    data = _read(tmp_path / "rows.parquet", {"prompt": [user("2", "+2")]})
    [prompt] = prompts_at(open_chat(text_tokenizer(CHATML), "messages"), data, [0], rows_at(data, [0]))
    assert prompt.text == "<|im_start|>user\n2+2<|im_end|>\n<|im_start|>assistant\n"
