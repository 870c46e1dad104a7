"""A trainer in this process: any causal language model of Hugging Face's transformers, AdamW, one device.

    batch -> micro-batches -> hidden states before the action tokens -> logp and entropy, or value
          -> evaluate(objective, part, counts) -> backward, gradients add up -> clip -> AdamW

The loss of each micro-batch is divided by the counts of the whole step already. So gradients of micro-batches add up to
the gradient of the step, however it was cut.

Roles: a "critic" has a value head, a "reference" and a "teacher" are never stepped, and every other role is a policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from attrs import Attribute, field, frozen
from tensordict import TensorDict
from torch import Tensor, nn

from purerl.algos.algebra import Counts, Objective, Weighted, compute_loss, merge
from purerl.backends.hf.allocator import keep_memory
from purerl.backends.hf.checkpoint import os_errors, read, write
from purerl.backends.hf.device import device_of
from purerl.backends.hf.heads import Critic, Policy, logit_shape, recompute_layers
from purerl.backends.hf.limits import check_rows
from purerl.backends.hf.microbatch import microbatches, tokens_needed
from purerl.backends.hf.model import load_model
from purerl.backends.hf.optimizer import LRScheduler, adamw, clear_gradients, learning_rate
from purerl.backends.hf.probe import probe
from purerl.batch import STRUCTURE, check_batch, with_fields
from purerl.errors import ConfigError, InputError
from purerl.protocols import Metrics, Model

__all__ = ["Config", "HFTrainer", "build", "check"]

_FROZEN = ("reference", "teacher")
_READS = ("tokens", "temperature")
_AUTOCAST = {"off": None, "bfloat16": torch.bfloat16}


def _setting(help: str, default: Any, need: str, holds: Callable[[Any], bool], *, unit: str = "") -> Any:
    """An attrs field that explains itself, and refuses a value for which `holds` is false or makes no sense."""

    def check(_: Any, attribute: Attribute, value: Any) -> None:
        try:
            right = holds(value)
        except TypeError:
            right = False
        if not right:
            raise ConfigError(attribute.name, got=repr(value), need=need, do=f"leave it out for {default}")

    return field(default=default, validator=check, metadata={"help": help, "unit": unit, "need": need})


def _within(low: float, high: float) -> tuple[str, Callable[[Any], bool]]:
    return f"a number from {low:g} to {high:g}", lambda x: low <= x <= high


def _whole(least: int) -> tuple[str, Callable[[Any], bool]]:
    return f"a whole number, at least {least}", lambda x: type(x) is int and x >= least


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _one_of(*choices: Any) -> tuple[str, Callable[[Any], bool]]:
    return "one of: " + ", ".join(map(str, choices)), choices.__contains__


@frozen(kw_only=True)
class Config:
    """How a model is trained.

    Weights in bfloat16 (`model.dtype`) lose updates that are small beside them; float32 weights with `autocast` keep
    them. Large micro-batches suit an accelerator. On a CPU nothing is gained beyond a thousand tokens, while rows that
    differ more in length share a micro-batch, and so padding is computed.
    """

    lr: float = _setting("learning rate, at its highest", 1e-6, *_within(0, 1))
    betas: tuple[float, float] = _setting(
        "decay of AdamW's two moments",
        (0.9, 0.999),
        "two numbers from 0 to below 1",
        lambda betas: len(betas) == 2 and all(0 <= beta < 1 for beta in betas),
    )
    eps: float = _setting("added to the root of AdamW's second moment", 1e-8, "above 0", lambda x: 0 < x < math.inf)
    weight_decay: float = _setting(
        "of weight matrices, but not embeddings, for each unit of learning rate", 0.0, *_within(0, 1e3)
    )
    lr_scheduler: LRScheduler = _setting(
        "learning rate after the warm-up", "constant", *_one_of(*get_args(LRScheduler))
    )
    warmup_steps: int = _setting("steps in which the learning rate rises", 0, *_whole(0), unit="optimizer steps")
    min_lr_ratio: float = _setting("what the learning rate ends at, as a fraction of lr", 0.0, *_within(0, 1))
    max_grad_norm: float = _setting(
        "norm that the gradient is scaled down to; inf leaves it as it is", 1.0, "above 0", lambda x: x > 0
    )
    max_tokens_per_microbatch: int = _setting(
        "rows of a forward pass times the longest of them, at most", 2048, *_whole(1), unit="tokens"
    )
    mixed_precision: Literal["off", "bfloat16"] = _setting(
        "what the backbone computes in, if not in its weights' dtype", "off", *_one_of(*_AUTOCAST)
    )
    gradient_checkpointing: bool = _setting(
        "compute layers twice, and keep less of them", default=False, need="true or false", holds=_is_bool
    )
    share_prefixes: bool = _setting(
        "read what rows of a group have in common before they part once, if the model allows it",
        default=True,
        need="true or false",
        holds=_is_bool,
    )
    device: str = _setting("cpu, cuda:0, ...; auto takes an accelerator if there is one", "auto", "a device", bool)

    def __attrs_post_init__(self) -> None:
        if self.lr_scheduler == "constant" and self.min_lr_ratio:
            need = "lr_scheduler linear or cosine: a constant one ends where it is"
            raise ConfigError("min_lr_ratio", got=self.min_lr_ratio, need=need, do="leave it out")


def check(config: Config, *, role: str, outputs: Sequence[str], updates: int) -> None:
    """Refuse `outputs` that a model in `role` does not have, and a warm-up as long as a run of `updates` steps."""
    module = Critic if role == "critic" else Policy
    if not set(outputs) <= set(module.outputs):
        got = ", ".join(name for name in outputs if name not in module.outputs)
        raise ConfigError("kind", got=f"outputs {got} are wanted", need=f"only {', '.join(module.outputs)} of a {role}")
    if role not in _FROZEN and 0 < updates <= config.warmup_steps:
        need = f"less than the run's {updates} optimizer steps"
        raise ConfigError("warmup_steps", got=config.warmup_steps, need=need, do="lower it, or make the run longer")


def build(config: Config, *, model: Model, role: str, updates: int, seed: int) -> HFTrainer:
    """A trainer of `model` in `role`, for a run of `updates` optimizer steps.

    `seed` is that of the critic's head; nothing else is random.

    Raises: ConfigError as `check` does, for a model that cannot be loaded, for one whose logits purerl would not work
    out as it does itself, and for float16 weights that would train.
    """
    from purerl.backends.hf.prefix import shareable

    check(config, role=role, outputs=(), updates=updates)
    device, autocast = device_of(config.device), _AUTOCAST[config.mixed_precision]
    if device.type == "cpu":
        keep_memory()
    _check_dtype(model.dtype, model, role)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        causal = load_model(model, headless=role == "critic")
        _check_dtype(str(causal.dtype).removeprefix("torch."), model, role)  # which "auto" does not say
        causal = causal.to(device).eval()
        probe(causal, logit_shape(causal.config))
        share = config.share_prefixes and shareable(causal)
        module = (
            Critic(causal, autocast, Path(model.path), share=share)
            if role == "critic"
            else Policy(causal, autocast, share=share)
        )
    if config.gradient_checkpointing:
        recompute_layers(module)
    return HFTrainer(config, module.to(device).requires_grad_(role not in _FROZEN), updates=updates)


def _check_dtype(dtype: str, model: Model, role: str) -> None:
    """Refuse to train weights in float16: squares of gradients become 0 in AdamW, and its steps far too large."""
    if dtype == "float16" and role not in _FROZEN:
        need = "float32 with trainer.mixed_precision=bfloat16, or bfloat16, for weights that train"
        raise ConfigError("model.dtype", got=f"{dtype}, of {model.path!r}", need=need, do="set model.dtype to float32")


class HFTrainer:
    """A `purerl.protocols.Trainer` of `module`, whose parameters train as far as they require a gradient.

    Dropout is off, so nothing in a step is random:
    the same calls give the same bits.
    """

    def __init__(self, config: Config, module: Policy | Critic, *, updates: int) -> None:
        self.config, self.module, self.updates = config, module, updates
        self.longest = module.limits.longest
        self.position = 0  # optimizer steps so far, skipped ones included
        self.trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        adam = {"lr": config.lr, "betas": config.betas, "eps": config.eps, "weight_decay": config.weight_decay}
        self.optimizer = adamw(module, **adam) if self.trained else None

    @torch.no_grad()
    def score(self, batch: TensorDict, outputs: Sequence[str]) -> TensorDict:
        """The model's `outputs`, [rows, time] each, without gradient, in the dtype of the batch's floats.

        They are at the row's `temperature` (0 counts as 1), and 0 where not `action`.

        Raises: BatchError for a batch that does not follow the schema, and for rows that the model has no positions or
        ids for; InputError for an output of another role.
        """
        self._check_outputs(outputs)
        there = self._arrive(batch, _READS)
        scores = {name: batch["temperature"].new_zeros(batch["action"].shape) for name in outputs}
        for rows in self._deal(there, "row"):
            found = self._forward(there[rows])
            for name, score in scores.items():
                score[rows.to(score.device)] = found[name].to(score)
        return TensorDict(scores, batch_size=batch.batch_size)

    def step(self, batch: TensorDict, objective: Objective, counts: Mapping[str, Counts]) -> Metrics:
        """One optimizer step on `batch`. `counts` are those of the whole step, over all ranks.

        Beside the objective's metrics there are `grad_norm` (before clipping), `learning_rate` and `skipped`. A step is
        skipped where the gradient is not finite, and where nothing is counted: parameters and AdamW's moments stay as
        they are, and the schedule goes on. (Otherwise a gradient of 0 would still move every weight, by momentum.)

        Raises: BatchError as `score`, and for a batch that lacks a field that `objective` reads; InputError in the role
        of a reference or teacher, and for an objective that wants an output of another role.
        """
        if self.optimizer is None:
            raise InputError(
                "this model is a reference or a teacher", got="an optimizer step", need="a role that trains"
            )
        self._check_outputs((*objective.outputs, *objective.metric_outputs))
        there = self._arrive(batch, (*_READS, *objective.reads))
        counts = {name: Counts(*(n.to(there.device) for n in count)) for name, count in counts.items()}
        clear_gradients(self.trained.values())
        parts = self._deal(there, objective.unit)
        metrics = merge(*(self._backward(there[rows], objective, counts) for rows in parts))
        return self._optimize(metrics, counts)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """What changes when it trains, under Hugging Face's names; a critic's under its own. Views: copy to keep."""
        return self.module.weights()

    def save(self, path: Path) -> None:
        """Write what `load` needs to go on bit for bit into the directory `path`. Raises OSError where it cannot."""
        moments = self.optimizer.state_dict()["state"] if self.optimizer else {}
        weights = {name: parameter.detach() for name, parameter in self.trained.items()}
        write(path, weights, {"moments": moments, "position": self.position})

    def load(self, path: Path) -> None:
        """Go on from what `save` wrote. Raises CheckpointError where it does not fit, and is as it was then."""
        weights, state = read(path, self.trained)
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(weights[name])
        self.position = state["position"]
        if self.optimizer:
            self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": state["moments"]})

    def export(self, path: Path) -> None:
        """Write the model into the directory `path` in Hugging Face's format. Raises OSError where it cannot."""
        with os_errors():
            self.module.export(path)

    def _check_outputs(self, names: Sequence[str]) -> None:
        unknown = [name for name in names if name not in self.module.outputs]
        if unknown:
            got, need = ", ".join(unknown), "among " + ", ".join(self.module.outputs)
            raise InputError("an output that this model does not have", got=got, need=need)

    def _arrive(self, batch: TensorDict, reads: Sequence[str]) -> TensorDict:
        """The fields of `STRUCTURE` and `reads`, checked, on the model's device."""
        device = next(self.module.parameters()).device
        check_rows(check_batch(batch, reads), self.module.limits)
        return batch.select(*STRUCTURE, *reads).to(device)

    def _deal(self, batch: TensorDict, unit: str) -> list[Tensor]:
        """The rows of each micro-batch."""
        labels = batch["group"] if unit == "group" else torch.arange(len(batch), device=batch.device)
        return microbatches(tokens_needed(batch["action"]), labels, budget=self.config.max_tokens_per_microbatch)

    def _forward(self, part: TensorDict) -> dict[str, Tensor]:
        return self.module(part["tokens"], part["action"], part["temperature"], part["group"])

    def _backward(self, part: TensorDict, objective: Objective, counts: Mapping[str, Counts]) -> Metrics:
        """Add the gradient of one micro-batch to what is there."""
        outputs = self._forward(part)
        watched = {name: outputs[name].detach() for name in objective.metric_outputs}
        learned = {name: outputs[name] for name in objective.outputs}
        part = with_fields(part.select(*STRUCTURE, *objective.reads), **watched, **learned)
        loss, metrics = compute_loss(objective, part, counts)
        loss.backward()
        return metrics

    def _optimize(self, metrics: Metrics, counts: Mapping[str, Counts]) -> Metrics:
        """Clip and step, or skip; and report."""
        rate = self._learning_rate()
        norm = nn.utils.clip_grad_norm_(self.trained.values(), self.config.max_grad_norm)
        counted = sum(count.tokens for count in counts.values())
        report = _on_host({**metrics, "grad_norm": Weighted(norm, counted)})
        norm, counted = report.pop("grad_norm")
        stepped = bool(norm.isfinite() and counted > 0)
        if stepped:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
        self.position += 1
        own = {"learning_rate": rate, "skipped": float(not stepped)} | ({"grad_norm": norm} if stepped else {})
        one = torch.ones((), dtype=torch.float64)
        return report | {name: Weighted(value * one, one) for name, value in own.items()}

    def _learning_rate(self) -> float:
        config = self.config
        shape = {
            "schedule": config.lr_scheduler,
            "warmup_steps": config.warmup_steps,
            "min_lr_ratio": config.min_lr_ratio,
        }
        return learning_rate(self.position, lr=config.lr, updates=self.updates, **shape)


def _on_host(metrics: Metrics) -> dict[str, Weighted]:
    """Metrics in float64 and on the CPU, by one transfer for each dtype. They are widened there: MPS has no float64."""
    wide = torch.float64
    flat = [x if isinstance(x, Tensor) else torch.tensor(x, dtype=wide) for metric in metrics.values() for x in metric]
    kinds = [(x.device, x.dtype) for x in flat]
    values: dict[int, Tensor] = {}
    for kind in dict.fromkeys(kinds):
        places = [place for place, other in enumerate(kinds) if other == kind]
        values.update(zip(places, torch.stack([flat[place] for place in places]).cpu().double(), strict=True))
    return {name: Weighted(values[2 * k], values[2 * k + 1]) for k, name in enumerate(metrics)}
