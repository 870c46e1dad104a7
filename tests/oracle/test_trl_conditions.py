"""Presets of TRL under the conditions of TRL's trainers: masks, modifiers, micro-batches, and precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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

from .agreement import assert_agree
from .compositions import Result, completions, result_of
from .test_trl import CASES
from .trl_step import SAMPLES, trl_result
from .variations import in_dtype, uncounted, with_far_policies, with_tool_outputs, without_rows

trl = pytest.importorskip("trl", reason="TRL is not installed: nox -s oracle")

GRPO = [name for name, (trainer, _) in CASES.items() if trainer == "GRPO"]
_NONE: Mapping[str, Any] = MappingProxyType({})


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """TRL makes tensors of the default dtype from numbers."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def _batch(seed: int, change: Callable[[TensorDict], TensorDict] = TensorDict.clone) -> TensorDict:
    batch = change(completions(seed, samples=SAMPLES))
    return with_fields(batch, old_entropy=batch["entropy"])


def _trl(name: str, batch: TensorDict, settings: Mapping[str, Any] = _NONE, **counts: int) -> Result:
    trainer, changes = CASES[name]
    return trl_result(batch, trainer, {**changes, **settings}, **counts)


def _ours(name: str, batch: TensorDict, *settings: str) -> Result:
    return result_of(algorithm_named(f"{name}@trl", settings), batch)


# --- what agrees, and presets with a stated difference -----------------------------------------------------------


class Condition(NamedTuple):
    """Settings beside the preset, those of TRL, a change of the batch, and the presets that differ, or have none."""

    ours: tuple[str, ...] = ()
    settings: Mapping[str, Any] = _NONE
    change: Callable[[TensorDict], TensorDict] = TensorDict.clone
    micro_batches: int = 1
    differs: tuple[str, ...] = ()
    names: tuple[str, ...] = tuple(GRPO)


