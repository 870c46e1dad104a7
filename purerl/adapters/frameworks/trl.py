"""Any algorithm of purerl in TRL: `PurerlGRPOTrainer`, a subclass of TRL's GRPOTrainer.

    from purerl.adapters.frameworks.trl import PurerlGRPOTrainer

    trainer = PurerlGRPOTrainer(
        model="Qwen/Qwen3-0.6B",
        reward_funcs=reward,
        args=GRPOConfig(...),
        train_dataset=dataset,
        algorithm="gspo",
        modifiers=[{"kind": "kl_loss", "coef": 0.01}],
    )

Settings of a modifier that are not given are TRL's defaults, as in the preset ``grpo@trl``: the `kl_loss` above has the
estimator importance_k3, TRL's `use_bias_correction_kl`.

TRL samples, scores, logs and saves as before. The advantages are computed by the algorithm, on the whole generation
batch of all processes. So are the denominators, which are scaled to one optimizer step as TRL scales
`num_items_in_batch`. The loss of a micro-batch is the algorithm's, and divides by these.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from purerl.adapters.frameworks.availability import TRL, keeps_state, policy_objective
from purerl.adapters.frameworks.compose import compose
from purerl.adapters.frameworks.trl_batch import (
    Sampled,
    check_columns,
    check_components,
    columns_of,
    counts_of_inputs,
    loss_batch,
    stored_fields,
    whole_batch,
)
from purerl.adapters.frameworks.trl_settings import check, uses_reference
from purerl.adapters.packages import load
from purerl.algos.algebra import (
    Algorithm,
    Counts,
    Largest,
    Objective,
    Weighted,
    compute_advantages,
    compute_loss,
    of_fields,
    prepare_step,
    reads_of,
    select_rows,
    unchanged,
)
from purerl.algos.parts.bypass import use_current_outputs
from purerl.algos.parts.corrections import weighted_loss
from purerl.algos.parts.divergences import k3
from purerl.algos.parts.editing import change_surrogate
from purerl.algos.parts.rows import row_mean
from purerl.algos.parts.zeros import zero_outside
from purerl.batch import ROW_FIELDS, with_fields
from purerl.composition import build_algorithm
from purerl.config.presets import defaults_of
from purerl.data.open import NUMBER_COLUMNS
from purerl.errors import CheckpointError
from purerl.seeds import derive_seed
from purerl.types import TensorDict

__all__ = ["trainer_class"]

_STATE = "purerl_state.pt"

_CURRENT = {"old_logp": "logp", "rollout_logp": "logp"}
"""Outputs of the current forward pass in place of fields that were not scored, in an update of one optimizer step."""

_TRLTrainer: Any = object  # `trainer_class` puts TRL's class in this place, so that trl is imported only then


class _Methods(_TRLTrainer):
    def __init__(self, *arguments: Any, algorithm: Any = "grpo", modifiers: Sequence[Any] = (), **keywords: Any):
        self._algorithm = build_algorithm(compose(algorithm, modifiers, defaults_of("grpo@trl")))
        given = inspect.signature(super().__init__).bind(*arguments, **keywords).arguments
        args = given.get("args") or _default_args(given["model"])
        check(args, self._algorithm, has_rollout_logp=args.use_vllm or given.get("rollout_func") is not None)
        self._columns = NUMBER_COLUMNS.keys() & {*reads_of(self._algorithm)}
        check_columns(given.get("train_dataset"), self._columns)
        is_corrected = args.use_vllm and args.vllm_importance_sampling_correction
        self._objective = policy_objective(_weighted(self._algorithm) if is_corrected else self._algorithm, TRL)
        self._state = self._algorithm.advantage.init()
        with _with_reference(args, needed=uses_reference(self._algorithm)):
            super().__init__(**{**given, "args": args})

    # --- advantages ----------------------------------------------------------------------------------------------

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        ends = {*self.eos_token_ids, self._tokenizer.pad_token_id}
        truncated = [not len(ids) or ids[-1] not in ends for ids in completion_ids_list]
        columns = columns_of(inputs, self._columns, rewards)
        self._sampled = Sampled(rewards, torch.tensor(truncated, device=rewards.device), columns)
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        step, counts = self._prepared_step(self._whole_batch(output))
        local = self._local_rows(step, output["completion_ids"].shape)
        self._log_advantages(step)
        return {**output, "advantages": local["advantage"], **stored_fields(self._objective, local, counts)}

    def _prepared_step(self, batch: TensorDict) -> tuple[TensorDict, dict[str, Counts]]:
        """The generation batch with advantages, prepared for the loss, and its counts."""
        batch = with_fields(batch, mask=batch["mask"] & select_rows(self._algorithm, batch).unsqueeze(-1))
        state, batch = compute_advantages(self._algorithm, self._state, batch)
        if self.model.training:
            self._state = state
        return prepare_step(self._objective, batch)

    def _whole_batch(self, output: Mapping[str, Any]) -> TensorDict:
        """The fields that `select` and the estimator read, of all processes."""
        batch = whole_batch(
            output,
            self._sampled,
            self._scores(output),
            gather=self._gather,
            group_size=self.num_generations if self.model.training else self.num_generations_eval,
            reward_weights=self.reward_weights,
            temperature=self.temperature,
        )
        reads = reads_of(self._algorithm)
        if "components" in reads:
            check_components(batch)
        return with_fields(batch, noise=self._noise(batch)) if "noise" in reads else batch

    def _scores(self, output: Mapping[str, Any]) -> dict[str, Tensor]:
        """Log-probabilities and entropies of this process's rows that are needed before the loss."""
        old, sampled, reference = (output.get(f"{name}_per_token_logps") for name in ("old", "sampling", "ref"))
        needed, entropy = self._needed_scores(is_off_policy=old is not None, has_sampled=sampled is not None), None
        scores = {} if reference is None else {"ref_logp": reference}
        if "old_entropy" in needed or (needed and old is None):
            with torch.no_grad():
                old, entropy, _ = self._forward(self.model, output, batch_size=self._micro_batch_size())
        if needed:
            scores["old_logp"] = scores["rollout_logp"] = old
        if needed and sampled is not None:  # vLLM gives NaN for tokens that it cannot score
            scores["rollout_logp"] = sampled.where(~sampled.isnan(), old)
        return scores if entropy is None else {**scores, "old_entropy": entropy}

    def _needed_scores(self, *, is_off_policy: bool, has_sampled: bool) -> set[str]:
        """Fields that cannot be replaced by outputs of the forward pass of the loss."""
        reads = {*self._objective.reads}
        needed = {*self._algorithm.reads} | (reads & {"old_entropy"})
        if is_off_policy or self._objective.prepare is not unchanged:
            needed |= reads
        if has_sampled:
            needed |= reads & {"rollout_logp"}
        return needed & {"old_logp", "old_entropy", "rollout_logp"}

    def _micro_batch_size(self) -> int:
        args = self.args
        return args.per_device_train_batch_size if self.model.training else args.per_device_eval_batch_size

    def _forward(self, model: Any, inputs: Mapping[str, Any], **more: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        """(logp, entropy, auxiliary loss) of the completions in `inputs`."""
        known = inspect.signature(self._get_per_token_logps_and_entropies).parameters
        return self._get_per_token_logps_and_entropies(
            model,
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1),
            inputs["completion_ids"].shape[1],
            compute_entropy=True,
            **{name: value for name, value in inputs.items() if name in known},
            **more,
        )

    def _gather(self, value: Tensor) -> Tensor:
        """The rows of all processes, in their order, padded to the same width."""
        padded = self.accelerator.pad_across_processes(value, dim=1) if value.ndim > 1 else value
        return self.accelerator.gather(padded)

    def _local_rows(self, step: TensorDict, shape: torch.Size) -> TensorDict:
        rows, time = shape
        part = step[self.accelerator.process_index * rows :][:rows]
        cut = {name: value[:, :time] for name, value in part.items() if name not in ROW_FIELDS}
        return with_fields(part.select(*(name for name in part.keys() if name in ROW_FIELDS)), **cut)

    def _noise(self, batch: TensorDict) -> Tensor:
        draw = torch.Generator().manual_seed(derive_seed(self.args.seed, "noise", self._step))
        return torch.rand(batch["mask"].shape, generator=draw).to(batch["mask"].device)

    def _log_advantages(self, step: TensorDict) -> None:
        """Replace the advantages that TRL has logged by ours, one for each row: the mean over its tokens."""
        logged, mask = self._logs["advantages"], step["mask"]
        means = row_mean(step["advantage"], mask).tolist()
        for _ in range(min(len(logged), len(means))):
            logged.pop()
        logged.extend(means)

    # --- the loss ------------------------------------------------------------------------------------------------

    def _compute_loss(self, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        mode = "train" if self.model.training else "eval"
        micro_batches = self.current_gradient_accumulation_steps if mode == "train" else 1
        logp, entropy, auxiliary = self._forward(model, inputs, compute_aux_loss=self.aux_loss_enabled)
        part = loss_batch(inputs, logp, entropy)
        absent = {field: output for field, output in _CURRENT.items() if field not in part.keys()}
        objective = use_current_outputs(self._objective, absent)
        # As `num_items_in_batch`, the counts are those of the generation batch: one optimizer step has a part of them.
        scale = micro_batches / self.args.steps_per_generation if mode == "train" else 1.0
        loss, metrics = compute_loss(objective, part, counts_of_inputs(objective, inputs, scale))
        for name, value in _loss_metrics(objective, part, metrics, self.accelerator.gather).items():
            self._metrics[mode][name].append(value)
        loss = loss * self.accelerator.num_processes  # gradients are averaged over processes
        return loss if auxiliary is None else loss + self._auxiliary_loss(auxiliary, mode) / micro_batches

    def _auxiliary_loss(self, loss: Tensor, mode: str) -> Tensor:
        """The loss that balances the experts of a mixture, which TRL adds to the policy loss."""
        self._metrics[mode]["aux_loss"].append(self.accelerator.gather_for_metrics(loss.detach()).mean().item())
        return self.router_aux_loss_coef * loss

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if keeps_state(self._algorithm) and self.args.should_save:
            folder = Path(self._get_output_dir(trial=trial), f"checkpoint-{self.state.global_step}")
            torch.save(self._state, folder / _STATE)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if keeps_state(self._algorithm) and checkpoint is not None:
            path = Path(checkpoint, _STATE)
            if not path.is_file():
                need = "the state of the estimator, which a checkpoint of the same algorithm has"
                raise CheckpointError(f"checkpoint {checkpoint}", got=f"no {_STATE}", need=need)
            self._state = torch.load(path, weights_only=True)


def _weighted(algorithm: Algorithm) -> Algorithm:
    """`algorithm` with TRL's importance weights, the field `weight`, in its policy loss."""
    return change_surrogate(algorithm, lambda term: term._replace(loss=weighted_loss(term.loss)), "weight")


def _default_args(model: Any) -> Any:
    """The arguments that TRL takes if none are given."""
    name = model if isinstance(model, str) else model.config.name_or_path
    return load("trl", "trl").GRPOConfig(f"{Path(name).name}-GRPO")


@contextmanager
def _with_reference(args: Any, *, needed: bool) -> Iterator[None]:
    """In the block, `beta` says whether TRL creates a reference model: it does if it is not 0."""
    before = args.beta
    args.beta = 1.0 if needed else before
    try:
        yield
    finally:
        args.beta = before


@cache
def trainer_class() -> type:
    """Return the class `PurerlGRPOTrainer`, which can also be imported by this name.

    Raises: ConfigError if trl is not installed.
    """
    base = load("trl", "trl").GRPOTrainer
    text = "TRL's GRPOTrainer with an algorithm of purerl. Its other arguments are those of GRPOTrainer."
    return type("PurerlGRPOTrainer", (_Methods, base), {"__doc__": text, "__module__": __name__})


def __getattr__(name: str) -> Any:
    if name == "PurerlGRPOTrainer":
        return trainer_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# --- metrics -------------------------------------------------------------------------------------------------------

_K3 = of_fields(k3, "logp", "ref_logp")

_CLIPPED = {
    "policy/clip_fraction_low": "clip_ratio/low_mean",
    "policy/clip_fraction_high": "clip_ratio/high_mean",
    "policy/clip_fraction": "clip_ratio/region_mean",
}
"""Names in TRL of metrics that some algorithms have."""

_EXTREMES = {"clip_fraction_low": ("clip_ratio/low_min", min), "clip_fraction_high": ("clip_ratio/high_max", max)}
"""Names in TRL of the smallest or the largest value of a row."""


def _loss_metrics(
    objective: Objective, part: TensorDict, metrics: Mapping[str, Weighted], gather: Callable[[Tensor], Tensor]
) -> dict[str, float]:
    """Return the metrics of a micro-batch over all processes.

    part      the batch that the loss was computed of
    metrics   what `compute_loss` has returned
    gather    concatenates a tensor of each process along its first axis

    ``policy/NAME`` are the metrics of the algorithm, with ``policy/loss/TERM`` if its loss has several terms. TRL's own
    names are `entropy`, `kl` if there is a reference model, and `clip_ratio/...` if the algorithm clips. `kl` is the
    mean penalty of a token, without its coefficient: with importance_k3, TRL's default, it is weighted as in TRL.
    """
    part = zero_outside(part.detach(), part["mask"])
    is_shown = {name: len(objective.terms) > 1 or not name.startswith("loss/") for name in metrics}
    own = {f"policy/{name}": metric for name, metric in metrics.items() if is_shown[name]}
    values = _over_processes({**own, **_of_every_loss(objective, part)}, gather)
    values |= {theirs: values[ours] for ours, theirs in _CLIPPED.items() if ours in values}
    clipped = [name for name in _EXTREMES if f"policy/{name}" in values]
    return values | (_extremes(objective, part, clipped, gather) if clipped else {})


def _of_every_loss(objective: Objective, part: TensorDict) -> dict[str, Weighted]:
    mask = part["mask"]
    means = {"entropy": part["entropy"]}
    if "ref_logp" in part.keys():
        means["kl"] = next((term.loss for term in objective.terms if term.name == "ref_kl"), _K3)(part)
    return {name: Weighted(torch.where(mask, value, 0).sum(), mask.sum()) for name, value in means.items()}


def _over_processes(metrics: Mapping[str, Weighted], gather: Callable[[Tensor], Tensor]) -> dict[str, float]:
    """The value of each metric, merged over the processes; 0 without weight."""
    pairs = torch.stack([torch.stack([torch.as_tensor(x).double().cpu() for x in m]) for m in metrics.values()])
    every = gather(pairs.to(next(iter(metrics.values())).total.device).unsqueeze(0))
    totals = {
        name: pair.amax(0) if isinstance(metric, Largest) else pair.sum(0)
        for (name, metric), pair in zip(metrics.items(), every.unbind(1), strict=True)
    }
    return {name: (total / weight).item() if weight else 0.0 for name, (total, weight) in totals.items()}


def _extremes(
    objective: Objective, part: TensorDict, names: list[str], gather: Callable[[Tensor], Tensor]
) -> dict[str, float]:
    """The smallest or largest value over all rows with a counted token; none if there is no such row."""
    by_row = objective.metrics(part.unsqueeze(1))
    values = {name: gather(by_row[name].total / by_row[name].weight) for name in names}
    counted = {name: value[~value.isnan()].tolist() for name, value in values.items()}
    return {_EXTREMES[name][0]: _EXTREMES[name][1](value) for name, value in counted.items() if value}
