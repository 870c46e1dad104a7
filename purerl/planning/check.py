"""Refusing a run that does not fit into memory, before a model is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from purerl.config.requirements import Requirements
from purerl.config.schema import RunConfig
from purerl.errors import ConfigError, PurerlError
from purerl.planning.capacity import Capacity, capacity_of
from purerl.planning.plan import MemoryPlan, plan_memory
from purerl.planning.suggest import Suggestion, suggest
from purerl.settings import Model
from purerl.system.memory_use import format_bytes

__all__ = ["check_memory", "is_small"]

_CERTAIN = 1.1
"""The smallest ratio of plan and memory that is refused: the error of a plan is up to a tenth."""

_SMALL = 0.1
"""States below this fraction of the memory are not planned: activations are rarely nine times as large."""

_MAX_NAMED = 3
_STATE_BYTES = 8
"""Bytes of states for each byte of a file in bfloat16: parameters, gradients and moments in float32."""


def check_memory(
    config: RunConfig, needs: Requirements, ranks: int, *, ranks_of_host: int | None = None
) -> MemoryPlan | None:
    """Refuse `config` if its plan clearly needs more memory than each of `ranks` ranks has; return the plan.

    `ranks_of_host` of them share the main memory of a host; all if it is not given. With actors of Ray, both are the
    number of actors in the settings.

    Models whose states are far smaller than the memory are not planned, because that takes seconds. Neither are models
    in directories without weights, nor those whose memory cannot be planned: whatever is wrong with them is found when
    they are loaded. The memory of the hosts of a Ray cluster that is joined is not known here.

    Raises: ConfigError with what would help.
    """
    if config.placement.kind == "ray":
        ranks, ranks_of_host = config.placement.num_trainers, None
    models, is_elsewhere = needs.all_models().values(), config.placement.address is not None
    if not config.placement.check_memory or is_elsewhere:
        return None
    if is_small(models, capacity_of(config.trainer, ranks_of_host or ranks, None)) or _lacks_weights(models):
        return None
    try:
        plan = plan_memory(config, ranks=ranks, ranks_of_host=ranks_of_host)
    except PurerlError:
        return None
    if plan.capacity.size is None or plan.peak <= _CERTAIN * plan.capacity.size:
        return plan
    got = f"{format_bytes(plan.peak)} on each rank in the phase {plan.peak_phase}, by the plan"
    need = f"at most {format_bytes(plan.capacity.size)}: {plan.capacity.source}"
    found = suggest(config, ranks=ranks, ranks_of_host=ranks_of_host)
    do = f"{_remedy(found)}; `purerl plan` shows everything; placement.check_memory=false runs nevertheless"
    raise ConfigError("too little memory", got=got, need=need, do=do)


def is_small(models: Iterable[Model], capacity: Capacity) -> bool:
    """Whether the states of all `models` are far below the memory, by the sizes of their files alone.

    The size of a model that is not in a local directory is not known.
    """
    sizes = [_files_size(model) for model in models]  # two roles may have the same files
    size = capacity.size
    return all(sizes) and (size is None or _STATE_BYTES * sum(filter(None, sizes)) < _SMALL * size)


def _lacks_weights(models: Iterable[Model]) -> bool:
    """Whether the directory of one of `models` has no weights."""
    return any(Path(model.path).is_dir() and _files_size(model) is None for model in models)


def _files_size(model: Model) -> int | None:
    """Bytes of the weights of `model` in its directory; None if there is none."""
    folder = Path(model.path)
    files = [file for pattern in ("*.safetensors", "pytorch_model*.bin") for file in folder.glob(pattern)]
    return sum(file.stat().st_size for file in files) or None


def _remedy(found: Sequence[Suggestion]) -> str:
    """The changes that make the run fit; if there are none, what else to do."""
    fitting = [_in_words(suggestion) for suggestion in found if suggestion.plan.fits]
    if fitting:
        return "; or ".join(fitting[:_MAX_NAMED])
    best = f": {_in_words(found[0])} is not enough" if found else ""
    return f"more ranks or a smaller model{best}"


def _in_words(suggestion: Suggestion) -> str:
    settings = " ".join(f"--set {setting}" for setting in suggestion.settings)
    return f"{settings} ({format_bytes(suggestion.plan.peak)})"
