"""Presets of OpenRLHF against its experience maker and its losses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.batch import with_fields
from purerl.config.presets import presets
from purerl.explain.algorithm import algorithm_named

from .agreement import assert_agree, stated
from .compositions import Result, algorithm_of, completions, result_of
from .placeholders import add_placeholders
from .variations import uncounted, with_far_policies, with_tool_outputs, without_rows

pytest.importorskip("openrlhf", reason="OpenRLHF is not installed: nox -s oracle")
# flash_attn and deepspeed need CUDA to be built. The launcher imports vLLM, and is used for annotations only.
add_placeholders(["flash_attn", "flash_attn.bert_padding", "flash_attn.utils", "flash_attn.utils.distributed"])
add_placeholders(["deepspeed", "openrlhf.trainer.ray.launcher"])
losses = pytest.importorskip("openrlhf.models.loss")
utils = pytest.importorskip("openrlhf.models.utils")
experience = pytest.importorskip("openrlhf.trainer.ppo_utils.experience")
maker = pytest.importorskip("openrlhf.trainer.ppo_utils.experience_maker")

SEEDS = range(25)
SAMPLES = 4
KL_COEF = 0.01

# preset -> OpenRLHF's algo.advantage.estimator
CASES = {
    "ppo": "gae",
    "reinforce_plus_plus": "reinforce",
    "reinforce_plus_plus_baseline": "reinforce_baseline",
    "grpo": "group_norm",
    "dr_grpo": "dr_grpo",
    "rloo": "rloo",
}


@pytest.fixture(autouse=True)
def double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenRLHF casts some tensors to float32. Here they become float64, so that rounding does not hide differences."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(maker.torch, "zeros", _zeros_in_double)


_zeros = torch.zeros


def _zeros_in_double(*size: Any, **keywords: Any) -> Tensor:
    return _zeros(*size, **{"dtype": torch.float64} | keywords)


def _settings(estimator: str) -> SimpleNamespace:
    """The default settings that the experience maker reads."""
    advantage = SimpleNamespace(estimator=estimator, gamma=1.0, lambd=1.0, no_std_norm=False)
    return SimpleNamespace(
        algo=SimpleNamespace(advantage=advantage),
        rollout=SimpleNamespace(n_samples_per_prompt=SAMPLES),
        reward=SimpleNamespace(
            clip_range=(-10, 10), overlong_buffer_len=None, stop_properly_penalty_coef=None, overlong_penalty_factor=1
        ),
    )


def _with_advantages(batch: TensorDict, estimator: str) -> Any:
    """OpenRLHF's advantages and returns of `batch`."""
    mask, strategy = batch["mask"].long(), SimpleNamespace(args=_settings(estimator))
    kl = utils.compute_approx_kl(batch["old_logp"], batch["ref_logp"], kl_estimator="k1")
    rows = experience.Experience(
        index=list(range(len(batch))), rewards=batch["reward"].sum(-1), action_mask=mask, kl=kl * mask, info={}
    )
    rows.values = batch["old_value"] * mask
    kl_coef = SimpleNamespace(value=KL_COEF)
    new = maker.RemoteExperienceMaker(None, None, None, None, kl_coef, strategy, None)
    [result] = new.compute_advantages_and_returns([rows])
    return result


def _policy(batch: TensorDict, estimator: str, **loss_settings: Any) -> Result:
    rows, mask = _with_advantages(batch, estimator), batch["mask"].double()
    logp = batch["logp"].clone().requires_grad_()
    policy_loss = losses.PolicyLoss(**loss_settings)
    loss, *_ = policy_loss(logp, batch["old_logp"], rows.advantages, mask, batch["rollout_logp"])
    [gradient] = torch.autograd.grad(loss, logp)
    return Result(rows.advantages * mask, loss.detach(), gradient)


def _critic(batch: TensorDict) -> Result:
    rows, mask = _with_advantages(batch, "gae"), batch["mask"].double()
    value = batch["value"].clone().requires_grad_()
    loss = losses.ValueLoss(0.5)(value, batch["old_value"], rows.returns, mask)
    [gradient] = torch.autograd.grad(loss, value)
    return Result(rows.returns * mask, loss.detach(), gradient)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_preset_has_the_value_and_gradient_of_openrlhf(name: str, seed: int) -> None:
    batch = completions(seed, samples=SAMPLES)
    assert_agree("OpenRLHF", result_of(algorithm_of(f"{name}@openrlhf"), batch), _policy(batch, CASES[name]))


