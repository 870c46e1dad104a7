"""Losses of pairs and of labeled completions against TRL's trainers, which run here without a model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.batch import with_fields
from purerl.explain.algorithm import algorithm_named

from .agreement import assert_agree
from .compositions import Result, completions, result_of

trl = pytest.importorskip("trl", reason="TRL is not installed: nox -s oracle")

SEEDS = range(10)


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """TRL makes tensors of the default dtype from numbers. Here they are float64, so that rounding hides nothing."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def pairs(seed: int) -> TensorDict:
    """Six pairs of completions. The policy has not moved: AOT is sorted by `old_logp` here, and by `logp` in TRL."""
    batch = completions(seed, prompts=6, samples=2)
    return with_fields(batch, chosen=batch["row"] % 2 == seed % 2, old_logp=batch["logp"])


def in_order(batch: TensorDict) -> Tensor:
    """The rows as TRL has them: all chosen rows, then all rejected ones."""
    return torch.cat([batch["chosen"].nonzero(), (~batch["chosen"]).nonzero()]).squeeze(-1)


def gradient_of(loss: Tensor, logp: Tensor) -> Result:
    [gradient] = torch.autograd.grad(loss, logp)
    return Result(logp.new_zeros(0), loss.detach(), gradient)


# --- DPO ---------------------------------------------------------------------------------------------------------


def dpo_trainer(batch: TensorDict, **settings: Any) -> Result:
    """The loss of TRL's DPO trainer."""
    order, mask, logp = in_order(batch), batch["mask"], batch["logp"].clone().requires_grad_()
    fields = trl.DPOConfig.__dataclass_fields__
    defaults = {name: fields[name].default for name in ("beta", "label_smoothing", "ld_alpha", "f_divergence_type")}
    stub = SimpleNamespace(
        **defaults | settings | {"loss_weights": settings.get("loss_weights", [1.0])},
        accelerator=SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x),
        args=SimpleNamespace(discopop_tau=fields["discopop_tau"].default),
        model=SimpleNamespace(training=False),
        aux_loss_enabled=False,
        precompute_ref_logps=True,
        use_weighting=False,
        _total_train_tokens=0,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    # The first column is the prompt, which no token is predicted for.
    log_probs = torch.where(mask, logp, 0)[order][:, 1:]
    outputs = SimpleNamespace(log_probs=log_probs, entropy=log_probs, mean_logits=log_probs, is_top1=log_probs > 0)
    ref_chosen, ref_rejected = torch.where(mask, batch["ref_logp"], 0)[order].sum(-1).chunk(2)
    inputs = {"input_ids": batch["tokens"][order], "completion_mask": mask[order].long()}
    inputs |= {"ref_chosen_logps": ref_chosen, "ref_rejected_logps": ref_rejected}
    loss = trl.DPOTrainer._compute_loss(stub, lambda **_: outputs, inputs, return_outputs=False)
    return gradient_of(loss, logp)


NORMALIZED = "length_normalization=true"

# name -> settings of dpo or another algorithm, and of TRL's trainer
DPO_LOSSES: dict[str, tuple[list[str], dict[str, Any]]] = {
    **{
        name: ([f'losses=["{name}"]'], {"loss_types": [name]})
        for name in ("sigmoid", "hinge", "nca_pair", "bco_pair", "sppo_hard", "apo_zero", "apo_down", "discopop")
    },
    "ipo": (['losses=["ipo"]', NORMALIZED], {"loss_types": ["ipo"]}),
    "sigmoid_norm": ([NORMALIZED], {"loss_types": ["sigmoid_norm"]}),
    "exo_pair": (
        ['losses=["exo_pair"]', "exo_smoothing=0.02"],
        {"loss_types": ["exo_pair"], "label_smoothing": 0.02},
    ),
    "robust": (
        ["label_smoothing=0.1", "label_smoothing.robust=true"],
        {"loss_types": ["robust"], "label_smoothing": 0.1},
    ),
    "aot": (
        ["rank_matching=margins", "label_smoothing=0.1"],
        {"loss_types": ["aot"], "label_smoothing": 0.1},
    ),
    "aot_unpaired": (["rank_matching=completions"], {"loss_types": ["aot_unpaired"]}),
    "mixture": (
        ['losses=["sigmoid", "bco_pair"]', "weights=[0.8, 0.2]", "nll_loss=0.5", "beta=0.3"],
        {"loss_types": ["sigmoid", "bco_pair", "sft"], "loss_weights": [0.8, 0.2, 0.5], "beta": 0.3},
    ),
}


