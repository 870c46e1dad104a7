"""From a causal language model to what objectives read: the outputs of the model at each action token.

`TokenModel` is a plain module without parallelism. To shard it, wrap it from outside. The results of its `forward` are
[rows, time], and 0 where `action` is false.

Padding is on the right and attention is causal, so no token attends to padding, and hidden states of padding are not
used. The backbone therefore runs without an attention mask, which is the fastest path; `probe.py` verifies this for
each model that is loaded. Rows of a group that start with the same tokens can share the computation of this prefix
(`prefix.py`). Dropout is off also in training: otherwise the ratio of two policies would compare two random networks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from purerl.backends.hf.limits import limits_of
from purerl.backends.hf.model import no_progress_bars
from purerl.errors import ConfigError
from purerl.kernels.logp import OUTPUTS as LANGUAGE_OUTPUTS
from purerl.kernels.logp import token_outputs
from purerl.kernels.logp.reference import compute_dtype
from purerl.types import RowFloat, TokenBool, TokenInt

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from purerl.backends.hf.prefix import Plan

__all__ = ["HEADS", "LANGUAGE_OUTPUTS", "TokenModel", "layers_of", "logit_shape", "recompute_layers"]

HEADS = ("value", "log_partition")
"""Outputs that have a head of their own: one number per token, linear in the hidden state."""

_HEAD_STD = 0.02  # the initialization that transformers uses for most weights


class TokenModel(nn.Module):
    """A causal language model with the heads that the requested `outputs` need.

    Without an output in `LANGUAGE_OUTPUTS` the vocabulary head is dropped. Heads are loaded from the directory `path`
    if `export` has written them there, and otherwise drawn from the global random generator.
    """

    def __init__(
        self,
        causal: PreTrainedModel,
        outputs: Sequence[str],
        *,
        path: Path,
        autocast: torch.dtype | None = None,
        top_k: int = 1,
    ) -> None:
        super().__init__()
        self.has_vocabulary = any(name in LANGUAGE_OUTPUTS for name in outputs)
        self.limits, self.autocast, self.top_k = limits_of(causal), autocast, top_k
        self.shape = logit_shape(causal.config)
        vocabulary = causal.get_output_embeddings().weight
        self.model: Any = causal if self.has_vocabulary else causal.get_decoder()
        self.heads = nn.ModuleDict({name: _head(name, vocabulary, path) for name in outputs if name in HEADS})

    @property
    def decoder(self) -> Any:
        """The backbone, without any head."""
        return self.model.get_decoder() if self.has_vocabulary else self.model

    @property
    def outputs(self) -> tuple[str, ...]:
        """What `forward` can compute."""
        return (*(LANGUAGE_OUTPUTS if self.has_vocabulary else ()), *self.heads)

    def forward(
        self,
        tokens: TokenInt,
        action: TokenBool,
        temperature: RowFloat,
        outputs: Sequence[str],
        *,
        prefixes: Plan | None = None,
        choices: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The `outputs` at the action tokens, at the row's `temperature` (0 counts as 1).

        prefixes  how prefixes are shared; None: each row is read on its own
        choices   [rows, time, k] the tokens of `topk_logp`; None: the k most likely tokens
        """
        with torch.autocast(tokens.device.type, dtype=self.autocast, enabled=self.autocast is not None):
            hidden = _hidden_states(self.decoder, tokens, action, prefixes)
        results = {
            name: self.heads[name](hidden.to(compute_dtype(hidden.dtype)))[:, 0]
            for name in outputs
            if name in self.heads
        }
        language = [name for name in outputs if name in LANGUAGE_OUTPUTS]
        if language:
            head = self.model.get_output_embeddings()
            divisor = torch.where(temperature > 0, temperature, 1)[:, None].expand(action.shape)[action]
            results |= token_outputs(
                hidden,
                head.weight,
                getattr(head, "bias", None),
                tokens[action],
                divisor,
                outputs=language,
                choices=None if choices is None else choices[action],
                k=self.top_k,
                **self.shape,
            )
        return {name: _at_action(results[name], action) for name in outputs}

    def export(self, path: Path, state: Mapping[str, Tensor]) -> None:
        """Write the model as transformers' save_pretrained does, and each head into a file beside it.

        `state` has every parameter and buffer in full, by name.
        """
        from safetensors.torch import save_file

        model_state = {name.removeprefix("model."): value for name, value in state.items() if name.startswith("model.")}
        with no_progress_bars():
            self.model.save_pretrained(path, state_dict=model_state)
        for name in self.heads:
            prefix = f"heads.{name}."
            head = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
            save_file(head, _head_file(path, name))


