"""Every law detects its mutants, on the fewest batches on which algorithms of the package satisfy the law."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import Phase
from hypothesis_checks import check_law
from mutants import MUTANTS, OWN_POLICY_GRADIENT

from purerl.algos import algebra, dapo, grpo, ppo, rae
from purerl.algos.algebra import Algorithm
from purerl.algos.parts import zeros
from purerl.algos.parts.rows import at_last_action
from purerl.testing import LAWS, Law, example_batch, fields_of

WITHOUT_SHRINKING = (Phase.explicit, Phase.generate)
CASES = [
    pytest.param(law, *mutant, id=f"{law.__name__}-{name}")
    for law in LAWS
    for name, mutant in MUTANTS.get(law.__name__, {}).items()
]


@pytest.mark.parametrize(("law", "algorithm", "message"), CASES)
def test_mutant_is_detected(law: Law, algorithm: Algorithm, message: str):
    with pytest.raises(AssertionError, match=rf"^{law.__name__}: .*{re.escape(message)}") as caught:
        check_law(law, algorithm, few=True, phases=WITHOUT_SHRINKING)
    parts = r"\n  law:\n    .+\n  often broken by:\n    .+\n  batch:\n    \d+ rows; a: counted, x: not counted, "
    assert re.search(parts, str(caught.value), re.DOTALL)
    assert "TensorDict(" not in str(caught.value).partition("\n  law:")[2]
    cause = caught.value.__cause__
    assert isinstance(cause, AssertionError) or type(cause).__name__ in message, f"unexpected exception: {cause!r}"


def test_every_law_has_a_mutant():
    assert list(MUTANTS) == [law.__name__ for law in LAWS]


def test_impossible_tokens_are_replaced_for_every_loss(monkeypatch):
    """An algorithm need not replace -inf itself, because the functions of the algebra do; the law detects if not."""
    (law,) = (law for law in LAWS if law.__name__ == "finite_at_impossible_tokens")
    check_law(law, OWN_POLICY_GRADIENT, phases=WITHOUT_SHRINKING)
    monkeypatch.setattr(zeros, "finite_logp", lambda logp: logp)
    with pytest.raises(AssertionError, match=r"^finite_at_impossible_tokens: .*expected finite values"):
        check_law(law, OWN_POLICY_GRADIENT, phases=WITHOUT_SHRINKING)


def test_missing_zero_outside_is_detected(monkeypatch):
    """Masking after the equation is not enough: `torch.where` removes NaN from the loss, but not from its gradient."""
    monkeypatch.setattr(algebra, "zero_outside", lambda batch, mask: batch)
    (law,) = (law for law in LAWS if law.__name__ == "masked_token_invariance")
    with pytest.raises(AssertionError, match=r"gradient of value.*got nan"):
        check_law(law, ppo.algorithm(), phases=WITHOUT_SHRINKING)


@pytest.mark.parametrize(
    ("module", "message"),
    [(grpo, "field advantage"), (ppo, "field advantage"), (rae, "field advantage"), (dapo, "selected rows")],
    ids=["grpo", "ppo", "rae", "dapo"],
)
def test_estimator_of_rows_instead_of_episodes_is_detected(monkeypatch, module, message):
    (law,) = (law for law in LAWS if law.__name__ == "episode_invariance")
    algorithm = module.algorithm()
    batch = example_batch(fields_of(algorithm), ((3, ".aaaaaaaa"), (3, ".aaaaaaaa")))
    batch["reward"] = at_last_action(torch.ones(2, dtype=torch.float64), batch["action"])
    law(algorithm, batch)
    monkeypatch.setattr(algebra, "join_episodes", lambda batch, reads, shape: (zeros.zero_outside_actions(batch), None))
    with pytest.raises(AssertionError, match=rf"^episode_invariance: {message}"):
        law(algorithm, batch)
