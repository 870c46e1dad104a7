"""Presets of verl under the conditions of verl's trainer: its own `ppo_loss`, counts, masks, and corrections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from tensordict import TensorDict

from purerl.algos.parts.rows import at_last_action
from purerl.batch import with_fields
from purerl.config.presets import presets
from purerl.explain.algorithm import algorithm_named

from .agreement import assert_agree, stated
from .compositions import Result, completions, result_of
from .test_verl import CASES, DIFFERENCES, _advantage_and_returns, core_algos
from .variations import in_dtype, uncounted, with_far_policies, with_tool_outputs, without_rows
from .verl_step import actor_config, gradient_of_step

corrections = pytest.importorskip("verl.trainer.ppo.rollout_corr_helper")

# preset -> verl's loss_mode
MODES = {"gmpo": "geo_mean", "dppo": "dppo_tv"} | {n: n for n in ("gspo", "sapo", "cispo", "kl_cov", "dppo_kl", "dro")}
_NONE: Mapping[str, Any] = MappingProxyType({})


def _batch(name: str, seed: int, change: Callable[[TensorDict], TensorDict] = TensorDict.clone) -> TensorDict:
    batch = CASES[name].change(change(completions(seed)))
    batch.batch_size = batch["mask"].shape[:1]
    return batch


def _corrected(batch: TensorDict, correction: Mapping[str, Any]) -> TensorDict:
    """The batch after verl's rollout correction: its mask, and the weights."""
    weights, mask, _ = corrections.compute_rollout_correction_and_rejection_mask(
        batch["old_logp"], batch["rollout_logp"], batch["mask"].to(batch["logp"].dtype), **correction
    )
    batch = with_fields(batch, mask=mask.bool())
    return batch if weights is None else with_fields(batch, weight=weights.batch["rollout_is_weights"])


def _verl(
    name: str, batch: TensorDict, settings: Mapping[str, Any] = _NONE, correction: Mapping[str, Any] = _NONE, **counts
) -> Result:
    """The result of verl's trainer with the settings of the preset: correction, advantages, step of the actor."""
    batch = _corrected(batch, correction) if correction else batch
    advantage, _ = _advantage_and_returns(batch, CASES[name].advantage)
    return Result(advantage * batch["mask"], *_step(name, batch, advantage, settings, **counts))


def _step(name: str, batch: TensorDict, advantage: torch.Tensor, settings: Mapping[str, Any] = _NONE, **counts) -> Any:
    own = dict(CASES[name].settings)
    policy_loss = {"dro_beta": own.pop("policy_loss").dro_beta} if name == "dro" else None
    config = actor_config(MODES.get(name, "vanilla"), policy_loss, **own, **settings)
    return gradient_of_step(config, batch, advantage, **counts)


def _ours(name: str, batch: TensorDict, *settings: str) -> Result:
    return result_of(algorithm_named(f"{name}@verl", settings), batch)


# --- what agrees, and presets with a stated difference -----------------------------------------------------------


class Condition(NamedTuple):
    """Settings beside the preset, those of verl, a change of the batch, the presets that differ, and all presets."""

    ours: tuple[str, ...] = ()
    settings: Mapping[str, Any] = _NONE
    correction: Mapping[str, Any] = _NONE
    change: Callable[[TensorDict], TensorDict] = TensorDict.clone
    counts: Mapping[str, int] = _NONE
    differs: tuple[str, ...] = ()
    rtol: float = 0.0
    cause: str = ""
    names: tuple[str, ...] = tuple(CASES)


_KL = {"use_kl_loss": True, "kl_loss_coef": 0.1}
_PER_MICRO_BATCH = ("gmpo", "kl_cov")
_FIXED = ("sapo", "gmpo")  # verl's loss_agg_mode has no effect on their policy loss
_WEIGHTED_PENALTY = ("kl_cov", "dro")


def _with_near_reference(batch: TensorDict) -> TensorDict:
    """No estimate k3 is above 10, which verl clamps."""
    x = batch["ref_logp"] - batch["logp"]
    return with_fields(batch, ref_logp=batch["logp"] + x.clamp(-2, 2))


def _penalty(estimator: str, kl_loss_type: str) -> Condition:
    ours, settings = ("kl_loss=0.1", f"kl_loss.estimator={estimator}"), {**_KL, "kl_loss_type": kl_loss_type}
    return Condition(ours, settings, change=_with_near_reference, names=("grpo", "sapo", "gmpo"))