# a modifier of grpo@openrlhf, with its settings -> settings of OpenRLHF's policy loss
_TOKEN, _BOUNDS = {"is_correction_level": "token"}, {"is_correction_threshold": [0.97, 1.04]}
MODIFIERS: dict[tuple[str, ...], dict[str, Any]] = {
    ("clip_low=0.1", "clip_high=0.3"): {"clip_eps_low": 0.1, "clip_eps_high": 0.3},
    ("dual_clip=1.3",): {"dual_clip": 1.3},
    ("reduction=sequence_mean_of_token_mean",): {"token_level_loss": False},
    ("importance_weight=token", "importance_weight.how=clamp"): {**_TOKEN, **_BOUNDS, "is_correction_mode": "clip"},
    ("importance_weight=token", "importance_weight.how=band"): {**_TOKEN, **_BOUNDS, "is_correction_mode": "mask"},
}
_RATIOS = ("importance_weight.min_ratio=0.97", "importance_weight.max_ratio=1.04")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("settings", MODIFIERS, ids=" ".join)
def test_modifier_has_the_value_and_gradient_of_openrlhf(settings: tuple[str, ...], seed: int) -> None:
    batch = completions(seed, samples=SAMPLES)
    ratios = _RATIOS if settings[0].startswith("importance_weight") else ()
    mine = result_of(algorithm_named("grpo@openrlhf", [*settings, *ratios]), batch)
    difference = {"rtol": 1e-6, "cause": stated("OpenRLHF", "1e-8 to the number of tokens of a row")}
    causes = difference if settings[0].startswith("reduction") else {}
    assert_agree("OpenRLHF", mine, _policy(batch, "group_norm", **MODIFIERS[settings]), **causes)


@pytest.mark.parametrize("seed", SEEDS)
def test_critic_has_the_value_and_gradient_of_openrlhf(seed: int) -> None:
    batch = completions(seed, samples=SAMPLES)
    assert_agree("OpenRLHF", result_of(algorithm_of("ppo@openrlhf"), batch, "critic"), _critic(batch))


# --- the conditions of a trainer, and conventions ----------------------------------------------------------------


def _with_near_reference(batch: TensorDict) -> TensorDict:
    """No KL estimate is beyond OpenRLHF's bound of 10."""
    batch = with_far_policies(batch)
    return with_fields(batch, ref_logp=batch["old_logp"] + batch["greedy_score"].unsqueeze(-1))


@pytest.mark.parametrize("change", [with_tool_outputs, _with_near_reference], ids=["tool outputs", "far policies"])
@pytest.mark.parametrize("name", CASES)
def test_preset_has_the_value_and_gradient_of_openrlhf_under_a_condition(name: str, change: Any) -> None:
    batch = change(completions(1, samples=SAMPLES))
    assert_agree("OpenRLHF", result_of(algorithm_of(f"{name}@openrlhf"), batch), _policy(batch, CASES[name]))


@pytest.mark.parametrize("name", CASES)
def test_rows_without_a_counted_token_leave_the_baselines_but_not_those_of_openrlhf(name: str) -> None:
    batch = completions(3, samples=SAMPLES)
    one, group = batch["row"] == 1, batch["group"] == 1
    theirs = without_rows(lambda rows: _policy(rows, CASES[name]), batch, group)
    ours = result_of(algorithm_of(f"{name}@openrlhf"), uncounted(batch, group))
    assert_agree("OpenRLHF", ours, theirs)
    ours = result_of(algorithm_of(f"{name}@openrlhf"), uncounted(batch, one))
    theirs = _policy(uncounted(batch, one), CASES[name])
    differs = not torch.allclose(ours.gradient, theirs.gradient, rtol=1e-6, atol=1e-9)
    stated = [text for text in presets()[f"{name}@openrlhf"].differences if "stay in OpenRLHF's baselines" in text]
    assert differs == bool(stated)
