"""Settings that a run needs beside those that every run has, with a line to write for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from purerl.composition import build_algorithm, to_composition
from purerl.config.presets import expand
from purerl.config.tables import with_kind
from purerl.errors import ConfigError
from purerl.plugins import find
from purerl.settings import missing

__all__ = ["find_missing", "missing_section"]

_SAMPLING = "completions are sampled and rewarded, because rollout or evaluate is set"
_SECTIONS = {
    "rollout": ("completions of the policy", "{samples_per_prompt = 8, max_tokens = 512}"),
    "generator": (_SAMPLING, '"hf"'),
    "rewards": (_SAMPLING, '["my_rewards.py:correct"]'),
}


def missing_section(name: str) -> ConfigError:
    """The error for the section `name`, which a run that samples completions needs."""
    return missing(name, *_SECTIONS[name])


def find_missing(table: Mapping[str, Any]) -> Iterator[ConfigError]:
    """Errors for what is missing in the `table` of a run, without the settings that every run has.

    What depends on other settings is left to `purerl.config.check`.
    """
    if not table.keys() & {"max_steps", "num_epochs"}:
        yield missing("max_steps", "the number of steps, or num_epochs, passes over the data", "1000")
    needs_rollout = "rollout" not in table and _needs_rollout(table.get("algorithm"))
    if needs_rollout:
        yield missing_section("rollout")
    if not needs_rollout and not table.keys() & {"rollout", "evaluate"}:
        return
    if "generator" not in table:
        yield missing_section("generator")
    rollout = table.get("rollout")
    has_workflow = isinstance(rollout, Mapping) and "workflow" in rollout
    if not table.keys() & {"rewards", "environment"} and not has_workflow:
        yield missing_section("rewards")


def _needs_rollout(section: Any) -> bool:
    """Whether the algorithm in `section` learns from completions of the policy; False if it cannot be built."""
    from purerl.rollouts.check import needs_rollouts

    section = with_kind(section)
    if not isinstance(section, Mapping) or not isinstance(section.get("kind"), str):
        return False
    try:
        plugin = find("algorithm", str(expand(section)["kind"]))
        return bool(needs_rollouts(build_algorithm(to_composition(plugin.Config()))))
    except (ConfigError, TypeError):
        return False