def _reduced(loss_agg_mode: str, by: str) -> Condition:
    ours = ("entropy_bonus=0.1", "kl_loss=0.1", f"reduction={by}")
    settings = {"loss_agg_mode": loss_agg_mode, "entropy_coeff": 0.1, **_KL}
    cause = stated("verl", "1e-8 to the number of tokens of a row")
    return Condition(ours, settings, change=_with_near_reference, differs=_FIXED, rtol=1e-6, cause=cause)


def _weights(level: str, *settings: str, **correction: Any) -> Condition:
    ours = (f"importance_weight={level}", "importance_weight.max_ratio=1.02", *settings)
    theirs = {"rollout_is": level, "rollout_is_threshold": 1.02, **correction}
    cause = stated("verl", "number of tokens that rollout_is_batch_normalize divides by")
    return Condition(ours, correction=theirs, differs=(*_WEIGHTED_PENALTY, "gmpo"), rtol=1e-6, cause=cause)


def _with_equal_ends(batch: TensorDict) -> TensorDict:
    """The last token of a row has the same probability under both policies, so that it is not rejected."""
    last = at_last_action(torch.ones(len(batch)), batch["action"]) > 0
    return with_fields(batch, rollout_logp=torch.where(last, batch["old_logp"], batch["rollout_logp"]))


_NORMALIZED = "importance_weight.normalize=true"
_BAND = ("importance_weight.how=band", "importance_weight.min_ratio=0.97")
CONDITIONS = {
    "tool outputs": Condition(change=with_tool_outputs, differs=("otb",)),
    "log-ratios of tens of nats": Condition(change=with_far_policies, differs=("gspo",)),
    "ranks and micro-batches": Condition(counts={"ranks": 2, "micro_batches": 2}, differs=_PER_MICRO_BATCH),
    "k3": Condition(("kl_loss=0.1",), _KL, change=_with_near_reference),
    "k3+": _penalty("straight_through", "k3+"),
    "k2": _penalty("k2", "mse")._replace(change=with_far_policies),
    "k1": _penalty("k1", "kl"),
    "abs": _penalty("abs", "abs"),
    "entropy bonus": Condition(("entropy_bonus=0.1",), {"entropy_coeff": 0.1}),
    "seq-mean-token-mean": _reduced("seq-mean-token-mean", "sequence_mean_of_token_mean"),
    "seq-mean-token-sum": _reduced("seq-mean-token-sum", "sequence_mean_of_token_sum"),
    "token-sum": _reduced("token-sum", "token_sum"),
    "weights of tokens": _weights("token"),
    "weights of rows": _weights("sequence")._replace(differs=_WEIGHTED_PENALTY),
    "band of weights": _weights("token", *_BAND, rollout_is_threshold="0.97_1.02"),
    "normalized weights": _weights("token", _NORMALIZED, rollout_is_batch_normalize=True),
    "normalized weights of rows": _weights("sequence", _NORMALIZED, rollout_is_batch_normalize=True)._replace(
        differs=_WEIGHTED_PENALTY
    ),
    "the default weights of the loss": _weights("token")._replace(
        ours=("importance_weight=true", "importance_weight.max_ratio=1.02"),
        differs=_WEIGHTED_PENALTY,
        cause=stated("verl", "1e-10"),
    ),
    "rejected tokens": Condition(
        ("rejection=token", "rejection.max_value=0.003"),
        correction={"rollout_rs": "token_k3", "rollout_rs_threshold": 0.003},
        change=_with_equal_ends,
        differs=("otb",),
    ),
}


@pytest.mark.parametrize(("condition", "name"), [(c, n) for c in CONDITIONS for n in CONDITIONS[c].names])
def test_preset_has_the_value_and_gradient_of_verl_under_a_condition(condition: str, name: str) -> None:
    case, seed = CONDITIONS[condition], [*CONDITIONS].index(condition)
    batch = _batch(name, seed, case.change)
    ours = _ours(name, batch, *case.ours)
    theirs = _verl(name, batch, case.settings, case.correction, **case.counts)
    agree = partial(assert_agree, "verl", ours, theirs)
    own = {"rtol": case.rtol, "cause": case.cause} if case.cause else {}
    if name not in case.differs:
        agree(**DIFFERENCES.get(name, own))
    else:
        with pytest.raises(AssertionError):
            agree(**DIFFERENCES.get(name, own))


# --- conventions: each is stated for the presets that have it, and only for them ---------------------------------


def _states(name: str, text: str) -> bool:
    return any(text in difference for difference in presets()[f"{name}@verl"].differences)


