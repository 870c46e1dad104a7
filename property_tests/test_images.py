"""Laws of rows with images: a token gets the feature of its own image, however rows are arranged.

A law gets `arrange`, which divides a batch among ranks and micro-batches, and `slots`, which finds the feature of each
token. Each law detects its mutants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import Tensor

from purerl.backends.hf.decoder.images import _slots
from purerl.backends.hf.training.layout import MicroBatch, arrange, arrange_packs
from purerl.backends.training import Budget
from purerl.batch import collate, with_fields
from purerl.ranks import Ranks

PAD, TEXT, PLACEHOLDER = 0, 1, 2
COUNTS = {11: 1, 5: 3, 8: 2, 2**62: 4}  # content id: number of features

Feature = tuple[int, int]
"""Content id of an image, and the index of the feature in it."""


class Case(NamedTuple):
    """Rows, as the images of each; what they are divided by; and the order in which they come."""

    rows: list[list[int]]
    ranks: int
    budget: int
    order: list[int]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rows = draw(st.lists(st.lists(st.sampled_from([*COUNTS]), max_size=3), min_size=1, max_size=6))
    order = draw(st.permutations(range(len(rows))))
    return Case(rows, draw(st.integers(1, 3)), draw(st.integers(1, 60)), order)


def _images(part: MicroBatch) -> tuple[int, ...] | None:
    """The content ids of the images of `part`; None if no rank has images in it."""
    return None if part.extras is None else part.extras.images


def batch_of(case: Case) -> TensorDict:
    """Rows of text around images, in the order of the case; two neighbors have the same prompt label."""
    rows = []
    for number in case.order:
        tokens, image = [TEXT], [0]
        for content in case.rows[number]:
            tokens += [PLACEHOLDER] * COUNTS[content] + [TEXT]
            image += [content] * COUNTS[content] + [0]
        before = len(tokens)
        rows.append(
            {
                "tokens": [*tokens, TEXT, TEXT],
                "image": [*image, 0, 0],
                "action": [False] * before + [True, True],
                "row": number,
                "group": number // 2,
            }
        )
    return collate(rows)


def features_of(number: int, case: Case) -> list[Feature | None]:
    """The expected feature of each token of a row; None for text."""
    features: list[Feature | None] = [None]
    for content in case.rows[number]:
        features += [*((content, k) for k in range(COUNTS[content])), None]
    return [*features, None, None]


def padded(batch: TensorDict, case: Case, rank: int) -> list[MicroBatch]:
    return arrange(batch, unit="row", budget=Budget(case.budget), share=False, ranks=Ranks(rank, case.ranks))


def shared(batch: TensorDict, case: Case, rank: int) -> list[MicroBatch]:
    return arrange(batch, unit="group", budget=Budget(case.budget), share=True, ranks=Ranks(rank, case.ranks))


def packed(batch: TensorDict, case: Case, rank: int) -> list[MicroBatch]:
    return arrange_packs(batch, unit="row", budget=Budget(case.budget), ranks=Ranks(rank, case.ranks))


def each_token_gets_the_feature_of_its_image(arrange: Callable, slots: Callable, case: Case) -> None:
    batch, seen = batch_of(case), []
    for rank in range(case.ranks):
        for part in arrange(batch, case, rank):
            rows = batch[part.rows]
            has_images = bool((rows["image"] > 0).any())
            assert not has_images or _images(part), "the micro-batch does not know of its images"
            ids = _images(part) or ()
            table = [(content, k) for content in ids for k in range(COUNTS[content])]
            found = slots(rows["tokens"] == PLACEHOLDER, rows["image"], ids, [COUNTS[content] for content in ids])
            for row, line in zip(rows["row"].tolist(), found.tolist(), strict=True):
                expected = features_of(row, case)
                assert [table[slot - 1] if slot else None for slot in line[: len(expected)]] == expected
                assert not any(line[len(expected) :]), "padding has no feature"
                seen.append(row)
    assert sorted(seen) == [*range(len(case.rows))], "every row is read once"


def ranks_agree_where_images_are_read(arrange: Callable, slots: Callable, case: Case) -> None:
    """A vision tower that is divided over ranks is called by all of them, or by none."""
    batch = batch_of(case)
    parts = [arrange(batch, case, rank) for rank in range(case.ranks)]
    assert len({len(of_rank) for of_rank in parts}) == 1
    for together in zip(*parts, strict=True):
        assert len({_images(part) is None for part in together}) == 1
        assert (_images(together[0]) is None) == (not any(batch["image"][part.rows].any() for part in together))


LAWS = (each_token_gets_the_feature_of_its_image, ranks_agree_where_images_are_read)
ARRANGEMENTS = (padded, shared, packed)


# --- mutants -------------------------------------------------------------------------------------------------------


def without_the_field(batch: TensorDict, case: Case, rank: int) -> list[MicroBatch]:
    return padded(batch.exclude("image"), case, rank)


def images_of_neighbors(batch: TensorDict, case: Case, rank: int) -> list[MicroBatch]:
    return padded(with_fields(batch, image=batch["image"].roll(1, 0)), case, rank)


def own_images_only(batch: TensorDict, case: Case, rank: int) -> list[MicroBatch]:
    return [part._replace(extras=part.extras if _images(part) else None) for part in padded(batch, case, rank)]


def in_order_of_appearance(is_placeholder: Tensor, image: Tensor, ids: Any, counts: Any) -> Tensor:
    """Features are taken one after the other, whatever the image."""
    where = is_placeholder & (image > 0)
    return torch.where(where, where.flatten().cumsum(0).view(image.shape), 0) % (sum(counts) + 1)


def first_feature(is_placeholder: Tensor, image: Tensor, ids: Any, counts: Any) -> Tensor:
    """All tokens of an image get its first feature."""
    first = torch.tensor([0, *counts]).cumsum(0)[:-1]
    number = torch.searchsorted(torch.tensor([*ids, 2**63 - 1]), image).clamp(max=max(0, len(ids) - 1))
    return torch.where(is_placeholder & (image > 0), 1 + first[number], 0)


MUTANTS: Mapping[Callable, tuple[tuple[Callable, Callable], ...]] = {
    each_token_gets_the_feature_of_its_image: (
        (without_the_field, _slots),
        (images_of_neighbors, _slots),
        (padded, in_order_of_appearance),
        (padded, first_feature),
    ),
    ranks_agree_where_images_are_read: ((without_the_field, _slots), (own_images_only, _slots)),
}

REPEATED = Case([[5, 11, 5], [], [8], [2**62, 5]], ranks=2, budget=20, order=[2, 0, 3, 1])
"""An image that is twice in a row, a row of text, and images that others have too."""


def check(law: Callable, arrange: Callable, slots: Callable, *, examples: int, phases: tuple[Phase, ...]) -> None:
    @settings(max_examples=examples, phases=(Phase.explicit, *phases), derandomize=True, deadline=None)
    @example(REPEATED)
    @given(cases())
    def test(case: Case) -> None:
        law(arrange, slots, case)

    test()


@pytest.mark.parametrize("arrange", ARRANGEMENTS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("law", LAWS, ids=lambda each: each.__name__)
def test_law_holds(law: Callable, arrange: Callable) -> None:
    check(law, arrange, _slots, examples=25, phases=(Phase.generate, Phase.shrink))


@pytest.mark.parametrize(
    ("law", "arrange", "slots"),
    [
        pytest.param(law, *mutant, id=f"{law.__name__}-{mutant[0].__name__}-{mutant[1].__name__}")
        for law, mutants in MUTANTS.items()
        for mutant in mutants
    ],
)
def test_mutant_is_detected(law: Callable, arrange: Callable, slots: Callable) -> None:
    with pytest.raises((AssertionError, IndexError)):
        check(law, arrange, slots, examples=200, phases=(Phase.generate,))
