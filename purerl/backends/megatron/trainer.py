"""The trainer for models that Megatron-core divides: its plugin, and building it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purerl.backends import training
from purerl.backends.megatron.preview import divided_shape, preview
from purerl.backends.megatron.settings import TrainerConfig as Config
from purerl.backends.training import OUTPUTS
from purerl.errors import ConfigError
from purerl.settings import Model
from purerl.system.installation import install_command

if TYPE_CHECKING:
    from purerl.backends.megatron.engine import MegatronTrainer
    from purerl.backends.megatron.shape import Shape
    from purerl.protocols import Capabilities
    from purerl.system.memory_use import MemoryUse

__all__ = [
    "Config",
    "build",
    "capabilities",
    "check",
    "check_device",
    "check_installed",
    "check_model",
    "check_ranks",
    "memory",
    "preview",
]

_DTYPES = ("float32", "bfloat16", "float64", "auto")


def capabilities() -> Capabilities:
    """The capabilities of a trainer with any model. A trainer that was built has the outputs that it was built for."""
    from purerl.protocols import Capabilities

    return Capabilities(outputs=frozenset(OUTPUTS))


def check(config: Config, *, role: str, outputs: Sequence[str], updates: int | None) -> None:
    """Refuse settings that do not fit a run, before a model is loaded.

    outputs  what the algorithm needs of the model in `role`
    updates  optimizer steps of the run; 0 for a model that is not trained; None if it is not known yet

    Raises: ConfigError for an output that does not exist, for a warm-up as long as the run, and for `top_k` without
    effect.
    """
    training.check_outputs(outputs, OUTPUTS, role=role)
    training.check_steps(config, updates)
    training.check_top_k(config, outputs)


def check_installed(config: Config) -> None:
    """Raise ConfigError if megatron-core is not installed."""
    if find_spec("megatron") is None:
        need, do = "the library megatron-core", f"{install_command('megatron')}, or set trainer.kind to hf"
        raise ConfigError("kind", got="megatron, which is not installed", need=need, do=do)


def check_device(config: Config) -> None:
    """Raise ConfigError if this process has no GPU."""
    from purerl.backends.megatron.mesh import open_device
    from purerl.ranks import current_ranks

    open_device(current_ranks())


def check_ranks(config: Config, ranks: int) -> None:
    """Raise ConfigError if the mesh does not fit this number of ranks."""
    config.mesh.data(ranks)


def check_model(config: Config, *, model: Model, outputs: Sequence[str], is_trained: bool) -> None:
    """Refuse a model that is not supported, or that the mesh cannot divide, from its configuration alone."""
    shape, _ = divided_shape(config, model)
    _starts_classifier(model, outputs, is_trained=is_trained)
    if config.replay_routes != "off" and is_trained and "logp" in outputs:
        _check_experts(shape, model)


def memory(config: Config, **arguments: Any) -> MemoryUse:
    """The memory of a trainer on one rank, which is not built; the arguments are those of `memory_of_trainer`."""
    from purerl.backends.megatron.memory import memory_of_trainer

    return memory_of_trainer(config, **arguments)


def build(
    config: Config, *, model: Model, role: str, outputs: Sequence[str], updates: int, seed: int
) -> MegatronTrainer:
    """A trainer of `model` in `role` that computes `outputs`, for a run of `updates` optimizer steps.

    With 0 `updates` the model is not trained and has no optimizer. `seed` initializes heads; nothing else is random.

    Raises: ConfigError as `check` and `check_installed`; for a mesh that does not fit the ranks or the model; for a
    model that is not supported, whose files cannot be read, or that has float16 weights; and without a GPU.
    """
    import torch

    from purerl.system.process import keep_compiled_code_private

    check(config, role=role, outputs=outputs, updates=updates)
    check_installed(config)
    shape, own = divided_shape(config, model)
    replays = config.replay_routes != "off" and role == "policy" and updates > 0
    if replays:
        _check_experts(shape, model)
    is_new = _starts_classifier(model, outputs, is_trained=updates > 0)
    dtype = _dtype(config, model, own)
    keep_compiled_code_private()  # Megatron-core compiles its fused operations

    from purerl.backends.hf.model.token_model import HEADS
    from purerl.backends.hf.moe.router import coefficient_of
    from purerl.backends.megatron.bridge import Bridge
    from purerl.backends.megatron.engine import MegatronTrainer
    from purerl.backends.megatron.export import new_score, read_heads
    from purerl.backends.megatron.files import WeightFiles
    from purerl.backends.megatron.mesh import open_groups
    from purerl.backends.megatron.model import build_model, has_vocabulary, mark_split, named_parameters
    from purerl.backends.megatron.names import SCORE, weights_of
    from purerl.backends.megatron.schedule import Reader

    coefficient = coefficient_of(config.router_aux_loss_coef, own) if updates else 0.0
    groups = open_groups(config.mesh)
    module = build_model(shape, config.mesh, groups, dtype=dtype, recompute=config.recompute, outputs=outputs)
    parameters = named_parameters(module, config.mesh, groups)
    of_heads = tuple(f"heads.{name}." for name in HEADS)
    parameters = {name: parameter for name, parameter in parameters.items() if not name.startswith(of_heads)}
    is_classifier = "classifier_score" in outputs
    table = weights_of(shape, has_head=has_vocabulary(outputs), has_score=is_classifier)
    mark_split(parameters, table)
    bridge = Bridge(table, parameters, groups, layers=shape.layers, experts=shape.experts, dtype=dtype)
    with torch.no_grad():
        new = {SCORE: new_score(shape.hidden, seed=seed)} if is_new else {}
        groups.all.on_all(lambda: bridge.read(WeightFiles(model), new), "reading the weights of a model")
        read_heads(Path(model.path), getattr(module, "heads", {}), seed=seed)
    reader = Reader(module, module, shape, groups, top_k=_top_k(config.top_k, shape), is_classifier=is_classifier)
    options = {"model": model, "outputs": _outputs(outputs), "updates": updates, "replays": replays}
    return MegatronTrainer(config, reader, bridge, **options, router_coefficient=coefficient)


def _outputs(outputs: Sequence[str]) -> tuple[str, ...]:
    """The outputs of a trainer that was built for `outputs`: with one of the vocabulary, all of them."""
    from purerl.backends.hf.model.token_model import HEADS, LANGUAGE_OUTPUTS

    own = (*HEADS, "classifier_score")
    language = LANGUAGE_OUTPUTS if any(name not in own for name in outputs) else ()
    return (*language, *(name for name in outputs if name in own))


def _starts_classifier(model: Model, outputs: Sequence[str], *, is_trained: bool) -> bool:
    """Whether `model` is a language model that becomes a classifier. Raises ConfigError for a classifier of others."""
    from purerl.backends.hf.decoder.architecture import architecture_of
    from purerl.models.pretrained import config_of

    architecture = architecture_of(model, outputs, is_trained=is_trained)
    if not architecture.is_classifier or architecture.may_miss_head:
        return architecture.is_classifier
    config = config_of(model)
    if architecture.auto_class != "AutoModelForSequenceClassification" or config.num_labels != 1:
        got = f"{config.architectures[0]} with {config.num_labels} labels"
        need, do = "...ForSequenceClassification with 1 label", "set trainer.kind to hf"
        raise ConfigError("megatron cannot train this model", got=got, need=need, do=do)
    return False


def _check_experts(shape: Shape, model: Model) -> None:
    if not shape.experts:
        got = f"{model.path!r}, a model without experts"
        raise ConfigError("trainer.replay_routes", got=got, need="a mixture of experts", do="leave it out")


def _dtype(config: Config, model: Model, own: Any) -> Any:
    """The dtype of the weights. Raises ConfigError if Megatron-core has no optimizer for it."""
    import torch

    name = str(own.dtype or "float32").removeprefix("torch.") if model.dtype == "auto" else model.dtype
    if name not in _DTYPES:
        raise ConfigError("model.dtype", got=f"{name}, of {model.path!r}", need=f"one of: {', '.join(_DTYPES)}")
    if name == "float64" and config.distributed_optimizer:
        need = "float32 or bfloat16 with trainer.distributed_optimizer"
        raise ConfigError("model.dtype", got=name, need=need)
    return getattr(torch, name)


def _top_k(top_k: int | None, shape: Shape) -> int:
    if top_k is not None and top_k > shape.vocab_size:
        need = f"at most {shape.vocab_size}, the size of the vocabulary"
        raise ConfigError("top_k", got=top_k, need=need)
    return top_k or min(16, shape.vocab_size)
