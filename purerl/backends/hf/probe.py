"""Whether a model is what `heads.py` takes it for.

Two dozen architectures finish their logits in a way of their own (a scale, a cap, a second head), and a model may look
at tokens to its right. Either would make log-probabilities wrong without any sign of it. So each model that is loaded
is asked once, on four tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from purerl.errors import ConfigError
from purerl.kernels.logp.reference import shape_logits

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["probe"]

_TOKENS, _PADDED = 4, 7
_WIDEST = 100.0


@torch.no_grad()
def probe(causal: PreTrainedModel, shape: Mapping[str, Any]) -> None:
    """Compare the model's own logits, step by step, with how `heads.py` works them out.

    1. What its head gets is what its decoder gives, without an attention mask and with padding behind.
    2. Its head multiplies by a weight and adds a bias.
    3. What it makes of the head's output is what `shape` says. To see this well beyond the small logits of a fresh
       model, the head's output is replaced by a ramp from -100 to 100.

    Raises: ConfigError, which says what differs.
    """
    head = causal.get_output_embeddings()
    if getattr(head, "weight", None) is None:
        raise _differs(causal, "no output head with a weight")
    tokens = torch.arange(_PADDED, device=head.weight.device)[None] % len(head.weight)
    seen: dict[str, Tensor] = {}

    def watch(_: Any, given: tuple[Tensor, ...], product: Tensor) -> Tensor:
        ramp = torch.linspace(-_WIDEST, _WIDEST, product.shape[-1]).to(product).expand_as(product)
        seen.update(hidden=given[0], product=product, ramp=ramp)
        return ramp

    own = _with_hook(head, watch, lambda: causal(input_ids=tokens[:, :_TOKENS], use_cache=False).logits)
    padded = causal.get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state[:, :_TOKENS]
    _compare(causal, "hidden states of its decoder, with padding to the right", padded, seen.get("hidden"))
    product = functional.linear(padded, head.weight, getattr(head, "bias", None))
    _compare(causal, "product of hidden states and output head", product, seen["product"])
    _compare(causal, "logits, from that product", shape_logits(seen["ramp"], **shape), own)


def _with_hook(module: Any, hook: Callable, run: Callable[[], Tensor]) -> Tensor:
    handle = module.register_forward_hook(hook)
    try:
        return run()
    finally:
        handle.remove()


def _compare(causal: PreTrainedModel, what: str, ours: Tensor, own: Tensor | None) -> None:
    """Equal up to rounding; in a narrow dtype, up to the rounding of many layers."""
    if own is None or own.shape != ours.shape:
        raise _differs(causal, f"{what}: no counterpart in its forward pass")
    tolerance = 0.1 if own.dtype.itemsize < 4 else 1e-3
    gap, size = float((ours - own).abs().max()), float(own.abs().max())
    if not gap <= tolerance * size:
        raise _differs(causal, f"{what}: {gap:.3g} apart, where the largest is {size:.3g}")


def _differs(causal: PreTrainedModel, got: str) -> ConfigError:
    return ConfigError(
        f"{type(causal).__name__} cannot be trained here: its logits are worked out in a way that purerl does not know",
        got=got,
        need="a causal decoder and a linear head, whose output is at most scaled and soft-capped",
        do="use another model, or a trainer of your own: one class that satisfies purerl.protocols.Trainer",
    )