# preset -> settings of TRL's trainer that differ from its defaults
DPO_PRESETS: dict[str, dict[str, Any]] = {
    "dpo": {"loss_types": ["sigmoid"]},
    "robust_dpo": {"loss_types": ["robust"], "label_smoothing": 0.1},
    "ipo": {"loss_types": ["ipo"]},
}
PRESETS = (*DPO_PRESETS, "simpo")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", DPO_PRESETS)
def test_preset_of_pairs_has_the_value_and_gradient_of_trl(name: str, seed: int) -> None:
    batch = pairs(seed)
    ours = result_of(algorithm_named(f"{name}@trl"), batch)
    assert_agree("TRL", ours, dpo_trainer(batch, **DPO_PRESETS[name]))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", DPO_LOSSES)
def test_loss_of_pairs_has_the_value_and_gradient_of_trl(name: str, seed: int) -> None:
    settings, changes = DPO_LOSSES[name]
    batch = pairs(seed)
    assert_agree("TRL", result_of(algorithm_named("dpo", settings), batch), dpo_trainer(batch, **changes))


def test_every_loss_type_of_trl_is_compared() -> None:
    described = trl.DPOConfig.__dataclass_fields__["loss_type"].metadata["help"]
    named = {word.strip("`',. ") for word in described.partition(":")[2].partition(". If")[0].split()}
    compared = {name for _, changes in DPO_LOSSES.values() for name in changes["loss_types"]}
    assert named == compared


# --- CPO, SimPO and ORPO -----------------------------------------------------------------------------------------


def reference_free_trainer(batch: TensorDict, *, trainer: str, loss: str, average: bool, **settings: Any) -> Result:
    """The loss of TRL's CPO or ORPO trainer: the method `loss`, with the negative log-likelihood of chosen tokens."""
    module = pytest.importorskip(f"trl.experimental.{trainer}")
    logp, mask = batch["logp"].clone().requires_grad_(), batch["mask"]
    counted = torch.where(mask, logp, 0)
    rows = counted.sum(-1) / (mask.sum(-1) if average else 1)
    stub = SimpleNamespace(**settings, accelerator=SimpleNamespace(device="cpu"))
    method = getattr(getattr(module, f"{trainer.upper()}Trainer"), loss)
    losses, *_ = method(stub, rows[batch["chosen"]], rows[~batch["chosen"]])
    nll = -counted[batch["chosen"]].sum() / mask[batch["chosen"]].sum()
    if trainer == "orpo":
        return gradient_of(nll - losses.mean(), logp)
    return gradient_of(losses.mean() + settings["cpo_alpha"] * nll, logp)


def cpo_defaults() -> dict[str, Any]:
    fields = pytest.importorskip("trl.experimental.cpo").CPOConfig.__dataclass_fields__
    names = ("beta", "label_smoothing", "loss_type", "cpo_alpha", "simpo_gamma", "alpha")
    return {name: fields[name].default for name in names}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "settings", "changes"),
    [
        ("cpo", [], {}),
        ("cpo", ["label_smoothing=0.1"], dict(label_smoothing=0.1)),
        ("cpo", ["beta=0.5", "nll_coef=0.3"], dict(beta=0.5, cpo_alpha=0.3)),
        ("simpo@trl", [], dict(loss_type="simpo")),
        ("simpo", [], dict(loss_type="simpo", beta=2.0, simpo_gamma=0.5, cpo_alpha=0.0)),
    ],
)
def test_cpo_and_simpo_have_the_value_and_gradient_of_trl(
    name: str, settings: list[str], changes: dict[str, Any], seed: int
) -> None:
    batch, settings_of_trl = pairs(seed), cpo_defaults() | changes
    average = settings_of_trl["loss_type"] == "simpo"
    theirs = reference_free_trainer(batch, trainer="cpo", loss="cpo_loss", average=average, **settings_of_trl)
    assert_agree("TRL", result_of(algorithm_named(name, settings), batch), theirs)


