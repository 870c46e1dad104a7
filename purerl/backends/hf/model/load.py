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
from torch.distributed.tensor import DTensor

from purerl.backends.hf.decoder.architecture import Architecture, architecture_of, initialize_head
from purerl.backends.hf.decoder.loading import load_model
from purerl.backends.hf.decoder.preview import without_weights
from purerl.backends.hf.mesh import RankMesh
from purerl.backends.hf.model.casts import wide_names
from purerl.backends.hf.model.fit import check_shapes, joined, refused_by_code
from purerl.backends.hf.model.parallel import parallelize
from purerl.backends.hf.model.token_model import TokenModel
from purerl.errors import ConfigError
from purerl.models.pretrained import config_of
from purerl.models.tokenizer import pad_token_of
from purerl.settings import Model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from purerl.backends.hf.settings import TrainerConfig

__all__ = ["load"]

_WITH_DROPOUT = ("reformer",)
"""Types of models whose code computes gradients only while dropout is on."""


def load(
    config: TrainerConfig, model: Model, mesh: RankMesh, *, outputs: Sequence[str], is_trained: bool, seed: int
) -> tuple[PreTrainedModel, TokenModel]:
    """`model` as transformers' class and as the `TokenModel` made of it, parallel as `config` says, on its device.

    Raises: ConfigError as `architecture_of` and `check_shapes`, and if the model cannot be loaded, divided, or trained.
    """
    if is_trained and config_of(model).model_type in _WITH_DROPOUT:
        need = "a model whose gradient can be computed without dropout"
        got, what = config_of(model).model_type, f"{model.path!r} cannot be trained"
        raise ConfigError(what, got=got, need=need, do="use another model")
    autocast = None if config.mixed_precision == "off" else torch.bfloat16
    architecture = architecture_of(model, outputs, is_trained=is_trained)

    def wrap(causal: PreTrainedModel) -> TokenModel:
        torch.manual_seed(seed)  # heads are the same for every mesh
        whole = {causal.get_parameter(name) for name in joined(causal, "shard")} if mesh.parameters else set()
        module = TokenModel(causal, outputs, path=Path(model.path), autocast=autocast, top_k=config.top_k)
        parallelize(module, config, mesh, whole)
        return module

    with torch.random.fork_rng():
        if mesh.parameters is not None:
            causal, module = _load_part(config, model, mesh, wrap, architecture)
        else:
            causal = load_model(model, architecture).to(mesh.device).eval()
            check_shapes(causal, model, config)
            module = wrap(causal).to(mesh.device)
    if architecture.is_classifier and architecture.may_miss_head:
        initialize_head(architecture.head_of(causal), seed)
        causal.config.get_text_config().pad_token_id = pad_token_of(model)
    return causal, module


def _load_part(
    config: TrainerConfig,
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
        """The class of the model, with transformers' two hooks for models that are divided before they are loaded.

        transformers finds what it knows about the class, such as renamed weights, by its name and its module.
        """

        __module__, __qualname__ = cls.__module__, cls.__qualname__

        @classmethod
        def prepare_distribute_model(cls, distributed_config: Any, device_map: Any = None) -> Any:
            return distributed_config, torch.device("cpu") if config.cpu_offload else mesh.device, _Meshes(mesh)

        @classmethod
        def maybe_distribute_model(cls, model: Any, distributed_config: Any, mesh_manager: Any) -> Any:
            model.__class__ = type(shapes)
            model.maybe_distribute_model(model, distributed_config, mesh_manager)
            model.tie_weights()  # before FSDP2 counts parameters: a tied weight is one
            _set_wide(model)
            wrapped.append(wrap(model))
            return model

    Divided.__name__ = cls.__name__
    size = mesh.tensor.size() if mesh.tensor else 1
    with refused_by_code(config, type(shapes)):
        causal = load_model(model, architecture, cls=Divided, distributed_config=DistributedConfig(tp_size=size))
    # save_pretrained would otherwise take part in collective calls; it gets full tensors, on one rank.
    del causal.config.__dict__["distributed_config"]
    for name, buffer in causal.named_buffers():
        owner, _, attribute = name.rpartition(".")
        setattr(causal.get_submodule(owner), attribute, buffer.to(mesh.device))
    for parameter in causal.parameters():
        if not isinstance(parameter, DTensor):
            parameter.data = parameter.data.to(mesh.device)
    return causal.eval(), wrapped[0]


def _set_wide(model: PreTrainedModel) -> None:
    """Give the parameters of `model`, on the meta device, that are always loaded in float32 this dtype."""
    kept = wide_names(model, model.dtype)
    for name, parameter in model.named_parameters():
        if kept.search(name):
            parameter.data = parameter.data.float()


class _Meshes:
    """The part of transformers' `TransformersDeviceMesh` that is needed to split matrices."""

    def __init__(self, mesh: RankMesh) -> None:
        self.mesh = mesh

    def get_mesh(self, names: str | tuple[str, ...]) -> Any:
        return self.mesh.tensor
