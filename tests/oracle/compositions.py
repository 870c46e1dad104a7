"""The value and the gradient of an algorithm on a batch of padded completions."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Algorithm, compute_advantages, compute_loss, prepare_step
from purerl.batch import STRUCTURE, collate, with_fields
from purerl.composition import build_algorithm
from purerl.config.schema import RunConfig
from purerl.config.structure import from_dict, to_dict
from purerl.recipes.addition import addition

__all__ = ["Result", "algorithm_of", "completions", "result_of"]


class Result(NamedTuple):
    """The advantages [rows, time], the loss, and its gradient with respect to `logp` [rows, time].

    For a critic, they are the targets, its loss, and the gradient with respect to `value`. If there are no advantages,
    as with pairs, the tensor is empty.
    """

    advantage: Tensor
    loss: Tensor
    gradient: Tensor


_TARGETS = {"policy": "advantage", "critic": "returns"}


@functools.cache
def algorithm_of(preset: str) -> Algorithm:
    """The algorithm of a preset, through the configuration of a run."""
    config = from_dict(RunConfig, to_dict(addition()) | {"algorithm": {"kind": preset}})
    return build_algorithm(config.algorithm)


def completions(seed: int, *, prompts: int = 3, samples: int = 4, length: int = 7) -> TensorDict:
    """Random completions in float64 without prompts: each row has 1 to `length` tokens, and a reward at its end."""
    rng = torch.Generator().manual_seed(seed)
    rows: list[dict[str, Any]] = []
    for row in range(prompts * samples):
        size = int(torch.randint(1, length + 1, (), generator=rng)) if row else length
        action = [False] + [True] * size
        rows.append({"tokens": [1] * (size + 1), "action": action, "row": row, "group": row // samples})
    batch = collate(rows)
    shape, action = batch["action"].shape, batch["action"]

    def draw(scale: float) -> Tensor:
        return scale * torch.randn(shape, generator=rng, dtype=torch.float64)

    old = -draw(1.0).abs() - 0.05
    last = action & (action.flip(-1).cumsum(-1).flip(-1) == 1)
    score = torch.randint(0, 3, (len(rows), 1), generator=rng).double() / 2
    fields = {"old_logp": old, "ref_logp": old + draw(0.3), "rollout_logp": old + draw(0.05)}
    fields["logp"] = old + _with_outliers(draw(0.3))
    fields |= {"reward": score * last, "entropy": draw(1.0).abs(), "temperature": torch.ones(len(rows))}
    value = draw(1.0)
    fields |= {"old_value": value, "value": value + draw(0.6)}
    fields |= {"greedy_score": draw(1.0)[:, 0], "sum_pi_squared": old.exp() ** 2 + 0.1 * draw(1.0).sigmoid()}
    # Two rewards of different sizes, for algorithms that do not read their sum.
    fields["components"] = torch.cat([score, 3 * draw(1.0)[:, :1].round()], -1)
    return with_fields(batch, **fields)


def _with_outliers(log_ratio: Tensor) -> Tensor:
    """One ratio of twenty is above 5 or below 1/5, so that every bound of a ratio has an effect."""
    return log_ratio + 5 * log_ratio**3


def result_of(algorithm: Algorithm, batch: TensorDict, role: str = "policy") -> Result:
    """Run `algorithm` with one optimizer step of the model `role`; the gradient is that of its first output."""
    inputs = batch.select(*STRUCTURE, *algorithm.reads)
    _, after = compute_advantages(algorithm, algorithm.advantage.init(), inputs)
    [objective] = (objective for objective in algorithm.objectives if objective.role == role)
    target, output = _TARGETS[role], objective.outputs[0]
    written = {name: value for name, value in after.items() if name not in batch.keys() or name == "mask"}
    step, counts = prepare_step(objective, with_fields(batch, **written))
    values = step[output].clone().requires_grad_()
    loss, _ = compute_loss(objective, with_fields(step, **{output: values}), counts)
    [gradient] = torch.autograd.grad(loss, values)
    written = after[target] if target in after.keys() else values.new_zeros(0)
    return Result(written.detach(), loss.detach(), gradient)
