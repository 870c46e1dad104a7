"""Checks of a whole configuration: what is missing, and what has no effect."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

from purerl.config.check import check
from purerl.config.overrides import apply
from purerl.config.requirements import requirements_of
from purerl.errors import ConfigError
from purerl.recipes import resolve
from purerl.recipes.addition import addition
from purerl.rollouts.check import needs_rollouts

SFT = ("algorithm.kind=sft", "rollout=")
NO_SAMPLING = (*SFT, "evaluate=", "generator=", "rewards=")
NO_WEIGHT = 'rewards=[{function="purerl.rewards.exact:exact_match", weight=0}]'


def _stop_when(metric: str) -> tuple[str, str]:
    return "stop_when.at_least=1", f"stop_when.metric={metric}"


def error_of(*settings: str, recipe: str = "addition") -> str:
    """The message of the error for `recipe` with `settings`."""
    with pytest.raises(ConfigError) as error:
        check(resolve(recipe, settings))
    return str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((*_stop_when("eval/accuracy"), "evaluate="), "stop_when has no effect\n  got:  'eval/accuracy'"),
        (
            ("stop_when.metric=eval/accuracy", "stop_when.at_least=nan"),
            "stop_when.at_least\n  got:  nan\n  need: a finite number",
        ),
        ((NO_WEIGHT,), "rewards.weight\n  got:  0 for each reward\n  need: at least one weight that is not 0"),
        (
            ("model=.", "model.revision=v2"),
            "model.revision has no effect\n  got:  'v2'\n  need: the name of a model on",
        ),
        (("model.revision=v2",), "model.revision has no effect\n  got:  'v2'\n  need: the name of a model on the hub"),
        (
            ("data.validation_fraction=0.1", "evaluate="),
            "data.validation_fraction has no effect\n  got:  0.1\n  need: an evaluation\n  do:   set evaluate.every",
        ),
        (
            ("data.validation_fraction=0.1",),
            "data.validation_fraction has no effect\n  got:  0.1\n  need: an evaluation w",
        ),
        (
            ("evaluate.data={}",),
            "evaluate.data is missing\n  need: problems for the evaluation\n  do:   set it, or data",
        ),
        (("rollout=",), "rollout is missing\n  need: completions of the policy: dapo reads "),
        (("algorithm.kind=sft",), "rollout has no effect\n  got:  Rollout("),
        (
            ("algorithm.kind=gvpo", "num_minibatches=129"),
            "num_minibatches\n  got:  129\n  need: at most 128, the groups of",
        ),
        (("num_minibatches=1025",), "num_minibatches\n  got:  1025\n  need: at most 1024, the rows of a step"),
        ((*NO_SAMPLING, "gates=['a:b']"), "gates has no effect\n  got:  ('a:b',)\n  need: rollout or evaluate"),
        ((*NO_SAMPLING, "rewards=['a:b']"), "rewards has no effect\n"),
        (
            ("generator.max_mismatch_growth=10", "rollout.max_staleness=1", "algorithm.bypass=true"),
            "generator.max_mismatch_growth has no effect\n  got:  10.0\n  need: completions that are sampled",
        ),
        (("generator=",), "generator is missing\n  need: completions are sampled and rewarded"),
        (("rewards=",), "rewards is missing\n  need: completions are sampled and rewarded"),
        (("prepare_data=nowhere:prepare",), "cannot find 'nowhere:prepare'"),
        (("trackers=['tensorboard', 'tensorboard']",), "trackers\n  got:  2 of the kind 'tensorboard'\n"),
        (
            ("initial_run.rollout.samples_per_prompt=1", "initial_run.rollout.max_tokens=1"),
            "initial_run.rollout has no ",
        ),
        (("initial_run.prepare_data=a:b",), "initial_run.prepare_data has no effect\n"),
        (
            ("trainer.warmup_steps=20", "max_steps=5"),
            "trainer.warmup_steps\n  got:  20\n  need: less than the 10 optimizer steps of the run\n  do:   lower",
        ),
        (
            ("trainer.warmup_steps=0", "trainer.warmup_ratio=0.1"),
            "trainer.warmup_steps or warmup_ratio\n  got:  warmup_steps = 0, warmup_ratio = 0.1\n  need: at most one",
        ),
        (
            ("trainer.warmup_steps=5000",),
            "trainer.warmup_steps\n  got:  5000\n  need: less than",
        ),
    ],
)
def test_settings_that_are_missing_or_have_no_effect_are_refused(settings: tuple[str, ...], message: str) -> None:
    assert error_of(*settings).startswith(message)


@pytest.mark.parametrize(
    "settings",
    [
        _stop_when("reward/mean"),
        _stop_when("reward/a_component"),
        _stop_when("eval/accuracy_low"),
        ("model=some/name", "model.revision=v2", "initial_run="),
        (NO_WEIGHT, *SFT),
        ("algorithm.kind=gvpo", "num_minibatches=128"),
        NO_SAMPLING,
    ],
)
def test_settings_with_an_effect_are_accepted(settings: tuple[str, ...]) -> None:
    check(resolve("addition", settings))


def test_a_second_initial_run_is_refused() -> None:
    inner = addition().initial_run
    with pytest.raises(ConfigError, match=r"^initial_run.initial_run has no effect\n"):
        check(evolve(addition(), initial_run=evolve(inner, initial_run=inner)))


def test_a_revision_of_a_local_directory_of_a_role_is_refused(tmp_path: Path) -> None:
    model = f"roles.teacher.model={{path = '{tmp_path}', revision = 'v2'}}"
    assert error_of("algorithm.kind=opd", model).startswith("roles.teacher.model.revision has no effect\n")


@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_groups_smaller_than_the_algorithm_needs_are_refused(kind: str) -> None:
    settings = f"algorithm.kind={kind}", "rollout.samples_per_prompt=1"
    need = f"at least 2: {kind} compares the completions of a prompt"
    assert error_of(*settings) == f"rollout.samples_per_prompt\n  got:  1\n  need: {need}"


def test_an_algorithm_without_groups_accepts_single_samples() -> None:
    check(resolve("addition", ["algorithm.kind=ppo", "rollout.samples_per_prompt=1"]))


def test_needs_rollouts_lists_the_fields_that_only_completions_have() -> None:
    def fields(kind: str) -> set[str]:
        return needs_rollouts(requirements_of(apply(addition(), [f"algorithm.kind={kind}"])).algorithm)

    assert fields("sft") == fields("dpo") == set()
    assert "reward" in fields("grpo")


def test_the_error_of_a_tracker_names_the_section(monkeypatch: pytest.MonkeyPatch) -> None:
    from purerl.monitoring.trackers import tensorboard

    def refuse(config: object) -> None:
        raise ConfigError("its library is missing")

    monkeypatch.setattr(tensorboard, "check", refuse)
    assert error_of("trackers=['tensorboard']") == "trackers: its library is missing"


# --- steps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ("num_epochs=1", "max_steps=5"),
            "max_steps or num_epochs\n  got:  max_steps = 5, num_epochs = 1.0\n  need: exactly one of them",
        ),
        (("max_steps=",), "max_steps or num_epochs\n  got:  none of them\n  need: exactly one of them"),
        (("num_epochs=0",), "num_epochs\n  got:  0.0\n  need: a finite number above 0"),
        (("num_epochs=inf",), "num_epochs\n  got:  inf\n  need: a finite number above 0"),
        (
            ("minibatch_size=16", "num_minibatches=4"),
            "num_minibatches or minibatch_size\n  got:  num_minibatches = 4, minibatch_size = 16\n  need: at most",
        ),
        (("minibatch_size=10",), "minibatch_size\n  got:  10\n  need: a divisor of batch_size, 128"),
        (("minibatch_size=256",), "minibatch_size\n  got:  256\n  need: a divisor of batch_size, 128"),
        (("num_minibatches=0",), "num_minibatches\n  got:  0\n  need: an integer, at least 1"),
    ],
)
def test_settings_of_the_same_number_exclude_each_other(settings: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        apply(addition(5), settings)
    assert str(error.value).startswith(message)


def test_number_of_mini_batches() -> None:
    assert addition().minibatches == 2
    assert apply(addition(), ["num_minibatches="]).minibatches == 1
    assert apply(addition(), ["num_minibatches=", "minibatch_size=16"]).minibatches == 8


def test_epochs_may_replace_the_steps_of_every_recipe() -> None:
    required = {"addition": (), "gsm8k": ("model=m", "data=d")}
    for recipe, settings in required.items():
        config = resolve(recipe, [*settings, "num_epochs=0.5"])
        check(config)
        assert (config.max_steps, config.num_epochs) == (None, 0.5)


def test_updates_are_counted_for_each_model() -> None:
    settings = ["algorithm.kind=ppo", "algorithm.kl_reward=0.1", "critic_warmup=10", "ppo_epochs=2"]
    config = apply(addition(), settings)
    needs = requirements_of(config)
    assert needs.updates(30) == {"critic": 30 * 4, "policy": 20 * 4, "reference": 0}
    assert needs.updates(None) == {"critic": None, "policy": None, "reference": 0}
    own = requirements_of(apply(config, ["roles.critic.ppo_epochs=3", "roles.critic.minibatch_size=64"]))
    assert own.updates(30) == {"critic": 30 * 6, "policy": 20 * 4, "reference": 0}


_WITH_REFERENCE = ("algorithm.kind=ppo", "algorithm.kl_reward=0.1")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ("algorithm.kind=ppo", "roles.critic.num_minibatches=2000"),
            "roles.critic.num_minibatches\n  got:  2000\n  need: at most 1024, the rows of a step",
        ),
        (
            ("algorithm.kind=ppo", "roles.critic.minibatch_size=3"),
            "roles.critic.minibatch_size\n  got:  3\n  need: a divisor of batch_size, 128",
        ),
        (
            (*_WITH_REFERENCE, "roles.reference.ppo_epochs=2"),
            (
                "roles.reference.ppo_epochs has no effect\n  got:  2\n"
                "  need: a model that is trained; ppo does not train the reference\n"
            ),
        ),
        ((*_WITH_REFERENCE, "roles.reference.minibatch_size=64"), "roles.reference.minibatch_size has no effect\n"),
        (
            ("algorithm.kind=ppo", "roles.critic.num_minibatches=2", "roles.critic.minibatch_size=64"),
            "roles.critic.num_minibatches or minibatch_size\n  got:  num_minibatches = 2, minibatch_size = 64",
        ),
    ],
)
def test_optimizer_steps_of_a_role_are_checked(settings: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        check(apply(addition(), settings))
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ("critic_warmup=3",),
            (
                "critic_warmup has no effect\n  got:  3\n  need: an algorithm with a critic; dapo has none\n"
                "  do:   leave critic_warmup out"
            ),
        ),
        (
            ("algorithm.kind=ppo", "critic_warmup=240"),
            "critic_warmup\n  got:  240\n  need: less than the 240 steps of the run",
        ),
    ],
)
def test_critic_warmup_needs_a_critic_and_further_steps(settings: tuple[str, ...], message: str) -> None:
    assert error_of(*settings) == message
    check(resolve("addition", ["algorithm.kind=ppo", "critic_warmup=239", "trainer.warmup_ratio=0"]))
