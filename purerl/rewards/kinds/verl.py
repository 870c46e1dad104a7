"""The table of verl: which function scores the rows of which data source.

    openai/gsm8k                                                                      gsm8k
    lighteval/MATH, DigitalLearningGmbH/MATH-lighteval, HuggingFaceH4/MATH-500        math
    numina_aops_forum, numina_synthetic_math, numina_amc_aime, numina_olympiads, ...  math
    math_dapo, math_dapo_reasoning, math                                              math
    hiyouga/geometry3k                                                                math
    aime*                                                                             aime
    searchR1_*                                                                        answers_question

With ``functions = "purerl"`` these functions of purerl score the rows: 1 if the answer is correct, and 0 if it is not.
They accept more formats of an answer than those of verl.

With ``functions = "verl"`` the rows are scored by `verl.utils.reward_score.default_compute_score` of the installed
verl, unchanged. It is also for codecontests, apps, codeforces and taco. Its values differ: it accepts one format for
each data source, a wrong answer in math_dapo and aime* is -1, and 0.1 of geometry3k is for the format.

A row of any other data source needs another reward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

from attrs import frozen

from purerl.errors import ConfigError
from purerl.plugins import locate
from purerl.rewards.adapters import RowCheck
from purerl.rewards.exact import answers_question
from purerl.rewards.loading import row_check as row_check_of
from purerl.rewards.math import aime, gsm8k, math
from purerl.rewards.routing import COLUMN, applies
from purerl.settings import at_least, no_effect, one_of, server_address, setting

__all__ = ["CODE", "TABLE", "Config", "build", "check", "columns", "data_sources", "row_check"]

TABLE: Mapping[tuple[str, ...], Callable[[str, Mapping[str, Any]], float | None]] = {
    ("openai/gsm8k",): gsm8k,
    ("lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500"): math,
    (
        *("numina_aops_forum", "numina_synthetic_math", "numina_amc_aime"),
        *("numina_synthetic_amc", "numina_cn_k12", "numina_olympiads"),
    ): math,
    ("math_dapo", "math_dapo_reasoning", "math"): math,
    ("hiyouga/geometry3k",): math,
    ("aime*",): aime,
    tuple(
        f"searchR1_{name}"
        for name in ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
    ): answers_question,
}
"""purerl's function for each data source in verl's table, except for those with programs."""

CODE = ("codecontests", "apps", "codeforces", "taco")
"""Data sources in verl's table whose answers are programs."""


@frozen(kw_only=True)
class Config:
    """Settings of the kind `verl`."""

    functions: str = setting(
        "purerl: the functions of purerl; verl: those of the installed verl",
        default="purerl",
        **one_of("purerl", "verl"),
    )
    sandbox_fusion_url: str | None = setting(
        "URL of the Sandbox Fusion server in which verl runs programs; if not given, it runs them itself",
        default=None,
        credential="leave it out: verl sends no credential",
        **server_address(),
    )
    memory_limit_mb: int | None = setting("memory limit of a program in Sandbox Fusion", default=None, **at_least(1))

    def __attrs_post_init__(self) -> None:
        for name in ("sandbox_fusion_url", "memory_limit_mb"):
            if getattr(self, name) is not None and self.functions != "verl":
                raise no_effect(name, getattr(self, name), 'functions = "verl", which run programs')
        if self.memory_limit_mb is not None and self.sandbox_fusion_url is None:
            raise no_effect("memory_limit_mb", self.memory_limit_mb, "sandbox_fusion_url")


def check(config: Config) -> None:
    """Raise ConfigError if verl is needed and not installed."""
    if config.functions == "verl" and find_spec("verl") is None:
        do = 'pip install --no-deps verl, and what its functions need; or use functions = "purerl"'
        raise ConfigError("functions", got="'verl', which is not installed", need="the package verl", do=do)


def columns(config: Config) -> Sequence[str | tuple[str, ...]]:
    """The columns that the functions read."""
    return (COLUMN, "reward_model" if config.functions == "verl" else ("answer", "reward_model"))


def data_sources(config: Config) -> Sequence[str]:
    """The data sources in the table."""
    return [name for names in (*TABLE, *([CODE] if config.functions == "verl" else [])) for name in names]


def build(config: Config) -> Callable[..., Any]:
    """The reward function with the settings `config`.

    >>> reward = build(Config())
    >>> reward("#### 72", {"data_source": "openai/gsm8k", "answer": "72"})
    1.0
    """
    if config.functions == "purerl":
        return _score
    function = locate("verl.utils.reward_score:default_compute_score")
    limit = {"memory_limit_mb": config.memory_limit_mb} if config.memory_limit_mb else {}
    return partial(function, sandbox_fusion_url=config.sandbox_fusion_url, **limit)


def row_check(config: Config) -> RowCheck | None:
    """The checks of purerl's functions, each for the rows of its data sources; verl's functions have none."""
    return _check_row if config.functions == "purerl" else None


def _check_row(example: Mapping[str, Any]) -> None:
    check = row_check_of(_function_for(example))
    if check is not None:
        check(example)


def _score(completion: str, example: Mapping[str, Any]) -> float | None:
    return _function_for(example)(completion, example)


def _function_for(example: Mapping[str, Any]) -> Callable[[str, Mapping[str, Any]], float | None]:
    return next(function for names, function in TABLE.items() if applies((names,), example))
