"""From a causal language model to what objectives read: log-probability, entropy and value of the action tokens.

`Policy` and `Critic` are plain modules with no parallelism of their own: to shard one, wrap it from outside. What their
`forward` gives is [rows, time], and 0 where not `action`.

Padding is on the right and attention is causal: no token sees the padding behind it, and no state of padding is read.
So the backbone runs without an attention mask, which leaves it its fastest path; `probe.py` makes sure of it for each
model. Where rows of a group begin alike it may read their beginning once (`prefix.py`). Dropout is off, in training
too: the ratio of two policies would compare two random networks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from purerl.backends.hf.limits import limits_of
from purerl.backends.hf.model import no_progress_bars
from purerl.backends.hf.weights import as_in_files
from purerl.errors import ConfigError
from purerl.kernels.logp import token_outputs
from purerl.kernels.logp.reference import compute_dtype
from purerl.types import RowFloat, RowInt, TokenBool, TokenFloat, TokenInt

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["Critic", "Policy", "logit_shape", "recompute_layers"]

_VALUE_HEAD = "value_head.safetensors"
_VALUE_STD = 0.02  # what transformers draws most weights with


class Policy(nn.Module):
    """A causal language model that gives the log-probability and the entropy of each action token."""

    outputs = ("logp", "entropy")

    def __init__(self, causal: PreTrainedModel, autocast: torch.dtype | None, *, share: bool) -> None:
        super().__init__()
        self.causal, self.autocast, self.share = causal, autocast, share
        self.shape, self.limits = logit_shape(causal.config), limits_of(causal)

    def forward(
        self, tokens: TokenInt, action: TokenBool, temperature: RowFloat, group: RowInt
    ) -> dict[str, TokenFloat]:
        """`logp` and `entropy`, in nats, at the row's `temperature`, where 0 counts as 1."""
        hidden = _states(self.causal.get_decoder(), tokens, action, group if self.share else None, self.autocast)
        head = self.causal.get_output_embeddings()
        divisor = torch.where(temperature > 0, temperature, 1)[:, None].expand(action.shape)[action]
        arguments = hidden, head.weight, getattr(head, "bias", None), tokens[action], divisor
        results = token_outputs(*arguments, outputs=self.outputs, **self.shape)
        return {name: _spread(result, action) for name, result in results.items()}

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """What trains, under the names that it has in a file of Hugging Face's; a tied weight once."""
        trained = {name: p.detach() for name, p in self.causal.named_parameters() if p.requires_grad}
        yield from as_in_files(self.causal, trained).items()

    def export(self, path: Path) -> None:
        """Write it as transformers' save_pretrained does."""
        with no_progress_bars():
            self.causal.save_pretrained(path)


class Critic(nn.Module):
    """The backbone of a causal language model with a linear head, which gives the value before each action token.

    The head is drawn from the global random generator; or it is what `export` wrote beside the model.
    """

    outputs = ("value",)

    def __init__(self, causal: PreTrainedModel, autocast: torch.dtype | None, path: Path, *, share: bool) -> None:
        super().__init__()
        self.share, self.limits = share, limits_of(causal)
        head = causal.get_output_embeddings().weight
        self.backbone, self.autocast = causal.get_decoder(), autocast
        self.head = nn.Linear(head.shape[1], 1, dtype=compute_dtype(head.dtype))
        nn.init.normal_(self.head.weight, std=_VALUE_STD)
        nn.init.zeros_(self.head.bias)
        if (path / _VALUE_HEAD).exists():
            from safetensors.torch import load_file

            self.head.load_state_dict(load_file(path / _VALUE_HEAD))

    def forward(
        self, tokens: TokenInt, action: TokenBool, temperature: RowFloat, group: RowInt
    ) -> dict[str, TokenFloat]:
        """`value`, in units of the reward; at every temperature the same."""
        hidden = _states(self.backbone, tokens, action, group if self.share else None, self.autocast)
        return {"value": _spread(self.head(hidden.to(self.head.weight.dtype)).squeeze(-1), action)}

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """What trains, under names of its own."""
        return ((name, p.detach()) for name, p in self.named_parameters() if p.requires_grad)

    def export(self, path: Path) -> None:
        """Write the backbone as transformers' save_pretrained does, and the head into a file beside it."""
        from safetensors.torch import save_file

        with no_progress_bars():
            self.backbone.save_pretrained(path)
        save_file(self.head.state_dict(), path / _VALUE_HEAD)


def logit_shape(config: Any) -> dict[str, Any]:
    """What a model of this `config` does to the product of hidden state and head, as `token_outputs` takes it."""
    text = config.get_text_config()
    scale = getattr(text, "logit_scale", None) or 1.0  # Cohere
    scale /= getattr(text, "logits_scaling", None) or 1.0  # Granite
    return {"scale": scale, "softcap": getattr(text, "final_logit_softcapping", None)}  # Gemma 2


def recompute_layers(module: nn.Module) -> None:
    """Have every layer compute its activations again in the backward pass instead of keeping them.

    Raises: ConfigError where the model's layers are not marked as layers.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [layer for layer in module.modules() if isinstance(layer, GradientCheckpointingLayer)]
    if not layers:
        need = "a model of which transformers says what its layers are"
        raise ConfigError("gradient_checkpointing", got="a model without such layers", need=need, do="set it to false")
    for layer in layers:
        # Not transformers' own switch, which works in training mode only, where dropout would be on.
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)


def _states(
    backbone: nn.Module, tokens: TokenInt, action: TokenBool, group: RowInt | None, autocast: torch.dtype | None
) -> Tensor:
    """The final hidden state [n, d] that each action token is predicted from: the one before it.

    This is the only place where a token's quantities are looked up at another position than its own. The n action
    tokens are in the order of ``tokens[action]``. What follows the last of them is not read. With `group`, what rows of
    a group have in common before their action tokens is read once, where that is worth it.
    """
    rows, times = action.nonzero(as_tuple=True)
    with torch.autocast(tokens.device.type, dtype=autocast, enabled=autocast is not None):
        shared = None if group is None else _shared(backbone, tokens, action, group)
        if shared is None:
            hidden, before = _whole(backbone, tokens, times), times - 1
        else:
            hidden, number, length = shared
            rows = number[rows]
            before = times - length[rows]
    # Flat: the gradient of indexing by rows and times is forty times slower on a CPU.
    return hidden.flatten(0, 1).index_select(0, rows * hidden.shape[1] + before)


def _shared(
    backbone: nn.Module, tokens: TokenInt, action: TokenBool, group: RowInt
) -> tuple[Tensor, Tensor, Tensor] | None:
    """States by prefix and rest, where that is worth it; the number of each row in them; the length of its prefix."""
    from purerl.backends.hf import prefix

    plan = prefix.plan(tokens, action, group)
    return None if plan is None else (prefix.states(backbone, plan), plan.number, plan.length[plan.member])


def _whole(backbone: nn.Module, tokens: TokenInt, times: Tensor) -> Tensor:
    """Final hidden states of all rows, up to the last token that anything is asked of.

    Without rows it reads one token and uses nothing of it, so that gradients are there, and 0.
    """
    width = int(times.max()) if len(times) else 1
    read = tokens[:, :width] if len(tokens) else tokens.new_zeros(1, 1)
    return backbone(input_ids=read, use_cache=False).last_hidden_state


def _spread(values: Tensor, action: TokenBool) -> TokenFloat:
    """`values`, one for each action token, where these are; 0 elsewhere."""
    return values.new_zeros(action.shape).masked_scatter(action, values)
