"""Each check warns about metrics of a run that is broken in its way, and not about a run that learns."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from purerl.config.check import check
from purerl.monitoring.warnings.checks import CHECKS
from purerl.monitoring.warnings.history import Facts
from purerl.monitoring.warnings.monitor import diagnose
from purerl.recipes import resolve
from purerl_cli.main import app

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "warnings.md"
DEFAULTS = Facts()
Change = Callable[[int], Mapping[str, Any]]


def healthy(step: int) -> dict[str, Any]:
    """The metrics of a run that learns: after 60 of 100 steps all rewards are 1."""
    progress = min(step / 60, 1.0)
    mean = 0.1 + 0.9 * progress
    return {
        "step": step,
        "reward/mean": mean,
        "reward/std": math.sqrt(mean * (1 - mean)),
        "reward/min": 0.0 if progress < 1 else 1.0,
        "reward/max": 1.0,
        "reward/zero_std_fraction": 1.0 if progress == 1 else 0.5,
        "reward/valid_fraction": 1.0,
        "reward/failed": 0.0,
        "advantage/min": 0.0 if progress == 1 else -1.0,
        "advantage/max": 0.0 if progress == 1 else 1.0,
        "rollout/length": 20.0,
        "rollout/truncated": 1.0,  # completions of a fixed length
        "mismatch/logp_abs_diff": 1e-3,
        "mismatch/effective_sample_size": 0.99,
        "policy/approx_kl": 0.03,
        "policy/entropy": 1.0 - 0.999 * progress,
        "policy/grad_norm": 1.0 - progress,
        "policy/learning_rate": 1e-3 * (1 - step / 100),
        "policy/skipped": 0.0,
    }


def _raised(change: Change, *, steps: int = 40, facts: Facts = DEFAULTS) -> dict[str, int]:
    records = [{"step": 0}] + [healthy(step) | dict(change(step)) for step in range(1, steps + 1)]
    return {episode.warning.name: episode.warning.step for episode in diagnose(records, facts)}


def test_a_run_that_learns_until_all_rewards_are_equal_raises_no_warning() -> None:
    assert _raised(lambda step: {}, steps=100) == {}


FLAT = {"reward/mean": 0.5, "reward/std": 0.5, "reward/min": 0.0, "reward/zero_std_fraction": 0.5}
ZERO = {"reward/mean": 0.0, "reward/std": 0.0, "reward/max": 0.0, "reward/min": 0.0, "reward/zero_std_fraction": 1.0}
NO_SIGNAL = {"advantage/min": 0.0, "advantage/max": 0.0, "policy/grad_norm": 0.0}
DROPPED = {"reward/mean": 0.02, "reward/std": 0.14, "reward/min": 0.0, "reward/max": 1.0, "rollout/truncated": 0.0}
ACCURACIES = {step: {"eval/accuracy": value} for step, value in {4: 0.4, 8: 0.5, 12: 0.2, 16: 0.1, 20: 0.1}.items()}
BROKEN: Mapping[str, tuple[Change, int]] = {
    "no_reward": (lambda step: {"reward/valid_fraction": 0.0}, 5),
    "large_updates": (lambda step: {"policy/approx_kl": 2.0}, 5),
    "kl_spike": (lambda step: {"policy/approx_kl": 0.4 if step == 12 else 0.03}, 12),
    "reward_drop": (lambda step: DROPPED if step > 12 else {}, 14),
    "accuracy_drop": (lambda step: ACCURACIES.get(step, {}), 16),
    "entropy_collapse": (lambda step: FLAT | {"policy/entropy": 1.0 if step < 10 else 0.01}, 20),
    "constant_reward": (lambda step: ZERO | NO_SIGNAL | {"rollout/truncated": 0.0}, 10),
    "no_variance": (lambda step: FLAT | NO_SIGNAL | {"reward/zero_std_fraction": 1.0, "rollout/truncated": 0.0}, 10),
    "zero_learning_rate": (lambda step: {"policy/learning_rate": 0.0}, 5),
    "zero_gradient": (lambda step: {"policy/grad_norm": 0.0}, 10),
    "skipped_updates": (lambda step: {"policy/skipped": 0.75}, 5),
    "lost_updates": (lambda step: {"policy/update_lost": 0.98}, 20),
    "truncated_episodes": (lambda step: {"environment/truncated": 1.0, "environment/truncated_turn": 1.0}, 5),
    "truncation": (lambda step: FLAT, 20),
    "mismatch_growth": (lambda step: {"mismatch/logp_abs_diff": 2e-3 if step != 5 else 0.0}, 3),
    "mismatch": (lambda step: {"mismatch/logp_abs_diff": 1e-3 * step**2}, 10),
    "reward_failures": (lambda step: {"reward/failed": 0.06}, 5),
}


MEASURED = Facts(mismatch_level=1e-6, mismatch_limit=1e-3)


def test_skipped_steps_without_a_signal_are_no_failure() -> None:
    change = {"policy/skipped": 0.9, "policy/skipped/zero_gradient": 0.8}
    assert "skipped_updates" not in _raised(lambda step: change)
    assert "skipped_updates" in _raised(lambda step: change | {"policy/skipped/zero_gradient": 0.1})


def test_noise_of_stochastic_rounding_is_no_loss() -> None:
    assert _raised(lambda step: {"policy/update_lost": 0.9 * (-1) ** step}) == {}


def test_metrics_that_are_not_finite_have_no_value() -> None:
    nulls = dict.fromkeys(healthy(1).keys() - {"step"})
    assert _raised(lambda step: nulls) == {}
    assert _raised(lambda step: nulls if step % 2 else {}, steps=100) == {}


def test_every_check_has_a_broken_run_and_an_entry_in_the_documentation() -> None:
    assert [check.name for check in CHECKS] == list(BROKEN)
    assert re.findall(r"^\| `(\w+)` \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE) == list(BROKEN)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_run_raises_its_warning_once_and_early(name: str) -> None:
    change, earliest = BROKEN[name]
    raised = _raised(change, facts=MEASURED if name == "mismatch_growth" else DEFAULTS)
    assert earliest <= raised[name] <= earliest + 8
    assert set(raised) <= {name, "truncation"}  # completions of a fixed length, and a reward that does not improve


def test_equal_rewards_of_a_run_that_started_solved_are_reported() -> None:
    one = ZERO | NO_SIGNAL | {"reward/mean": 1.0, "reward/max": 1.0, "reward/min": 1.0}
    assert "constant_reward" in _raised(lambda step: one)


def test_rewards_that_only_measure_may_be_constant() -> None:
    change = lambda step: ZERO | {"rollout/truncated": 0.0}  # noqa: E731
    assert _raised(change, facts=Facts(learns_from_rewards=False)) == {}
    assert set(_raised(change)) == {"constant_reward"}


def test_groups_without_variance_may_have_advantages() -> None:
    """REINFORCE compares rewards of the whole batch, and distillation uses no rewards."""
    assert _raised(lambda step: FLAT | {"reward/zero_std_fraction": 1.0, "rollout/truncated": 0.0}) == {}


def test_dropped_groups_are_groups_without_variance() -> None:
    def change(step: int) -> Mapping[str, Any]:
        return FLAT | {"reward/zero_std_fraction": 1.0, "rollout/truncated": 0.0}

    records = [healthy(step) | change(step) for step in range(1, 30)]
    dropped = [{k: v for k, v in r.items() if not k.startswith(("advantage/", "policy/"))} for r in records]
    assert [episode.warning.name for episode in diagnose(dropped, Facts())] == ["no_variance"]


def test_entropy_may_fall_while_the_reward_rises_or_is_near_its_maximum() -> None:
    assert _raised(lambda step: {"policy/entropy": math.exp(-step)}, steps=100) == {}
    solved = {"reward/mean": 0.95, "reward/std": 0.2, "reward/min": 0.0, "reward/zero_std_fraction": 0.9}
    assert _raised(lambda step: (solved if step > 40 else {}) | {"policy/entropy": math.exp(-step)}, steps=100) == {}


@pytest.mark.parametrize(("difference", "staleness", "is_raised"), [(0.3, 0, True), (0.3, 1, False), (0.9, 1, True)])
def test_mismatch_may_be_larger_if_rollouts_are_stale(difference: float, staleness: int, is_raised: bool) -> None:
    def change(step: int) -> Mapping[str, Any]:
        return {"mismatch/logp_abs_diff": 0.01 if step < 6 else difference}

    assert ("mismatch" in _raised(change, facts=Facts(max_staleness=staleness))) == is_raised


def test_a_mismatch_that_grows_is_reported_after_three_steps_if_rollouts_are_not_stale() -> None:
    def change(step: int) -> Mapping[str, Any]:
        return {"mismatch/logp_abs_diff": 2e-3}

    assert _raised(change, facts=MEASURED) == {"mismatch_growth": 3}
    assert _raised(change, facts=MEASURED._replace(max_staleness=1)) == {}
    assert _raised(change, facts=Facts()) == {}
    assert _raised(lambda step: {"mismatch/logp_abs_diff": 2e-3 if step % 3 else 9e-4}, facts=MEASURED) == {}


def test_a_constant_mismatch_of_low_precision_is_no_growth() -> None:
    assert _raised(lambda step: {"mismatch/logp_abs_diff": 0.04}) == {}
    assert _raised(lambda step: {"mismatch/logp_abs_diff": 0.08}) == {}


@pytest.mark.parametrize(
    ("size", "staleness", "is_raised"), [(0.95, 0, False), (0.8, 0, True), (0.8, 1, False), (0.4, 1, True)]
)
def test_a_constant_mismatch_that_leaves_few_samples_is_reported(size: float, staleness: int, is_raised: bool) -> None:
    raised = _raised(lambda step: {"mismatch/effective_sample_size": size}, facts=Facts(max_staleness=staleness))
    assert raised == ({"mismatch": 10} if is_raised else {})


@pytest.mark.parametrize(("failed", "limit", "is_raised"), [(0.04, 0.1, False), (0.06, 0.1, True), (0.06, 1.0, False)])
def test_reward_failures_are_compared_with_the_limit_of_the_run(failed: float, limit: float, is_raised: bool) -> None:
    facts = Facts(max_failure_rate=limit)
    assert (_raised(lambda step: {"reward/failed": failed}, facts=facts) != {}) == is_raised


def test_runs_without_rollouts_and_records_without_known_metrics_raise_nothing() -> None:
    sft = [{"step": step, "policy/loss/nll": 1 / step, "policy/grad_norm": 1.0, "policy/skipped": 0.0, "policy/entropy":
            math.exp(-step)} for step in range(1, 100)]  # fmt: skip
    assert diagnose(sft, Facts()) == []
    assert diagnose([{"step": step, "my/own": 0.0} for step in range(100)], Facts()) == []


def test_values_that_are_not_finite_raise_no_exception() -> None:
    for value in (math.nan, math.inf, -math.inf, None):
        records = [dict.fromkeys(healthy(1), value) | {"step": step} for step in range(1, 50)]
        diagnose(records, Facts())


def test_remedies_name_settings_and_commands_that_exist() -> None:
    text = " ".join(f"{check.cause} {check.do}" for check in CHECKS)
    commands = set(re.findall(r"`purerl (\w+)", text))
    assert commands == {"report", "eval", "train"}
    for command in commands:
        assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0
    sections = "trainer|rollout|algorithm|reward_workers"
    settings = set(re.findall(rf"\b((?:{sections})\.\w+)", text)) | {"num_minibatches", "ppo_epochs"}
    assert len(settings) > 10
    values = {"trainer.lr_scheduler": "cosine", "trainer.lr": "0.001", "trainer.min_lr_ratio": "0.1"}
    values |= {"rollout.stop_strings": '["x"]', "rollout.max_staleness": "1"}
    values |= {"algorithm.entropy_bonus": "0.01", "algorithm.kl_loss": "0.01", "algorithm.rejection": "token"}
    values |= {"algorithm.importance_weight": "token", "trainer.mixed_precision": "bfloat16"}
    values |= {"trainer.rounding": "stochastic"}
    for setting in sorted(settings):
        resolve("addition", [f"{setting}={values.get(setting, '2')}"])
    check(resolve("addition", ["algorithm.entropy_bonus=0.01"]))


@pytest.mark.parametrize(("staleness", "expected"), [(0, {"mismatch": 5}), (1, {})])
def test_log_probabilities_of_another_model_are_reported_soon(staleness: int, expected: Mapping[str, int]) -> None:
    """Rollouts that are older than the weights may differ as much."""
    facts = Facts(max_staleness=staleness)
    assert _raised(lambda step: {"mismatch/logp_abs_diff": 0.6}, facts=facts) == expected
    assert _raised(lambda step: {"mismatch/logp_abs_diff": 0.6 if step % 5 else 0.4}, facts=facts) == {}


@pytest.mark.parametrize(("trained", "is_raised"), [(lambda step: step % 3, True), (lambda step: step % 3 == 0, False)])
@pytest.mark.parametrize(
    ("metric", "value", "name"),
    [
        ("mismatch/logp_abs_diff", 2.0, "mismatch"),
        ("mismatch/effective_sample_size", 0.5, "mismatch"),
        ("policy/approx_kl", 2.0, "large_updates"),
    ],
)
def test_steps_that_train_on_no_row_have_no_mismatch_and_no_kl(
    metric: str, value: float, name: str, trained: Callable[[int], object], is_raised: bool
) -> None:
    """If most steps train on rows, their values count; a few do not say enough."""
    missing = dict.fromkeys(("mismatch/logp_abs_diff", "mismatch/effective_sample_size", "policy/approx_kl"))
    raised = _raised(lambda step: {metric: value} if trained(step) else missing)
    assert (name in raised) == is_raised


def _text(change: Change, name: str, *, steps: int = 40) -> str:
    records = [{"step": 0}] + [healthy(step) | dict(change(step)) for step in range(1, steps + 1)]
    return next(episode.warning.text for episode in diagnose(records, DEFAULTS) if episode.warning.name == name)


COLLAPSE = ZERO | NO_SIGNAL | {"rollout/truncated": 0.0}


def _collapses(step: int) -> Mapping[str, Any]:
    """A run of a recipe in which an update damaged the policy: approx_kl .07 and .23, and no reward after it."""
    noise = 0.05 * (-1) ** step
    before = FLAT | {"reward/mean": 0.53 + noise, "policy/approx_kl": 0.004, "rollout/truncated": 0.0}
    return {9: before | {"policy/approx_kl": 0.07}, 10: COLLAPSE | {"policy/approx_kl": 0.23}}.get(
        step, before if step < 9 else COLLAPSE | {"policy/approx_kl": 0.0}
    )


def test_a_run_that_collapses_is_reported_in_three_steps_with_the_steps() -> None:
    assert _raised(_collapses, steps=15) == {"kl_spike": 9, "reward_drop": 11}
    assert _text(_collapses, "kl_spike") == (
        "policy/approx_kl was 0.07 nats in step 9; the median of the 8 steps before is 0.004"
    )
    assert _text(_collapses, "reward_drop") == (
        "the mean reward of steps 9 to 11 is 0.16, below half of its best, 0.547 in steps 2 to 4"
    )


def test_a_drop_that_explains_rewards_without_variance_is_reported_once() -> None:
    assert _raised(_collapses, steps=40) == {"kl_spike": 9, "reward_drop": 11}


@pytest.mark.parametrize(("noise", "is_raised"), [(0.0, True), (0.02, True), (0.3, False)])
def test_a_reward_that_varies_as_much_from_step_to_step_has_not_dropped(noise: float, is_raised: bool) -> None:
    def change(step: int) -> Mapping[str, Any]:
        return FLAT | {"reward/mean": 0.4 + noise * (-1) ** step if step < 20 else 0.15}

    assert ("reward_drop" in _raised(change, steps=24)) == is_raised


def test_a_drop_of_negative_rewards_is_compared_with_the_lowest_one() -> None:
    def change(step: int) -> Mapping[str, Any]:
        return FLAT | {"reward/mean": -1.0 if step < 20 else -4.0, "reward/min": -5.0, "reward/max": -0.5}

    assert _raised(change)["reward_drop"] == 22  # of steps 19 to 21, the mean is -3, and the middle too
    assert "the middle between its best and the lowest reward, -1 in steps 1 to 3" in _text(change, "reward_drop")


def test_a_rise_of_approx_kl_during_the_warmup_of_the_learning_rate_is_no_spike() -> None:
    assert _raised(lambda step: {"policy/approx_kl": 1e-4 * step**2}, steps=20) == {}
    assert _raised(lambda step: {"policy/approx_kl": 1e-9 if step < 20 else 1e-4}) == {}, "too small to matter"


def test_two_evaluations_below_half_of_the_best_are_a_drop_of_the_accuracy() -> None:
    def change(values: Mapping[int, float], high: float | None = None) -> Change:
        bound = {} if high is None else {"eval/accuracy_high": high}
        return lambda step: {"eval/accuracy": values[step], **bound} if step in values else {}

    falls = {5: 0.5, 10: 0.2, 15: 0.24}
    assert _raised(change(falls)) == {"accuracy_drop": 15}
    assert _text(change(falls), "accuracy_drop") == (
        "the accuracy of the evaluations was 0.2 in step 10 and 0.24 in step 15, below half of its best, 0.5 in step 5"
    )
    assert _raised(change(falls, high=0.4)) == {"accuracy_drop": 15}
    assert _raised(change(falls, high=0.6)) == {}, "the evaluations have too few problems"
    assert _raised(change({5: 0.5, 10: 0.2, 15: 0.3, 20: 0.2})) == {}


def test_the_accuracy_before_the_first_step_counts() -> None:
    records = [{"step": 0, "eval/accuracy": 0.6}, *(healthy(k) | {"eval/accuracy": 0.1} for k in (1, 2))]
    [episode] = diagnose(records, DEFAULTS)
    assert (episode.warning.name, episode.warning.step) == ("accuracy_drop", 2)


def test_episodes_that_a_limit_ends_are_reported_unless_they_are_solved() -> None:
    ended = {"environment/truncated": 1.0, "environment/truncated_turn": 0.0, "rollout/truncated": 0.0}
    assert _raised(lambda step: FLAT | ended) == {"truncated_episodes": 10}
    assert _raised(lambda step: ended) == {}, "an environment with a fixed number of turns, in which the reward rises"
    cut = {"environment/truncated": 1.0, "environment/truncated_turn": 0.97, "rollout/truncated": 1.0}
    assert _raised(lambda step: FLAT | cut) == {"truncated_episodes": 5}
