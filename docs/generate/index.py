"""The index of algorithms: what each is made of, side by side, by families."""

from __future__ import annotations

from docs.generate.curves import curves, thumbnail
from docs.generate.markdown import linked, table
from purerl.config.catalog import Entry
from purerl.plugins import find

__all__ = ["index"]


def index(entries: list[Entry]) -> str:
    """A table for each family, and the pages of the algorithms."""
    families = {title: [one for one in entries if _family_of(one) == title] for title in _FAMILIES}
    tables = [f"## {title}\n\n{_FAMILIES[title]}\n\n{_table(family)}" for title, family in families.items() if family]
    toctree = "\n".join(["```{toctree}", ":hidden:", "", *(f"{one.name} <{one.name}>" for one in entries), "```"])
    front = "---\nhide-toc: true\n---\n\n# Algorithms"
    return "\n\n".join([front, _ABOUT.format(count=len(entries)), *tables, toctree]) + "\n"


_ABOUT = """\
There are {count}, a file each in `purerl/algos/`, and each is a composition of functions that it shares with others. So
here they stand side by side. The curves are the gradient by the log-probability of a token, against its ratio, for
advantages of 1 and -1: there where it is a function of these two alone."""


_FAMILIES = {
    "From a teacher": "Every token is told what another model thinks of it.",
    "From data": "Demonstrations, or pairs of which one is preferred; nothing is rewarded.",
    "With a critic": "A second model estimates, at each token, the reward that is still to come.",
    "Policy gradients": "Neither ratio nor clip: rows come from the policy as it is. They differ in the baseline.",
    "Clipped surrogates": "PPO's loss, of a token or of a row, with any advantage.",
    "Weighted policy gradients": "A detached weight stands where PPO has its clipped ratio.",
    "Other losses": "Each of a kind of its own: smooth gates, geometric means, regressions.",
}


def _family_of(one: Entry) -> str:
    """By what it learns from, and then by its policy's loss: the first that fits."""
    fits = {
        "From a teacher": "a teacher" in one.needs,
        "From data": not one.advantage,
        "With a critic": "a critic" in one.needs,
        "Policy gradients": set(one.loss) == {"policy_gradient"},
        "Clipped surrogates": "clip_surrogate" in one.loss,
        "Weighted policy gradients": "weighted_policy_gradient" in one.loss,
        "Other losses": True,
    }
    return next(title for title, right in fits.items() if right)


def _table(entries: list[Entry]) -> str:
    return table(["algorithm", "gradient", "advantage", "loss", "reduction", "needs"], map(_row, entries))


def _row(one: Entry) -> list[str]:
    module = find("algorithm", one.name)
    found = curves(module.algorithm(module.Config()), module.Config())
    lists = (one.advantage, one.loss, one.reduce)
    return [
        "<br>".join([f"[{one.name}]({one.name}.md)", *map(linked, one.papers)]),
        thumbnail(found) if found else "",
        *("<br>".join(f"`{name}`" for name in names) for names in lists),
        "<br>".join(one.needs),
    ]
