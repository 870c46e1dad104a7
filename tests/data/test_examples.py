"""The order of draws, mixtures of files, and what an example's prompt and answers are."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from purerl.data.chat import open_chat
from purerl.data.columns import LAYOUTS, Layout
from purerl.data.examples import (
    DataSet,
    answers_of,
    indices_of_draws,
    part_of_draw,
    positions_of_draws,
    prompt_of,
    prompts_at,
    read_examples,
    rows_at,
    split_out,
    tokenized_at,
)
from purerl.errors import DataError

from .made import CHATML, STRICT, assistant, system, tokenizer, user, write


def _files(folder: Path, *sizes: int) -> list[str]:
    """Files of so many rows each, with prompts such as b3: row 3 of the second."""
    names = "abc"[: len(sizes)]
    return [
        write(folder / f"{name}.parquet", [{"prompt": f"{name}{k}", name: k} for k in range(size)])
        for name, size in zip(names, sizes, strict=True)
    ]


# --- order -------------------------------------------------------------------------------------------------------


def test_every_pass_is_a_permutation_and_passes_differ() -> None:
    first, second = positions_of_draws(50, 3, 0, 50), positions_of_draws(50, 3, 50, 50)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert positions_of_draws(50, 4, 0, 50) != first


def test_the_order_does_not_depend_on_how_it_is_cut() -> None:
    assert [
        *positions_of_draws(7, 0, 0, 5),
        *positions_of_draws(7, 0, 5, 11),
        *positions_of_draws(7, 0, 16, 4),
    ] == positions_of_draws(7, 0, 0, 20)


def test_a_mixture_goes_on_where_it_was_left(tmp_path: Path) -> None:
    data = read_examples(_files(tmp_path, 5, 9, 3), "prompts", weights=(1, 2.5, 0.5))
    whole = indices_of_draws(data, 7, 0, 200)
    cuts = [0, 1, 2, 30, 31, 99, 200]
    parts = [indices_of_draws(data, 7, a, b - a) for a, b in pairwise(cuts)]
    assert [index for part in parts for index in part] == whole
    assert indices_of_draws(data, 8, 0, 200) != whole


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.1, 0.9), (5, 3, 2), (1e-3, 1, 1)])
def test_after_any_number_of_draws_every_file_has_had_its_share(weights: tuple[float, ...]) -> None:
    counts, total = Counter(), sum(weights)
    for draw in range(3000):
        part, number = part_of_draw(draw, weights)
        assert number == counts[part], "draws from a file are numbered one after the other"
        counts[part] += 1
        for k, weight in enumerate(weights):
            assert abs(counts[k] - (draw + 1) * weight / total) < k + 1 + 1e-9


def test_in_a_mixture_each_file_is_passed_through_whole_in_an_order_of_its_own(tmp_path: Path) -> None:
    data = read_examples(_files(tmp_path, 8, 8), "prompts", weights=(3, 1))
    prompts = [row["prompt"] for row in rows_at(data, indices_of_draws(data, 0, 0, 32))]
    first, second = ([name for name in prompts if name[0] == file] for file in "ab")
    assert (len(first), len(second)) == (24, 8)
    assert all(len({*first[k : k + 8]}) == 8 for k in (0, 8, 16))
    assert len({*second}) == 8
    assert [name[1:] for name in first[:8]] != [name[1:] for name in second]


def test_files_without_weights_are_one(tmp_path: Path) -> None:
    data = read_examples(_files(tmp_path, 2, 6), "prompts")
    assert sorted(indices_of_draws(data, 0, 0, 8)) == list(range(8))
    prompts = [row["prompt"] for row in rows_at(data, indices_of_draws(data, 0, 8, 8))]
    assert sorted(prompts) == ["a0", "a1", "b0", "b1", "b2", "b3", "b4", "b5"]


# --- rows --------------------------------------------------------------------------------------------------------


def test_an_example_is_the_row_of_its_file_and_nothing_more(tmp_path: Path) -> None:
    data = read_examples(_files(tmp_path, 2, 3), "prompts")
    assert rows_at(data, [4, 0, 2]) == [{"prompt": "b2", "b": 2}, {"prompt": "a0", "a": 0}, {"prompt": "b0", "b": 0}]


def test_the_first_so_many_rows(tmp_path: Path) -> None:
    assert read_examples(_files(tmp_path, 2, 3), "prompts", limit=3).indices == [0, 1, 2]


def test_rows_that_are_left_out_keep_the_numbers_of_the_others(tmp_path: Path) -> None:
    data = read_examples(_files(tmp_path, 2000, 3), "prompts", weights=(1, 1))
    left, out = split_out(data, lambda indices, rows: [row["prompt"].endswith("1") for row in rows])
    assert out.indices == [*range(1, 2000, 10), 2001]
    assert [len(part) for part in left.parts] == [1800, 2]
    assert rows_at(left, left.parts[1]) == [{"prompt": "b0", "b": 0}, {"prompt": "b2", "b": 2}]
    assert not {*indices_of_draws(left, 0, 0, 3000)} & {*out.indices}


CASES: list[tuple[Layout, dict[str, Any], Any, list[Any]]] = [
    (LAYOUTS[2], {"question": "q", "answer": "a"}, "q", []),
    (LAYOUTS[5], {"prompt": "p", "completion": "c"}, "p", ["c"]),
    (
        LAYOUTS[6],
        {"messages": [system("s"), user("a"), assistant("b"), user("c"), assistant("d")]},
        [system("s"), user("a")],
        [[assistant("b"), user("c"), assistant("d")]],
    ),
    (LAYOUTS[8], {"prompt": "p", "chosen": "c", "rejected": "r"}, "p", ["c", "r"]),
    (
        LAYOUTS[9],
        {
            "prompt": "b",
            "chosen": [user("a"), assistant("b"), user("c"), assistant("d")],
            "rejected": [user("a"), assistant("b"), user("c"), assistant("e")],
        },
        [user("a"), assistant("b"), user("c")],
        [[assistant("d")], [assistant("e")]],
    ),
]


@pytest.mark.parametrize(("layout", "example", "prompt", "answers"), CASES, ids=lambda value: str(value)[:20])
def test_a_prompt_and_its_answers(layout: Layout, example: dict, prompt: Any, answers: list) -> None:
    assert prompt_of(layout, example) == prompt
    assert answers_of(layout, example) == answers


def test_files_of_different_layouts_are_no_run(tmp_path: Path) -> None:
    one = write(tmp_path / "one.jsonl", [{"prompt": "a"}])
    other = write(tmp_path / "other.jsonl", [{"prompt": [user("a")]}])
    with pytest.raises(DataError) as caught:
        read_examples([one, other], "prompts")
    assert str(caught.value) == (
        "files of one run\n"
        f"  got:  prompts: prompt (text) in {one!r}, prompts: prompt (messages) in {other!r}\n"
        "  need: the same columns of the same form\n"
        "  do:   rename columns, or render one of them"
    )


def test_a_row_that_cannot_be_rendered_is_named(tmp_path: Path) -> None:
    def data(*rows: dict) -> DataSet:
        other = write(tmp_path / "good.jsonl", [{"messages": [user("a"), assistant("b")]}])
        return read_examples([other, write(tmp_path / "bad.jsonl", rows)], "demonstrations")

    wrong = data({"messages": [user("a"), assistant("b")]}, {"messages": [system("s"), user("a")]})
    for template, message in ((STRICT, "the chat template refuses"), (CHATML, "a conversation without anything")):
        chat, rows = open_chat(tokenizer(template), "messages"), rows_at(wrong, [0, 1, 2])
        with pytest.raises(DataError) as caught:
            _ = prompts_at(chat, wrong, [0, 1, 2], rows), tokenized_at(chat, wrong, 2, rows[2])
        assert str(caught.value).startswith(f"row 1 of {str(tmp_path / 'bad.jsonl')!r}: {message}")
