"""The parts of Megatron-core's parameters that are tensors of Hugging Face's files.

Megatron-core holds several tensors of a file in one parameter, and divides parameters among ranks:

    linear_qkv      [key heads, queries of the key head | its key | its value, head_dim] rows; whole key heads by rank
    linear_fc1      the rows of gate_proj that the rank has, and then those of up_proj
    linear_proj,
    linear_fc2      columns by rank
    embeddings,
    output_layer    rows by rank, after zeros that make them a multiple of the number of ranks
    the others      the same on each rank

So every tensor of the files is a view of a parameter of each rank, and these views one after the other along an axis
are the tensor. `Weight` has the view and the axis. Layers and experts have their numbers in the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from attrs import frozen
from torch import Tensor
from torch.nn import functional

from purerl.backends.megatron.shape import Shape

__all__ = ["SCORE", "Weight", "weights_of"]

SCORE = "score.weight"
"""The head of a classifier, in files."""

View = Callable[[Tensor], Tensor]


@frozen(kw_only=True)
class Weight:
    """A tensor of Hugging Face's files.

    name       in the files
    shape      in the files
    parameter  of Megatron-core that contains it
    view       from the parameter of a rank to the part of the tensor that the rank has
    axis       of the tensor, along which the parts of the tensor ranks follow each other; None: each has all of it
    layer      that it belongs to; None: to no layer
    expert     that it belongs to; None: to no expert
    is_copy    whether another parameter has it too, on another rank, and is the one to read it from
    """

    name: str
    shape: tuple[int, ...]
    parameter: str
    view: View
    axis: int | None = 0
    layer: int | None = None
    expert: int | None = None
    is_copy: bool = False

    def part_shape(self, ranks: int) -> tuple[int, ...]:
        """The shape of the part of each of the tensor `ranks`."""
        if self.axis is None:
            return self.shape
        return tuple(-(-size // ranks) if axis == self.axis else size for axis, size in enumerate(self.shape))

    def part(self, tensor: Tensor, rank: int, ranks: int) -> Tensor:
        """The part that `rank` has of the whole `tensor`, in `part_shape`."""
        if self.axis is None:
            return tensor
        size = self.part_shape(ranks)[self.axis]
        missing = size * ranks - tensor.shape[self.axis]
        if missing:  # of a vocabulary, the only axis that need not be a multiple of the ranks
            tensor = functional.pad(tensor, (0, 0) * (tensor.ndim - 1) + (0, missing))
        return tensor.narrow(self.axis, rank * size, size)

    def whole(self, parts: Tensor) -> Tensor:
        """The tensor, from the parts [ranks, ...] of all tensor ranks."""
        if self.axis is None:
            return parts[0]
        return parts.movedim(0, self.axis).flatten(self.axis, self.axis + 1).narrow(self.axis, 0, self.shape[self.axis])


def weights_of(shape: Shape, *, has_head: bool = True, has_score: bool = False) -> tuple[Weight, ...]:
    """All tensors of a model, in the order of its layers.

    has_head   also that of the output head
    has_score  also that of the head of a classifier with one label, which the last stage has
    """
    vocabulary = (shape.vocab_size, shape.hidden)
    embedding = Weight(
        name="model.embed_tokens.weight", shape=vocabulary, parameter="embedding.word_embeddings.weight", view=_all
    )
    layers = [weight for layer in range(shape.layers) for weight in _layer(shape, layer)]
    last = [_same("model.norm.weight", (shape.hidden,), "decoder.final_layernorm.weight", layer=shape.layers - 1)]
    if has_head:
        head = Weight(
            name=embedding.name if shape.tied else "lm_head.weight",
            shape=vocabulary,
            parameter="output_layer.weight",
            view=_all,
            layer=shape.layers - 1,
            is_copy=shape.tied,
        )
        last.append(head)
    if has_score:
        last.append(_same(SCORE, (1, shape.hidden), "heads.classifier_score.weight", layer=shape.layers - 1))
    return (embedding, *layers, *last)


def _layer(shape: Shape, layer: int) -> Iterator[Weight]:
    name, parameter, hidden = f"model.layers.{layer}", f"decoder.layers.{layer}", shape.hidden
    yield _same(f"{name}.input_layernorm.weight", (hidden,), f"{parameter}.input_layernorm.weight", layer=layer)
    yield from _attention(shape, layer, f"{name}.self_attn", f"{parameter}.self_attention")
    norm = f"{name}.post_attention_layernorm.weight"
    yield _same(norm, (hidden,), f"{parameter}.pre_mlp_layernorm.weight", layer=layer)
    if not shape.moe_layers[layer]:
        yield from _mlp(f"{name}.mlp", f"{parameter}.mlp", hidden, shape.ffn, layer=layer)
        return
    yield _same(f"{name}.mlp.gate.weight", (shape.experts, hidden), f"{parameter}.mlp.router.weight", layer=layer)
    for expert in range(shape.experts):
        names = f"{name}.mlp.experts.{expert}", f"{parameter}.mlp.experts.local_experts.{expert}"
        yield from _mlp(*names, hidden, shape.expert_ffn, layer=layer, expert=expert)


def _attention(shape: Shape, layer: int, name: str, parameter: str) -> Iterator[Weight]:
    queries, keys = shape.heads * shape.head_dim, shape.key_heads * shape.head_dim
    heads, sizes = shape.group_heads, (-1, shape.group_heads, shape.head_dim)
    rows = {"q_proj": (queries, slice(heads - 2)), "k_proj": (keys, heads - 2), "v_proj": (keys, heads - 1)}
    for kind, columns in [("weight", (shape.hidden,)), *([("bias", ())] if shape.qkv_bias else [])]:
        for part, (size, own) in rows.items():
            yield Weight(
                name=f"{name}.{part}.{kind}",
                shape=(size, *columns),
                parameter=f"{parameter}.linear_qkv.{kind}",
                view=partial(_part, sizes=sizes, index=(slice(None), own)),
                layer=layer,
            )
    yield Weight(
        name=f"{name}.o_proj.weight",
        shape=(shape.hidden, queries),
        parameter=f"{parameter}.linear_proj.weight",
        view=_all,
        axis=1,
        layer=layer,
    )
    for kind in "qk" if shape.qk_norm else "":
        norm = f"{parameter}.{kind}_layernorm.weight"
        yield _same(f"{name}.{kind}_norm.weight", (shape.head_dim,), norm, layer=layer)


def _mlp(
    name: str, parameter: str, hidden: int, ffn: int, *, layer: int, expert: int | None = None
) -> Iterator[Weight]:
    owner = {"layer": layer, "expert": expert}
    for half, part in enumerate(("gate_proj", "up_proj")):
        fused, view = f"{parameter}.linear_fc1.weight", partial(_part, sizes=(2, -1), index=half)
        yield Weight(name=f"{name}.{part}.weight", shape=(ffn, hidden), parameter=fused, view=view, **owner)
    down = f"{parameter}.linear_fc2.weight"
    yield Weight(name=f"{name}.down_proj.weight", shape=(hidden, ffn), parameter=down, view=_all, axis=1, **owner)


def _same(name: str, shape: tuple[int, ...], parameter: str, *, layer: int) -> Weight:
    return Weight(name=name, shape=shape, parameter=parameter, view=_all, axis=None, layer=layer)


# --- views ---------------------------------------------------------------------------------------------------------


def _all(parameter: Tensor) -> Tensor:
    return parameter


def _part(parameter: Tensor, *, sizes: tuple[int, ...], index: Any) -> Tensor:
    """The entries `index` of `parameter`, whose rows are divided into `sizes`."""
    return parameter.unflatten(0, sizes)[index]
