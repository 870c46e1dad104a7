"""Every public function of `purerl.algos` with a mask refuses one that is not bool, with the same message."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from purerl.algos import sequence_mean_of_token_mean, token_mean, token_sum, whiten
from purerl.algos.algebra import Counts
from purerl.algos.parts.rows import broadcast_to_tokens, row_mean, row_sum
from purerl.errors import InputError
from tests.algos.public_functions import MASKS, PUBLIC, arguments, parameters_of, results_of

CASES = [(name, key) for name, f in PUBLIC.items() for key, types in parameters_of(f).items() if types & MASKS]
MESSAGE = r"^a mask that is not bool\n  got:  torch\.\w+ \[5(, \d)?\]\n  need: True or False for each token or row"


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8, torch.float32])
@pytest.mark.parametrize(("name", "key"), CASES)
def test_mask_that_is_not_bool_is_refused(name, key, dtype):
    given = arguments(name)
    with pytest.raises(InputError, match=MESSAGE):
        results_of(name, given | {key: given[key].to(dtype)})


def test_all_functions_with_masks_are_tried():
    assert len(CASES) > 90


def test_message_is_the_same_under_vmap():
    x, mask = torch.ones(2, 3), torch.ones(2, 3, 4, dtype=torch.int64)
    with pytest.raises(InputError, match=r"got:  torch\.int64 \[3, 4\]"):
        torch.func.vmap(broadcast_to_tokens)(x, mask)


@pytest.mark.parametrize("reduce", [token_mean, token_sum, sequence_mean_of_token_mean, row_sum, row_mean, whiten])
def test_a_mask_of_rows_is_no_mask_of_tokens(reduce: Callable[..., Tensor]) -> None:
    counts = [Counts(torch.tensor(3), torch.tensor(3))] if reduce.__module__.endswith("reductions") else []
    for x, mask in ((torch.ones(3, 3), torch.ones(3) > 0), (torch.ones(3), torch.ones(3, 3) > 0)):
        with pytest.raises(InputError, match=r"^a mask of another shape\n  got:  \[3"):
            reduce(x, mask, *counts)
