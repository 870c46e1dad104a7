"""A test of the assumptions of `token_model.py` about a model, on four tokens, when it is loaded.

Two dozen architectures change their logits after the output head (a scale, a soft cap, a second head), and a model may
attend to later tokens. Log-probabilities would then be incorrect without an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from io import BytesIO
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional

from purerl.backends.hf.decoder.backbone import decoder_of
from purerl.backends.hf.decoder.images import ImageReader, image_inputs
from purerl.backends.hf.decoder.inputs import token_inputs
from purerl.backends.hf.decoder.outputs import equal_up_to_rounding, output_head
from purerl.backends.hf.model.fit import OF_DIVISION
from purerl.backends.hf.model.packed_attention import attention_as
from purerl.backends.hf.model.packing import pack, read_pack
from purerl.backends.hf.model.prefix import can_share
from purerl.backends.hf.model.sequence import own_positions
from purerl.backends.hf.model.token_model import TokenModel
from purerl.backends.hf.moe.replay import probe_routes
from purerl.errors import ConfigError, PurerlError
from purerl.images import Image
from purerl.kernels.logp.reference import shape_logits
from purerl.models.processor import Processor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["probe", "probe_images", "probe_pack", "probe_split", "verify", "verify_images"]

_SIZES = ((84, 56), (56, 112))
"""Sizes of the images that a model reads in `probe_images`."""

_TOKENS, _PADDED_TOKENS = 4, 7
_ROWS = (7, 4, 4, 1)
_MAX_LOGIT = 100.0


def verify(causal: PreTrainedModel, module: TokenModel, *, share: bool) -> bool:
    """Test the assumptions about `causal`, from which `module` was made; whether prefixes can be shared.

    share  whether they may be shared

    Raises: ConfigError as `probe`, and if the model cannot be split by positions, or not read packs.
    """
    if module.routers:
        with attention_as(module.decoder, module.attention):
            probe_routes(causal)
    if module.is_packed:
        probe_pack(causal, module)
        return False
    if module.sequence is not None:
        probe_split(causal, module)
        return False
    probe(causal, module)
    return share and can_share(causal)


def verify_images(reader: ImageReader, module: TokenModel) -> None:
    """Test the assumptions about how the model in `module` reads images. Raises: ConfigError as `probe_images`."""
    with attention_as(module.decoder, module.attention):
        probe_images(module.model, reader)


@torch.no_grad()
def probe(causal: PreTrainedModel, module: TokenModel) -> None:
    """Compare what `causal` computes with what `module`, which was made of it, computes; as the next two functions."""
    if module.is_classifier:
        _probe_classifier(causal, module)
    else:
        _probe_language_model(causal, module.shape)


def _probe_language_model(causal: PreTrainedModel, shape: Mapping[str, Any]) -> None:
    """Compare the logits of the model with the computation in `token_model.py`, step by step.

    1. The input of the output head is the output of the decoder, without an attention mask, also with padding after the
       tokens.
    2. The output head multiplies by a weight and adds a bias.
    3. The logits are the output of the head, changed as `shape` describes. A randomly initialized model has only small
       logits, so the output of the head is replaced by a ramp from -100 to 100.

    Raises: ConfigError that names the first difference.
    """
    head = causal.get_output_embeddings()
    if getattr(head, "weight", None) is None:
        raise _difference(causal, "no output head with a weight")
    tokens = torch.arange(_PADDED_TOKENS, device=head.weight.device)[None] % len(head.weight)
    recorded: dict[str, Tensor] = {}

    def record(_: Any, inputs: tuple[Tensor, ...], product: Tensor) -> Tensor:
        ramp = torch.linspace(-_MAX_LOGIT, _MAX_LOGIT, product.shape[-1]).to(product).expand_as(product)
        recorded.update(hidden=inputs[0], product=product, ramp=ramp)
        return ramp

    with _own_errors(causal):
        logits = _with_hook(head, record, lambda: causal(input_ids=tokens[:, :_TOKENS], use_cache=False).logits)
        output, alone = (decoder_of(causal)(input_ids=part, use_cache=False) for part in (tokens, tokens[:, :_TOKENS]))
    if getattr(output, "last_hidden_state", None) is None:
        raise _difference(causal, f"a decoder that returns {type(output).__name__}, without hidden states")
    _compare(causal, "input of its output head, from its decoder", alone.last_hidden_state, recorded.get("hidden"))
    padded = output.last_hidden_state[:, :_TOKENS]
    _compare(causal, "hidden states of tokens that others follow", padded, alone.last_hidden_state)
    weight, bias, shard = output_head(head)
    rows = slice(None) if shard is None else shard.rows
    product = functional.linear(padded, weight, bias)
    _compare(causal, "product of hidden states and output head", product, recorded["product"][..., rows])
    _compare(causal, "logits, from that product", shape_logits(recorded["ramp"], **shape), logits)


def _probe_classifier(causal: Any, module: TokenModel) -> None:
    """Compare the classes' logits with the computation in `token_model.py`.

    1. The input of the head is the output of the decoder, without an attention mask and with padding after the tokens.
    2. The logits of a token are the output of the head, and those of a sequence its output at the last token.

    Raises: ConfigError that names the first difference.
    """
    weight, pad = causal.get_input_embeddings().weight, causal.config.get_text_config().pad_token_id
    ids = torch.arange(_PADDED_TOKENS + 1, device=weight.device) % len(weight)
    tokens, recorded = ids[ids != (-1 if pad is None else pad)][None, :_PADDED_TOKENS], dict[str, Tensor]()

    def record(_: Any, inputs: tuple[Tensor, ...], product: Tensor) -> None:
        recorded.update(hidden=inputs[0], product=product)

    logits = _with_hook(module.classifier, record, lambda: causal(input_ids=tokens[:, :_TOKENS]).logits)
    padded = module.decoder(input_ids=tokens, use_cache=False).last_hidden_state[:, :_TOKENS]
    _compare(causal, "hidden states of its decoder, with padding to the right", padded, recorded.get("hidden"))
    _compare(
        causal, "logits of the last token", recorded["product"][:, -1], logits[:, -1] if logits.ndim > 2 else logits
    )


@torch.no_grad()
def probe_split(causal: PreTrainedModel, module: TokenModel) -> None:
    """Compare the hidden states of `module`, which was made of `causal`, with and without sequence parallelism.

    Also `probe` of the logits without it. Raises: ConfigError that names the first difference, on all ranks.
    """
    weight: Any = causal.get_input_embeddings().weight
    group, decoder = module.sequence, module.decoder
    width = _TOKENS * dist.get_world_size(group)
    tokens = torch.arange(width, device=weight.device)[None] % len(weight)
    with attention_as(decoder_of(causal), module.attention):
        probe(causal, module)
        expected = decoder(input_ids=tokens, use_cache=False).last_hidden_state
    start, size = own_positions(width, group)
    position_ids = torch.arange(start, start + size, device=weight.device)[None]
    own = decoder(input_ids=tokens[:, start : start + size], position_ids=position_ids, use_cache=False)
    if not _all_equal(own.last_hidden_state, expected[:, start : start + size], group):
        got = f"{dist.get_world_size(group)}, and {type(causal).__name__}: other hidden states than without it"
        need = "a model that reads each token on its own, except in attention"
        raise ConfigError("mesh.sequence", got=got, need=need, do="leave mesh.sequence out, and use mesh.shard")


def _all_equal(computed: Tensor, expected: Tensor, group: dist.ProcessGroup | None) -> bool:
    """Whether two results agree on all ranks of `group`, which all raise the same error, or none."""
    is_equal = not computed.numel() or equal_up_to_rounding(computed, expected)
    if group is None:
        return is_equal
    differing = torch.tensor(int(not is_equal), device=expected.device)
    dist.all_reduce(differing, group=group)
    return not int(differing)


@torch.no_grad()
def probe_pack(causal: PreTrainedModel, module: TokenModel) -> None:
    """Compare the hidden states of `module`, which was made of `causal`, for packed and for padded rows.

    Also `probe` of the logits, with padded rows. Raises: ConfigError that names the first difference.
    """
    weight: Any = causal.get_input_embeddings().weight
    time, size = torch.arange(max(_ROWS) + 1, device=weight.device), torch.tensor(_ROWS, device=weight.device)
    tokens = torch.arange(len(size) * len(time), device=weight.device).reshape(len(size), -1) % len(weight)
    action = (time > 0) & (time <= size[:, None])
    with attention_as(decoder_of(causal), module.attention):
        probe(causal, module)
        padded = module.decoder(input_ids=tokens, use_cache=False).last_hidden_state
    try:
        inputs, options = token_inputs(tokens), {"multiple": 1, "group": module.sequence}
        own, states, index = read_pack(module.decoder, pack(action), inputs, action, **options)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:  # what its attention may raise
        raise _cannot_pack(causal, f"an error in its forward pass: {str(error).splitlines()[0]}") from error
    rows, times = own.nonzero(as_tuple=True)
    # With mesh.sequence, a rank may have no token of these rows.
    if not _all_equal(states[0][0, index], padded[rows, times - 1], module.sequence):
        raise _cannot_pack(causal, "other hidden states than for each row on its own")


@torch.no_grad()
def probe_images(model: Any, reader: ImageReader) -> None:
    """Compare the hidden states of a row with images in the model's own forward pass with those of its decoder alone.

    The decoder gets the inputs that `images.py` makes. Some models read images otherwise: their tokens attend to each
    other in both directions, or their features go to other layers.

    Raises: ConfigError if the states differ, or the model raises an error.
    """
    base, name, device = model.base_model, type(model).__name__, model.device
    tokens, image = _probe_row(reader.processor)
    row = reader.rows_of(tokens, image, {Image(data).id: reader.load(data) for data in _pictures()}).to(device)
    tokens, own = tokens.to(device), signature(base.forward).parameters
    options: dict[str, Any] = {key: value for key, value in row.pixels.items() if key in own}
    options |= dict.fromkeys({"mm_token_type_ids", "token_type_ids"} & own.keys(), (row.slot > 0).long())
    try:
        expected = base(input_ids=tokens, use_cache=False, **options).last_hidden_state
        inputs = image_inputs(model, tokens, row)(lambda values: values)
        computed = decoder_of(model)(**inputs, use_cache=False).last_hidden_state
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:  # what a model raises
        raise _cannot_read_images(name, f"an error in its forward pass: {str(error).splitlines()[0]}") from error
    finally:
        base.rope_deltas = None  # of the row above, in some models
    if not equal_up_to_rounding(computed, expected):
        raise _cannot_read_images(name, "other hidden states than for its features in the place of tokens")


def _pictures() -> list[bytes]:
    """Two files with different images."""
    from PIL import Image as Pillow

    files = []
    for number, size in enumerate(_SIZES):
        ramp = Pillow.linear_gradient("L").resize(size).rotate(180 * number)
        Pillow.merge("RGB", [ramp, ramp.transpose(Pillow.Transpose.TRANSPOSE).resize(size), ramp]).save(
            file := BytesIO(), format="PNG"
        )
        files.append(file.getvalue())
    return files


def _probe_row(processor: Processor) -> tuple[Tensor, Tensor]:
    """Tokens [1, time] with text around two images, and the content id of the image of each."""
    images = [Image(data) for data in _pictures()]
    text = [token for token in range(8) if token != processor.image_token_id]
    tokens = [*text, *processor.expansion(images[0]), *text[:2], *processor.expansion(images[1]), *text[2:]]
    return torch.tensor([tokens]), torch.tensor([processor.image_ids(tokens, images)])


def _cannot_read_images(name: str, got: str) -> ConfigError:
    need = "a model whose decoder reads images as features in the place of tokens, with causal attention"
    do = "use a model of another family; docs/how-to/images.md lists those that were tested"
    return ConfigError("images", got=f"{name}: {got}", need=need, do=do)


def _cannot_pack(causal: PreTrainedModel, got: str) -> ConfigError:
    need = "a model that reads the rows of a pack as it reads each of them"
    return ConfigError("packing", got=f"{type(causal).__name__}: {got}", need=need, do="leave packing out")


@contextmanager
def _own_errors(causal: PreTrainedModel) -> Iterator[None]:
    """Raise ConfigError in place of an error in the code of the model, except for a lack of memory."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, PurerlError | torch.OutOfMemoryError) or re.search(OF_DIVISION, str(error)):
            raise
        is_wide = causal.dtype == torch.float64
        raise ConfigError(
            f"{type(causal).__name__} cannot be used: its own forward pass fails",
            got=(str(error).strip() or type(error).__name__).splitlines()[0],
            need="a model that reads a row of tokens" + (", in float64" if is_wide else ""),
            do="set model.dtype to float32" if is_wide else "use another model, or another version of transformers",
        ) from error


