"""Settings that every trainer of language models has: AdamW, the learning rate, clipping, and micro-batches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from attrs import frozen

from purerl.backends.schedules import NAMES, UNENDING, check_schedule, learning_rate
from purerl.errors import ConfigError, nearest
from purerl.settings import at_least, between, boolean, check_alternatives, no_effect, setting

if TYPE_CHECKING:
    from purerl.types import RowInt

__all__ = ["OUTPUTS", "Budget", "Config", "check_outputs", "check_steps", "check_top_k"]

OUTPUTS = (
    *("logp", "entropy", "sum_pi_squared", "topk_logp", "topk_tokens", "value", "log_partition"),
    "classifier_score",
)
"""Outputs that a trainer of language models can be built for."""

_DEFAULT_TOKENS = 2048


class Budget(NamedTuple):
    """The size of a micro-batch: the `maximum` of what is `counted` in it."""

    maximum: int
    counted: Literal["tokens", "rows"] = "tokens"

    def sizes(self, tokens: RowInt) -> RowInt:
        """The part of the maximum that each row takes, from its tokens. Shapes: [rows]."""
        return tokens if self.counted == "tokens" else tokens.new_ones(len(tokens))

    def rows(self, tokens: int) -> int:
        """The number of rows of a micro-batch whose rows have so many `tokens`, at least 1."""
        return max(1, self.maximum // tokens) if self.counted == "tokens" else self.maximum

    def divided(self, parts: int) -> Budget:
        """The budget of one of several `parts` of each row."""
        return self._replace(maximum=-(-self.maximum // parts)) if self.counted == "tokens" else self


@frozen(kw_only=True)
class Config:
    """Settings of training, with any engine.

    Raises: ConfigError for settings that exclude each other, and for those without effect beside the others.
    """

    lr: float = setting("learning rate, at its maximum", default=1e-6, **between(0, 1))
    betas: tuple[float, float] = setting(
        "decay rates of AdamW's two moments",
        default=(0.9, 0.999),
        need="two numbers from 0 to below 1",
        valid=lambda betas: len(betas) == 2 and all(0 <= beta < 1 for beta in betas),
    )
    eps: float = setting(
        "added to the root of AdamW's second moment", default=1e-8, need="above 0", valid=lambda x: 0 < x < math.inf
    )
    weight_decay: float = setting("decay of weight matrices, except embeddings", default=0.0, **between(0, 1e3))
    lr_scheduler: str = setting(
        "learning rate after the warm-up, by transformers' names",
        default="constant",
        need=f"one of: {', '.join(NAMES)}",
    )
    lr_scheduler_kwargs: Mapping[str, Any] = setting(
        "arguments of the schedule: num_cycles of cosine and cosine_with_restarts, power of polynomial, timescale of "
        "inverse_sqrt, num_decay_steps, decay_type and num_cycles of warmup_stable_decay",
        factory=dict,
        hash=False,  # a dict has no hash, and the settings are a key in `purerl.planning`
    )
    lr_scheduler_steps: int | None = setting(
        "optimizer steps after which the schedule has reached its end; if not given, those of the run. With it, the "
        "learning rate does not depend on the length of the run",
        default=None,
        unit="optimizer steps",
        **at_least(1),
    )
    warmup_steps: int | None = setting(
        "optimizer steps in which the learning rate rises; if neither this nor warmup_ratio is given, none",
        default=None,
        unit="optimizer steps",
        **at_least(0),
    )
    warmup_ratio: float | None = setting(
        "the same as a fraction of all optimizer steps of the schedule, which fits a run of any length",
        default=None,
        need="from 0 to below 1",
        valid=lambda x: 0 <= x < 1,
    )
    min_lr_ratio: float = setting("final learning rate, as a fraction of lr", default=0.0, **between(0, 1))
    max_grad_norm: float = setting(
        "a gradient with a larger norm is scaled down to it; inf: no clipping",
        default=1.0,
        need="above 0",
        valid=lambda x: x > 0,
    )
    skip_zero_gradients: bool = setting(
        "skip an optimizer step whose gradient is 0, such as one in which no row has an advantage and no other term of "
        "the loss has a gradient; false: AdamW's momentum and the weight decay change the weights in such a step",
        default=True,
        **boolean(),
    )
    max_tokens_per_microbatch: int | None = setting(
        "maximum of rows times tokens of the longest row in one forward pass; if neither this nor "
        f"max_rows_per_microbatch is given, {_DEFAULT_TOKENS}",
        default=None,
        unit="tokens",
        may_change="rounding",
        **at_least(1),
    )
    max_rows_per_microbatch: int | None = setting(
        "maximum number of rows in one forward pass, however long they are, instead of max_tokens_per_microbatch",
        default=None,
        unit="rows",
        may_change="rounding",
        **at_least(1),
    )
    router_aux_loss_coef: float | None = setting(
        "weight of the loss that balances the load of experts; if not given, the model's own if its configuration sets "
        "output_router_logits, otherwise 0",
        default=None,
        **between(0, 1e3),
    )
    top_k: int | None = setting(
        "number of most likely tokens in topk_tokens and topk_logp; if not given, 16, or the whole vocabulary",
        default=None,
        **at_least(1),
    )

    def __attrs_post_init__(self) -> None:
        check_schedule(self.lr_scheduler, self.lr_scheduler_kwargs, min_lr_ratio=self.min_lr_ratio)
        check_alternatives(self, "warmup_steps", "warmup_ratio")
        check_alternatives(self, "max_tokens_per_microbatch", "max_rows_per_microbatch")
        if self.lr_scheduler_steps is not None and not self.has_length:
            need = f"another lr_scheduler than {' and '.join(UNENDING)}, or warmup_ratio: they do not depend on it"
            raise no_effect("lr_scheduler_steps", self.lr_scheduler_steps, need)
        if self.lr_scheduler_steps is not None and self.lr_scheduler_steps <= (self.warmup_steps or 0):
            need = f"less than lr_scheduler_steps, {self.lr_scheduler_steps}"
            raise ConfigError("warmup_steps", got=self.warmup_steps, need=need)

    @property
    def budget(self) -> Budget:
        """The size of a micro-batch, in tokens or in rows."""
        if self.max_rows_per_microbatch is not None:
            return Budget(self.max_rows_per_microbatch, "rows")
        return Budget(self.max_tokens_per_microbatch or _DEFAULT_TOKENS)

    @property
    def has_length(self) -> bool:
        """Whether the learning rate depends on the number of optimizer steps of the schedule."""
        return self.lr_scheduler not in UNENDING or bool(self.warmup_ratio)

    @property
    def depends_on_run(self) -> bool:
        """Whether the learning rate depends on the number of optimizer steps of the run."""
        return self.has_length and self.lr_scheduler_steps is None

    def learning_rate(self, position: int, updates: int) -> float:
        """The learning rate of optimizer step `position` (from 0) in a run of `updates` optimizer steps."""
        return learning_rate(
            position,
            lr=self.lr,
            lr_scheduler=self.lr_scheduler,
            warmup_steps=self.warmup(updates),
            min_lr_ratio=self.min_lr_ratio,
            updates=self.schedule_steps(updates),
            arguments=self.lr_scheduler_kwargs,
        )

    def schedule_steps(self, updates: int) -> int:
        """The number of optimizer steps of the schedule in a run of `updates` optimizer steps."""
        return self.lr_scheduler_steps or updates

    def warmup(self, updates: int) -> int:
        """The number of warm-up steps in a run of `updates` optimizer steps."""
        if self.warmup_steps is not None:
            return self.warmup_steps
        return round((self.warmup_ratio or 0.0) * self.schedule_steps(updates))


def check_outputs(outputs: Sequence[str], known: Sequence[str], *, role: str) -> None:
    """Raise ConfigError for an output of `role` that is not among the `known` ones, or that excludes another one."""
    for name in outputs:
        if name not in known:
            got = f"the algorithm needs the output {name!r} of the {role}"
            raise ConfigError("kind", got=got, need=f"one of: {', '.join(known)}", do=nearest(name, known))
    others = [name for name in outputs if name != "classifier_score"]
    if others and len(others) < len(outputs):
        need = "no other output of the same model: a classifier has no log-probabilities"
        raise ConfigError("classifier_score", got=f"also {', '.join(others)}", need=need)


def check_steps(config: Config, updates: int | None) -> None:
    """Refuse a schedule that does not fit a run of `updates` optimizer steps; 0 or None: there is nothing to refuse.

    Raises: ConfigError for a warm-up as long as the run, and for a decay that is longer than the schedule.
    """
    if not updates:
        return
    if config.warmup_steps and updates <= config.warmup_steps:
        need = f"less than the {updates} optimizer steps of the run"
        do = "lower it, use warmup_ratio, or make the run longer"
        raise ConfigError("warmup_steps", got=config.warmup_steps, need=need, do=do)
    decay = config.lr_scheduler_kwargs.get("num_decay_steps")
    after_warmup = config.schedule_steps(updates) - config.warmup(updates)
    if decay and decay > after_warmup:
        need = f"at most {after_warmup}, the optimizer steps of the schedule after the warm-up"
        raise ConfigError("lr_scheduler_kwargs.num_decay_steps", got=decay, need=need, do="lower it")


def check_top_k(config: Config, outputs: Sequence[str]) -> None:
    """Raise ConfigError if `top_k` is set and has no effect on these `outputs`."""
    if config.top_k is not None and outputs and "topk_tokens" not in outputs:
        need, do = "a role that reports its most likely tokens, such as a teacher", "set it in roles.teacher.trainer"
        raise ConfigError("top_k has no effect", got=config.top_k, need=need, do=do)
