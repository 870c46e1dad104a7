"""Loading a model for training: the whole of it, or the part of this rank if the mesh divides it.

A model that is divided is created on the meta device. transformers splits its matrices by the plan of the model, purerl
shards it, and then transformers reads this rank's part of each tensor from the safetensors files. So no rank holds a
whole model at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from purerl.backends.hf.architecture import Architecture, architecture_of, initialize_head
from purerl.backends.hf.limits import attention_of, unsupported_layers
from purerl.backends.hf.mesh import Mesh, RankMesh
from purerl.backends.hf.model import load_model
from purerl.backends.hf.module import TokenModel
from purerl.backends.hf.parallel import parallelize
from purerl.backends.hf.preview import without_weights
from purerl.backends.tokenizer import pad_token_of
from purerl.errors import ConfigError
from purerl.settings import Model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from purerl.backends.hf.trainer import Config as HFTrainerConfig

__all__ = ["check_divisible", "check_packing", "check_shapes", "load"]


def check_shapes(shapes: PreTrainedModel, model: Model, config: HFTrainerConfig) -> None:
    """Refuse settings that the model with these `shapes` does not fit: its mesh, and packing. Raises ConfigError."""
    check_divisible(shapes, model, config.mesh)
    if config.packing:
        check_packing(shapes, model)


def check_divisible(shapes: PreTrainedModel, model: Model, mesh: Mesh) -> None:
    """Refuse a `mesh` that the model with these `shapes` cannot be divided by. Raises ConfigError."""
    name, text = type(shapes).__name__, shapes.config.get_text_config(decoder=True)
    if mesh.tensor > 1:
        if not shapes.tp_plan:
            raise _refused("tensor", mesh.tensor, f"{name}, for which transformers has no plan", "a model with a plan")
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        _check_heads("tensor", mesh.tensor, "key and value heads", heads)
    if mesh.sequence > 1:
        if unsupported := unsupported_layers(shapes):
            got, need = f"{name} with {', '.join(unsupported)}", "layers of full or sliding-window attention only"
            raise _refused("sequence", mesh.sequence, got, need)
        heads = text.num_attention_heads // mesh.tensor
        _check_heads("sequence", mesh.sequence, "heads of each tensor-parallel rank", heads)
        if (attention := attention_of(shapes)) != "sdpa" or not shapes.is_backend_compatible():
            got, need = f"{name} with attention {attention}", "a model that supports sdpa, with sdpa"
            raise _refused("sequence", mesh.sequence, got, need, do=_other_attention(shapes, model))


def check_packing(shapes: PreTrainedModel, model: Model) -> None:
    """Refuse to pack rows for the model with these `shapes` if it cannot read them so. Raises ConfigError."""
    from purerl.backends.hf.packed_attention import SUPPORTED

    got, need = f"{type(shapes).__name__} with ", "layers of full or sliding-window attention only"
    if unsupported := unsupported_layers(shapes):
        raise ConfigError("packing", got=got + ", ".join(unsupported), need=need, do="leave packing out")
    if (attention := attention_of(shapes)) not in SUPPORTED or not shapes.is_backend_compatible():
        got, need = f"{got}attention {attention}", "a model that supports sdpa or eager, with one of them"
        raise ConfigError("packing", got=got, need=need, do=_other_attention(shapes, model) or "leave packing out")


def _check_heads(name: str, size: int, what: str, heads: int) -> None:
    if heads % size:
        divisors = ", ".join(str(divisor) for divisor in range(1, heads + 1) if heads % divisor == 0)
        raise ConfigError(f"mesh.{name}", got=f"{size}, and {heads} {what}", need=f"one of: {divisors}")


def _other_attention(shapes: PreTrainedModel, model: Model) -> str | None:
    """A remedy, if the attention that `model` names is the reason, and not the model with these `shapes`."""
    supports_sdpa = shapes.is_backend_compatible() and shapes._supports_sdpa  # noqa: SLF001 - there is no public name
    return "leave model.attention out, which is then sdpa" if model.attention and supports_sdpa else None


def _refused(name: str, size: int, got: str, need: str, *, do: str | None = None) -> ConfigError:
    do = do or f"leave mesh.{name} out, and use shard"
    return ConfigError(f"mesh.{name}", got=f"{size}, and {got}", need=need, do=do)


def load(
    config: HFTrainerConfig, model: Model, mesh: RankMesh, *, outputs: Sequence[str], is_trained: bool, seed: int
) -> tuple[PreTrainedModel, TokenModel]:
    """`model` as transformers' class and as the `TokenModel` made of it, parallel as `config` says, on its device.

    Raises: ConfigError as `architecture_of`, and if the model cannot be loaded, or not be divided.
    """
    autocast = None if config.mixed_precision == "off" else torch.bfloat16
    architecture = architecture_of(model, outputs, is_trained=is_trained)

    def wrap(causal: PreTrainedModel) -> TokenModel:
        torch.manual_seed(seed)  # heads are the same for every mesh
        module = TokenModel(causal, outputs, path=Path(model.path), autocast=autocast, top_k=config.top_k)
        parallelize(module, config, mesh)
        return module

    with torch.random.fork_rng():
        if mesh.parameters is not None:
            causal, module = _load_part(config, model, mesh, wrap, architecture)
        else:
            causal = load_model(model, architecture).to(mesh.device).eval()
            if config.packing:
                check_packing(causal, model)
            module = wrap(causal).to(mesh.device)
    if architecture.is_classifier and architecture.may_miss_head:
        initialize_head(architecture.head_of(causal), seed)
        causal.config.get_text_config().pad_token_id = pad_token_of(model)
    return causal, module


def _load_part(
    config: HFTrainerConfig,
    model: Model,
    mesh: RankMesh,
    wrap: Callable[[PreTrainedModel], TokenModel],
    architecture: Architecture,
) -> tuple[PreTrainedModel, TokenModel]:
    """This rank's part of `model`. `wrap` is called before weights are loaded, and shards the module that it makes."""
    from transformers.distributed.configuration_utils import DistributedConfig

    shapes = without_weights(model, device=str(mesh.device), architecture=architecture)
    check_shapes(shapes, model, config)
    cls: Any = type(shapes)
    wrapped: list[TokenModel] = []

    class Divided(cls):
        """The class of the model, with transformers' two hooks for models that are divided before they are loaded."""

        @classmethod
        def prepare_distribute_model(cls, distributed_config: Any, device_map: Any = None) -> Any:
            return distributed_config, torch.device("cpu") if config.cpu_offload else mesh.device, _Meshes(mesh)

        @classmethod
        def maybe_distribute_model(cls, model: Any, distributed_config: Any, mesh_manager: Any) -> Any:
            model.__class__ = type(shapes)
            model.maybe_distribute_model(model, distributed_config, mesh_manager)
            model.tie_weights()  # before FSDP2 counts parameters: a tied weight is one
            wrapped.append(wrap(model))
            return model

    size = mesh.tensor.size() if mesh.tensor else 1
    causal = load_model(model, architecture, cls=Divided, distributed_config=DistributedConfig(tp_size=size))
    # save_pretrained would otherwise take part in collective calls; it gets full tensors, on one rank.
    del causal.config.__dict__["distributed_config"]
    for name, buffer in causal.named_buffers():
        owner, _, attribute = name.rpartition(".")
        setattr(causal.get_submodule(owner), attribute, buffer.to(mesh.device))
    return causal.eval(), wrapped[0]


class _Meshes:
    """The part of transformers' `TransformersDeviceMesh` that is needed to split matrices."""

    def __init__(self, mesh: RankMesh) -> None:
        self.mesh = mesh

    def get_mesh(self, names: str | tuple[str, ...]) -> Any:
        return self.mesh.tensor
