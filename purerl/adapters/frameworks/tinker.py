"""Losses for tinker's `forward_backward_custom`: a whole algorithm, from rewards to the loss of an optimizer step.

    loss = custom_loss("gspo", rewards=rewards, groups=groups)
    training_client.forward_backward_custom(data, loss)
    training_client.optim_step(adam)

tinker calls the loss once with all data of the request, so a request must be a whole optimizer step: everything that an
algorithm computes on whole steps, such as denominators, is computed on these data. The gradient is the step's gradient:
tinker multiplies it by nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from purerl.adapters.frameworks.availability import TINKER, policy_objective, refusals, require
from purerl.adapters.frameworks.compose import compose
from purerl.adapters.frameworks.tensors import completions, group_labels, means, number, require_groups, require_shape
from purerl.algos.algebra import Algorithm, compute_advantages, compute_loss, prepare_step, reads_of, select_rows
from purerl.algos.parts.rows import at_last_action
from purerl.batch import with_fields
from purerl.composition import build_algorithm
from purerl.errors import BatchError, ConfigError
from purerl.types import Scalar, TensorDict

__all__ = ["custom_loss"]


def custom_loss(
    algorithm: Any,
    modifiers: Sequence[Any] = (),
    *,
    rewards: Sequence[float],
    groups: Sequence[Any],
    old_logprobs: Sequence[Tensor] | None = None,
) -> Callable[[Sequence[Any], Sequence[Tensor]], tuple[Scalar, dict[str, float]]]:
    """Return the loss of `algorithm` with `modifiers`, for the data of one optimizer step.

    algorithm, modifiers   as in `compose`
    rewards                the reward of each datum; NaN if there is none, then the datum is not counted
    groups                 the label of the prompt of each datum
    old_logprobs           log-probabilities of the target tokens of each datum under the policy at the start of the
                           update, from `training_client.forward`. If not given, the step must be the first one since
                           the data were sampled: the policy of the loss is this policy

    The `loss_fn_inputs` of each datum have, beside ``target_tokens``, ``mask`` or ``weights``, not 0 at the tokens of
    the policy, and ``logprobs`` of the sampler if the algorithm reads them.

    Raises: ConfigError if tinker does not pass what the algorithm needs. BatchError for a reward that is no number. The
        loss raises BatchError for other numbers of data than of rewards, for data without what it reads or with other
        numbers of it than of target tokens, and if all prompts have fewer data than the algorithm compares.
    """
    composition = compose(algorithm, modifiers)
    built = build_algorithm(composition)
    require("this algorithm in tinker", [*refusals(built, TINKER)])
    if old_logprobs is None and {"old_logp", "rollout_logp"} <= {*built.reads}:
        need = "old_logprobs: the algorithm compares them with the sampler's"
        raise ConfigError("custom_loss", got="no old_logprobs", need=need, do="compute them by training_client.forward")
    need = "a number, or NaN if there is none"
    numbers = tuple(number(reward, f"reward of datum {index}", need=need) for index, reward in enumerate(rewards))
    return _Loss(str(composition), built, numbers, _as_list(groups), old_logprobs)


@frozen
class _Loss:
    name: str
    algorithm: Algorithm
    rewards: tuple[float, ...]
    groups: list[Any]
    old_logprobs: Sequence[Tensor] | None

    def __call__(self, data: Sequence[Any], logprobs: Sequence[Tensor]) -> tuple[Scalar, dict[str, float]]:
        objective = policy_objective(self.algorithm, TINKER)
        batch = self._batch(data, logprobs)
        batch = with_fields(batch, mask=batch["mask"] & select_rows(self.algorithm, batch).unsqueeze(-1))
        _, batch = compute_advantages(self.algorithm, self.algorithm.advantage.init(), batch)
        step, counts = prepare_step(objective, batch)
        loss, metrics = compute_loss(objective, with_fields(step, logp=_padded(logprobs)), counts)
        return loss, means(metrics)

    def _batch(self, data: Sequence[Any], logprobs: Sequence[Tensor]) -> TensorDict:
        self._check_numbers(len(data))
        like, shapes = logprobs[0], [value.shape for value in logprobs]
        reward = torch.tensor(self.rewards, dtype=like.dtype)
        mask = _rows("mask or weights", [_mask(datum, index) for index, datum in enumerate(data)], shapes)
        group = group_labels(self.groups, mask.device)
        require_groups(group, self.algorithm.min_group_size, name=self.name)
        batch = completions(mask, group=group)
        fields = {"score": reward.nan_to_num(), "mask": batch["mask"] & ~reward.isnan().unsqueeze(-1)}
        fields["reward"] = at_last_action(fields["score"], batch["action"])
        reads = reads_of(self.algorithm)
        if "rollout_logp" in reads:
            sampled = [_input(datum, index, "logprobs") for index, datum in enumerate(data)]
            fields["rollout_logp"] = _rows("logprobs", sampled, shapes).to(like.dtype)
        if "old_logp" in reads:
            old = logprobs if self.old_logprobs is None else self.old_logprobs
            fields["old_logp"] = _rows("old_logprobs", old, shapes).detach().to(like.dtype)
        return with_fields(batch, **fields)

    def _check_numbers(self, data: int) -> None:
        if not data:
            raise BatchError("data", got="none", need="those of an optimizer step")
        given = {"rewards": self.rewards, "groups": self.groups, "old_logprobs": self.old_logprobs}
        for name, values in given.items():
            if values is not None and len(values) != data:
                raise BatchError(name, got=f"{len(values)} for {data} data", need="one for each datum")


def _as_list(labels: Any) -> list[Any]:
    """`labels`, of which equal ones are equal keys: a label in a tensor is not."""
    return labels.tolist() if hasattr(labels, "tolist") else list(labels)


def _mask(datum: Any, index: int) -> Tensor:
    name = "mask" if "mask" in datum.loss_fn_inputs else "weights"
    return _input(datum, index, name) != 0


def _input(datum: Any, index: int, name: str) -> Tensor:
    if name not in datum.loss_fn_inputs:
        got = ", ".join(sorted(datum.loss_fn_inputs)) or "nothing"
        raise BatchError(f"loss_fn_inputs of datum {index}", got=got, need=f"also {name}")
    return datum.loss_fn_inputs[name].to_torch()


def _rows(name: str, values: Sequence[Tensor], shapes: Sequence[torch.Size]) -> Tensor:
    """[rows, time]: `values`, padded, each of which has one number for each target token of its datum."""
    for index, (value, shape) in enumerate(zip(values, shapes, strict=True)):
        require_shape(shape, **{f"{name} of datum {index}": value})
    return _padded(values)


def _padded(values: Sequence[Tensor]) -> Tensor:
    return pad_sequence(list(values), batch_first=True)
