"""The index of algorithms: tables that compare them, one for each family."""

from __future__ import annotations

from docs.generate.curves import curves, thumbnail
from docs.generate.markdown import linked, table
from purerl.catalog import Entry
from purerl.plugins import find

__all__ = ["index"]


def index(entries: list[Entry]) -> str:
    """A table for each family of algorithms, and the list of their pages for the sidebar."""
    families = {family: [entry for entry in entries if _family_of(entry) == family] for family in _FAMILIES}
    tables = [f"## {name}\n\n{_FAMILIES[name]}\n\n{_table(members)}" for name, members in families.items() if members]
    pages = [f"{entry.name} <{entry.name}>" for entry in entries]
    toctree = "\n".join(["```{toctree}", ":hidden:", "", *pages, "```"])
    title = "---\nhide-toc: true\n---\n\n# Algorithms"
    return "\n\n".join([title, _INTRODUCTION.format(count=len(entries)), *tables, toctree]) + "\n"


_INTRODUCTION = """\
purerl has {count} algorithms, each in its own file in `purerl/algos/`. An algorithm is a composition of functions that
other algorithms use too. The tables list these functions. [Modifiers](../modifiers.md) change parts of any algorithm.

The curves show the gradient of the loss with respect to the log-probability of a token, as a function of the
importance ratio, for advantages of 1 and -1. An algorithm has no curve if this gradient depends on anything else, or if
it does not change with the ratio."""


_FAMILIES = {
    "From a teacher": "The policy is trained to match the log-probabilities of another model.",
    "From data": "These algorithms learn from demonstrations or preference pairs. They use no reward.",
    "With a critic": "A second model estimates the remaining reward at each token.",
    "Policy gradients": "No ratio and no clipping: rows are sampled from the current policy. The baselines differ.",
    "Clipped surrogates": "The loss of PPO, for tokens or for whole rows, with different advantages.",
    "Weighted policy gradients": "A detached weight replaces the clipped ratio of PPO.",
    "Other losses": "Smooth gates, geometric means and regressions.",
}


def _family_of(entry: Entry) -> str:
    """The first family that matches, by what the algorithm learns from and then by the loss of its policy."""
    matches = {
        "From a teacher": "a teacher" in entry.needs,
        "From data": not entry.advantage,
        "With a critic": "a critic" in entry.needs,
        "Policy gradients": set(entry.loss) == {"policy_gradient"},
        "Clipped surrogates": "clip_surrogate" in entry.loss,
        "Weighted policy gradients": "weighted_policy_gradient" in entry.loss,
        "Other losses": True,
    }
    return next(family for family, is_match in matches.items() if is_match)


def _table(entries: list[Entry]) -> str:
    return table(["algorithm", "gradient", "advantage", "loss", "reduction", "needs"], map(_row, entries))


def _row(entry: Entry) -> list[str]:
    module = find("algorithm", entry.name)
    drawn = curves(module.algorithm(module.Config()), module.Config())
    lists = (entry.advantage, entry.loss, entry.reduce)
    return [
        "<br>".join([f"[{entry.name}]({entry.name}.md)", *map(linked, entry.papers)]),
        thumbnail(drawn) if drawn else "",
        *("<br>".join(f"`{name}`" for name in names) for names in lists),
        "<br>".join(entry.needs),
    ]