@pytest.mark.parametrize("seed", SEEDS)
def test_orpo_has_the_value_and_gradient_of_trl(seed: int) -> None:
    batch = pairs(seed)
    batch = with_fields(batch, logp=-batch["logp"].abs() - 0.01)  # TRL: NaN for a mean log-probability above 0
    theirs = reference_free_trainer(batch, trainer="orpo", loss="odds_ratio_loss", average=True, beta=0.1)
    cause = "TRL computes odds in float32"
    assert_agree("TRL", result_of(algorithm_named("orpo"), batch), theirs, rtol=1e-5, cause=cause)


# --- KTO ---------------------------------------------------------------------------------------------------------


def labeled(seed: int) -> TensorDict:
    """Twelve labeled completions, and as many mismatched rows after them. The policy has not moved."""
    batch = completions(seed, prompts=12, samples=2)
    rng = torch.Generator().manual_seed(seed)
    desirable = (torch.rand(12, generator=rng) < 0.5).repeat(2)
    return with_fields(batch, desirable=desirable, mismatched=batch["row"] >= 12, old_logp=batch["logp"])


def kto_trainer(batch: TensorDict, **settings: Any) -> Result:
    """The loss of TRL's KTO trainer."""
    mask, logp, rows = batch["mask"], batch["logp"].clone().requires_grad_(), batch["mismatched"].logical_not()
    fields = trl.KTOConfig.__dataclass_fields__
    names = ("beta", "desirable_weight", "undesirable_weight", "loss_type")
    stub = SimpleNamespace(
        **{name: fields[name].default for name in names} | settings,
        accelerator=SimpleNamespace(device="cpu", gather_for_metrics=lambda x: x),
        args=SimpleNamespace(),
        model=SimpleNamespace(training=False),
        calculate_KL=True,
        aux_loss_enabled=False,
        precompute_ref_logps=True,
        _compute_kl_logps=lambda model, inputs: torch.where(mask, logp, 0)[~rows].sum(-1),
        _total_train_tokens=0,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    log_probs = torch.where(mask, logp, 0)[rows][:, 1:]
    outputs = SimpleNamespace(log_probs=log_probs, entropy=log_probs, mean_logits=log_probs, is_top1=log_probs > 0)
    ref_logps = torch.where(mask, batch["ref_logp"], 0).sum(-1)
    inputs = {
        "input_ids": batch["tokens"][rows],
        "completion_mask": mask[rows].long(),
        "label": batch["desirable"][rows],
    }
    inputs |= {"attention_mask": batch["attention_mask"][rows].long()}
    inputs |= {"ref_logps": ref_logps[rows], "ref_KL_logps": ref_logps[~rows]}
    loss = trl.KTOTrainer._compute_loss(stub, lambda **_: outputs, inputs, return_outputs=False)
    return gradient_of(loss, logp)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("changes", [{}, {"beta": 0.4, "desirable_weight": 1.3, "undesirable_weight": 0.6}])
def test_kto_has_the_value_and_gradient_of_trl(changes: dict[str, float], seed: int) -> None:
    batch = labeled(seed)
    ours = result_of(algorithm_named("kto", [f"{name}={value}" for name, value in changes.items()]), batch)
    assert_agree("TRL", ours, kto_trainer(batch, **changes))
