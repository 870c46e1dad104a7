"""The message of a law that fails: the law in words, what often breaks it, and a batch that can be read."""

from __future__ import annotations

import re

import pytest
import torch

from purerl.algos import grpo, remax
from purerl.algos.algebra import Algorithm, stateless, write_field
from purerl.batch import with_fields
from purerl.testing import LAWS, check_algorithm, example_batch, fields_of
from purerl.testing.laws.law import law_and_violations
from purerl.testing.table import batch_table

LAYOUT = ((7, "..aax"), (7, ".a"), (-2, ".x"), (-2, ".aa"), (-2, ".a.a"))
BY_NAME = {law.__name__: law for law in LAWS}


def with_row_advantage(function) -> Algorithm:
    """GRPO with the advantage function(batch), [rows], at every counted token."""

    def advantage(batch):
        return torch.where(batch["mask"], function(batch)[:, None], 0)

    return grpo.algorithm()._replace(advantage=stateless(write_field("advantage", advantage)))


def score_minus_mean_of_all_rows(batch):
    return batch["reward"].sum(-1) - batch["reward"].sum(-1).mean()


def score_plus_position(batch):
    return batch["reward"].sum(-1) + torch.arange(len(batch))


def message_of(name: str, algorithm: Algorithm, batch) -> str:
    with pytest.raises(AssertionError) as caught:
        BY_NAME[name](algorithm, batch)
    return str(caught.value)


def example(algorithm: Algorithm):
    return example_batch(fields_of(algorithm), LAYOUT, seed=2)


def marked(message: str) -> tuple[int, int]:
    """The row and the token that the table of `message` marks."""
    [(row, letters)] = re.findall(r"\n    \* row (\d+), group.*\n.*\n(.*)\n", message)
    return int(row), next(time for time, letter in enumerate(letters.split()) if letter.startswith("*"))


@pytest.mark.parametrize("law", LAWS, ids=BY_NAME)
def test_every_law_says_what_it_is_and_what_breaks_it(law):
    text, violations = law_and_violations(law)
    assert text.endswith(".")
    assert violations
    assert "Common violation" not in text + violations


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("masked_row_invariance", score_minus_mean_of_all_rows),
        ("permutation_equivariance", score_plus_position),
        ("group_independence", score_minus_mean_of_all_rows),
        ("padding_invariance", score_minus_mean_of_all_rows),
    ],
)
def test_the_token_of_the_difference_is_marked(name, function):
    """Its index is that of the batch in the message, also if the law compares other rows or another order."""
    algorithm = with_row_advantage(function)
    batch = example(algorithm)
    message = message_of(name, algorithm, batch)
    [found] = re.findall(rf"^{name}: field advantage at \[(\d), (\d)\]: got ", message)
    assert marked(message) == (*map(int, found),)
    assert batch["mask"][marked(message)]
    if name == "group_independence":
        assert marked(message)[0] >= 2, "a row of another group than the one that was changed"


def test_a_token_that_compaction_moves_is_marked_where_it_was():
    def advantage(batch):
        return with_fields(
            batch, advantage=torch.where(batch["mask"], torch.arange(batch["mask"].shape[1]), 0.0).double()
        )

    algorithm = grpo.algorithm()._replace(advantage=stateless(advantage))
    assert marked(message_of("compaction_invariance", algorithm, example(algorithm))) == (0, 2)


def test_table_has_only_the_fields_that_the_algorithm_reads_rounded():
    algorithm = remax.algorithm()
    batch = example(algorithm)
    table = batch_table(with_fields(batch, old_logp=batch["logp"]), fields_of(algorithm), (4, 1))
    assert table.count("reward") == len(LAYOUT)
    assert table.count("greedy_score") == len(LAYOUT), "in the line of the row"
    assert "old_logp" not in table
    assert max(len(digits.replace(".", "").lstrip("0")) for digits in re.findall(r"-?(\d+\.\d+)", table)) <= 4
    assert "TensorDict" not in table


def test_table_of_many_rows_shows_the_group_of_the_difference():
    algorithm = grpo.algorithm()
    layout = tuple((k // 4, ".a") for k in range(40))
    table = batch_table(example_batch(fields_of(algorithm), layout), fields_of(algorithm), (37,))
    shown = [int(row) for row in re.findall(r"row (\d+), group", table)]
    assert shown == [0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 39]
    assert table.endswith("\n  and 28 more rows")


def test_check_algorithm_removes_rows_from_the_batch_of_the_message():
    algorithm = with_row_advantage(score_minus_mean_of_all_rows)
    exempt = [law.__name__ for law in LAWS if law.__name__ != "masked_row_invariance"]
    with pytest.raises(AssertionError, match=r"^masked_row_invariance: field advantage at") as caught:
        check_algorithm(algorithm, exempt=exempt)
    assert len(re.findall(r"row \d+, group", str(caught.value))) <= 3
    [note] = caught.value.__notes__
    batch = eval(note.removeprefix("batch = "), {"example_batch": example_batch})
    assert str(caught.value) == message_of("masked_row_invariance", algorithm, batch)