def _with_hook(module: Any, hook: Callable, run: Callable[[], Tensor]) -> Tensor:
    handle = module.register_forward_hook(hook)
    try:
        return run()
    finally:
        handle.remove()


def _compare(causal: PreTrainedModel, what: str, computed: Tensor, expected: Tensor | None) -> None:
    if expected is None or expected.shape != computed.shape:
        raise _difference(causal, f"{what}: no tensor of this shape in its forward pass")
    if not expected.isfinite().all():
        raise ConfigError(
            f"{type(causal).__name__} cannot be used: its own forward pass gives values that are not finite",
            got=f"{what}: NaN or infinity, in {str(expected.dtype).removeprefix('torch.')}",
            need="finite numbers",
            do="check the weights, or set a wider model.dtype, such as float32",
        )
    if not equal_up_to_rounding(computed, expected):
        distance, size = float((computed - expected).abs().max()), float(expected.abs().max())
        raise _difference(causal, f"{what}: they differ by {distance:.3g}; the largest value is {size:.3g}")


def _difference(causal: PreTrainedModel, got: str) -> ConfigError:
    return ConfigError(
        f"{type(causal).__name__} cannot be used: its logits are computed in a way that purerl does not support",
        got=got,
        need="a causal decoder and a linear output head, whose output may be scaled and soft-capped; of a classifier, "
        "logits that are linear in the last hidden state",
        do="use another model, or write a trainer: a class that satisfies purerl.protocols.Trainer",
    )
