"""The order of draws, mixtures of files, and the extraction of prompts and answers."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from purerl.data.chat import open_chat
from purerl.data.columns import EXAMPLE_FORMATS, ExampleFormat
from purerl.data.examples import (
    DataSet,
    extract_answers,
    extract_prompt,
    indices_of_draws,
    part_of_draw,
    positions_of_draws,
    prompts_at,
    read_examples,
    rows_at,
    split_out,
    tokenized_at,
)
from purerl.errors import DataError

from .made import CHATML, STRICT, assistant, system, tokenizer, user, write


def _write_files(directory: Path, *sizes: int) -> list[str]:
    """Write files with the given numbers of rows. Prompt "b3" is row 3 of the second file."""
    names = "abc"[: len(sizes)]
    return [
        write(directory / f"{name}.parquet", [{"prompt": f"{name}{k}", name: k} for k in range(size)])
        for name, size in zip(names, sizes, strict=True)
    ]


# --- order -------------------------------------------------------------------------------------------------------


def test_every_epoch_is_a_different_permutation() -> None:
    first, second = positions_of_draws(50, 3, 0, 50), positions_of_draws(50, 3, 50, 50)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert positions_of_draws(50, 4, 0, 50) != first


def test_order_does_not_depend_on_the_batch_boundaries() -> None:
    assert [
        *positions_of_draws(7, 0, 0, 5),
        *positions_of_draws(7, 0, 5, 11),
        *positions_of_draws(7, 0, 16, 4),
    ] == positions_of_draws(7, 0, 0, 20)


def test_order_of_a_mixture_does_not_depend_on_the_batch_boundaries(tmp_path: Path) -> None:
    data = read_examples(_write_files(tmp_path, 5, 9, 3), "prompts", weights=(1, 2.5, 0.5))
    expected = indices_of_draws(data, 7, 0, 200)
    boundaries = [0, 1, 2, 30, 31, 99, 200]
    batches = [indices_of_draws(data, 7, start, end - start) for start, end in pairwise(boundaries)]
    assert [index for batch in batches for index in batch] == expected
    assert indices_of_draws(data, 8, 0, 200) != expected


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.1, 0.9), (5, 3, 2), (1e-3, 1, 1)])
def test_every_prefix_of_the_draws_follows_the_weights(weights: tuple[float, ...]) -> None:
    counts, total = Counter(), sum(weights)
    for draw in range(3000):
        part, number = part_of_draw(draw, weights)
        assert number == counts[part], "the draws from a part are numbered consecutively"
        counts[part] += 1
        for k, weight in enumerate(weights):
            assert abs(counts[k] - (draw + 1) * weight / total) < k + 1 + 1e-9


def test_every_file_of_a_mixture_has_its_own_epochs_and_order(tmp_path: Path) -> None:
    data = read_examples(_write_files(tmp_path, 8, 8), "prompts", weights=(3, 1))
    prompts = [row["prompt"] for row in rows_at(data, indices_of_draws(data, 0, 0, 32))]
    first, second = ([name for name in prompts if name[0] == file] for file in "ab")
    assert (len(first), len(second)) == (24, 8)
    assert all(len({*first[k : k + 8]}) == 8 for k in (0, 8, 16))
    assert len({*second}) == 8
    assert [name[1:] for name in first[:8]] != [name[1:] for name in second]


def test_files_without_weights_share_one_permutation(tmp_path: Path) -> None:
    data = read_examples(_write_files(tmp_path, 2, 6), "prompts")
    assert sorted(indices_of_draws(data, 0, 0, 8)) == list(range(8))
    prompts = [row["prompt"] for row in rows_at(data, indices_of_draws(data, 0, 8, 8))]
    assert sorted(prompts) == ["a0", "a1", "b0", "b1", "b2", "b3", "b4", "b5"]


# --- rows --------------------------------------------------------------------------------------------------------


def test_example_has_only_the_columns_of_its_file(tmp_path: Path) -> None:
    data = read_examples(_write_files(tmp_path, 2, 3), "prompts")
    assert rows_at(data, [4, 0, 2]) == [{"prompt": "b2", "b": 2}, {"prompt": "a0", "a": 0}, {"prompt": "b0", "b": 0}]


def test_limit_selects_the_first_rows(tmp_path: Path) -> None:
    assert read_examples(_write_files(tmp_path, 2, 3), "prompts", limit=3).indices == [0, 1, 2]


def test_split_out_does_not_change_the_indices_of_other_rows(tmp_path: Path) -> None:
    data = read_examples(_write_files(tmp_path, 2000, 3), "prompts", weights=(1, 1))
    remaining, out = split_out(data, lambda indices, rows: [row["prompt"].endswith("1") for row in rows])
    assert out.indices == [*range(1, 2000, 10), 2001]
    assert [len(part) for part in remaining.parts] == [1800, 2]
    assert rows_at(remaining, remaining.parts[1]) == [{"prompt": "b0", "b": 0}, {"prompt": "b2", "b": 2}]
    assert not {*indices_of_draws(remaining, 0, 0, 3000)} & {*out.indices}


EXAMPLES: list[tuple[ExampleFormat, dict[str, Any], Any, list[Any]]] = [
    (EXAMPLE_FORMATS[2], {"question": "q", "answer": "a"}, "q", []),
    (EXAMPLE_FORMATS[5], {"prompt": "p", "completion": "c"}, "p", ["c"]),
    (
        EXAMPLE_FORMATS[6],
        {"messages": [system("s"), user("a"), assistant("b"), user("c"), assistant("d")]},
        [system("s"), user("a")],
        [[assistant("b"), user("c"), assistant("d")]],
    ),
    (EXAMPLE_FORMATS[8], {"prompt": "p", "chosen": "c", "rejected": "r"}, "p", ["c", "r"]),
    (
        EXAMPLE_FORMATS[9],
        {
            "prompt": "b",
            "chosen": [user("a"), assistant("b"), user("c"), assistant("d")],
            "rejected": [user("a"), assistant("b"), user("c"), assistant("e")],
        },
        [user("a"), assistant("b"), user("c")],
        [[assistant("d")], [assistant("e")]],
    ),
]


@pytest.mark.parametrize(
    ("example_format", "example", "prompt", "answers"), EXAMPLES, ids=lambda value: str(value)[:20]
)
def test_prompt_and_answers_are_extracted(
    example_format: ExampleFormat, example: dict, prompt: Any, answers: list
) -> None:
    assert extract_prompt(example_format, example) == prompt
    assert extract_answers(example_format, example) == answers


def test_files_of_different_formats_are_refused(tmp_path: Path) -> None:
    text = write(tmp_path / "text.jsonl", [{"prompt": "a"}])
    chat = write(tmp_path / "chat.jsonl", [{"prompt": [user("a")]}])
    with pytest.raises(DataError) as caught:
        read_examples([text, chat], "prompts")
    assert str(caught.value) == (
        "the files of one run have different formats\n"
        f"  got:  prompts: prompt (text) in {text!r}, prompts: prompt (messages) in {chat!r}\n"
        "  need: the same columns in the same format in all files\n"
        "  do:   rename columns, or convert one of the files"
    )


def test_row_that_cannot_be_rendered_is_named(tmp_path: Path) -> None:
    def data(*rows: dict) -> DataSet:
        valid = write(tmp_path / "valid.jsonl", [{"messages": [user("a"), assistant("b")]}])
        return read_examples([valid, write(tmp_path / "invalid.jsonl", rows)], "demonstrations")

    invalid = data({"messages": [user("a"), assistant("b")]}, {"messages": [system("s"), user("a")]})
    for template, message in (
        (STRICT, "the chat template raised an error"),
        (CHATML, "the conversation has no assistant tokens"),
    ):
        chat, rows = open_chat(tokenizer(template), "messages"), rows_at(invalid, [0, 1, 2])
        with pytest.raises(DataError) as caught:
            _ = prompts_at(chat, invalid, [0, 1, 2], rows), tokenized_at(chat, invalid, 2, rows[2])
        assert str(caught.value).startswith(f"row 1 of {str(tmp_path / 'invalid.jsonl')!r}: {message}")