_OF_ROWS = ("gspo", "luspo")
_CLIPPED = ("grpo", "grpo_paper", "dr_grpo", "gspo", "bnpo", "luspo")
_TOKEN_TRUNCATE = {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": 1.02}
CONDITIONS = {
    "tool outputs": Condition(change=with_tool_outputs),
    "micro-batches": Condition(micro_batches=3, differs=("bnpo",)),
    "log-ratios of 9 nats": Condition(change=partial(with_far_policies, bound=9.0), differs=("vespo",)),
    "beta": Condition(("kl_loss=0.1",), {"beta": 0.1}, differs=_OF_ROWS),
    "beta without correction": Condition(
        ("kl_loss=0.1", "kl_loss.estimator=k3"), {"beta": 0.1, "use_bias_correction_kl": False}
    ),
    "entropy_coef": Condition(("entropy_bonus=0.1",), {"entropy_coef": 0.1}),
    "delta": Condition(("dual_clip=1.3",), {"delta": 1.3}, names=_CLIPPED),
    "off_policy_mask_threshold": Condition(("off_policy_mask=0.01",), {"off_policy_mask_threshold": 0.01}),
    "weights of vLLM": Condition(
        ("importance_weight=true",), {"use_vllm": True}, names=tuple(name for name in GRPO if name != "vespo")
    ),
    "weights of tokens of vLLM": Condition(
        ("importance_weight=token", "importance_weight.how=truncate", "importance_weight.max_ratio=1.02"),
        {"use_vllm": True, **_TOKEN_TRUNCATE},
        differs=_OF_ROWS,
        names=tuple(name for name in GRPO if name != "vespo"),
    ),
}


@pytest.mark.parametrize(("condition", "name"), [(c, n) for c in CONDITIONS for n in CONDITIONS[c].names])
def test_preset_has_the_value_and_gradient_of_trl_under_a_condition(condition: str, name: str) -> None:
    case, seed = CONDITIONS[condition], [*CONDITIONS].index(condition)
    batch = _batch(seed, case.change)
    theirs = _trl(name, batch, case.settings, micro_batches=case.micro_batches)
    agree = partial(assert_agree, "TRL", _ours(name, batch, *case.ours), theirs)
    if name not in case.differs:
        agree()
    else:
        with pytest.raises(AssertionError):
            agree()


# --- conventions: each is stated for the presets that have it, and only for them ---------------------------------


def _states(name: str, text: str) -> bool:
    return any(text in difference for difference in presets()[f"{name}@trl"].differences)


def _differs(ours: Result, theirs: Result) -> bool:
    return not all(torch.allclose(mine, other, rtol=1e-6, atol=1e-9) for mine, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_rows_without_a_counted_token_leave_the_baselines_but_not_those_of_trl(name: str) -> None:
    """Ours are the results of TRL without these rows: here a group of every prompt, so that all keep their size."""
    batch = _batch(3)
    rows = torch.arange(len(batch)) // SAMPLES == 1
    ours = _ours(name, uncounted(batch, rows))
    assert_agree("TRL", ours, without_rows(partial(_trl, name), batch, rows))
    assert _differs(ours, _trl(name, uncounted(batch, rows))) == _states(name, "divides by all rows")
    one = torch.arange(len(batch)) == 1
    assert _differs(_ours(name, uncounted(batch, one)), _trl(name, uncounted(batch, one)))
    assert _states(name, "stay in TRL's baselines")


@pytest.mark.parametrize("name", CASES)
def test_log_ratios_beyond_20_nats_are_clamped_but_not_in_trl(name: str) -> None:
    batch = _batch(0)
    tokens, last_of_group = batch["mask"].sum(-1, keepdim=True), batch["row"].unsqueeze(-1) % SAMPLES == SAMPLES - 1
    score = -(batch["row"] % SAMPLES).double()  # the advantage of the last row of a group is negative
    batch = with_fields(batch, reward=at_last_action(score, batch["action"]), rollout_logp=batch["old_logp"])
    # In cispo the weight is capped before, in sapo the gate is closed, and in vespo the weight is 0.
    is_bounded = name in ("cispo", "sapo", "vespo")
    for log_ratio in (19.0, 21.0):
        of_token = log_ratio / tokens if name in ("rloo", "vespo") else log_ratio
        far = with_fields(batch, logp=batch["old_logp"] + torch.where(last_of_group, of_token, 0.0))
        assert _differs(_ours(name, far), _trl(name, far)) == (log_ratio > 20 and not is_bounded)
    assert _states(name, "clamp")


@pytest.mark.parametrize("name", _OF_ROWS)
def test_the_kl_of_a_token_has_the_ratio_of_its_row_in_trl(name: str) -> None:
    batch = _batch(0)
    ours, plain, theirs = _ours(name, batch, "kl_loss=0.1"), _ours(name, batch), _trl(name, batch, {"beta": 0.1})
    mask, x = batch["mask"], batch["ref_logp"] - batch["logp"]
    log_ratio = torch.where(mask, batch["logp"] - batch["old_logp"], 0)
    tokens = mask.sum(-1, keepdim=True)
    kl = torch.where(mask, x.exp() - x - 1, 0) * (log_ratio.sum(-1, keepdim=True) / tokens).exp()
    per_row = kl.sum(-1) if name == "luspo" else kl.sum(-1) / tokens[:, 0]
    torch.testing.assert_close(theirs.loss, plain.loss + 0.1 * per_row.mean())
    assert _differs(ours, theirs)
    assert any("the ratio of the row" in text for text in presets()[f"{name}@trl"].modifiers["kl_loss"])


def test_the_threshold_of_top_entropy_quantile_is_interpolated() -> None:
    batch = _batch(0)
    tokens = int(batch["mask"].sum())
    for number in (1, 5, 10):  # the quantile is between the tokens `number` and `number + 1`
        fraction = (number + 1e-6) / tokens
        ours = _ours("grpo", batch, f"high_entropy_tokens={fraction}")
        assert_agree("TRL", ours, _trl("grpo", batch, {"top_entropy_quantile": fraction}))
    theirs = _trl("grpo", batch, {"top_entropy_quantile": 9.5 / tokens})
    assert _differs(_ours("grpo", batch, f"high_entropy_tokens={9.5 / tokens}"), theirs)
    assert_agree("TRL", _ours("grpo", batch, f"high_entropy_tokens={(10 + 1e-6) / tokens}"), theirs)


def test_the_entropy_bonus_is_restricted_to_tokens_of_high_entropy_in_trl() -> None:
    batch = _batch(0)
    fraction = (10 + 1e-6) / int(batch["mask"].sum())
    modifier = f"high_entropy_tokens={fraction}"
    ours, plain = _ours("grpo", batch, modifier, "entropy_bonus=0.1"), _ours("grpo", batch, modifier)
    theirs = _trl("grpo", batch, {"top_entropy_quantile": fraction, "entropy_coef": 0.1})
    entropy = batch["entropy"][batch["mask"]]
    torch.testing.assert_close(ours.loss, plain.loss - 0.1 * entropy.mean())
    torch.testing.assert_close(theirs.loss, plain.loss - 0.1 * entropy.sort(descending=True).values[:10].mean())


# --- precision ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_preset_is_as_close_to_float64_as_trl(name: str, dtype: torch.dtype) -> None:
    """Ours and TRL's are in the dtype of the log-probabilities. Both are as far from float64 as its rounding."""
    batch = in_dtype(_batch(6), dtype)
    exact = _ours(name, in_dtype(batch, torch.float64))
    torch.set_default_dtype(dtype)
    ours, theirs = _ours(name, batch), _trl(name, batch)
    for mine, other, value in zip(ours, theirs, exact, strict=True):
        size = value.abs().max() * torch.finfo(dtype).eps
        far = [float((found.double() - value).abs().max() / size) for found in (mine, other)]
        assert far[0] <= max(8, 2 * far[1]), far
