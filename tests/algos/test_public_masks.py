"""Every public function of `purerl.algos` with a mask refuses one that is not bool, with the same message."""

from __future__ import annotations

import pytest
import torch

from purerl.algos.parts.rows import broadcast_to_tokens
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