def _head(name: str, vocabulary: Tensor, path: Path) -> nn.Linear:
    head = nn.Linear(vocabulary.shape[1], 1, dtype=compute_dtype(vocabulary.dtype))
    nn.init.normal_(head.weight, std=_HEAD_STD)
    nn.init.zeros_(head.bias)
    if _head_file(path, name).exists():
        from safetensors.torch import load_file

        head.load_state_dict(load_file(_head_file(path, name)))
    return head


def _head_file(path: Path, name: str) -> Path:
    return path / f"{name}_head.safetensors"


def logit_shape(config: Any) -> dict[str, Any]:
    """How a model with this `config` changes the product of hidden state and head, as arguments of `token_outputs`."""
    text = config.get_text_config()
    scale = getattr(text, "logit_scale", None) or 1.0  # Cohere
    scale /= getattr(text, "logits_scaling", None) or 1.0  # Granite
    return {"scale": scale, "softcap": getattr(text, "final_logit_softcapping", None)}  # Gemma 2


def layers_of(module: nn.Module) -> Iterator[nn.Module]:
    """The transformer layers in `module`, as transformers marks them."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return (layer for layer in module.modules() if isinstance(layer, GradientCheckpointingLayer))


def recompute_layers(module: nn.Module) -> None:
    """Have every layer recompute its activations in the backward pass (gradient checkpointing).

    Raises: ConfigError if transformers does not mark the layers of this model.
    """
    layers = list(layers_of(module))
    if not layers:
        need = "a model whose layers are marked as layers by transformers"
        raise ConfigError("gradient_checkpointing", got="a model without such layers", need=need, do="set it to false")
    for layer in layers:
        # Not by transformers' own switch, which works in training mode only, where dropout would be on.
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)


def _hidden_states(decoder: nn.Module, tokens: TokenInt, action: TokenBool, prefixes: Plan | None) -> Tensor:
    """The final hidden state [n, d] from which each action token is predicted: that of the token before it.

    This is the only place where positions are shifted by one. The n action tokens are in the order of
    ``tokens[action]``. Tokens after the last action token of a row are not read.
    """
    rows, times = action.nonzero(as_tuple=True)
    if prefixes is None:
        # Without action tokens one token is read, and nothing of it is used, so that gradients exist and are 0.
        width = int(times.max()) if len(times) else 1
        read = tokens[:, :width] if len(tokens) else tokens.new_zeros(1, 1)
        hidden, before = decoder(input_ids=read, use_cache=False).last_hidden_state, times - 1
    else:
        from purerl.backends.hf.prefix import states

        hidden, rows = states(decoder, prefixes), prefixes.number[rows]
        before = times - prefixes.length[prefixes.member[rows]]
    # A flat index: on a CPU the gradient of indexing by rows and times is forty times slower.
    return hidden.flatten(0, 1).index_select(0, rows * hidden.shape[1] + before)


def _at_action(values: Tensor, action: TokenBool) -> Tensor:
    """`values`, one for each action token, at these tokens; 0 elsewhere."""
    if values.ndim == 1:
        return values.new_zeros(action.shape).masked_scatter(action, values)
    return values.new_zeros(*action.shape, values.shape[-1]).masked_scatter(action[..., None], values)
