"""`purerl plan`: the memory that a run needs, by component and phase, what lowers it, and how fast it could be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from purerl.system.garbage import without_collections
from purerl_cli.arguments import all_settings
from purerl_cli.completion import recipe_names, setting_keys
from purerl_cli.output import print_notes, with_debug

if TYPE_CHECKING:
    from purerl.config.schema import RunConfig
    from purerl.planning import MemoryPlan
    from purerl.planning.speed import Speed
    from purerl.planning.suggest import Suggestion

__all__ = ["Assignments", "Recipe", "Settings", "plan"]


Recipe = Annotated[
    str,
    typer.Argument(
        help="Name of a recipe, module:function, file.py:function or file.toml.", autocompletion=recipe_names
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Settings, as with --set.",
        show_default=False,
        autocompletion=setting_keys,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting, or pass an argument to the recipe; repeatable.",
        autocompletion=setting_keys,
    ),
]


Memory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Memory of the accelerator of each rank, such as 80GiB.", show_default=False),
]
RankCount = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Number of ranks.", show_default="placement.ranks")
]
PromptTokens = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Tokens of the longest prompt.", show_default="data.max_prompt_tokens"),
]
CompletionTokens = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Tokens of the longest answer, of a run that learns from data."),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Accelerator of each rank, such as H100, for tokens per second.", show_default=False
    ),
]
Utilization = Annotated[
    float | None,
    typer.Option(metavar="FRACTION", help="Of the peak FLOP/s of --device, in training.", show_default="0.4"),
]
Bandwidth = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Bytes per second of the link of each rank, such as 50GB.", show_default=False),
]
Suggest = Annotated[bool, typer.Option("--suggest", help="Also show what lowers the memory if the run fits.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@with_debug
@without_collections()
def plan(
    recipe: Recipe,
    assignments: Assignments = None,
    settings: Settings = None,
    memory: Memory = None,
    ranks: RankCount = None,
    prompt_tokens: PromptTokens = None,
    completion_tokens: CompletionTokens = None,
    device: Device = None,
    utilization: Utilization = None,
    bandwidth: Bandwidth = None,
    suggestions: Suggest = False,
    as_json: AsJson = False,
) -> None:
    """Plan the memory of a run from its configuration, without loading a model.

    Of a model only config.json is read. Its engines need not be installed. Exits with status 1 if the run does not fit,
    by the plan, or if an engine refuses the model.
    """
    from purerl.config.check import check_ranks, check_settings
    from purerl.planning import plan_memory
    from purerl.planning.speed import plan_speed
    from purerl.planning.suggest import suggest
    from purerl.planning.workload import Lengths
    from purerl.recipes import settle
    from purerl.system.memory_use import parse_bytes

    def check(config: RunConfig) -> None:
        check_ranks(config.placement, check_settings(config), ranks)

    config, notes = settle(recipe, all_settings(settings, assignments), check)
    print_notes(notes)
    options: dict[str, Any] = {
        "ranks": ranks,
        "memory": parse_bytes(memory) if memory else None,
        "lengths": Lengths(prompt=prompt_tokens, completion=completion_tokens),
    }
    link = parse_bytes(bandwidth) if bandwidth else None
    speed = plan_speed(
        config,
        ranks=ranks,
        lengths=options["lengths"],
        device=device,
        utilization=utilization,
        bandwidth=link,
    )
    planned = plan_memory(config, **options)
    found = suggest(config, **options) if suggestions or not planned.fits else []
    if as_json:
        typer.echo(json.dumps(_as_json(planned, found, speed), indent=2))
    else:
        _show(planned, found, speed)
    if not planned.fits or planned.refused:
        raise typer.Exit(1)


def _as_json(planned: MemoryPlan, found: list[Suggestion], speed: Speed) -> dict[str, Any]:
    """Sizes are in bytes, times in seconds."""
    return {
        "ranks": planned.ranks,
        "peak": planned.peak,
        "peak_phase": planned.peak_phase,
        "phases": planned.phases,
        "components": planned.device,
        "main_memory": planned.host,
        "memory": planned.capacity.size,
        "memory_source": planned.capacity.source,
        "fits": planned.fits,
        "assumed": planned.assumed,
        "refused": planned.refused,
        "remarks": planned.remarks,
        "speed": speed.numbers,
        "suggestions": [
            {"set": each.settings, "peak": each.plan.peak, "fits": each.plan.fits, "note": each.note} for each in found
        ],
    }


def _show(planned: MemoryPlan, found: list[Suggestion], speed: Speed) -> None:
    from purerl.planning.plan import describe
    from purerl.system.memory_use import format_bytes
    from purerl_cli.tables import show

    phases = planned.phases
    rows = [[name, *(format_bytes(sizes.get(phase, 0)) for phase in phases)] for name, sizes in planned.device.items()]
    rows.append(["total on each rank", *map(format_bytes, phases.values())])
    show("component", *phases, rows=rows, wrap=False)
    if planned.host:
        rows = [[name, *(format_bytes(part.get(phase, 0)) for phase in phases)] for name, part in planned.host.items()]
        show("in main memory", *phases, rows=rows, wrap=False)
    typer.echo(describe(planned))
    for text in (*planned.remarks, *speed.lines):
        typer.echo(text)
    for text in planned.assumed:
        typer.echo(f"assumed: {text}")
    for text in planned.refused:
        typer.echo(f"refused: {text}")
    if found:
        rows = (
            (" ".join(f"--set {s}" for s in each.settings), format_bytes(each.plan.peak), _fits(each.plan), each.note)
            for each in found
        )
        show("change", "peak", "fits", "effect", rows=rows, wrap=False)


def _fits(planned: MemoryPlan) -> str:
    return "fits" if planned.fits else "does not fit"
