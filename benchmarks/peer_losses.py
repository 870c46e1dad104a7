"""The losses of verl, TRL and OpenRLHF, tested with the laws of `purerl.testing.check_objective`.

    .nox/oracle/bin/python -m benchmarks.peer_losses [--batches 5] [--library verl] > docs/explanation/peer_losses.md

The environment is that of `nox -s oracle`. The losses are the libraries' own functions with their default settings.
TRL computes its loss in a method of the trainer, which runs here without a model. The losses of OpenRLHF are imported
without deepspeed and flash_attn, which they do not need.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from purerl.plugins import find
from purerl.testing import LAWS, law_results
from tests.oracle.placeholders import add_placeholders

NOT_RUN = ("device_preserved", "vmap_equals_loop", "compiled_equals_eager")
LAWS_OF_TABLE = tuple(law.__name__ for law in LAWS if law.__name__ not in NOT_RUN)

VERL = ("vanilla", "gspo", "sapo", "gpg", "cispo", "dro", "geo_mean", "dppo_tv", "dppo_kl", "clip_cov", "kl_cov")
TRL: Mapping[str, Mapping[str, Any]] = {
    "grpo": {},
    "bnpo": {},
    "dr_grpo": {"max_completion_length": 256},
    "dapo": {},
    "luspo": {"importance_sampling_level": "sequence"},
    "cispo": {"epsilon_high": 5.0},
    "sapo": {},
    "vespo": {},
}
OPENRLHF: Mapping[str, Mapping[str, Any]] = {
    "ppo": {},
    "seq-mean-token-mean": {"token_level_loss": False},
    "dual_clip": {"dual_clip": 3.0},
    "gspo": {"policy_loss_type": "gspo"},
    "tis": {"is_correction_level": "token", "is_correction_mode": "clip"},
    "icepop": {"is_correction_level": "token"},
    "seq-mask-tis": {"is_correction_level": "seq"},
    "binary_kl": {
        "is_correction_level": "seq",
        "is_correction_gating": "binary_kl",
        "is_correction_threshold": (0.0, 0.1),
    },
}
"""Settings of OpenRLHF's policy loss. `dual_clip` and the bound of `binary_kl` have no default."""

OURS = {
    ("verl", "vanilla"): "grpo",
    ("verl", "geo_mean"): "gmpo",
    ("verl", "gspo"): "gspo_token",
    ("verl", "dppo_tv"): "dppo",
    ("verl", "value"): "ppo",
    ("OpenRLHF", "value"): "ppo",
    **{("OpenRLHF", name): "ppo" for name in OPENRLHF if name != "gspo"},
}
"""The name in purerl, if it is another one: its exemptions are what a loss violates on purpose."""

INTRODUCTION = """\
# Losses of other libraries

The losses of verl {verl}, TRL {trl} and OpenRLHF {openrlhf}, with their default settings, tested with the laws as in
[Testing your own loss](../how-to/own_losses.md). The command that makes this page is
`.nox/oracle/bin/python -m benchmarks.peer_losses > docs/explanation/peer_losses.md`.

A law is stricter than what a library promises. Some of these failures cannot happen in the library's own trainer,
which never has NaN at a masked-out token or a rank without rows. They matter when a loss is used elsewhere.
*On purpose* are laws from which the algorithm of purerl is exempt, too
([the reasons](../reference/laws.md#exemptions)). Losses of
verl and TRL return metrics as numbers, so the laws of execution ({not_run}) are left out for all. Of TRL's losses,
those that divide by `num_items_in_batch` are added up over micro-batches, and of the others the mean is taken,
weighted by rows. Those of OpenRLHF get the counts of the step, as from its trainers, and are added up.

OpenRLHF has one policy loss. The rows are its settings: `policy_loss_type` `ppo` and `gspo`; `loss_agg_mode`
`seq-mean-token-mean`; `dual_clip` of 3; and the corrections of the mismatch between the trainer and the sampler, by
the names of its documentation, with the default bounds [0.5, 5] (`binary_kl`: at most 0.1). `value` is the loss of the
critic with a clip range of 0.5, and `sft` that of supervised fine-tuning. To them, fewer laws apply. The losses of DPO
and of reward models are not in the table: they get one number for each completion, so they have no mask.

| library | loss | passed | fails | on purpose |
|---|---|---|---|---|
"""

