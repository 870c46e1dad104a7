"""Forward and backward passes over the micro-batches of a step, by Megatron's schedules.

    tokens -> hidden states -> outputs at the action tokens -> loss

Every data rank has the same number of micro-batches, because ranks that exchange tokens between experts and stages of a
pipeline must make the same calls; the last ones may be empty. Micro-batches are rectangles of their own sizes, which
the stages tell each other.

Losses are divided by the counts of the whole step before they get here, so gradients are summed: over micro-batches and
over data and context ranks. Megatron divides neither, see `purerl.backends.megatron.model.transformer_config`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.nn import functional

from purerl.backends.hf.decoder.architecture import scores_of_classes
from purerl.backends.hf.model.sequence import sum_over
from purerl.backends.hf.model.token_model import at_action
from purerl.backends.megatron.context import own_positions
from purerl.backends.megatron.expert_replay import NUMBER
from purerl.backends.megatron.mesh import Groups
from purerl.backends.megatron.shape import Shape
from purerl.backends.predicted_tokens import predicted_tokens
from purerl.backends.training import Budget
from purerl.kernels.logp import OUTPUTS as LANGUAGE_OUTPUTS
from purerl.kernels.logp import VocabularyShard, token_outputs
from purerl.kernels.partition import rank_microbatches, tokens_needed
from purerl.ranks import Ranks
from purerl.types import TokenBool

# pyright: reportMissingImports=false

__all__ = ["Reader", "arrange", "run"]


def arrange(batch: TensorDict, *, unit: str, budget: Budget, ranks: Ranks) -> list[Tensor]:
    """The row indices of each micro-batch of this data rank; as many micro-batches as on the rank that has the most.

    unit    "row" or "group": what a micro-batch does not split
    budget  of a micro-batch: rows, or rows times tokens of the longest row
    """
    rows, cost = torch.arange(len(batch)), tokens_needed(batch["action"])
    labels = batch["group"] if unit == "group" else rows
    options = {"ranks": ranks.size, "budget": budget.maximum}
    return rank_microbatches(cost, labels, labels, budget.sizes(cost), **options)[ranks.rank]


class Reader(NamedTuple):
    """Computes outputs of a model; `module` is `model`, or a wrapper of it that has its gradients.

    top_k          number of most likely tokens in ``topk_tokens``
    is_classifier  whether it has a score in place of log-probabilities
    """

    module: Any
    model: Any
    shape: Shape
    groups: Groups
    top_k: int
    is_classifier: bool

    def positions(self, action: TokenBool) -> TokenBool:
        """`action` at the token after each one whose hidden state is read.

        Of a language model that is `action`. A classifier reads the action tokens themselves, so there is one more
        column.
        """
        return functional.pad(action, (1, 0)) if self.is_classifier else action

    def hidden(self, rows: TensorDict) -> Tensor:
        """The part of this stage of the hidden states [time, rows, hidden] of `rows`, whose tokens have numbers.

        Of the positions of this context rank. Without rows one token is read, or as many as there are ranks that divide
        positions, and nothing of it is used, so that gradients exist and are 0.
        """
        split = self.groups.context.size() * (self.groups.tensor.size() if self._is_split else 1)
        width = -(-rows[NUMBER].shape[1] // split) * split
        columns = (_columns(rows[name], width) for name in ("tokens", NUMBER))
        tokens, number = (own_positions(values, self.groups.context) for values in columns)
        if self._is_split and not self.model.pre_process:
            # The first stage hands these on to its layers as a whole, like the tokens.
            number = own_positions(number, self.groups.tensor)
        options = {"padding_mask": number} if self.shape.experts else {}
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)  # not used: there is RoPE
        return self.module(tokens, positions, None, **options)

    @property
    def _is_split(self) -> bool:
        """Whether the tensor ranks divide positions between matrices."""
        return self.model.config.sequence_parallel

    def outputs(
        self, hidden: Tensor, rows: TensorDict, names: Sequence[str], choices: Tensor | None
    ) -> dict[str, Tensor]:
        """The outputs `names` [rows, time, ...] at the action tokens, from the `hidden` states of the last stage.

        Each context rank computes those that are read from its positions, and gets those of the others.
        """
        if self._is_split:
            from megatron.core.tensor_parallel import gather_from_sequence_parallel_region

            # What follows has the same gradient on each rank, so it is split and not summed.
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
        context, first = self.groups.context, self.groups.context.rank() * len(hidden)
        read = self.positions(predicted_tokens(rows))
        column = torch.arange(read.shape[1], device=read.device)
        read = read & (first < column) & (column <= first + len(hidden))
        row, time = read.nonzero(as_tuple=True)
        hidden = hidden.flatten(0, 1).index_select(0, (time - 1 - first) * hidden.shape[1] + row)
        action = read[:, -rows["action"].shape[1] :]
        heads = getattr(self.model, "heads", {})
        results = {name: scores_of_classes(heads[name], hidden) for name in names if name in heads}
        if language := [name for name in names if name in LANGUAGE_OUTPUTS]:
            temperature = rows["temperature"]
            divisor = torch.where(temperature > 0, temperature, 1)[:, None].expand(action.shape)[action]
            weight, shard = self._head()
            results |= token_outputs(
                hidden,
                weight,
                None,
                rows["tokens"][action],
                divisor,
                outputs=language,
                choices=None if choices is None else choices[action],
                k=self.top_k,
                scale=1.0,
                softcap=None,
                shard=shard,
            )
        own = {name: at_action(results[name], action) for name in names}
        return {name: sum_over(values, context) for name, values in own.items()} if context.size() > 1 else own

    def _head(self) -> tuple[Tensor, VocabularyShard | None]:
        """The rows of the output head that this rank has, without padding."""
        model, group = self.model, self.groups.tensor
        is_tied = model.share_embeddings_and_output_weights
        weight = model.shared_embedding_or_output_weight() if is_tied else model.output_layer.weight
        if group.size() == 1:
            return weight[: self.shape.vocab_size], None
        shard = VocabularyShard(group, self.shape.vocab_size)
        return weight[: shard.rows.stop - shard.rows.start], shard


def _columns(values: Tensor, width: int) -> Tensor:
    """The first `width` columns, with zeros after the last one; one row of zeros if there are no rows."""
    values = values[:, :width] if len(values) else values.new_zeros(1, width)
    return functional.pad(values, (0, width - values.shape[1]))


def run(
    reader: Reader,
    parts: Sequence[TensorDict],
    evaluate: Callable[[Tensor, TensorDict], tuple[Tensor, Any] | Any],
    *,
    with_gradient: bool,
) -> list[Any]:
    """The results of `evaluate` for each of `parts`, the rows of a micro-batch; empty except on the last stage.

    evaluate       (hidden states, rows) -> (loss, result) with a gradient, otherwise the result
    with_gradient  add the gradients of the losses to those of the parameters, and sum them over data and context ranks
    """
    from megatron.core.pipeline_parallel import get_forward_backward_func

    def forward_step(iterator: Any, model: Any) -> tuple[Tensor, Callable[..., Any]]:
        rows = next(iterator)

        def loss(hidden: Tensor, non_loss_data: bool = False) -> Any:  # noqa: FBT001, FBT002 - Megatron's argument
            if non_loss_data:
                return evaluate(hidden, rows)
            value, result = evaluate(hidden, rows)
            return value, torch.zeros((), dtype=torch.int, device=hidden.device), result

        return reader.hidden(rows), loss

    with torch.set_grad_enabled(with_gradient):
        return get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=iter(parts),
            model=[reader.module],
            num_microbatches=len(parts),
            seq_length=1,  # stages tell each other the sizes of micro-batches
            micro_batch_size=1,
            forward_only=not with_gradient,
            collect_non_loss_data=not with_gradient,
        )
