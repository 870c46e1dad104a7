"""From a causal language model or a classifier to what objectives read: outputs of the model at each action token.

`TokenModel` is a plain module; `parallel.py` makes it parallel from outside. The results of its `forward` are
[rows, time], and 0 where `action` is false. A language model predicts a token from the hidden state of the token before
it. The score of a classifier at a token is from the hidden state of this token: it has read it.

Padding is on the right and attention is causal, so no token attends to padding, and hidden states of padding are not
used. The backbone therefore runs without an attention mask, which is the fastest path; `self_test.py` verifies this for
each model that is loaded. Rows can instead be packed into one sequence without padding (`packing.py`), or rows of a
group that start with the same tokens share the computation of this prefix (`prefix.py`). Dropout is off also in
training: otherwise the ratio of two policies would compare two random networks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from purerl.backends.hf.decoder.architecture import CLASSIFIER_SCORE, HEAD_STD, scores_of_classes
from purerl.backends.hf.decoder.backbone import decoder_of
from purerl.backends.hf.decoder.images import ImageBatch, image_inputs, reads_images
from purerl.backends.hf.decoder.inputs import Inputs, Part, token_inputs
from purerl.backends.hf.decoder.limits import limits_of
from purerl.backends.hf.decoder.loading import no_progress_bars
from purerl.backends.hf.decoder.outputs import logit_shape, output_head, states_of
from purerl.backends.hf.model.added_gradients import added
from purerl.backends.hf.model.packed_attention import pack_attention
from purerl.backends.hf.model.packing import Pack, read_pack
from purerl.backends.hf.model.prefix import Plan, read_prefixes
from purerl.backends.hf.model.sequence import own_positions, split_attention, sum_over
from purerl.backends.hf.moe.replay import ROUTES, RoutedInputs, Routers, hook_routers, routes_of
from purerl.backends.hf.moe.router import LOAD, load_of
from purerl.errors import ConfigError
from purerl.kernels.logp import OUTPUTS as LANGUAGE_OUTPUTS
from purerl.kernels.logp import token_outputs
from purerl.kernels.logp.reference import compute_dtype
from purerl.kernels.partition import tokens_needed
from purerl.types import RowFloat, TensorDict, TokenBool, TokenInt

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from transformers import PreTrainedModel

__all__ = ["HEADS", "LANGUAGE_OUTPUTS", "Extras", "TokenModel", "at_action", "build_head", "head_file"]

T = TypeVar("T")

HEADS = ("value", "log_partition")
"""Outputs that have a head of their own: one number per token, linear in the hidden state."""


class Extras(NamedTuple):
    """The inputs of a forward pass beside tokens: the images of rows, and the experts that their tokens go through.

    images   None: the rows are text
    experts  [rows, time, layers, k], as `moe/replay.py` defines them; with `LIVE` the router chooses. None: it always
             does
    """

    images: ImageBatch | None = None
    experts: Tensor | None = None


class TokenModel(nn.Module):
    """A causal language model with the heads that the requested `outputs` need, or a classifier.

    Without an output in `LANGUAGE_OUTPUTS` the vocabulary head is dropped. Heads are loaded from the directory `path`
    if `export` has written them there, and otherwise drawn from the global random generator. A classifier has the head
    of its own class, and no other output.
    """

    def __init__(
        self,
        causal: PreTrainedModel,
        outputs: Sequence[str],
        *,
        path: Path,
        autocast: torch.dtype | None = None,
        top_k: int | None = None,
    ) -> None:
        super().__init__()
        self.sequence: ProcessGroup | None = None
        self.is_packed = False
        self.routers: Routers | None = None  # if their choices can be replayed
        self.attention: Any = causal.config._attn_implementation  # noqa: SLF001 - transformers has no public attribute
        self.multiple_of = 1  # the number of tokens that are read of each row, for compiled layers
        self.adds_early = True  # the gradients of several uses of a weight, as `added_gradients.py` describes
        self.has_vocabulary = any(name in LANGUAGE_OUTPUTS for name in outputs)
        self.is_classifier = CLASSIFIER_SCORE in outputs
        self.limits, self.autocast = limits_of(causal), autocast
        self.shape, self.config = logit_shape(causal.config), causal.config.get_text_config(decoder=True)
        vocabulary: Any = (causal.get_output_embeddings() or causal.get_input_embeddings()).weight
        self.top_k, self.vocabulary = _top_k(top_k, vocabulary.shape[0]), slice(None)
        self.reads_images = reads_images(causal)
        keeps_head = self.has_vocabulary or self.is_classifier
        self.model: Any = causal if keeps_head else (causal.base_model if self.reads_images else decoder_of(causal))
        self.heads = nn.ModuleDict({name: build_head(name, vocabulary, path) for name in outputs if name in HEADS})

    @property
    def decoder(self) -> Any:
        """The backbone, without any head."""
        return decoder_of(self.model)

    @property
    def classifier(self) -> Any:
        """The head of a classifier, in transformers' class of the model."""
        return self.model.score if hasattr(self.model, "score") else self.model.classifier

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs that `forward` can compute."""
        own = [CLASSIFIER_SCORE] if self.is_classifier else []
        routes = [ROUTES] if self.routers else []
        return (*(LANGUAGE_OUTPUTS if self.has_vocabulary else ()), *self.heads, *own, *routes)

    def read_positions(self, tokens: TokenInt, action: TokenBool) -> tuple[TokenInt, TokenBool]:
        """`tokens`, and `action` at the token after each one whose hidden state is read.

        Of a language model that is `action`. A classifier reads the action tokens themselves, so both get a column.
        """
        if not self.is_classifier:
            return tokens, action
        return functional.pad(tokens, (0, 1)), functional.pad(action, (1, 0))

    def image_field(self, batch: TensorDict) -> dict[str, Tensor]:
        """The field `image` of `batch`, at the positions of the tokens that are read; nothing if it has none."""
        names = {"image"} & {*batch.keys()}
        return {name: self.read_positions(batch[name], batch["action"])[0] for name in names}

    def split_sequences(self, group: ProcessGroup) -> None:
        """Compute a part of the positions of each sequence on each rank of `group`."""
        self.sequence = group
        split_attention(self.decoder, group)

    def pack_rows(self) -> None:
        """Pack rows: `forward` is then always called with a `pack`. It comes before `split_sequences`."""
        self.is_packed = True
        pack_attention(self.decoder)

    def limit_vocabulary(self, size: int) -> None:
        """Give token ids from `size` on no probability. Raises: ConfigError if `top_k` is larger."""
        self.top_k, self.vocabulary = _top_k(self.top_k, size), slice(size)

    def replay_routes(self) -> None:
        """Let `forward` record and replay the choices of routers. Raises: ConfigError as `hook_routers`."""
        self.routers = hook_routers(self.decoder)

    def gathered(self, function: Callable[[TokenModel], T]) -> T:
        """`function` of this module, with all parameters: where they are divided, FSDP2 gathers them for the call."""
        return function(self)

    def _mixed_precision(self, device: torch.device) -> torch.autocast:
        """Autocast without a cache, which would keep the casts of all layers, of which FSDP2 gathers one at a time.

        A weight is used once in a forward pass, so nothing is cast twice.
        """
        return torch.autocast(device.type, dtype=self.autocast, enabled=self.autocast is not None, cache_enabled=False)

    def forward(
        self,
        tokens: TokenInt,
        action: TokenBool,
        temperature: RowFloat,
        outputs: Sequence[str],
        *,
        prefixes: Plan | None = None,
        pack: Pack | None = None,
        choices: Tensor | None = None,
        extras: Extras | None = None,
    ) -> dict[str, Tensor]:
        """The `outputs` at the action tokens, at the row's `temperature` (0 counts as 1).

        outputs   names; with those in `router.LOAD`, the load of experts [experts]; with `ROUTES`, the choices of the
                  live routers, int16 [rows, time, layers, k], and `LIVE` for tokens that are not read
        prefixes  how prefixes of what `read_positions` returns are shared; None: each row is read on its own
        pack      the pack of all rows, likewise; None: they are padded
        choices   [rows, time, k] the tokens of `topk_logp`; None: the k most likely tokens
        extras    of the rows; None: they are text, and routers choose the experts
        """
        load = [name for name in outputs if name in LOAD]
        images, experts = extras or Extras()
        tokens, action = self.read_positions(tokens, action)
        with self._mixed_precision(tokens.device):
            inputs = token_inputs(tokens) if images is None else image_inputs(self.model, tokens, images)
            if experts is not None or ROUTES in outputs:
                inputs = RoutedInputs(inputs, tokens.shape, experts)
            action, hidden, routers = self._read(inputs, action, prefixes, pack, router=bool(load))
        of_heads = [name for name in outputs if name in self.heads]
        results = {name: self.heads[name](hidden.to(compute_dtype(hidden.dtype)))[:, 0] for name in of_heads}
        language = [name for name in outputs if name in LANGUAGE_OUTPUTS]
        if language:
            weight, bias, shard = output_head(self.model.get_output_embeddings())
            weight = added(weight) if self.adds_early else weight
            divisor = torch.where(temperature > 0, temperature, 1)[:, None].expand(action.shape)[action]
            results |= token_outputs(
                hidden,
                weight[self.vocabulary],
                None if bias is None else bias[self.vocabulary],
                tokens[action],
                divisor,
                outputs=language,
                choices=None if choices is None else choices[action],
                k=self.top_k,
                shard=shard,
                **self.shape,
            )
        if self.is_classifier:
            results[CLASSIFIER_SCORE] = scores_of_classes(self.classifier, hidden)
        results = {name: at_action(value, action) for name, value in results.items()}
        if self.is_classifier:
            results[CLASSIFIER_SCORE] = results[CLASSIFIER_SCORE][:, 1:].clone()  # FSDP2 wants no view
        results |= load_of(routers, self.config.num_experts_per_tok) if load else {}
        results |= {ROUTES: inputs.recorded()} if isinstance(inputs, RoutedInputs) else {}
        # Each rank of the sequence group has the values of its own positions.
        group = self.sequence
        sums = {name: results[name] if group is None else sum_over(results[name], group) for name in outputs}
        return {name: routes_of(value) if name == ROUTES else value for name, value in sums.items()}

    def _read(
        self, inputs: Inputs, action: TokenBool, prefixes: Plan | None, pack: Pack | None, *, router: bool
    ) -> tuple[TokenBool, Tensor, list[Tensor]]:
        """The n action tokens that this rank predicts, hidden states [n, d], and router logits [n, experts] by layer.

        The hidden state of an action token is that of the token before it. Positions are shifted by one only in the
        three functions that are called here. The n action tokens are in the order of ``tokens[action]``. Tokens after
        the last action token of a row are not read.
        """
        options = {"output_router_logits": True} if router else {}
        if pack is not None:
            padding = {"multiple": self.multiple_of, "group": self.sequence}
            action, outputs, index = read_pack(self.decoder, pack, inputs, action, **padding, **options)
        elif prefixes is not None:
            outputs, index = read_prefixes(
                self.decoder, prefixes, inputs, action, adds_early=self.adds_early, **options
            )
        else:
            action, outputs, index = self._read_rows(inputs, action, options)
        # A flat index: on a CPU the gradient of indexing by rows and times is forty times slower.
        hidden, *routers = (state.flatten(0, 1).index_select(0, index) for state in outputs)
        return action, hidden, routers

    def _read_rows(
        self, inputs: Inputs, action: TokenBool, options: dict[str, Any]
    ) -> tuple[TokenBool, tuple[Tensor, ...], Tensor]:
        """Padded rows: the n action tokens of this rank, states [rows, time, ...], and flat indices [n] into them."""
        # Without action tokens one token is read, and nothing of it is used, so that gradients exist and are 0.
        longest = max(1, int(tokens_needed(action).max())) if len(action) else 1
        width, start = self._width(longest), 0
        part = partial(_columns, longest=longest, start=0, stop=width)
        if self.sequence is not None:
            action, part, start, options = _own_part(action, longest, width, self.sequence, options)
        rows, times = action.nonzero(as_tuple=True)
        outputs = states_of(self.decoder(**{**options, **inputs(part)}, use_cache=False))
        return action, outputs, rows * outputs[0].shape[1] + times - 1 - start

    def _width(self, longest: int) -> int:
        """The number of columns that are read of rows of at most `longest` tokens.

        It is a multiple of `multiple_of`, or the longest sequence of the model.
        """
        width = -(-longest // self.multiple_of) * self.multiple_of
        return max(min(width, self.limits.max_sequence_length or width), longest)

    def export(self, path: Path, state: Mapping[str, Tensor]) -> None:
        """Write the model as transformers' save_pretrained does, and each head into a file beside it.

        `state` has every parameter and buffer in full, by name.
        """
        model_state = {name.removeprefix("model."): value for name, value in state.items() if name.startswith("model.")}
        with no_progress_bars():
            self.model.save_pretrained(path, state_dict=model_state)
        self.export_heads(path, state)

    def export_heads(self, path: Path, state: Mapping[str, Tensor]) -> None:
        """Write each head into a file in `path`. `state` is that of `export`."""
        from safetensors.torch import save_file

        for name in self.heads:
            prefix = f"heads.{name}."
            head = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
            save_file(head, head_file(path, name))


def _top_k(top_k: int | None, vocab_size: int) -> int:
    if top_k is not None and top_k > vocab_size:
        raise ConfigError("trainer.top_k", got=top_k, need=f"at most {vocab_size}, the number of token ids")
    return top_k or min(16, vocab_size)


def build_head(name: str, vocabulary: Tensor, path: Path) -> nn.Linear:
    """The head `name` of a model with the `vocabulary` [ids, d], from its file in `path`, or drawn at random."""
    head = nn.Linear(vocabulary.shape[1], 1, dtype=compute_dtype(vocabulary.dtype))
    nn.init.normal_(head.weight, std=HEAD_STD)
    nn.init.zeros_(head.bias)
    if head_file(path, name).exists():
        from safetensors.torch import load_file

        head.load_state_dict(load_file(head_file(path, name)))
    return head


def head_file(path: Path, name: str) -> Path:
    """The file of the head `name` in the directory `path`."""
    return path / f"{name}_head.safetensors"


def _columns(values: Tensor, *, longest: int, start: int, stop: int) -> Tensor:
    """The columns from `start` to `stop` of the first `longest` columns; there is 0 after them, and without rows."""
    values = values[..., :longest] if values.shape[-2] else values.new_zeros(*values.shape[:-2], 1, 1)
    return functional.pad(values, (0, max(0, stop - values.shape[-1])))[..., start:stop]


def _own_part(
    action: TokenBool, longest: int, width: int, group: ProcessGroup, options: dict[str, Any]
) -> tuple[TokenBool, Part, int, dict[str, Any]]:
    """Actions, columns, first position and options (with positions) of this rank of a sequence group."""
    start, size = own_positions(width, group)
    # Padding at the end repeats the last position, because a model may have no further one.
    positions = torch.arange(start, start + size, device=action.device).clamp(max=width - 1)
    before = torch.arange(action.shape[-1], device=action.device) - 1
    own = action & (before >= start) & (before < start + size)
    part = partial(_columns, longest=longest, start=start, stop=start + size)
    return own, part, start, {**options, "position_ids": positions.expand(max(1, len(action)), size)}


def at_action(values: Tensor, action: TokenBool) -> Tensor:
    """`values`, one for each action token, at these tokens; 0 elsewhere."""
    where = action if values.ndim == 1 else action[..., None]
    return values.new_zeros(*action.shape, *values.shape[1:]).masked_scatter(where, values)
