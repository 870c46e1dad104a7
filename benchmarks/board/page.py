"""The page of results, from stored results and from published numbers."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from attrs import frozen

__all__ = ["PAGE", "PUBLISHED", "Group", "group_results", "open_numbers", "page", "read_published"]

_ROOT = Path(__file__).parents[2]
PAGE = _ROOT / "docs" / "reference" / "results.md"
PUBLISHED = _ROOT / "reproduce" / "published.toml"

_METRIC = "eval/accuracy"
_INTRODUCTION = """\
# Results

Accuracy on held-out problems before and after training, beside the numbers that other libraries have published for the
same task. `python -m benchmarks.board page` writes this page from the files in `benchmarks/results/board`, which are
made from run directories. To add a run:

```sh
python -m benchmarks.board run addition --seeds 0 1 2    # train a recipe, in a process for each seed
python -m benchmarks.board add RUN_DIRECTORY             # or take a run that is finished
python -m benchmarks.board page
```

*ours* and *CPU s* are means over the seeds, with the lowest and the highest in parentheses. *theirs* links to its
source. *CPU s* is the CPU time of the main process, from its start to the last step, with the initial run and without
the workers of rewards. Other work on the same cores makes it longer. A commit with `*` had changes that were not
committed.
"""
_SPEED = """\
## CPU seconds by commit

![CPU seconds by commit](../images/results.svg)

"""
_OPEN = """\
## Published numbers without a run of ours

Each has a configuration: [reproducing published numbers](../how-to/reproduce.md). *accept* is the lowest value that
counts as reproduced.

"""


@frozen
class Group:
    """The results of one command, apart from its seed, at one commit and on one computer."""

    task: str
    settings: tuple[str, ...]
    commit: str
    hardware: str
    results: Sequence[Mapping[str, Any]]

    @property
    def key(self) -> tuple[str, tuple[str, ...]]:
        """The command without its seed."""
        return self.task, self.settings

    @property
    def command(self) -> str:
        """The command that each result has, with the word SEED for the seed if there are several."""
        commands = [result["command"] for result in self.results]
        if len(commands) == 1:
            return commands[0]
        return " ".join([*(part for part in commands[-1].split(" ") if not part.startswith("seed=")), "seed=SEED"])

    @property
    def seeds(self) -> list[int]:
        """The seeds, in ascending order."""
        return sorted(result["seed"] for result in self.results)

    @property
    def date(self) -> str:
        """The day on which the last of the runs was started, in UTC."""
        return max(result["processes"][-1]["started"] for result in self.results)[:10]

    @property
    def started(self) -> str:
        """When the first of the runs was started."""
        return min(result["processes"][0]["started"] for result in self.results)

    @property
    def cpu_seconds(self) -> list[float]:
        """The CPU seconds of each run."""
        return [result["cpu_seconds"] for result in self.results]

    def values(self, when: str, metric: str) -> list[float]:
        """The `metric` of each run, `when` it is "before" or "after" training."""
        return [result[when][metric] for result in self.results if metric in result[when]]


def group_results(results: Iterable[Mapping[str, Any]]) -> list[Group]:
    """`results` by task, settings, commit and computer; oldest first."""
    groups = groupby(sorted(results, key=_key), key=_key)
    return sorted((Group(*key, [*members]) for key, members in groups), key=lambda group: group.started)


def _key(result: Mapping[str, Any]) -> tuple[str, tuple[str, ...], str, str]:
    last = result["processes"][-1]
    settings = tuple(setting for setting in result["settings"] if not setting.startswith("seed="))
    machine = last["machine"]
    hardware = machine.get("device") or f"{machine['processor']}, {machine['cores']} cores"
    return result["task"], settings, last["commit"] or "", hardware


def read_published(path: Path = PUBLISHED) -> list[dict[str, Any]]:
    """The published numbers, with their sources."""
    return tomllib.loads(path.read_text(encoding="utf-8"))["number"]


def page(results: Sequence[Mapping[str, Any]], published: Sequence[Mapping[str, Any]]) -> str:
    """The page, in Markdown."""
    groups = group_results(results)
    newest = list({group.key: group for group in groups}.values())
    rows = [_row(group, _published_for(group, published)) for group in sorted(newest, key=lambda group: group.key)]
    titles = ["task", "model", "ours", "theirs", "seeds", "CPU s", "hardware", "command", "commit", "date"]
    speed = [_speed_row(group) for group in groups if not group.settings]
    done = [_published_for(group, published) for group in newest]
    return "\n".join(
        [
            _INTRODUCTION,
            _table(titles, rows),
            _SPEED + _table(["task", "commit", "date", "seeds", "CPU s", "after"], speed),
            _OPEN + open_numbers([number for number in published if number not in done]),
        ]
    )


def open_numbers(published: Iterable[Mapping[str, Any]]) -> str:
    """A table of `published` numbers: what was measured, and what counts as reproduced."""
    titles = ["configuration", "model", "task", "algorithm", "published", "accept", "their hardware"]
    rows = [
        [
            f"`{number['task']}`",
            number["model"],
            number["data"],
            number["algorithm"],
            _theirs(number),
            f"{number['accept']:.3f}",
            number["hardware"],
        ]
        for number in published
    ]
    return _table(titles, rows)


def _published_for(group: Group, published: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The published number for the task of `group`, whose settings the group has; empty if there is none."""
    numbers = (number for number in published if number["task"] == group.task)
    return next((number for number in numbers if {*number.get("settings", ())} <= {*group.settings}), {})


def _row(group: Group, published: Mapping[str, Any]) -> list[str]:
    metric = published.get("metric", _METRIC)
    before, after = group.values("before", metric), group.values("after", metric)
    first = group.results[0]
    return [
        f"`{group.task}`",
        first["model"],
        " → ".join(_mean(values, 3) for values in (before, after) if values),
        _theirs(published) if published else "",
        _seeds(group.seeds),
        _mean(group.cpu_seconds, 0),
        group.hardware,
        f"`{group.command}`",
        _commit(group.commit),
        group.date,
    ]


def _speed_row(group: Group) -> list[str]:
    after = _mean(group.values("after", _METRIC), 3)
    cells = [_commit(group.commit), group.date, _seeds(group.seeds), _mean(group.cpu_seconds, 0), after]
    return [f"`{group.task}`", *cells]


def _theirs(number: Mapping[str, Any]) -> str:
    values = [f"{number[name]:.3f}" for name in ("before", "after") if name in number]
    sign = "≥ " if number.get("is_threshold") else ""
    return f"{' → '.join([*values[:-1], sign + values[-1]])} ([{number['library']}]({number['source']}))"


def _mean(values: Sequence[float], digits: int) -> str:
    if not values:
        return ""
    mean = f"{fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _seeds(seeds: Sequence[int]) -> str:
    if len(seeds) > 2 and seeds == [*range(seeds[0], seeds[-1] + 1)]:
        return f"{len(seeds)}: {seeds[0]} to {seeds[-1]}"
    return f"{len(seeds)}: {', '.join(map(str, seeds))}"


def _commit(commit: str) -> str:
    short, _, dirty = commit.partition("-")
    return f"`{short[:10]}`{' *' if dirty else ''}" if commit else "unknown"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
