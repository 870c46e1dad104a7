"""`PurerlGRPOTrainer` against TRL's GRPOTrainer and against purerl, on a small model."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from purerl.adapters.frameworks.availability import TRL, refusals
from purerl.adapters.frameworks.compose import compose
from purerl.adapters.frameworks.trl_settings import REFUSED
from purerl.algos.parts.editing import policy_of
from purerl.composition import build_algorithm
from purerl.errors import CheckpointError, ConfigError, DataError
from purerl.plugins import names
from tests.ranks import torchrun

from .trl_ranks import ALGORITHMS as RANK_ALGORITHMS
from .trl_reference import gradients
from .trl_run import Run, config, draw_completions, run, size, targets, use_double_precision, write_model

trl = pytest.importorskip("trl", reason="TRL is not installed: nox -s oracle")
trainer_class = pytest.importorskip("purerl.adapters.frameworks.trl").trainer_class

_SEQUENCE = {"importance_sampling_level": "sequence"}
# (preset or algorithm, modifiers, settings with which TRL computes the same)
NATIVE: dict[str, tuple[Any, Sequence[Any], dict[str, Any]]] = {
    "grpo": ("grpo@trl", (), {}),
    "grpo_paper": ("grpo_paper@trl", (), {"loss_type": "grpo"}),
    "dr_grpo": ("dr_grpo@trl", (), {"loss_type": "dr_grpo", "scale_rewards": "none", "max_completion_length": 256}),
    "gspo": ("gspo@trl", (), {**_SEQUENCE, "loss_type": "grpo", "epsilon": 3e-4, "epsilon_high": 4e-4}),
    "cispo": ("cispo@trl", (), {"loss_type": "cispo", "epsilon_high": 5.0}),
    "sapo": ("sapo@trl", (), {"loss_type": "sapo"}),
    "luspo": ("luspo@trl", (), {**_SEQUENCE, "loss_type": "luspo", "epsilon": 2e-3, "epsilon_high": 2.5e-3}),
    # Settings that a modifier does not give are TRL's, also without a preset.
    "grpo with a KL penalty": (
        {"kind": "grpo", "advantage_scale": {"eps": 1e-4}, "reduction": "token_mean"},
        [{"kind": "kl_loss", "coef": 0.04}],
        {"beta": 0.04},
    ),
    "grpo with a dual clip": ("grpo@trl", [{"kind": "dual_clip", "ratio": 1.3}], {"delta": 1.3}),
}
# Two passes over the completions of two steps: the policy of a loss is not the one that sampled.
OFF_POLICY = {"steps_per_generation": 4, "num_iterations": 2, "max_steps": 4}
TIMES = {"step_time", "train_runtime", "train_samples_per_second", "train_steps_per_second"}
# TRL counts the clipped rows if the ratio is that of a row. Here the tokens are counted.
_OF_ROWS = {"clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"}
OTHER_METRICS = {"gspo": _OF_ROWS, "luspo": _OF_ROWS, "cispo": {"cispo_clip_ratio"}}

ALGORITHMS = [name for name in names("algorithm") if not [*refusals(build_algorithm(compose(name)), TRL)]]


@pytest.fixture(autouse=True, scope="module")
def few_objects_to_collect() -> Iterator[None]:
    """TRL collects garbage at the end of each run, which took most of the time of these runs."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def double_precision(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    use_double_precision(trl.GRPOTrainer, monkeypatch)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("case", NATIVE)