def _differs(ours: Result, theirs: Result) -> bool:
    return not all(torch.allclose(mine, other, rtol=1e-4, atol=1e-6) for mine, other in zip(ours, theirs, strict=True))


def _rows_of(batch: TensorDict, *rows: int) -> torch.Tensor:
    """Rows of a batch, bool [rows]: with `otb`, both rows of each pair, so that no position has one row only."""
    half = torch.arange(len(batch)) % 12
    return torch.isin(half, torch.tensor(rows))


@pytest.mark.parametrize("name", CASES)
def test_rows_without_a_counted_token_leave_the_baselines_but_not_those_of_verl(name: str) -> None:
    """Ours are the results of verl without these rows. With them, verl's differ where the table says so."""
    batch = _batch(name, 3)
    rows = _rows_of(batch, 1, 5, 6)
    score = batch["reward"].sum(-1) + batch["row"] / 100 + 3 * rows  # a row that leaves was the best of its group
    batch = with_fields(batch, reward=at_last_action(score, batch["action"]))
    ours = _ours(name, uncounted(batch, rows))
    assert_agree("verl", ours, without_rows(partial(_verl, name), batch, rows), **DIFFERENCES.get(name, {}))
    assert _differs(ours, _verl(name, uncounted(batch, rows))) == _states(name, "stay in verl's baselines")


