"""The memory of a run: the sum of what its engines need, by phase.

    memory of a phase = states of all engines + what exists in this phase only

Each engine plans itself, by a function `memory` of its module. Roles take turns, so in a phase only the role that needs
most counts beside the states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, partial
from operator import itemgetter
from typing import Any

from attrs import evolve, field, frozen

from purerl.backends.plugin import engine_plugin, generator_plugin
from purerl.config.generators import copy_reason, sampled_model
from purerl.config.paths import is_created_by_run
from purerl.config.requirements import Requirements, requirements_of
from purerl.config.roles import shares_weights
from purerl.config.schema import Role, RunConfig
from purerl.errors import ConfigError, PurerlError
from purerl.models.cache import stored_result
from purerl.planning.capacity import Capacity, capacity_of
from purerl.planning.workload import Lengths, workload_of
from purerl.plugins import kind_of
from purerl.rollouts.settings import Rollout
from purerl.settings import Model
from purerl.system.memory_use import GIB, PHASES, MemoryUse, Workload, format_bytes
from purerl.system.phases import phase

__all__ = ["MemoryPlan", "describe", "plan_memory"]

_BYTES_PER_TOKEN = 64  # of a batch: about eight fields of 4 to 8 bytes

_PROGRAM = round(0.6 * GIB)
"""Main memory of a process without a model: Python, torch, transformers and other libraries, and the tokenizer.

