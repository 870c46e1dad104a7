"""The differences between what a run computed and what another algorithm computes, in numbers and in words."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch

from purerl.algos.algebra import Algorithm
from purerl.batch import FIELDS
from purerl.explain.comparison.outcomes import effect_of
from purerl.kernels.masks import any_true
from purerl.replay.recording import Recording
from purerl.replay.replay import ReplayedStep, has_state
from purerl.store.lines import read_lines
from purerl.store.rollouts import read_table
from purerl.types import TensorDict

__all__ = ["Numbers", "mean_of", "measure", "notes"]

_LABELS = ("step", "prompts", "is_exact")


class Numbers(NamedTuple):
    """A step of the run, `recorded_*`, and of the replay; tokens are those that the run counted.

    prompts             the example of each recorded group, in the order of the draws
    rows                recorded rows
    kept                fraction of the rows that the algorithm of the replay keeps
    recorded_reward     mean reward of the rows with a reward
    reward              the same with the rewards of the replay
    recorded_signal     fraction of the rows with an advantage other than 0
    signal              the same in the replay
    correlation         Pearson's correlation of the advantages of tokens; NaN if one of them is constant
    opposite_sign       fraction of the tokens whose advantage has the opposite sign
    difference          mean absolute difference of the advantages of tokens
    relative_change     root mean square of the difference, divided by that of the recorded advantages
    recorded_loss       of the policy
    loss                the same in the replay
    gradient_norm       the norm of the gradient of the loss with respect to the outputs of the policy, such as `logp`,
                        divided by the recorded one
    gradient_cosine     of the two gradients
    is_exact            as in `ReplayedStep`
    """

    step: int
    prompts: list[int]
    rows: int
    kept: float
    recorded_reward: float
    reward: float
    recorded_signal: float
    signal: float
    correlation: float
    opposite_sign: float
    difference: float
    relative_change: float
    recorded_loss: float
    loss: float
    gradient_norm: float
    gradient_cosine: float
    is_exact: bool | None


def measure(step: ReplayedStep) -> Numbers:
    """The numbers of `step`."""
    recorded, replayed, mask = step.recorded.advantage, step.replayed.advantage, step.batch["mask"]
    before, after = recorded[mask].double(), replayed[mask].double()
    effect = effect_of(step.recorded, step.replayed)
    signals = [any_true((advantage != 0) & mask).double().mean().item() for advantage in (recorded, replayed)]
    rewards = [batch["reward"].sum(-1)[any_true(batch["mask"])].mean().item() for batch in (step.batch, step.rewarded)]
    return Numbers(
        step.step,
        _prompts_of(step.batch),
        len(step.keep),
        step.keep.double().mean().item(),
        *rewards,
        *signals,
        correlation=_correlation(before, after),
        opposite_sign=(before * after < 0).double().mean().item(),
        difference=(before - after).abs().mean().item(),
        relative_change=effect.advantage,
        recorded_loss=effect.loss[0],
        loss=effect.loss[1],
        gradient_norm=effect.gradient_norm,
        gradient_cosine=effect.cosine,
        is_exact=step.is_exact,
    )


def _prompts_of(batch: TensorDict) -> list[int]:
    """The example of each group; empty if the rows do not have it."""
    if "example" not in batch.keys():
        return []
    examples = dict(zip(batch["group"].tolist(), batch["example"].tolist(), strict=True))
    return [examples[group] for group in sorted(examples)]


def _correlation(first: torch.Tensor, second: torch.Tensor) -> float:
    if len(first) == 0 or not (first != first[0]).any() or not (second != second[0]).any():
        return math.nan
    return torch.corrcoef(torch.stack([first, second]))[0, 1].item()


def mean_of(numbers: Sequence[Numbers]) -> dict[str, float]:
    """The mean of each number over steps, without those that are not known: NaN, if all are."""
    columns = {name: [getattr(each, name) for each in numbers] for name in Numbers._fields if name not in _LABELS}
    known = {name: [value for value in values if not math.isnan(value)] for name, values in columns.items()}
    return {name: sum(values) / len(values) if values else math.nan for name, values in known.items()}


# --- notes -------------------------------------------------------------------------------------------------------


def notes(
    recording: Recording,
    algorithm: Algorithm,
    numbers: Sequence[Numbers],
    missing: Collection[str],
    recorded_missing: Collection[str] = (),
) -> list[str]:
    """Notes for a reader of `numbers`.

    Without the fields `missing` there is no replayed loss, and without `recorded_missing` none of the run.
    """
    found = [_exactness(numbers)]
    if recording.config.data.curriculum is not None:
        drawn = [prompt for each in numbers for prompt in each.prompts]
        found.append(f"the groups are {len(drawn):,} draws of {len({*drawn}):,} prompts; --json lists them by step")
    columns = read_table(recording.rollouts, numbers[-1].step, ("old_logp",)).column_names
    if missing:
        found.append(f"no loss and no gradient: the run did not record {_meanings(missing)}")
    elif "old_logp" not in columns:
        found.append("losses are at the log-probabilities of the generator, because the run did not record old_logp")
    if recorded_missing and not missing:
        found.append(f"no loss of the run's algorithm: the run did not record {_meanings(recorded_missing)}")
    sampled = {row["step"]: row.get("rollout/sampled") or 0 for row in read_lines(recording.path / "metrics.jsonl")}
    if unrecorded := int(sum(max(sampled.get(each.step, 0) - each.rows, 0) for each in numbers)):
        found.append(f"{unrecorded:,} sampled rows are not recorded, because the run's algorithm did not keep them")
    if recording.steps[0] > 1 and algorithm != recording.algorithm and has_state(algorithm):
        found.append(f"the state of the algorithm starts at step {recording.steps[0]}, the first one that is recorded")
    return found


def _meanings(fields: Collection[str]) -> str:
    return ", ".join(f"{name} ({FIELDS[name].meaning})" for name in fields)


def _exactness(numbers: Sequence[Numbers]) -> str:
    checked = [each for each in numbers if each.is_exact is not None]
    different = [str(each.step) for each in checked if not each.is_exact]
    text = f"the run's algorithm gives the recorded advantages bit for bit in {len(checked) - len(different)} of"
    text = f"{text} {len(numbers)} steps"
    if not different:
        return text
    steps = ", ".join(different[:8]) + (", ..." if len(different) > 8 else "")
    return f"{text}, and not in {steps}: another version of torch, another processor, or another num_threads"