# In bypass mode both policies are equal. `otb` compares pairs of rows.
@pytest.mark.parametrize("name", [name for name in CASES if name not in ("dppo", "dppo_kl", "otb")])
def test_rejected_rows_leave_the_step(name: str) -> None:
    """Ours are the results of verl without the rows that `rollout_rs` rejects."""
    batch = _batch(name, 3)
    threshold = 0.5 * float((batch["old_logp"] - batch["rollout_logp"])[batch["mask"]].square().median())
    corrected = _corrected(batch, {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": threshold})
    rows = ~corrected["mask"].any(-1)
    assert 0 < rows.sum() < len(batch)
    ours = _ours(name, batch, "rejection=row_mean", f"rejection.max_value={threshold}")
    assert_agree("verl", ours, without_rows(partial(_verl, name), batch, rows), **DIFFERENCES.get(name, {}))


@pytest.mark.parametrize("name", CASES)
def test_the_outcome_of_a_row_whose_last_token_is_rejected_is_kept_but_not_in_verl(name: str) -> None:
    """Ours are the results of verl if the reward is moved to the last counted token."""
    batch = _batch(name, 4)
    last = at_last_action(torch.ones(len(batch)), batch["action"]) > 0
    rejected = last & _rows_of(batch, 1, 4, 8).unsqueeze(-1) & (batch["mask"].sum(-1, keepdim=True) > 1)
    cut = with_fields(batch, mask=batch["mask"] & ~rejected)
    assert rejected.any()
    ours, moved = _ours(name, cut), at_last_action(batch["reward"].sum(-1), cut["mask"])
    if name != "otb":  # it compares rows at the same position, and a cut row ends before the others
        assert_agree("verl", ours, _verl(name, with_fields(cut, reward=moved)), **DIFFERENCES.get(name, {}))
        assert _differs(ours, _verl(name, cut)) == _states(name, "drops a reward at a token that is not counted")


@pytest.mark.parametrize(
    ("name", "settings", "theirs"),
    [
        ("sapo", (), {}),
        ("gmpo", (), {}),
        ("grpo", ("reduction=sequence_mean_of_token_mean",), {"loss_agg_mode": "seq-mean-token-mean"}),
        ("grpo", ("reduction=sequence_mean_of_token_sum",), {"loss_agg_mode": "seq-mean-token-sum"}),
    ],
)
def test_a_mean_over_rows_is_of_rows_with_a_counted_token_but_not_in_verls_trainer(name, settings, theirs) -> None:
    batch = _batch(name, 5)
    part = uncounted(batch, _rows_of(batch, 0, 7, 9, 10))
    ours = _ours(name, part, *settings)
    loss, gradient = _step(name, part, ours.advantage, theirs)
    scale = len(batch) / part["mask"].any(-1).sum()
    difference = {"rtol": 1e-6, "cause": stated("verl", "1e-8 to the number of tokens of a row")}
    assert_agree("verl", ours, Result(ours.advantage, loss * scale, gradient * scale), **difference)
    assert settings or _states(name, "divides by all rows")


def test_verl_clamps_k3_at_10() -> None:
    """The loss of a token beyond is 10, without a gradient; all others are equal."""
    batch = _batch("grpo", 0)
    batch = with_fields(batch, ref_logp=batch["logp"] + 4 * torch.randn(batch["logp"].shape).double())
    x = batch["ref_logp"] - batch["logp"]
    k3, mask = x.exp() - x - 1, batch["mask"]
    beyond = mask & (k3 > 10)
    assert 3 < beyond.sum() < mask.sum() / 2
    ours, plain = _ours("grpo", batch, "kl_loss=0.1"), _ours("grpo", batch)
    theirs = _verl("grpo", batch, _KL)
    tokens = mask.sum()
    excess = 0.1 * torch.where(beyond, k3 - 10, 0).sum() / tokens
    gradient = torch.where(beyond, plain.gradient, ours.gradient)
    assert_agree("verl", Result(ours.advantage, ours.loss - excess, gradient), theirs)
    assert any("clamps k3 at 10" in text for text in presets()["grpo@verl"].modifiers["kl_loss"])


@pytest.mark.parametrize(
    ("name", "bound", "text"),
    [
        ("gspo", 10, "clamps the log-ratio of a row from above at 10"),
        ("gmpo", 20, "does not clamp log-ratios"),
        ("kl_cov", 20, "does not clamp log-ratios"),
    ],
)
def test_bounds_of_log_ratios_are_as_stated(name: str, bound: float, text: str) -> None:
    batch = _batch(name, 1)
    for shift in (bound - 1, bound + 1):
        far = with_fields(batch, logp=batch["old_logp"] + shift)
        ours, theirs = _ours(name, far), _verl(name, far)
        assert _differs(ours, theirs) == (shift > bound)
    assert _states(name, text)


def test_the_gradient_of_gmpo_grows_with_the_number_of_micro_batches_in_verl() -> None:
    batch = _batch("gmpo", 2)
    ours, theirs = _ours("gmpo", batch), _verl("gmpo", batch, micro_batches=3)
    assert_agree("verl", ours, Result(theirs.advantage, theirs.loss / 3, theirs.gradient / 3), **DIFFERENCES["gmpo"])


def test_normalized_weights_of_gmpo_differ_by_a_factor() -> None:
    batch = _batch("gmpo", 2)
    theirs = _verl("gmpo", batch, correction={"rollout_is": "token", "rollout_is_batch_normalize": True})
    ours = _ours("gmpo", batch, "importance_weight=true", "importance_weight.normalize=true")
    mask, weight = batch["mask"], (batch["old_logp"] - batch["rollout_logp"]).exp().clamp(max=2)
    of_rows = (torch.where(mask, weight.log(), 0).sum(-1) / mask.sum(-1)).exp()
    factor = of_rows.mean() / weight[mask].mean()
    assert abs(factor - 1) > 1e-4
    expected = Result(ours.advantage, ours.loss * factor, ours.gradient * factor)
    assert_agree("verl", expected, theirs, rtol=1e-6, cause=stated("verl", "1e-10"))
    assert any("loss of GMPO" in text for text in presets()["gmpo@verl"].modifiers["importance_weight"])


def test_verl_divides_pass_at_k_by_the_standard_deviation_by_default() -> None:
    batch = _batch("pass_k_leave_one_out", 2)
    ours, group = _ours("pass_k_leave_one_out", batch), batch["group"].numpy().astype(object)
    estimate = core_algos.compute_grpo_passk_outcome_advantage
    theirs, _ = estimate(batch["reward"].clone(), batch["mask"].double(), group, config={})
    std = batch["reward"].sum(-1).view(-1, 4).std(-1).repeat_interleave(4).unsqueeze(-1)
    torch.testing.assert_close(theirs, ours.advantage / (std + 1e-6))
    assert _states("pass_k_leave_one_out", "ddof 1, plus 1e-6")


# --- precision ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_preset_is_as_close_to_float64_as_verl(name: str, dtype: torch.dtype) -> None:
    """Ours and verl's are in the dtype of the log-probabilities. Both are as far from float64 as its rounding."""
    batch = in_dtype(_batch(name, 6), dtype)
    exact, ours, theirs = _ours(name, in_dtype(batch, torch.float64)), _ours(name, batch), _verl(name, batch)
    for ours_, theirs_, exact_ in zip(ours, theirs, exact, strict=True):
        size = exact_.abs().max() * torch.finfo(dtype).eps
        far = [float((value.double() - exact_).abs().max() / size) for value in (ours_, theirs_)]
        assert far[0] <= max(8, 2 * far[1]), far
