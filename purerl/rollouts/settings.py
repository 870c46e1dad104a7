"""Settings of the section `rollout`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from attrs import frozen
from attrs.converters import optional

from purerl.errors import ConfigError
from purerl.sampling import MAX_SAMPLES, MAX_TEMPERATURE, MIN_TEMPERATURE
from purerl.settings import above_zero, at_least, boolean, check_strings, no_effect, one_of, setting

if TYPE_CHECKING:
    from purerl.algos.algebra import Algorithm, Objective

__all__ = [
    "Order",
    "Overlong",
    "Rollout",
    "WorkflowSettings",
    "to_workflow",
    "with_draw_weights",
    "with_length_penalty",
]

Order = Literal["drawn", "finished"]


@frozen(kw_only=True)
class Overlong:
    """A penalty for completions that are nearly as long as `max_tokens`, from DAPO (2503.14476, eq. 13).

    It is 0 up to `buffer` tokens before the limit, and then decreases linearly to -factor at the limit.
    """

    buffer: int = setting("tokens before max_tokens at which the penalty starts", unit="tokens", **at_least(1))
    factor: float = setting("the maximum penalty", unit="reward", default=1.0)

    def __attrs_post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise ConfigError("factor", got=self.factor, need="above 0, and finite", do="leave overlong out for none")


@frozen
class WorkflowSettings:
    """A workflow of your own. In settings a string stands for the function with that name."""

    function: str = setting(
        "what returns the workflow, as module:function or file.py:function; see docs/how-to/workflows.md", short=True
    )
    kwargs: Mapping[str, Any] = setting("arguments of the function, beside those that the run passes", factory=dict)
    fields: tuple[str, ...] = setting(
        "fields of its rows that only some algorithms read, such as turn, anchor and role", default=()
    )

    def __attrs_post_init__(self) -> None:
        check_strings("fields", self.fields)


def to_workflow(value: str | WorkflowSettings) -> WorkflowSettings:
    """The name of a function as the workflow that it stands for."""
    return WorkflowSettings(value) if isinstance(value, str) else value


@frozen(kw_only=True)
class Rollout:
    """Sampling of completions for training."""

    samples_per_prompt: int = setting("completions of each prompt", example="8", **at_least(1, MAX_SAMPLES))
    max_tokens: int = setting("maximum number of new tokens", unit="tokens", example="512", **at_least(1))
    temperature: float = setting("divides the logits; log-probabilities are computed with it too", default=1.0)
    stop_strings: tuple[str, ...] = setting("strings that end a completion, beside the stop tokens", default=())
    max_resample_rounds: int = setting(
        "how often groups that the algorithm does not keep are replaced by new ones", default=0, **at_least(0)
    )
    gen_batch_size: int | None = setting(
        "prompts sampled in each round of a step, if the algorithm drops groups; those beyond batch_size that it keeps "
        "are discarded; if not given, batch_size in the first round, and later as many as are missing",
        default=None,
        **at_least(1),
    )
    filter_metric: str | None = setting(
        "the component of the reward by which the algorithm chooses the groups that it keeps, such as acc, whose "
        "metric is reward/acc; if not given, the total reward",
        default=None,
    )
    max_staleness: int = setting(
        "maximum number of updates between the weights that sampled a token and those that it trains; "
        "0: synchronous, 1: one step off policy, more: asynchronous",
        default=0,
        **at_least(0),
    )
    order: Order = setting(
        'which groups are trained first: "drawn", in the order of the data, or "finished", as they finish, which is '
        "faster and prefers short completions",
        default="drawn",
        **one_of("drawn", "finished"),
    )
    num_extra_groups: int = setting(
        "groups that are sampled beyond those that are needed; when a step has its groups, those that would become "
        "too old are cancelled. So long completions are left out",
        default=0,
        **at_least(0),
    )
    background: bool = setting(
        "let an engine that works in this process sample in a thread of its own while the trainer trains",
        default=False,
        **boolean(),
    )
    stall_timeout: float = setting(
        "seconds without any progress of sampling, rewards and environments after which the run stops with an error",
        unit="s",
        default=1800.0,
        may_change=True,
        **above_zero(),
    )
    overlong: Overlong | None = setting("penalty for completions close to max_tokens", default=None)
    workflow: WorkflowSettings | None = setting(
        "a function of yours that returns what makes the rows of a draw, in place of one completion per row; it is "
        "used in training and in evaluations",
        default=None,
        converter=optional(to_workflow),
    )

    recorded: str | None = setting(
        "the directory of a run whose recorded completions are trained on; nothing is sampled, except for evaluations",
        default=None,
    )

    def __attrs_post_init__(self) -> None:
        if not MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE:
            need = f"from {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}"
            raise ConfigError("temperature", got=self.temperature, need=need, do="only evaluation may be greedy")
        check_strings("stop_strings", self.stop_strings)
        if self.filter_metric is not None:
            check_strings("filter_metric", [self.filter_metric])
        if self.overlong and self.overlong.buffer > self.max_tokens:
            need = f"at most max_tokens, {self.max_tokens}"
            raise ConfigError("overlong.buffer", got=self.overlong.buffer, need=need)
        if self.overlong and self.workflow:
            need = "completions of one turn; the rewards of a workflow can have a penalty of its own"
            raise no_effect("overlong", self.overlong, need)
        if self.order == "finished" and not (self.max_staleness or self.num_extra_groups):
            need = "a choice of groups: without max_staleness and num_extra_groups all that are in flight are trained"
            raise no_effect("order", self.order, need)
        if self.num_extra_groups and self.order == "drawn":
            need = 'order = "finished": in the order of the data no group can be left out'
            raise no_effect("num_extra_groups", self.num_extra_groups, need)
        if self.background and not self.max_staleness:
            need = "max_staleness above 0: otherwise nothing can be sampled while the trainer trains"
            raise no_effect("background", self.background, need)
        for name in ("max_staleness", "num_extra_groups"):
            if self.recorded is not None and getattr(self, name):
                raise no_effect(name, getattr(self, name), "completions that are sampled; those of recorded are read")

    @property
    def is_synchronous(self) -> bool:
        """Whether all draws of a step are waited for, and nothing is sampled in advance."""
        return not self.max_staleness and self.order == "drawn"


def with_draw_weights(algorithm: Algorithm) -> Algorithm:
    """`algorithm` with the importance weight of a row's draw, `draw_weight`, as a factor of each loss of the row."""
    from purerl.algos.parts.editing import add_reads, add_scales

    def weighted(objective: Objective) -> Objective:
        terms = tuple(add_scales(term, "draw_weight") for term in objective.terms)
        return add_reads(objective._replace(terms=terms), "draw_weight")

    before, objectives = (tuple(map(weighted, part)) for part in (algorithm.before, algorithm.objectives))
    return algorithm._replace(before=before, objectives=objectives)


def with_length_penalty(algorithm: Algorithm, settings: Rollout) -> Algorithm:
    """`algorithm` with the penalty for long completions, if it is set, before its advantage."""
    from purerl.algos.algebra import chain
    from purerl.algos.parts.shaping import overlong_in_reward

    if settings.overlong is None:
        return algorithm
    buffer, factor = settings.overlong.buffer, settings.overlong.factor
    penalty = overlong_in_reward(max_length=settings.max_tokens, buffer=buffer, factor=factor)
    return algorithm._replace(advantage=chain(penalty, algorithm.advantage))
