"""The page "Is my GRPO your GRPO?": the presets, and how each differs from our algorithm of the same kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from docs.generate.markdown import table
from purerl.config.presets import Preset, presets
from purerl.explain.algorithm import algorithm_named
from purerl.explain.comparison import compare, effect_texts, example_completions

__all__ = ["pages"]

_INTRODUCTION = """# Is my GRPO your GRPO?

Libraries compute different things under the same name. A *preset* is what another library computes with its default
settings, as one of our algorithms with [modifiers](../../how-to/modifiers.md):

```sh
purerl train addition --set algorithm.kind=grpo@trl          # another library's GRPO
purerl algo show grpo@trl                                    # what it consists of
purerl algo diff grpo@trl grpo@verl                          # how two of them differ
purerl algo diff grpo grpo@verl --run runs/addition          # the same on the rollouts of a run
```

Any setting of a preset can be changed: `--set algorithm.kind=grpo@verl --set algorithm.clip_high=0.28`. A
[modifier](../../how-to/modifiers.md) that is added beside the name of a preset has the library's defaults: in
`grpo@trl`, `--set algorithm.kl_loss=0.04` has the estimator importance_k3, as TRL's `beta`, and in `sapo@verl` a
token mean.

*executed* means that advantages, loss and gradient are compared with the library's own code, by `nox -s oracle`: in
float64, float32 and bfloat16, on random batches with tool outputs, with rows without a counted token, with log-ratios
of tens of nats, with the counts of the library's trainer on ranks and micro-batches, and with a KL penalty, an entropy
bonus, other reductions, importance weights and rejection. They are equal to rounding, apart from the differences in
the tables. The advantages of TRL are computed inside of its sampling; there the test repeats TRL's formula, and runs
its loss. *read* means that the preset was written from the library's code and was not compared with it: a test repeats
the formula.

`nox -s oracle` also compares returns, GAE, V-trace, the clipped surrogate, the policy gradient and the entropy with
rlax, which has functions instead of algorithms, and therefore no presets."""

_EFFECTS = """What each difference changes alone, and all of them together, on one generated batch: 16 prompts with 8
completions of 8 to 64 tokens, rewards 0 or 1, and a policy whose log-ratios have a standard deviation of 0.1 nats.
*advantages* is the change of the advantages, relative to their size. *gradient norm* is a factor. *cosine* is that of
the gradients before and after."""


def pages() -> Iterator[tuple[str, str]]:
    """(name, Markdown) of the page."""
    found = list(presets().values())
    sections = [_INTRODUCTION, _overview(found), _modifiers(found), "## Differences, one by one", _EFFECTS]
    sections += [section for preset in found for section in _section(preset)]
    yield "index", "\n\n".join(sections) + "\n"


def _overview(found: list[Preset]) -> str:
    head = ["preset", "what it is", "library", "checked", "what differs nevertheless"]
    rows = (
        [f"`{p.name}`", p.summary, f"{p.library} {p.version}", p.checked, "<br>".join(p.differences)] for p in found
    )
    return f"## Presets\n\n{table(head, rows)}"


def _modifiers(found: list[Preset]) -> str:
    """Differences from each library with a modifier, and the defaults that modifiers have beside a preset."""
    texts = {(p.library, kind): texts for p in found for kind, texts in p.modifiers.items()}
    rows = [[library, f"`{kind}`", "<br>".join(texts[library, kind])] for library, kind in texts]
    differences = table(["library", "modifier", "what differs nevertheless"], rows)
    values: dict[tuple[str, str], list[str]] = {}
    for preset in found:
        for kind, settings in preset.defaults.items():
            values.setdefault((f"`{kind}`", _settings(settings)), []).append(f"`{preset.name}`")
    defaults = table(
        ["modifier", "its settings, if they are not set", "presets"], [[*key, ", ".join(values[key])] for key in values]
    )
    return f"## Presets with modifiers\n\n{differences}\n\n{defaults}"


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name} = {value}`" for name, value in settings.items())


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
