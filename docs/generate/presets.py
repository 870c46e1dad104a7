"""The page "Is my GRPO your GRPO?": the presets, and how each differs from our algorithm of the same kind."""

from __future__ import annotations

from collections.abc import Iterator

from docs.generate.markdown import table
from purerl.anatomy import algorithm_named
from purerl.comparison import compare, effect_texts, example_completions
from purerl.presets import Preset, presets

__all__ = ["pages"]

_INTRODUCTION = """# Is my GRPO your GRPO?

Libraries compute different things under the same name. A *preset* is what another library computes with its default
settings, as one of our algorithms with [modifiers](../modifiers.md):

```sh
purerl train addition --set algorithm.kind=grpo@trl          # another library's GRPO
purerl algo show grpo@trl                                    # what it consists of
purerl algo diff grpo@trl grpo@verl                          # how two of them differ
purerl algo diff grpo grpo@verl --run runs/addition          # the same on the rollouts of a run
```

Any setting of a preset can be changed: `--set algorithm.kind=grpo@verl --set algorithm.clip_high=0.28`.

*executed* means that advantages, loss and gradient are compared with the library's own code, in float64 on random
batches, by `nox -s oracle`. They are equal to rounding, apart from the differences in the table. The advantages of TRL
are computed inside of its sampling; there the test repeats TRL's formula, and runs its loss. *read* means that the
preset was written from the library's code and was not compared with it: a test repeats the formula.

`nox -s oracle` also compares returns, GAE, V-trace, the clipped surrogate, the policy gradient and the entropy with
rlax, which has functions instead of algorithms, and therefore no presets."""

_EFFECTS = """What each difference changes alone, and all of them together, on one generated batch: 16 prompts with 8
completions of 8 to 64 tokens, rewards 0 or 1, and a policy whose log-ratios have a standard deviation of 0.1 nats.
*advantages* is the change of the advantages, relative to their size. *gradient norm* is a factor. *cosine* is that of
the gradients before and after."""


def pages() -> Iterator[tuple[str, str]]:
    """(name, Markdown) of the page."""
    found = list(presets().values())
    sections = [_INTRODUCTION, _overview(found), "## Differences, one by one", _EFFECTS]
    sections += [section for preset in found for section in _section(preset)]
    yield "index", "\n\n".join(sections) + "\n"


def _overview(found: list[Preset]) -> str:
    head = ["preset", "what it is", "library", "checked", "what differs nevertheless"]
    rows = (
        [f"`{p.name}`", p.summary, f"{p.library} {p.version}", p.checked, "<br>".join(p.differences)] for p in found
    )
    return f"## Presets\n\n{table(head, rows)}"


def _section(preset: Preset) -> Iterator[str]:
    """How a preset differs from our algorithm."""
    kind = preset.algorithm["kind"]
    ours, theirs = algorithm_named(kind), algorithm_named(preset.name)
    differences, total = compare(ours, theirs, example_completions(ours, theirs))
    yield f"### {preset.name}"
    if not differences:
        yield f"The same as `{kind}` with its default settings."
        return
    head = ["part", f"`{kind}`", f"`{preset.name}`", "advantages", "loss", "gradient norm", "cosine"]
    rows = [[d.part, f"`{d.first}`", f"`{d.second}`", *effect_texts(d.effect)] for d in differences]
    yield table(head, [*rows, ["all of them", "", "", *effect_texts(total)]])
