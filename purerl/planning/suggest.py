"""Changes of settings that lower the memory of a run, each with the plan of the changed configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from attrs import frozen

from purerl.backends.training import Budget
from purerl.config.overrides import apply
from purerl.config.schema import RunConfig
from purerl.errors import ConfigError
from purerl.planning.plan import MemoryPlan, plan_memory
from purerl.planning.workload import Lengths
from purerl.settings import Model
from purerl.system.phases import phase

__all__ = ["Suggestion", "suggest"]

_MAX_RANKS = 64
_MAX_SHOWN = 5
_MIN_BUDGET = 256
_ON_CPU = "slower: AdamW runs on the CPU"


@frozen
class Suggestion:
    """Settings to change, as ``--set`` takes them, the plan with them, and what else they change."""

    settings: tuple[str, ...]
    plan: MemoryPlan
    note: str = ""


_Plan = Callable[[Sequence[str], str], Suggestion | None]
"""(settings, note) -> the plan of a configuration with these settings; None if they are refused."""


@phase("looking for settings that need less memory")
def suggest(
    config: RunConfig,
    *,
    ranks: int | None = None,
    ranks_of_host: int | None = None,
    memory: int | None = None,
    lengths: Lengths | None = None,
) -> list[Suggestion]:
    """The changes of `config` that lower its peak, those that need least memory first; the arguments of `plan_memory`.

    If no single change makes the run fit, the first suggestion is the smallest number of them that together do, or all
    of them. Raises: ConfigError as `plan_memory`.
    """
    ranks = ranks or config.placement.num_trainers
    config = apply(config, [f"{config.placement.count_key}={ranks}"])
    options = {"memory": memory, "lengths": lengths, "ranks_of_host": ranks_of_host}
    now = plan_memory(config, **options)
    plan = partial(_planned, config, options)
    single = list(_single(plan, now, _candidates(config, now, ranks)))
    single.sort(key=lambda suggestion: suggestion.plan.peak)
    shown = single[:_MAX_SHOWN]
    if now.fits or any(suggestion.plan.fits for suggestion in single):
        return shown
    together = _together(plan, single)
    return [*([together] if together else []), *shown]


def _single(plan: _Plan, now: MemoryPlan, candidates: Iterable[tuple[list[str], str]]) -> Iterator[Suggestion]:
    """The plans of the `candidates` that need less memory than `now`, and are not refused more often."""
    for settings, note in candidates:
        suggestion = plan(settings, note)
        if suggestion is None or len(suggestion.plan.refused) > len(now.refused):
            continue
        if suggestion.plan.peak < now.peak:
            yield suggestion


def _planned(config: RunConfig, options: dict, settings: Sequence[str], note: str) -> Suggestion | None:
    """The plan of `config` with `settings`; None if they are refused."""
    try:
        changed = apply(config, list(settings))
        return Suggestion(tuple(settings), plan_memory(changed, **options), note)
    except ConfigError:
        return None


def _together(plan: _Plan, single: Sequence[Suggestion]) -> Suggestion | None:
    """The changes, best first, until the run fits."""
    chosen: dict[str, str] = {}
    result = None
    for suggestion in single:
        new = {setting.partition("=")[0]: setting for setting in suggestion.settings}
        if chosen.keys() & new.keys() or _are_exclusive(chosen, new):
            continue
        combined = plan([*chosen.values(), *new.values()], "")
        if combined is None or (result is not None and combined.plan.peak >= result.plan.peak):
            continue
        chosen, result = {**chosen, **new}, combined
        if result.plan.fits:
            break
    return result if result is not None and len(chosen) > 1 else None


def _are_exclusive(chosen: dict[str, str], new: dict[str, str]) -> bool:
    """An adapter has its own precision: narrow weights for full training are not needed beside it."""
    return bool({"trainer.lora.rank", "trainer.mixed_precision"} <= {*chosen, *new})


def _candidates(config: RunConfig, now: MemoryPlan, ranks: int) -> Iterator[tuple[list[str], str]]:
    """Settings to try, and what else they change: of the phase that needs most, and of the states."""
    yield from _of_mesh(config.trainer, now, ranks, config.placement.count_key)
    if now.peak_phase in ("scoring", "training"):
        yield from _of_activations(config.trainer, config.model)
    if getattr(config.trainer, "lora", 0) is None:
        yield ["trainer.lora.rank=32"], "trains an adapter, which needs a learning rate of its own"
    rows = getattr(config.generator, "max_num_seqs", None)
    if now.peak_phase == "sampling" and rows:
        for part in (rows // 4, rows // 16):
            if part:
                yield [f"generator.max_num_seqs={part}"], "fewer rows are decoded at once"


def _of_mesh(trainer: Any, now: MemoryPlan, ranks: int, count_key: str) -> Iterator[tuple[list[str], str]]:
    mesh = getattr(trainer, "mesh", None)
    if hasattr(mesh, "pipeline"):
        yield from _of_megatron(trainer)
    if not hasattr(mesh, "shard"):
        return
    if not mesh.is_divided and ranks > 1:
        yield [f"trainer.mesh.shard={ranks}"], ""
    yield from _more_ranks(now, max(ranks, mesh.shard), count_key)
    if mesh.is_divided and now.capacity.is_accelerator and not trainer.cpu_offload:
        yield ["trainer.cpu_offload=true"], _ON_CPU


def _of_megatron(trainer: Any) -> Iterator[tuple[list[str], str]]:
    """Twice as many ranks that divide the model, among the same ranks."""
    if not trainer.distributed_optimizer:
        yield ["trainer.distributed_optimizer=true"], ""
    if not trainer.optimizer_offload:
        yield ["trainer.optimizer_offload=true"], _ON_CPU
    mesh = trainer.mesh
    parallel = [] if mesh.sequence_parallel else ["trainer.mesh.sequence_parallel=true"]
    yield [f"trainer.mesh.tensor={2 * mesh.tensor}", *parallel], "more traffic between tensor ranks"
    yield [f"trainer.mesh.context={2 * mesh.context}"], "attention exchanges heads for positions"
    yield [f"trainer.mesh.pipeline={2 * mesh.pipeline}"], "stages wait longer for each other"
    yield [f"trainer.mesh.expert={2 * mesh.expert}"], "more traffic between experts"


def _of_activations(trainer: Any, model: Model) -> Iterator[tuple[list[str], str]]:
    if getattr(trainer, "recompute", "layers") != "layers":
        yield ["trainer.recompute=layers"], "one more forward pass"
    budget: Budget = getattr(trainer, "budget", Budget(0))
    for part in (budget.maximum // 2, budget.maximum // 4, budget.maximum // 8):
        if part >= (_MIN_BUDGET if budget.counted == "tokens" else 1):
            yield [f"trainer.max_{budget.counted}_per_microbatch={part}"], "smaller micro-batches"
    is_wide = getattr(trainer, "mixed_precision", None) == "off" and model.dtype == "float32"
    if is_wide and getattr(trainer, "lora", 0) is None:
        yield ["trainer.mixed_precision=bfloat16"], "matrix products in bfloat16"


def _more_ranks(now: MemoryPlan, ranks: int, key: str) -> Iterator[tuple[list[str], str]]:
    """More devices, as few as the plan lets hope for. Only for accelerators: ranks on a CPU share its memory."""
    if not now.capacity.is_accelerator:
        return
    for more in (2 * ranks, 4 * ranks, 8 * ranks):
        if more <= _MAX_RANKS:
            yield [f"{key}={more}", f"trainer.mesh.shard={more}"], f"needs {more} devices"