EXPLANATION = """
## What the failures mean

One cause can fail several laws.

- `masked_token_invariance`: a masked-out token with NaN makes the loss or its gradient NaN, because it is multiplied by
  a mask of 0, and 0 * NaN is NaN. In OpenRLHF, the value of every loss is NaN then, but the gradient is so only in
  `gspo` and `value`. It is 0 for a row with such a token in `seq-mask-tis` and `binary_kl`, because a statistic of NaN
  is outside of the bounds. In the others it is right: the derivative of `clamp` at NaN is 0.
- `finite_at_impossible_tokens`: a log-probability of -inf under both policies makes the log-ratio -inf - (-inf), which
  is NaN. In OpenRLHF the value is NaN, and the gradient only in `gspo`; `seq-mask-tis` drops the row. `sft` has an
  infinite value, that of the negative log-likelihood, and the right gradient.
- `finite_at_extreme_ratios`: `exp` of a log-ratio that is not clamped overflows. The loss is infinite, or its gradient
  infinity times 0. In OpenRLHF's `gspo` this is the ratio of the row. In `seq-mask-tis` and `binary_kl` it is the
  weight of a token: the statistic of the row is bounded, but a token of an accepted row has a weight without an upper
  bound. `tis` and `icepop`, which bound each token, pass.
- `padding_invariance`, `masked_row_invariance`, `microbatch_invariance`, `rank_invariance` and
  `zero_loss_without_counted_tokens` together: the loss is a mean over the rows of the micro-batch, in verl's `geo_mean`
  and several losses of TRL. It counts a row without counted tokens, and is NaN without rows. In TRL it splits into
  micro-batches exactly if there is no such row.
- `microbatch_invariance` and `rank_invariance` alone: TRL's `bnpo` divides by the tokens of the micro-batch, and verl's
  `kl_cov` selects tokens by a covariance within it.
- `no_hidden_state`: verl's `clip_cov` draws tokens at random, so it fails all laws that compare two calls.
"""


class Peer(NamedTuple):
    """A loss of a library, and the settings of its test."""

    library: str
    name: str
    loss: Callable
    options: Mapping[str, Any]


# --- losses ------------------------------------------------------------------------------------------------------


def verl_losses() -> Iterator[Peer]:
    """verl's policy losses, with verl's configuration of an actor."""
    core, actor = import_module("verl.trainer.ppo.core_algos"), import_module("verl.workers.config.actor")
    sizes = {"rollout_n": 1, "ppo_mini_batch_size": 1, "ppo_micro_batch_size_per_gpu": 1}
    for name in VERL:
        settings = {"dro_beta": 0.05} if name == "dro" else {}  # it has no default
        policy_loss = actor.PolicyLossConfig(loss_mode=name, **settings)
        config = actor.ActorConfig(strategy="fsdp", policy_loss=policy_loss, **sizes)
        yield Peer("verl", name, core.get_policy_loss_fn(name), {"arguments": {"config": config}})
    yield Peer("verl", "value", core.compute_value_loss, {"arguments": {"cliprange_value": 0.5}})


def trl_losses() -> Iterator[Peer]:
    """The loss types of TRL's GRPOTrainer."""
    for name, changes in TRL.items():
        is_sum = name in ("dapo", "cispo", "vespo")
        yield Peer("TRL", name, trl_loss(name, changes), {"accumulate": "sum" if is_sum else "mean"})


