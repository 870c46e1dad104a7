"""`purerl replay`: what another algorithm or reward would have computed from the recorded rollouts of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from attrs import evolve

from purerl.system.garbage import without_collections
from purerl.system.strict_json import to_json
from purerl_cli.arguments import parse_rewards
from purerl_cli.output import with_debug

if TYPE_CHECKING:
    from purerl.algos.algebra import Algorithm
    from purerl.composition import Composition
    from purerl.replay import Numbers, Recording
    from purerl.replay.scoring import Scorer

__all__ = ["replay"]

_MAX_ROWS = 16
"""Steps in the table, about."""


@with_debug
@without_collections()
def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory; the run may be in progress.")],
    algorithm: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="An algorithm or a preset.", show_default="the run's own"),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Change a setting or a modifier of the algorithm; repeatable."
        ),
    ] = None,
    reward: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=WEIGHT]",
            help="Score the completions again, in place of the run's rewards: module:function or file.py:function; "
            "repeatable.",
        ),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(metavar="STEPS", help="20, 10-20, 10- or -20.", show_default="all"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print every step as JSON. The table has some of them.")
    ] = False,
) -> None:
    """Replay recorded rollouts: the advantages, loss and gradients that another algorithm or reward would have given.

    No model is loaded. Without options the run's own algorithm is replayed, which gives its recorded advantages.
    """
    from purerl.config.requirements import requirements_of
    from purerl.replay import mean_of, measure, notes, open_recording, parse_steps
    from purerl.replay import replay as replayed_steps

    recording = open_recording(run)
    config = evolve(recording.config, algorithm=_changed(recording.config.algorithm, algorithm, settings or ()))
    other, chosen = requirements_of(config).algorithm, parse_steps(steps, recording.steps)
    numbers, missing, recorded_missing = [], {}, {}
    with ExitStack() as stack:
        score = stack.enter_context(_scorer(recording, reward, other)) if reward else None
        for step in replayed_steps(recording, other, score=score, steps=chosen):
            numbers.append(measure(step))
            missing |= dict.fromkeys(step.missing)
            recorded_missing |= dict.fromkeys(step.recorded_missing)
    failures = score.failures.items() if score else ()
    found = notes(recording, other, numbers, missing, recorded_missing)
    found += [f"{count:,} completions have no reward: {name}" for name, count in failures]
    changed = f" with {', '.join(settings)}" if settings else ""
    names = {"recorded": str(recording.config.algorithm), "replayed": f"{config.algorithm}{changed}"}
    if as_json:
        rows, mean = [_without_nan(each._asdict()) for each in numbers], _without_nan(mean_of(numbers))
        typer.echo(to_json({"run": str(run), **names, "notes": found, "mean": mean, "steps": rows}))
        return
    typer.echo(f"{run}: {names['recorded']} -> {names['replayed']}, {len(numbers)} steps")
    _show(numbers, mean_of(numbers), has_rewards=bool(reward))
    for note in found:
        typer.echo(f"note: {note}")


def _changed(composition: Composition, name: str | None, settings: Sequence[str]) -> Composition:
    """`composition`, or the algorithm `name`, if it is given, with `settings` changed."""
    from purerl.explain.algorithm import composition_changed, composition_named

    return composition_changed(composition, settings) if name is None else composition_named(name, settings)


def _scorer(recording: Recording, rewards: Sequence[str], algorithm: Algorithm) -> AbstractContextManager[Scorer]:
    """A scorer of the completions of `recording` with `rewards`, as ``--reward`` gives them."""
    from purerl.config.overrides import apply
    from purerl.replay.scoring import open_scorer

    return open_scorer(recording, apply(recording.config, parse_rewards(rewards, ())).rewards, algorithm)


def _without_nan(values: dict[str, Any]) -> dict[str, Any]:
    """`values` with None for NaN and infinity, which JSON does not have."""
    return {name: None if isinstance(x, float) and not math.isfinite(x) else x for name, x in values.items()}


def _show(numbers: Sequence[Numbers], mean: dict[str, float], *, has_rewards: bool) -> None:
    """Print a table with some of the steps, from the first to the last, and the mean of all."""
    from purerl_cli.tables import show

    stride = math.ceil(len(numbers) / _MAX_ROWS)
    shown = [*numbers[::stride], *([] if (len(numbers) - 1) % stride == 0 else numbers[-1:])]
    rows = [(str(each.step), each._asdict()) for each in shown] + [("mean", mean)]
    head = ("step", "kept", *(["reward"] if has_rewards else []), "signal", "correlation", "opposite sign", "change")
    head = (*head, "loss", "gradient norm", "cosine")
    show(*head, rows=((name, *_cells(values, has_rewards=has_rewards)) for name, values in rows), wrap=False)


def _cells(values: dict[str, Any], *, has_rewards: bool) -> list[str]:
    pairs = {"reward": "{:.3f}", "signal": "{:.1%}", "loss": "{:.4g}"}
    cells = {
        name: " -> ".join(_cell(text, values[key]) for key in (f"recorded_{name}", name))
        for name, text in pairs.items()
    }
    cells["loss"] = "-" if cells["loss"] == "- -> -" else cells["loss"]
    single = {
        "kept": "{:.1%}",
        "correlation": "{:.3f}",
        "opposite_sign": "{:.2%}",
        "relative_change": "{:.1%}",
        "gradient_norm": "x {:.4g}",
        "gradient_cosine": "{:.4f}",
    }
    cells |= {name: _cell(text, values[name]) for name, text in single.items()}
    names = ["kept", *(["reward"] if has_rewards else []), "signal", "correlation", "opposite_sign", "relative_change"]
    return [cells[name] for name in (*names, "loss", "gradient_norm", "gradient_cosine")]


def _cell(text: str, value: float) -> str:
    """`value` in the format `text`; "-" if it is not known."""
    return "-" if math.isnan(value) else text.format(value)
