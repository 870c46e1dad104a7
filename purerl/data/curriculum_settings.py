"""Settings of the section `data.curriculum`."""

from __future__ import annotations

import math
from typing import Literal, get_args

from attrs import fields_dict, frozen

from purerl.errors import ConfigError
from purerl.settings import at_least, between, boolean, no_effect, one_of, setting

__all__ = ["Curriculum", "DrawnBy"]

DrawnBy = Literal["difficulty", "bands", "uniform"]

_USED_BY = {"uniform_share": "difficulty", "shares": "bands", "limits": "bands"}
"""Settings that have an effect with one value of `by` only."""


@frozen(kw_only=True)
class Curriculum:
    """Prompts are drawn by how often they have been solved in this run, in place of one epoch after the other.

    The pass rate of a prompt is (solved + 1) / (attempts + 2): 1/2 before its first attempt.
    """

    by: DrawnBy = setting(
        "the probability of a prompt; difficulty: proportional to p (1 - p), with its pass rate p; bands: a share of "
        "the draws for easy, normal and hard prompts each; uniform: the same for all that are not retired",
        default="difficulty",
        **one_of(*get_args(DrawnBy)),
    )
    unbiased: bool = setting(
        "whether the loss of a row has the importance weight with which the expected gradient is that of uniform "
        "draws; false: the objective is another one, in which prompts count as often as they are drawn",
        default=True,
        **boolean(),
    )
    uniform_share: float = setting(
        "difficulty: share of the draws that are uniform, which bounds the importance weights by its inverse",
        default=0.2,
        **between(0, 1),
    )
    shares: tuple[float, ...] = setting(
        "bands: relative number of draws of easy, normal and hard prompts", default=(0.25, 0.5, 0.25)
    )
    limits: tuple[float, ...] = setting(
        "bands: a prompt is hard if its pass rate is below the first number, and easy if it is above the second one",
        default=(0.25, 0.75),
    )
    solved_at: float = setting(
        "a completion solves its prompt if its reward is at least this", unit="reward", default=0.5
    )
    decay: float = setting(
        "what is left of the attempts at a prompt when it is tried again: below 1, older ones count less",
        default=1.0,
        **between(0, 1),
    )
    retire_above: float | None = setting(
        "a prompt is not drawn any more once more than this share of its attempts have solved it, such as 0.9; if not "
        "given, none is retired",
        default=None,
        **between(0, 1),
    )
    retire_after: int = setting(
        "attempts at a prompt before it can be retired", unit="completions", default=8, **at_least(1)
    )
    focus: int = setting(
        "number of prompts of a step that are drawn again in the next one, in turn and with new completions: those "
        "with the largest value, as codapo defines it. Every other step is such a step; 0: none",
        default=0,
        **at_least(0),
    )

    def __attrs_post_init__(self) -> None:
        default = {name: field.default for name, field in fields_dict(Curriculum).items()}
        for name, by in _USED_BY.items():
            if self.by != by and getattr(self, name) != default[name]:
                raise no_effect(name, getattr(self, name), f'by = "{by}"')
        if self.retire_above is None and self.retire_after != default["retire_after"]:
            raise no_effect("retire_after", self.retire_after, "retire_above")
        if len(self.shares) != 3 or not all(0 <= share < math.inf for share in self.shares) or not any(self.shares):
            raise ConfigError("shares", got=self.shares, need="three numbers of at least 0, for easy, normal and hard")
        if len(self.limits) != 2 or not 0 < self.limits[0] <= self.limits[1] < 1:
            raise ConfigError("limits", got=self.limits, need="two numbers between 0 and 1, the smaller one first")
        if self.by == "uniform" and self.retire_above is None and not self.focus:
            need = "retire_above or focus, or another value of by: every prompt is drawn equally often"
            raise ConfigError("by has no effect", got=self.by, need=need, do="leave data.curriculum out")
        self._check_weights()

    def _check_weights(self) -> None:
        """Refuse an importance weight of a prompt that is never drawn, or whose probability is not known."""
        do = "set unbiased = false"
        if not self.unbiased:
            return
        if self.by == "difficulty" and not self.uniform_share:
            need = "a number above 0 with unbiased: prompts that are nearly always solved would have unbounded weights"
            raise ConfigError("uniform_share", got=self.uniform_share, need=need, do=do)
        if self.by == "bands" and not all(self.shares):
            need = "numbers above 0 with unbiased: prompts that are never drawn cannot be weighted"
            raise ConfigError("shares", got=self.shares, need=need, do=do)
        if self.focus:
            need = "0 with unbiased: the prompts of a focused step are chosen, and not drawn at random"
            raise ConfigError("focus", got=self.focus, need=need, do=do)

    @property
    def is_weighted(self) -> bool:
        """Whether rows have an importance weight other than 1."""
        return self.unbiased and self.by != "uniform"