def trl_loss(loss_type: str, changes: Mapping[str, Any]) -> Callable:
    """The loss of `loss_type` as a function of tensors: TRL's method, of a trainer without a model."""
    import trl

    defaults = {name: field.default for name, field in trl.GRPOConfig.__dataclass_fields__.items()}
    args = SimpleNamespace(**{**defaults, "steps_per_generation": 1, "loss_type": loss_type, **changes})
    high = args.epsilon if args.epsilon_high is None else args.epsilon_high

    def loss(
        per_token_logps: Tensor,
        old_per_token_logps: Tensor,
        advantages: Tensor,
        completion_mask: Tensor,
        num_items_in_batch: Tensor,
    ) -> Tensor:
        entropies = torch.zeros_like(per_token_logps)
        parts = {
            "args": args,
            "epsilon_low": args.epsilon,
            "epsilon_high": high,
            "accelerator": SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
            "model": SimpleNamespace(training=True),
            "aux_loss_enabled": False,
            "current_gradient_accumulation_steps": 1,
            "use_adaptive_entropy": False,
            "_entropy_bonus_enabled": False,
            "_metrics": defaultdict(lambda: defaultdict(list)),
            "get_gamma_weights": trl.GRPOTrainer.get_gamma_weights,
            "_get_per_token_logps_and_entropies": lambda *_, **__: (per_token_logps, entropies, None),
        }
        trainer = SimpleNamespace(**vars(args) | parts)
        empty = completion_mask[:, :0]
        inputs = {
            "prompt_ids": empty,
            "prompt_mask": empty,
            "completion_ids": completion_mask,
            "completion_mask": completion_mask,
            "advantages": advantages,
            "old_per_token_logps": old_per_token_logps,
            "num_items_in_batch": num_items_in_batch,
        }
        return trl.GRPOTrainer._compute_loss(trainer, None, inputs)  # noqa: SLF001 - TRL has no other function

    return loss


def openrlhf_losses() -> Iterator[Peer]:
    """OpenRLHF's policy losses, and its losses of SFT and of the critic."""
    add_placeholders(["deepspeed", "flash_attn", "flash_attn.bert_padding", "flash_attn.utils"])
    add_placeholders(["flash_attn.utils.distributed"])
    losses = import_module("openrlhf.models.loss")
    for name, settings in OPENRLHF.items():
        yield Peer("OpenRLHF", name, losses.PolicyLoss(**settings), {})
    yield Peer("OpenRLHF", "value", losses.ValueLoss(0.5), {})
    yield Peer("OpenRLHF", "sft", with_action_mask(losses.SFTLoss()), {})


def with_action_mask(loss: Callable) -> Callable:
    """OpenRLHF's loss of SFT, with the names of its policy loss."""

    def renamed(log_probs: Tensor, action_mask: Tensor, batch_num_tokens: Tensor, global_batch_size: Tensor) -> Tensor:
        counts = {"batch_num_tokens": batch_num_tokens, "global_batch_size": global_batch_size}
        return loss(log_probs, action_mask, **counts)

    return renamed


# --- the table ---------------------------------------------------------------------------------------------------


def row(peer: Peer, batches: int) -> str:
    """The row of a loss."""
    results = law_results(peer.loss, laws=LAWS_OF_TABLE, batches=batches, **peer.options)
    failed = [result.law for result in results if result.status == "failed"]
    ours = getattr(find("algorithm", OURS.get((peer.library, peer.name), peer.name)), "EXEMPTIONS", {})
    passed = sum(result.status == "passed" for result in results)
    wrong, meant = ([f"`{law}`" for law in failed if (law in ours) == is_ours] for is_ours in (False, True))
    cells = (peer.library, f"`{peer.name}`", f"{passed} of {passed + len(failed)}", ", ".join(wrong), ", ".join(meant))
    return f"| {' | '.join(cells)} |"


def introduction() -> str:
    """The text before the table, with the versions of the libraries."""
    versions = {name: version(name) for name in ("verl", "trl", "openrlhf")}
    return INTRODUCTION.format(**versions, not_run=", ".join(f"`{law}`" for law in NOT_RUN))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=5, help="batches that Hypothesis generates for each law")
    parser.add_argument("--library", choices=("verl", "TRL", "OpenRLHF"), help="only the losses of this library")
    options = parser.parse_args()
    libraries = {"verl": verl_losses, "TRL": trl_losses, "OpenRLHF": openrlhf_losses}
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    lines = [introduction().rstrip("\n")]
    with contextlib.redirect_stdout(sys.stderr):  # what verl prints when it is imported
        chosen = [options.library] if options.library else libraries
        for peer in (peer for name in chosen for peer in libraries[name]()):
            lines.append(row(peer, options.batches))
            print(lines[-1], flush=True)
    print("\n".join([*lines, EXPLANATION.rstrip("\n")]))


if __name__ == "__main__":
    main()
