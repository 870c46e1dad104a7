"""Optimizers of other libraries, which the section `trainer.optimizer` names.

An optimizer is a class that is named by its address, such as ``torch.optim:Adafactor`` or ``file.py:Class``. It is a
subclass of torch's `Optimizer`. Torch is imported when a section is checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from purerl.backends.hf.settings import OPTIMIZER_ARGUMENTS, TrainerConfig
from purerl.errors import ConfigError, nearest
from purerl.plugins import locate
from purerl.settings import no_effect

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["build_custom", "check_custom"]


def check_custom(config: TrainerConfig) -> None:
    """Refuse `config.optimizer`, which is set, if no optimizer can be built from it. The class is imported.

    Raises: ConfigError for an address without a class of optimizers, arguments that the class does not have or refuses,
    a class that evaluates losses itself, and a weight decay that the class does not have.
    """
    import torch

    cls = _class_of(config.optimizer.factory)
    known = _arguments(cls)
    for name in config.optimizer.kwargs:
        if known is not None and name not in known:
            do = nearest(name, known - OPTIMIZER_ARGUMENTS.keys())
            raise ConfigError(f"unknown argument optimizer.kwargs.{name}", got=config.optimizer.factory, do=do)
    if config.weight_decay and known is not None and "weight_decay" not in known:
        raise no_effect("weight_decay", config.weight_decay, f"an optimizer with weight decay: {cls.__name__} has none")
    build_custom([{"params": [torch.zeros(2, 2, requires_grad=True)], "weight_decay": config.weight_decay}], config)


def _class_of(address: str) -> type[Optimizer]:
    from torch.optim import Optimizer

    cls = locate(address)
    if not (isinstance(cls, type) and issubclass(cls, Optimizer)):
        need, do = "a subclass of torch.optim.Optimizer", "name a class, such as torch.optim:Adafactor"
        raise ConfigError("optimizer.factory", got=address, need=need, do=do)
    closure = next((p for p in signature(cls.step).parameters.values() if p.name == "closure"), None)
    if closure is not None and closure.default is Parameter.empty:
        need = "an optimizer that takes a step with the gradients of the parameters, without evaluating the loss again"
        raise ConfigError("optimizer.factory", got=address, need=need)
    return cls


def _arguments(cls: type[Optimizer]) -> set[str] | None:
    """The names of the arguments of `cls` beside the parameters; None if it takes any."""
    _, _, *parameters = signature(cls.__init__).parameters.values()
    return None if any(p.kind is Parameter.VAR_KEYWORD for p in parameters) else {p.name for p in parameters}


def build_custom(groups: Sequence[Mapping[str, Any]], config: TrainerConfig) -> Optimizer:
    """The optimizer in `config.optimizer` of the parameters in `groups`, each with its weight decay.

    Raises: ConfigError if the class refuses its arguments or the parameters.
    """
    cls: Any = _class_of(config.optimizer.factory)
    known = _arguments(cls)
    has_decay = known is None or "weight_decay" in known
    keys = ("params", "weight_decay") if has_decay else ("params",)
    try:
        return cls([{key: group[key] for key in keys} for group in groups], lr=config.lr, **config.optimizer.kwargs)
    except (TypeError, ValueError, RuntimeError) as error:
        do = "check optimizer.kwargs; parameters=matrices is for optimizers that train matrices only, such as Muon"
        what, need = f"optimizer {config.optimizer.factory}", "valid arguments"
        raise ConfigError(what, got=f"{error}", need=need, do=do) from error
