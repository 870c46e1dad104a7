"""Every law catches what it is there for, on the batches on which the algorithms of the package satisfy it."""

from __future__ import annotations

import re

import pytest
from drawing import hold
from hypothesis import Phase
from mutants import MUTANTS

from purerl.algos import algebra, ppo
from purerl.algos.algebra import Algorithm
from purerl.testing import LAWS, Law

UNSHRUNK = (Phase.explicit, Phase.generate)
CAUGHT = [
    pytest.param(law, *mutant, id=f"{law.__name__}-{name}")
    for law in LAWS
    for name, mutant in MUTANTS.get(law.__name__, {}).items()
]


@pytest.mark.parametrize(("law", "algorithm", "says"), CAUGHT)
def test_mutant_is_caught(law: Law, algorithm: Algorithm, says: str):
    with pytest.raises(AssertionError, match=rf"^{law.__name__}: .*{re.escape(says)}") as caught:
        hold(law, algorithm, phases=UNSHRUNK)
    cause = caught.value.__cause__
    assert isinstance(cause, AssertionError) or type(cause).__name__ in says, f"it is caught by its crash: {cause!r}"


def test_every_law_has_a_mutant():
    assert list(MUTANTS) == [law.__name__ for law in LAWS]


def test_a_verb_that_does_not_neutralize_is_caught(monkeypatch):
    """0 times NaN: `torch.where` in the reduction keeps NaN out of the loss, but not out of its gradient."""
    monkeypatch.setattr(algebra, "zero_outside", lambda batch, where: batch)
    (law,) = (law for law in LAWS if law.__name__ == "masked_token_invariance")
    with pytest.raises(AssertionError, match=r"gradient of value.*found nan"):
        hold(law, ppo.algorithm(), phases=UNSHRUNK)
