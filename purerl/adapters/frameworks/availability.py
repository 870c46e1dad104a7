"""The inputs that each framework passes to an estimator and to a loss, and the algorithms that cannot run with them.

An algorithm declares what it reads, which outputs it needs, and what it computes on a whole optimizer step. So whether
it can run inside a framework is known before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from attrs import frozen

from purerl.algos.algebra import Algorithm, Objective, keep_all, stages_of, unchanged
from purerl.algos.parts.editing import policy_of, without_metric
from purerl.algos.parts.reductions import token_mean
from purerl.algos.parts.selection import groups_with_variance
from purerl.batch import FIELDS
from purerl.errors import ConfigError

__all__ = [
    "PRIME_RL",
    "SKYRL",
    "SLIME",
    "TINKER",
    "TRL",
    "VERL",
    "Framework",
    "estimator_of",
    "estimator_refusals",
    "keeps_state",
    "loss_refusals",
    "policy_objective",
    "refusals",
    "require",
]


@frozen
class Framework:
    """The inputs that a framework passes to our functions.

    estimator      fields of the batch that an estimator gets, besides those of `STRUCTURE`
    loss           fields that a loss gets
    outputs        outputs of the forward pass that a loss gets, with gradient
    metric         outputs that a loss gets for its metrics only
    either         fields of which a loss can read one: the framework has one tensor for all of them
    is_whole       whole optimizer steps are known, and the loss gets what the estimator writes
    keeps_state    a state of the estimator is kept, and saved with checkpoints
    selects        selections of rows that the framework makes itself
    reductions     reductions of which the framework has the denominators; empty: all
    """

    name: str
    estimator: frozenset[str] = frozenset()
    loss: frozenset[str] = frozenset()
    outputs: frozenset[str] = frozenset({"logp"})
    metric: frozenset[str] = frozenset()
    either: frozenset[str] = frozenset()
    is_whole: bool = False
    keeps_state: bool = False
    selects: tuple[Callable, ...] = ()
    reductions: tuple[Callable, ...] = ()


VERL = Framework(
    "verl",
    estimator=frozenset({"reward"}),
    loss=frozenset({"old_logp", "rollout_logp", "advantage"}),
    either=frozenset({"old_logp", "rollout_logp"}),
    selects=(groups_with_variance,),
)

_TRL_FIELDS = frozenset(
    {"reward", "components", "old_logp", "old_entropy", "ref_logp", "rollout_logp", "truncated", "temperature", "noise"}
    | {"optimal_value"}  # a column of the data set
)
TRL = Framework(
    "TRL",
    estimator=_TRL_FIELDS,
    loss=_TRL_FIELDS | {"score"},
    outputs=frozenset({"logp", "entropy"}),
    metric=frozenset({"entropy"}),
    is_whole=True,
    keeps_state=True,
)

_TINKER_FIELDS = frozenset({"reward", "old_logp", "rollout_logp"})
TINKER = Framework("tinker", estimator=_TINKER_FIELDS, loss=_TINKER_FIELDS | {"score"}, is_whole=True)

PRIME_RL = Framework("prime-rl", loss=frozenset({"rollout_logp", "ref_logp", "advantage"}), reductions=(token_mean,))

SKYRL = Framework("SkyRL", estimator=frozenset({"reward"}))

SLIME = Framework("slime", estimator=frozenset({"reward"}))


def estimator_refusals(algorithm: Algorithm, framework: Framework) -> Iterator[str]:
    """Reasons against an estimator of `framework` with the advantages of `algorithm`; none if they can be computed.

    >>> from purerl.algos import grpo, ppo
    >>> list(estimator_refusals(grpo.algorithm(), VERL)), list(estimator_refusals(ppo.algorithm(), VERL))
    ([], ['its estimator reads old_value, which verl does not pass'])
    """
    if not stages_of(algorithm.advantage):
        yield "it computes no advantage"
    yield from _missing("its estimator", algorithm.reads, framework.estimator, framework)
    if algorithm.before:
        yield f"it updates the {algorithm.before[0].role} before it computes advantages"
    if not framework.keeps_state and keeps_state(algorithm):
        yield "its estimator keeps a state from step to step"
    if not framework.is_whole and algorithm.select not in (keep_all, *framework.selects):
        yield "it selects rows"


def loss_refusals(algorithm: Algorithm, framework: Framework) -> Iterator[str]:
    """Reasons against a loss of `framework` with the policy loss of `algorithm`; none if it can be one."""
    try:
        objective = policy_objective(algorithm, framework)
    except ConfigError:
        yield "it trains no policy"
        return
    passed = framework.loss | (_WRITTEN if framework.is_whole else set())
    yield from _missing("its loss", objective.reads, passed, framework)
    if len(both := framework.either & {*objective.reads}) > 1:
        yield f"its loss compares {' with '.join(sorted(both))}, and {framework.name} passes one of them"
    if outputs := ({*objective.outputs} - framework.outputs) | ({*objective.metric_outputs} - framework.metric):
        yield f"its loss needs the output {', '.join(sorted(outputs))} of the model"
    if not framework.is_whole:
        yield from _needs_whole_step(objective)
    if framework.reductions and not {term.reduce for term in objective.terms} <= {*framework.reductions}:
        names = " or ".join(function.__name__ for function in framework.reductions)
        yield f"its loss has another reduction than {names}, whose denominator {framework.name} does not have"


def refusals(algorithm: Algorithm, framework: Framework) -> Iterator[str]:
    """Reasons against running `algorithm` as a whole inside `framework`; none if it can."""
    yield from estimator_refusals(algorithm, framework)
    yield from loss_refusals(algorithm, framework)
    roles = [objective.role for objective in algorithm.objectives if objective.role != "policy"]
    yield from (f"it trains a {role}" for role in roles)


def require(what: str, reasons: Collection[str], *, do: str | None = None) -> None:
    """Raise ConfigError that `what` is not available, if there is one of `reasons`."""
    if reasons:
        raise ConfigError(f"{what} is not available", got="; ".join(reasons), do=do)


def policy_objective(algorithm: Algorithm, framework: Framework) -> Objective:
    """The objective of the policy, without metrics of outputs that `framework` does not pass.

    Raises: ConfigError as `policy_of`.
    """
    objective = policy_of(algorithm)
    for name in objective.metric_outputs:
        if name not in framework.metric:
            objective = without_metric(objective, name)
    return objective


def estimator_of(algorithm: Algorithm) -> tuple[Any, ...]:
    """The parts of `algorithm` that determine its advantages: equal parts have the same advantages."""
    return algorithm.reads, algorithm.before, algorithm.select, algorithm.advantage


def keeps_state(algorithm: Algorithm) -> bool:
    """Whether the estimator of `algorithm` has a state: anything else than nested empty tuples."""
    return not _is_empty(algorithm.advantage.init())


def _is_empty(state: Any) -> bool:
    return isinstance(state, tuple) and all(map(_is_empty, state))


_WRITTEN = {name for name, field in FIELDS.items() if field.writer in ("estimator", "prepare")}
"""Fields that an estimator or `prepare` writes."""


def _missing(part: str, reads: tuple[str, ...], passed: Collection[str], framework: Framework) -> Iterator[str]:
    missing = [name for name in reads if name not in passed]
    if missing:
        yield f"{part} reads {', '.join(missing)}, which {framework.name} does not pass"


def _needs_whole_step(objective: Objective) -> Iterator[str]:
    """Reasons against a loss that is called with micro-batches of rows, and knows the counts of `mask` alone."""
    if objective.prepare is not unchanged:
        yield "its loss is prepared on whole optimizer steps"
    if objective.unit != "row":
        yield "its loss couples the rows of a group"
    masks = [term.where for term in objective.terms if term.where != "mask"]
    yield from (f"its loss has a term of the tokens in {name}, which are not counted" for name in masks)
    scales = sorted({name for term in objective.terms for name in term.scales} & {"prompt_weight"})
    yield from (f"its loss is scaled by {name}" for name in scales)
