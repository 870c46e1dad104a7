"""Several optimizer steps with the same rows, and stale rollouts, need an algorithm that corrects for them."""

from __future__ import annotations

import re

import pytest
from attrs import evolve

from purerl.algos.parts.behavior import has_policy_ratio, is_policy_gradient, weights_rollouts
from purerl.config.check import check
from purerl.config.overrides import apply
from purerl.config.requirements import requirements_of
from purerl.config.reuse import check_reuse
from purerl.config.schema import RunConfig
from purerl.errors import ConfigError
from purerl.plugins import find, names
from purerl.recipes.addition import addition
from tests.config.compositions import error_of

ONE_STEP = {"reinforce", "rloo", "remax", "opo", "gpg", "otb", "max_rl", "rae", "pass_k_leave_one_out"}
WITHOUT_ADVANTAGE = {
    "cpo",
    "dft",
    "dpo",
    "gkd",
    "ipo",
    "kto",
    "opd_top_k",
    "orpo",
    "reward_model",
    "sft",
    "simpo",
    "spin",
}
OWN = "tests.config.own_algorithms"
STEPS = {
    "num_minibatches=4": ("num_minibatches", "4 optimizer steps with the rows of a step: num_minibatches = 4"),
    "minibatch_size=64": ("minibatch_size", "2 optimizer steps with the rows of a step: minibatch_size = 64"),
    "ppo_epochs=3": ("ppo_epochs", "6 optimizer steps with the rows of a step: ppo_epochs = 3, num_minibatches = 2"),
}
STALE = ("num_minibatches=1", "rollout.max_staleness=1")
CORRECTED = {"decoupled_ppo", "icepop"}


def _check(config: RunConfig) -> None:
    check_reuse(requirements_of(config), config.rollout)


def test_algorithms_without_a_ratio_are_found_by_their_loss():
    algorithms = {name: find("algorithm", name).algorithm() for name in names("algorithm")}
    gradients = {name: algorithm for name, algorithm in algorithms.items() if is_policy_gradient(algorithm)}
    assert {name for name, algorithm in gradients.items() if not has_policy_ratio(algorithm)} == ONE_STEP
    assert algorithms.keys() - gradients.keys() == WITHOUT_ADVANTAGE
    assert {name for name, algorithm in algorithms.items() if weights_rollouts(algorithm)} == CORRECTED


@pytest.mark.parametrize("setting", STEPS)
@pytest.mark.parametrize("kind", sorted(ONE_STEP))
def test_several_optimizer_steps_are_refused(kind: str, setting: str):
    config = apply(addition(), [f"algorithm.kind={kind}", setting])
    with pytest.raises(ConfigError) as error:
        _check(config)
    key, got = STEPS[setting]
    assert str(error.value).startswith(f"{key}\n  got:  {got}\n  need: 1: the policy loss of {kind} has no ratio")
    assert str(error.value).endswith(", or algorithm.clipped_surrogate=true")


@pytest.mark.parametrize("kind", sorted(ONE_STEP))
def test_stale_rollouts_are_refused(kind: str):
    config = apply(addition(), [f"algorithm.kind={kind}", *STALE])
    with pytest.raises(ConfigError) as error:
        _check(config)
    assert str(error.value).startswith("rollout.max_staleness\n  got:  1\n  need: 0: the policy loss of")
    assert str(error.value).endswith("set algorithm.importance_weight=true, or rollout.max_staleness=0")


@pytest.mark.parametrize(
    "settings",
    [
        ("num_minibatches=1",),
        ("minibatch_size=128",),
        ("num_minibatches=4", "ppo_epochs=2", "algorithm.clipped_surrogate=true"),
        ("minibatch_size=32", "algorithm.clipped_surrogate=true", "algorithm.clipped_surrogate.ratio=sequence"),
        (*STALE, "algorithm.importance_weight=true"),
        (*STALE, "algorithm.importance_weight=true", "algorithm.importance_weight.normalize=true"),
        (*STALE, "algorithm.clipped_surrogate=true", "algorithm.bypass=true"),
    ],
)
def test_remedies_are_accepted(settings: tuple[str, ...]):
    for kind in ("rloo", "max_rl"):
        check(apply(addition(), [f"algorithm.kind={kind}", *settings]))


def test_other_algorithms_are_accepted():
    for kind in sorted({*names("algorithm")} - ONE_STEP):
        config = apply(addition(), [f"algorithm.kind={kind}", "ppo_epochs=2"])
        _check(config)  # its error has the kind


def test_algorithms_whose_ratio_would_be_1_for_stale_rollouts_are_refused_with_a_remedy_that_works():
    accepted = set()
    for kind in names("algorithm"):
        config = apply(addition(), [f"algorithm.kind={kind}", *STALE])
        try:
            _check(config)
        except ConfigError as error:
            for remedy in re.findall(r"(algorithm\.\w+=true)", str(error)):
                corrected = apply(config, [remedy])
                _check(corrected)
        else:
            accepted.add(kind)
    assert accepted >= CORRECTED
    assert accepted.isdisjoint(ONE_STEP)
    assert accepted.isdisjoint({"grpo", "ppo", "dapo", "gspo", "dr_grpo", "reinforce_plus_plus", "cispo"})


@pytest.mark.parametrize(
    "modifiers",
    [
        # They read old_logp or rollout_logp, but not in a factor of the policy gradient.
        ("algorithm.kl_loss=0.1", "algorithm.kl_loss.estimator=importance_k3"),
        ("algorithm.kl_reward=0.1",),
        ("algorithm.off_policy_mask=0.0",),
        ("algorithm.rejection=true",),
    ],
)
def test_modifiers_that_do_not_weight_the_gradient_are_no_remedy(modifiers: tuple[str, ...]):
    assert error_of("algorithm.kind=rloo", *modifiers).startswith("num_minibatches\n")
    assert error_of("algorithm.kind=rloo", *STALE, *modifiers).startswith("rollout.max_staleness\n")


def test_importance_weight_is_no_remedy_for_several_optimizer_steps():
    """Its weight is the same in each of them."""
    assert error_of("algorithm.kind=rloo", "algorithm.importance_weight=true").startswith("num_minibatches\n")


def test_own_algorithms_and_modifiers_are_judged_by_their_loss():
    message = error_of(f"algorithm.kind={OWN}:Gradient")
    assert message.startswith("num_minibatches\n")
    assert message.endswith(
        "\n  do:   set num_minibatches=1, or an algorithm with a ratio, such as algorithm.kind=grpo"
    )
    check(apply(addition(), [f"algorithm.kind={OWN}:Ratio"]))
    check(apply(addition(), ["algorithm.kind=rloo", f'algorithm."{OWN}:Ratio"=true']))


def test_the_initial_run_is_checked_too():
    initial = apply(evolve(addition(), initial_run=None, prepare_data=None), ["algorithm.kind=rloo"])
    assert error_of(start=evolve(addition(), initial_run=initial)).startswith("initial_run.num_minibatches\n")