def test_a_preset_takes_the_steps_of_trls_own_trainer_and_logs_its_metrics(case: str) -> None:
    name, modifiers, settings = NATIVE[case]
    kept = {key: value for key, value in settings.items() if key == "max_completion_length"}
    theirs = run(trl.GRPOTrainer, config(**settings, **OFF_POLICY))
    ours = run(trainer_class(), config(**kept, **OFF_POLICY), algorithm=name, modifiers=modifiers)
    for mine, other in zip(ours.parameters, theirs.parameters, strict=True):
        for a, b in zip(mine, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
    assert ours.gradient(3).abs().max() > 1e-6
    for mine, other in zip(ours.logs, theirs.logs, strict=True):
        compared = {key: value for key, value in other.items() if key not in TIMES | OTHER_METRICS.get(case, set())}
        assert {key: mine[key] for key in compared} == pytest.approx(compared, rel=1e-6, abs=1e-9)


def _sizes(name: str) -> dict[str, int]:
    """Sizes that every algorithm accepts: two groups of six completions, on one device if they are coupled."""
    one = policy_of(build_algorithm(compose(name))).unit == "group"
    return {
        "num_generations": 6,
        "per_device_train_batch_size": 12 if one else 6,
        "gradient_accumulation_steps": 1 if one else 2,
    }


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_in_trl_has_the_gradients_of_purerl(name: str) -> None:
    sizes = _sizes(name)
    ours = run(
        trainer_class(),
        config(**sizes, max_steps=2),
        algorithm=name,
        reward_funcs=[targets, size],
        rollout_func=draw_completions,
    )
    parts = sizes["gradient_accumulation_steps"]
    steps = [(ours.parameters[step], ours.micro_batches[step * parts :][:parts]) for step in range(2)]
    expected = [*gradients(build_algorithm(compose(name)), steps)]
    for step, gradient in enumerate(expected):
        torch.testing.assert_close(ours.gradient(step), gradient, rtol=1e-8, atol=1e-11)
    assert max(gradient.abs().max() for gradient in expected) > 1e-6


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "train_dataset has no column 'optimal_value'\n  got:  prompt\n  need: .*\n  do:   estimate it with the"),
        ({"optimal_value": float("nan")}, "column 'optimal_value'\n  got:  nan\n  need: a finite number in every row"),
    ],
)
def test_a_data_set_without_the_values_that_an_algorithm_reads_is_refused(values: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        run(trainer_class(), config(), algorithm="a_star_po", rows=[{"prompt": f"{k}", **values} for k in range(9)])


def test_the_number_of_algorithms_in_trl() -> None:
    assert len(ALGORITHMS) == 48


# --- settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_of_trl_without_effect_is_refused(name: str) -> None:
    args, default = config(), getattr(config(), name)
    setattr(args, name, not default if isinstance(default, bool) else "other")
    with pytest.raises(ConfigError, match=f"{name}=(other|True|False)\n.*{REFUSED[name]}"):
        run(trainer_class(), args, algorithm="grpo")


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        ("ppo", {}, "its estimator reads old_value, which TRL does not pass; it trains a critic"),
        ("pass_k", {}, "num_generations\n  got:  4\n  need: at least 5"),
        ("clip_cov", {"steps_per_generation": 4}, "steps_per_generation\n  got:  4"),
        ("gvpo", {}, "couples the rows of a group\n  got:  steps_per_generation=2"),
        ("icepop", {}, "use_vllm=True, or a rollout_func that returns logprobs"),
        ("gdpo", {"reward_weights": [2.0]}, "reward_weights\n.*\n  need: no effect on this algorithm"),
        ("grpoo", {}, "did you mean 'grpo'"),
        ({"kind": "grpo", "clip_hihg": 0.3}, {}, "did you mean 'clip_high'"),
    ],
)
def test_what_does_not_fit_is_refused(algorithm: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(trainer_class(), config(**settings), algorithm=algorithm)


def test_the_trainer_is_imported_by_its_name() -> None:
    from purerl.adapters.frameworks.trl import PurerlGRPOTrainer

    assert PurerlGRPOTrainer is trainer_class()
    assert issubclass(PurerlGRPOTrainer, trl.GRPOTrainer)


# --- rewards -----------------------------------------------------------------------------------------------------


def _none_for_short(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
    return [None if len(ids) < 4 else sum(ids) / 8 for ids in completion_ids]


def test_a_completion_without_a_reward_is_not_counted() -> None:
    """Its reward is no 0: it is in no baseline, no loss and no denominator."""
    ours = run(trainer_class(), config(), reward_funcs=_none_for_short, rollout_func=draw_completions)
    sizes = [part["completion_mask"].sum(-1) for part in ours.micro_batches]
    masks = [part["purerl/mask"].any(-1) for part in ours.micro_batches]
    assert all(torch.equal(mask, size >= 4) for mask, size in zip(masks, sizes, strict=True))
    counted = sum(int(size[size >= 4].sum()) for size in sizes)
    assert 0 < counted < sum(int(size.sum()) for size in sizes)
    assert {int(part["purerl/policy/tokens"]) for part in ours.micro_batches} == {counted}
    assert all(part["advantages"][~mask].eq(0).all() for part, mask in zip(ours.micro_batches, masks, strict=True))


def test_an_algorithm_that_reads_each_reward_needs_all_of_them() -> None:
    functions = [targets, _none_for_short]
    with pytest.raises(DataError, match="None from reward function 1"):
        run(trainer_class(), config(), algorithm="gdpo", reward_funcs=functions, rollout_func=draw_completions)


# --- runs --------------------------------------------------------------------------------------------------------

_ADAPTIVE = {"modifiers": [{"kind": "entropy_bonus", "coef": 0.01, "target": 1.0, "step_size": 0.05}]}


def test_the_state_of_an_estimator_is_saved_and_resumed(tmp_path: Path) -> None:
    settings = {"output_dir": str(tmp_path), "save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    whole = run(trainer_class(), config(**settings), **_ADAPTIVE, rollout_func=draw_completions)
    middle = str(tmp_path / "checkpoint-2")
    resumed = run(trainer_class(), config(**settings), **_ADAPTIVE, rollout_func=draw_completions, resume=middle)
    assert resumed.trainer._state == whole.trainer._state != whole.trainer._algorithm.advantage.init()
    for a, b in zip(whole.parameters[-1], resumed.parameters[-1], strict=True):
        assert torch.equal(a, b)
    (tmp_path / "checkpoint-2" / "purerl_state.pt").unlink()
    with pytest.raises(CheckpointError, match=r"no purerl_state\.pt"):
        run(trainer_class(), config(**settings), **_ADAPTIVE, resume=middle)


def test_steps_on_two_ranks_have_the_gradients_of_purerl_on_all_rows(tmp_path: Path) -> None:
    torchrun("-m", "tests.oracle.trl_ranks", str(tmp_path))
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2))
    assert first.keys() == {*RANK_ALGORITHMS}
    write_model()
    for name, (parameters, micro_batches) in first.items():
        step = (parameters[0], [*micro_batches, *second[name][1]])
        [expected] = gradients(build_algorithm(compose(name)), [step])
        gradient = torch.cat([(a - b).flatten() for a, b in zip(*parameters, strict=True)])
        torch.testing.assert_close(gradient, expected, rtol=1e-8, atol=1e-11)
        assert expected.abs().max() > 1e-6


def _mean_reward(trained: Run, steps: slice) -> float:
    rewards = [line["reward"] for line in trained.logs if "reward" in line][steps]
    return sum(rewards) / len(rewards)


def test_a_policy_learns_in_trl() -> None:
    settings = {"optim": "adamw_torch", "learning_rate": 0.02, "max_steps": 40}
    trained = run(
        trainer_class(),
        config(**settings),
        algorithm={"kind": "gspo", "clip_low": 0.2, "clip_high": 0.2},
        modifiers=[{"kind": "kl_loss", "coef": 0.001}],
    )
    assert _mean_reward(trained, slice(0, 5)) < 0.15
    assert _mean_reward(trained, slice(-5, None)) > 0.5
    assert trained.logs[-2]["kl"] > 0
