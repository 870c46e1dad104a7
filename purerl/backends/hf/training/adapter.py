"""LoRA by peft in the model of a trainer: adding the matrices, switching them off, and writing them.

Matrices are small, so every rank has all of them, also where FSDP2 divides the frozen weights. Those of 16-bit weights
are in float32.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from purerl.backends.hf.lora import ALL_LINEAR, CONFIG_FILE, WEIGHTS_FILE, Lora
from purerl.backends.hf.weights.merge import PREFIX, merge
from purerl.backends.weights import TensorWeights, copy_weights
from purerl.errors import ConfigError, EngineError, InputError
from purerl.images import ImageStore
from purerl.protocols import Metrics, Weights

if TYPE_CHECKING:
    from purerl.backends.hf.model.token_model import TokenModel

__all__ = ["Adapter", "BaseTrainer", "add_adapter"]

_NAME = "default"  # peft's name for the only adapter of a model
_MAX_NAMES = 8
_REFUSED = ("gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3", "out_proj", "conv1d")
_UNUSED = {"falcon_mamba": "dt_proj", "jamba": "dt_proj", "longcat_flash": "classifier", "mamba": "dt_proj"}
"""Linear layers whose code reads the weight itself, so that an adapter has no effect, by type of model."""
_OF_EXPERTS = re.compile(r"\bexperts\b")


def add_adapter(
    module: TokenModel, lora: Lora, *, path: str, device: torch.device, seed: int, frozen: Collection[str] = ()
) -> Adapter:
    """Add an adapter to the model in `module`, which was loaded from `path`, and freeze its other weights.

    Layers whose parameters have names in `frozen` get no adapter. A is initialized at random from `seed`, and B with 0,
    so that the model does not change; or both from `lora.initial`. Heads of `module` stay as they are, and that of a
    classifier is trained.

    Raises: ConfigError if `lora.target_modules` names no layers, or others than linear ones, or the output head; and
    if the adapter at `lora.initial` does not fit.
    """
    from peft import LoraConfig, inject_adapter_in_model
    from peft.functional import cast_adapter_dtype

    targets = ALL_LINEAR if lora.target_modules == (ALL_LINEAR,) else list(lora.target_modules)
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # pyright: ignore[reportArgumentType] - it is annotated as an integer, and only divided
        use_rslora=lora.rank_stabilized,
        target_modules=targets,
        exclude_modules=sorted({name.rpartition(".")[0] for name in frozen}) or None,
        base_model_name_or_path=path,
        task_type="SEQ_CLS" if module.is_classifier else "CAUSAL_LM",
        inference_mode=False,
    )
    module.model.requires_grad_(requires_grad=False)
    names = _plain_names(module)
    try:
        with torch.random.fork_rng(), _whole_weights(module.model):
            torch.manual_seed(seed)
            inject_adapter_in_model(config, module.model)
    except ValueError as error:
        raise _no_target(lora, str(error), names) from error
    if config.target_parameters:
        raise _no_target(lora, "experts that share one tensor, in which a layer has no name", names)
    cast_adapter_dtype(module.model, _NAME)
    if module.is_classifier:
        module.classifier.requires_grad_(requires_grad=True)
    _check_targets(module, lora, names)
    adapter = Adapter(module, lora, config.to_dict())
    for parameter in adapter.tensors.values():
        parameter.data = parameter.data.to(device)
    if lora.initial is not None:
        adapter.read(Path(lora.initial))
    return adapter


@contextmanager
def _whole_weights(model: nn.Module) -> Iterator[None]:
    """Inside the block, divided weights have placeholders in their whole shape, which need no memory.

    peft takes what FSDP2 has divided for a part of tensor parallelism, and would make matrices of the size of a part.
    """
    divided = [
        (module, name, parameter)
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if isinstance(parameter, DTensor)
    ]
    for module, name, parameter in divided:
        placeholder = torch.empty((), dtype=parameter.dtype).expand(parameter.shape)
        setattr(module, name, nn.Parameter(placeholder, requires_grad=False))
    try:
        yield
    finally:
        for module, name, parameter in divided:
            setattr(module, name, parameter)


def _layers(module: TokenModel) -> dict[str, Any]:
    """The layers with an adapter, by their names in the model."""
    from peft.tuners.lora import LoraLayer

    return {name: layer for name, layer in module.model.named_modules() if isinstance(layer, LoraLayer)}


def _head_of(module: TokenModel) -> nn.Module | None:
    if module.is_classifier:
        return module.classifier
    return module.model.get_output_embeddings() if module.has_vocabulary else None


def _plain_names(module: TokenModel) -> list[str]:
    """The ends of names of which all modules are linear layers that can have an adapter in each kind of model.

    peft takes the names of experts' matrices for tensors, and refuses the outputs of Mamba's layers.
    """
    head, ends, seen = _head_of(module), defaultdict[str, set[bool]](set), set[int]()
    for name, layer in module.decoder.named_modules():
        is_plain = type(layer) is nn.Linear and layer is not head and not _OF_EXPERTS.search(name)
        ends[name.rpartition(".")[2]].add(is_plain and id(layer.weight) not in seen)
        seen |= {id(layer.weight)} if is_plain else set()
    refused = {*_REFUSED, _UNUSED.get(module.config.model_type)}
    return sorted(end for end, kinds in ends.items() if kinds == {True} and end not in refused and not end.isdigit())


def _check_targets(module: TokenModel, lora: Lora, names: Sequence[str]) -> None:
    head, seen = _head_of(module), dict[int, str]()
    ends = {f".{name}" for name in _layers(module)}
    for target in lora.target_modules:
        if target != ALL_LINEAR and not any(end.endswith(f".{target}") for end in ends):
            raise _no_target(lora, f"{target!r}, which is no layer of the model that can be trained", names)
    for name, layer in _layers(module).items():
        if type(layer.base_layer) is not nn.Linear:
            raise _no_target(lora, f"{name}, a {type(layer.base_layer).__name__}", names)
        if layer is head:
            raise _no_target(lora, f"{name}, the output head", names)
        if name.rpartition(".")[2] == _UNUSED.get(module.config.model_type):
            raise _no_target(lora, f"{name}, whose weight the model reads without calling it", names)
        if (first := seen.setdefault(id(layer.base_layer.weight), name)) != name:
            raise _no_target(lora, f"{name}, which has the weight of {first}", names)


def _no_target(lora: Lora, got: str, names: Sequence[str]) -> ConfigError:
    """The error for target modules that cannot have an adapter. `names` are those of layers that can."""
    got = f"{', '.join(lora.target_modules)}: {got.splitlines()[0]}"
    need = "linear layers of the model, without the output head"
    chosen = [name for name in names if name not in lora.target_modules][:_MAX_NAMES]
    do = f"set it to some of {', '.join(chosen)}" if chosen else "leave lora out"
    return ConfigError("lora.target_modules", got=got, need=need, do=do)


class Adapter:
    """The matrices that peft has added to the model in `module`, with their names in peft's files."""

    def __init__(self, module: TokenModel, lora: Lora, settings: Mapping[str, Any]) -> None:
        self.layers = _layers(module)
        self.tensors: dict[str, nn.Parameter] = {
            f"{PREFIX}{name}.lora_{part}.weight": getattr(layer, f"lora_{part}")[_NAME].weight
            for name, layer in self.layers.items()
            for part in "AB"
        }
        self._module, self._lora = module, lora
        plain = {name: sorted(value) if isinstance(value, set) else value for name, value in settings.items()}
        self._settings = json.loads(json.dumps({**plain, "inference_mode": True}))

    def weights(self) -> Weights:
        """The `Weights` of the adapter alone."""
        return TensorWeights({name: value.detach() for name, value in self.tensors.items()}, adapter=self._settings)

    def load_weights(self, weights: Weights, *, mix: float) -> None:
        """Copy: own = (1 - mix) * own + mix * weights. Raises EngineError for weights of another kind of adapter."""
        keys = ("r", "lora_alpha", "use_rslora")
        own = {key: self._settings[key] for key in keys}
        if weights.adapter is None or {key: weights.adapter.get(key) for key in keys} != own:
            got = "weights of a model" if weights.adapter is None else dict(weights.adapter)
            raise EngineError("weights of an adapter", got=got, need=f"an adapter with {own}")
        copy_weights(weights, self.tensors, mix=mix)

    @torch.no_grad()
    def read(self, path: Path) -> None:
        """Read the matrices from the directory `path`, in peft's format. Raises ConfigError if they do not fit."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        what = f"lora.initial {str(path)!r}"
        try:
            tensors = load_file(path / WEIGHTS_FILE)
            missing = sorted(self.tensors.keys() - tensors.keys())
            if missing:
                do = "set lora.target_modules to the layers that the adapter has"
                raise ConfigError(what, got=f"no {missing[0]}", need="all target modules", do=do)
            copy_weights(TensorWeights(tensors), self.tensors)
        except (OSError, SafetensorError, EngineError) as error:
            raise ConfigError(what, got=str(error), need="an adapter that fits") from error

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Inside the block the model computes what it computed before the adapter was added, bit for bit."""
        for layer in self.layers.values():
            layer.enable_adapters(enabled=False)
        try:
            yield
        finally:
            for layer in self.layers.values():
                layer.enable_adapters(enabled=True)

    def merged(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`state` of the module, merged with the adapter, under the names that it has without one."""
        base = {name.replace(".base_layer.", "."): value for name, value in state.items() if ".lora_" not in name}
        for name, layer in self.layers.items():
            a, b = (state[f"model.{name}.lora_{part}.{_NAME}.weight"] for part in "AB")
            weight = f"model.{name}.weight"
            base[weight] = merge(base[weight].cpu(), a, b, layer.scaling[_NAME])
        return base

    def export(self, path: Path, state: Mapping[str, Tensor]) -> None:
        """Write the model merged with the adapter, or the adapter alone, into `path`; heads of the module beside it.

        `state` has every parameter and buffer of the module in full, by name.
        """
        from safetensors.torch import save_file

        if self._lora.export == "merged":
            self._module.export(path, self.merged(state))
            return
        path.mkdir(parents=True, exist_ok=True)
        tensors = {name: value.detach().cpu().contiguous() for name, value in self.tensors.items()}
        save_file(tensors, path / WEIGHTS_FILE, metadata={"format": "pt"})
        (path / CONFIG_FILE).write_text(json.dumps(self._settings, indent=2, sort_keys=True))
        self._module.export_heads(path, state)


class BaseTrainer:
    """A `Trainer` of the model of another trainer without its adapter. It shares its weights, and is never trained."""

    def __init__(self, trainer: Any, adapter: Adapter) -> None:
        self._trainer, self._adapter = trainer, adapter
        self.capabilities = trainer.capabilities

    def use_images(self, images: ImageStore) -> None:
        """The other trainer has them."""

    def score(self, batch: TensorDict, outputs: Sequence[str]) -> TensorDict:
        with self._adapter.disabled():
            return self._trainer.score(batch.exclude("routes"), outputs)  # its routers are those of another model

    def step(self, batch: TensorDict, objective: Any, counts: Any) -> Metrics:
        raise InputError("an optimizer step", got="a model without its adapter", need="a role that is trained")

    def weights(self) -> Weights:
        return TensorWeights({})

    def load_weights(self, weights: Weights, *, mix: float = 1.0) -> None:
        raise EngineError("weights", got="a model that shares the weights of the policy", need="a model of its own")

    def save(self, path: Path) -> dict[str, str]:
        return {}

    def load(self, path: Path) -> None:
        """There is nothing to load: the weights are those of the files of the model."""

    def export(self, path: Path) -> None:
        raise EngineError("an export", got="a model that is in its own files", need="a model that is trained")

    def close(self) -> None:
        """The other trainer releases everything."""