Measured by `benchmarks/resident_memory.py`.
"""

Table = Mapping[str, Mapping[str, int]]


@frozen(kw_only=True)
class MemoryPlan:
    """Bytes on one rank: the rank that needs most.

    device    component -> phase -> bytes in the memory of the device
    host      the same for the main memory, if the device is an accelerator; otherwise empty
    capacity  the memory that there is
    assumed   what the configuration does not say, a sentence each
    refused   why an engine refuses to run what was planned, a line each
    remarks   what else the engines say about the plan, a line each
    ranks     number of ranks
    """

    device: Table
    host: Table
    capacity: Capacity
    assumed: tuple[str, ...] = field(default=(), converter=tuple)
    refused: tuple[str, ...] = field(default=(), converter=tuple)
    remarks: tuple[str, ...] = field(default=(), converter=tuple)
    ranks: int = 1

    @property
    def phases(self) -> dict[str, int]:
        """Bytes of each phase in the memory of the device."""
        return {phase: sum(sizes.get(phase, 0) for sizes in self.device.values()) for phase in _phases(self.device)}

    @property
    def peak(self) -> int:
        """The maximum over phases."""
        return max(self.phases.values())

    @property
    def peak_phase(self) -> str:
        """The phase that needs most."""
        return max(self.phases, key=self.phases.__getitem__)

    @property
    def fits(self) -> bool:
        """Whether the device has this memory; true if its memory is not known."""
        return self.capacity.size is None or self.peak <= self.capacity.size


@phase("planning the memory")
def plan_memory(
    config: RunConfig,
    *,
    ranks: int | None = None,
    ranks_of_host: int | None = None,
    memory: int | None = None,
    lengths: Lengths | None = None,
) -> MemoryPlan:
    """Plan the memory of the run that `config` describes.

    ranks          number of ranks; those of the configuration if not given
    ranks_of_host  those that share the main memory of a host; all if not given
    memory         bytes of the accelerator of each rank, which may be that of another computer; if not given, what this
                   computer has
    lengths        of rows, where the configuration does not limit them

    Raises: ConfigError if the configuration of a model cannot be read, or an engine cannot plan its memory.
    """
    needs, ranks = requirements_of(config), ranks or config.placement.num_trainers
    _check_models(needs.all_models().values())
    capacity = capacity_of(config.trainer, ranks_of_host or ranks, memory)
    workload, assumed = workload_of(
        needs,
        config.rollout,
        config.environment,
        ranks=ranks,
        lengths=lengths or Lengths(),
        max_prompt_tokens=config.data.max_prompt_tokens,
        stages_checkpoints=config.checkpoint.background,
    )
    uses, remarks = _uses(config, needs, workload, on_accelerator=capacity.is_accelerator)
    device, host = _tables(uses, keeps_keys=_samples_while_training(config.rollout))
    host["program and libraries"] = dict.fromkeys(_phases(device), _PROGRAM)
    host["batch"] = dict.fromkeys(PHASES[1:], workload.rows * workload.row_tokens * _BYTES_PER_TOKEN)
    if not capacity.is_accelerator:
        device, host = {**device, **{name: sizes for name, sizes in host.items() if any(sizes.values())}}, {}
    assumed = [*assumed, *(text for use in uses.values() for text in use.assumed)]
    return MemoryPlan(
        device=device,
        host=host,
        capacity=capacity,
        assumed=dict.fromkeys(assumed),
        refused=[f"{owner}: {text}" for owner, use in uses.items() for text in use.refused],
        remarks=[*(f"{owner}: {text}" for owner, use in uses.items() for text in use.remarks), *remarks],
        ranks=ranks,
    )


def _check_models(models: Iterable[Model]) -> None:
    """Refuse models that do not exist before the run."""
    for model in models:
        path = model.path
        if is_created_by_run(path):
            do = "set model to a directory with its config.json, such as that of an earlier run"
            raise ConfigError("model", got=f"{path!r}, which the run itself creates", need="a model that exists", do=do)


def describe(plan: MemoryPlan) -> str:
    """The peak of `plan` in words, and whether it fits."""
    peak = f"{format_bytes(plan.peak)} on each rank at most, in the phase {plan.peak_phase}"
    size = plan.capacity.size
    if size is None:
        return f"{peak}; the {plan.capacity.source} is not known"
    return f"{peak}; {'fits' if plan.fits else 'does not fit'}: {format_bytes(size)} ({plan.capacity.source})"


def _uses(
    config: RunConfig, needs: Requirements, workload: Workload, *, on_accelerator: bool
) -> tuple[dict[str, MemoryUse], list[str]]:
    """The memory of each engine: the models of the trainers by role, the generator, and the judges. Also remarks."""
    policy, uses = needs.models["policy"], dict[str, MemoryUse]()
    for name, role in needs.models.items():
        if name != "policy" and (shares_weights(role, policy) or role.settings.precompute):
            continue  # a precomputed model has been closed when the policy is loaded
        uses[name] = _memory_of(
            "trainer",
            role.settings.trainer,
            model=role.settings.model,
            outputs=role.outputs,
            is_trained=role.is_trained,
            workload=evolve(workload, minibatches=needs.schedule.passes(name).minibatches),
            on_accelerator=on_accelerator,
        )
    remarks = []
    if config.generator is not None:
        uses["generator"], remarks = _of_generator(config, policy.settings, workload)
    for name, role in needs.judges.items():
        options = {"model": role.model, "workload": workload, "trainer": None, "is_shared": False}
        uses[name] = _memory_of("generator", role.generator, **options)
    return uses, remarks


def _of_generator(config: RunConfig, policy: Role, workload: Workload) -> tuple[MemoryUse, list[str]]:
    """The memory of the generator of `policy`, and whose weights it samples with, if it can share them."""
    generator, options = config.generator, {"model": policy.model, "trainer": policy.trainer}
    reason = copy_reason(generator, **options, rollout=config.rollout, placement=config.placement, ranks=workload.ranks)
    options = {"model": sampled_model(**options), "trainer": policy.trainer, "is_shared": reason is None}
    use = _memory_of("generator", generator, **options, workload=workload)
    if generator_plugin(generator).build_shared is None:
        return use, []
    if reason is not None:
        return use, [f"generator: has a copy of the weights of the policy: {reason}"]
    casts = "casts of the weights, which the trainer computes with" if use.states else "the weights of the trainer"
    return use, [f"generator: samples with {casts}; there is no copy for it"]


@cache
def _memory_of(group: str, settings: Any, **arguments: Any) -> MemoryUse:
    """The memory of the engine with these `settings`. Raises ConfigError also if its model fails on fake weights."""
    plan = partial(engine_plugin(group, kind_of(settings)).memory, settings, **arguments)
    key = (group, "memory", sorted(arguments.items(), key=itemgetter(0)))
    try:
        return stored_result(MemoryUse, plan, model=arguments["model"], settings=settings, arguments=key)
    except PurerlError:
        raise
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        got = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        need = "a model that runs on tensors without values"
        raise ConfigError(f"the memory of the {group} cannot be planned", got=got, need=need) from error


def _samples_while_training(rollout: Rollout | None) -> bool:
    """Whether rows are in the table of the generator while the trainer trains."""
    return rollout is not None and bool(rollout.max_staleness or rollout.background)


def _tables(
    uses: Mapping[str, MemoryUse], *, keeps_keys: bool
) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
    """Component -> phase -> bytes, in the memory of the device and in the main memory."""
    phases = [phase for phase in PHASES if phase != "sampling" or "generator" in uses]
    device, host = dict[str, dict[str, int]](), dict[str, dict[str, int]]()
    for owner, use in uses.items():
        for name, size in use.states.items():
            device[f"{owner}: {name}"] = dict.fromkeys(phases, size)
        for name, size in use.host.items():
            host[f"{owner}: {name}"] = dict.fromkeys(phases, size)
    for each in phases:
        for name, size in _of_phase(uses, each).items():
            device.setdefault(name, {})[each] = size
    if keeps_keys:
        for name, sizes in device.items():
            if name == "generator: keys and values":
                sizes.update(dict.fromkeys(phases, sizes["sampling"]))
    return device, host


def _of_phase(uses: Mapping[str, MemoryUse], phase: str) -> dict[str, int]:
    """Transient memory in `phase` of the engine that needs most."""
    needs = {owner: use.transient.get(phase, {}) for owner, use in uses.items()}
    owner = max(needs, key=lambda name: sum(needs[name].values()))
    return {f"{owner}: {name}": size for name, size in needs[owner].items() if size}


def _phases(table: Table) -> Iterable[str]:
    return (phase for phase in PHASES if any(phase in sizes for sizes in table.values()))
