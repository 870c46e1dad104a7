"""Every law catches what it is there for, on the batches on which the algorithms of the package satisfy it."""

from __future__ import annotations

import re

import pytest
from drawing import hold
from hypothesis import Phase
from mutants import MUTANTS, Mutant

from purerl.algos import algebra, grpo
from purerl.testing import LAWS

NAMED = {law.__name__: law for law in LAWS}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught(mutant: Mutant):
    with pytest.raises(AssertionError, match=f"^{mutant.law}: .*{re.escape(mutant.says)}"):
        hold(NAMED[mutant.law], mutant.algorithm, phases=(Phase.explicit, Phase.generate))


def test_every_law_has_a_mutant():
    assert {mutant.law for mutant in MUTANTS} == set(NAMED)


def test_a_verb_that_does_not_neutralise_is_caught(monkeypatch):
    """0 times NaN: `torch.where` in the reduction keeps NaN out of the loss, but not out of its gradient."""
    monkeypatch.setattr(algebra, "neutralise", lambda batch, where: batch)
    with pytest.raises(AssertionError, match="^masked_out_is_inert: .*gradient of logp.*found nan"):
        hold(NAMED["masked_out_is_inert"], grpo.algorithm(), phases=(Phase.explicit,))
