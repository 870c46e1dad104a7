"""The result of a run: what its directory says, as one JSON object.

    {
      "task": "addition",                                   the name of the configuration
      "seed": 3,
      "command": "purerl train addition seed=3",            a command that gives the configuration of the run
      "settings": ["seed=3"],                               the settings in it
      "model": "Qwen3ForCausalLM, 149,504 parameters",      or the name on the hub
      "digests": {"config": ..., "model": ..., "data": {"train.parquet": ...}},
      "steps": 160, "initial_steps": 240,                   of the run, and of the initial run; null if there is none
      "before": {"eval/accuracy": 0.34}, "after": {...},    all evaluations and validations
      "curve": {"eval/accuracy": [[0, 0.34], [20, 0.41]]},  [step, value] of every evaluation, and of reward/mean
      "cpu_seconds": 58.2, "step_seconds": 40.1,
      "processes": [{"started": ..., "commit": ..., "versions": {...}, "machine": {...}, ...}]
    }

``cpu_seconds`` is the time of the main process on the first rank, from its start to the last step: ``step_seconds``,
the sum of `time/cpu` of all steps, and what was used before the first one, with the initial run. Workers of rewards and
the export of the model are not included. Do each run in a process of its own: what a process did before a run counts
too.

A directory as a model is described by its class and its number of parameters. A path in the command is cut to its name.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from inspect import signature
from itertools import chain, product
from pathlib import Path
from shlex import quote
from typing import Any, Literal, get_args, get_origin, get_type_hints

from purerl.config.schema import RunConfig
from purerl.config.stored import read_config
from purerl.config.structure import digest, to_dict
from purerl.config.tables import differences, flat, write
from purerl.errors import InputError, RunDirectoryError
from purerl.recipes import find, names, required_settings, resolve
from purerl.store.lines import read_lines
from purerl.store.objects import read_facts, read_summary
from purerl.store.processes import read_processes

__all__ = ["FOLDER", "find_recipe", "read_results", "result_of", "store"]

FOLDER = Path(__file__).parents[1] / "results" / "board"
_REWARD = "reward/mean"
_REPRODUCE = Path(__file__).parents[2] / "reproduce"


def result_of(run: Path) -> dict[str, Any]:
    """The result of the finished `run`.

    Raises: RunDirectoryError if it is not finished, if it was done before runs stored their processes, or if no recipe
    and no file in reproduce/ has its configuration.
    """
    summary, processes, config = read_summary(run), read_processes(run), read_config(run)
    if summary is None or not processes:
        got = "a run that is not finished" if summary is None else "no processes.jsonl"
        raise RunDirectoryError(f"{str(run)!r} has no result", got=got, need="a finished run of this version")
    records, facts = read_lines(run / "metrics.jsonl"), read_facts(run)
    initial = read_summary(run / "initial_run") if config.initial_run is not None else None
    started = sum(process["cpu_seconds"] for process in processes)
    steps = sum(record.get("time/cpu", 0.0) for record in records)
    recipe, settings = find_recipe(config)
    shown = [_without_folders(setting) for setting in settings]
    return {
        "task": config.name,
        "seed": config.seed,
        "command": " ".join(["purerl train", recipe, *map(quote, shown)]),
        "settings": shown,
        "model": _model(config, run),
        "digests": {
            "config": digest(config),
            "model": _digest(facts["models"].get("policy", {})),
            "data": {Path(file).name: value for file, value in facts["files"].items()},
        },
        "steps": summary["steps"],
        "initial_steps": initial and initial["steps"],
        "before": summary["before"],
        "after": summary["after"],
        "curve": {name: _curve(records, name) for name in [_REWARD, *summary["after"]]},
        "cpu_seconds": round(started + steps, 1),
        "step_seconds": round(steps, 1),
        "processes": processes,
    }


def store(result: Mapping[str, Any], folder: Path = FOLDER) -> Path:
    """Write `result` into `folder`; a result of the same command and the same commit is replaced."""
    commit = result["processes"][-1]["commit"] or "unknown"
    name = _digest([result["command"], commit])[:12]
    path = folder / f"{result['task'].replace(' ', '_')}-{name}.json"
    folder.mkdir(parents=True, exist_ok=True)
    lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in result.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return path


def read_results(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """All results in `folder`, in the order of the names of their files."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def find_recipe(config: RunConfig) -> tuple[str, list[str]]:
    """The recipe that has the name of `config`, and the settings with which it gives `config`."""
    files = {path.stem: f"reproduce/{path.name}" for path in _REPRODUCE.glob("*.toml")}
    if config.name in files:
        name, source, options = files[config.name], str(_REPRODUCE / f"{config.name}.toml"), [[]]
    elif config.name in names():
        name, source, options = config.name, config.name, [*_arguments(config)]
    else:
        need = "the name of a recipe, or of a file in reproduce/"
        raise RunDirectoryError("no command for the board", got=f"name = {config.name!r}", need=need)
    settings = min(([*each, *_changes(resolve(source, each), config)] for each in options), key=len)
    try:
        found = digest(resolve(source, settings)) == digest(config)
    except InputError:
        found = False
    if not found:
        need = f"a configuration that purerl train {name} and settings give"
        raise RunDirectoryError("no command for the board", got=", ".join(settings), need=need)
    return name, settings


def _arguments(config: RunConfig) -> Iterator[list[str]]:
    """Arguments of the recipe of `config`: those that it needs, and each choice of those that are a Literal."""
    files = config.data.files if config.data else ()
    data = f"data={files[0]}" if len(files) == 1 else f"data.files={write(list(files))}"
    given = {"model": f"model={config.model.path}", "data": data}
    required = [text.partition("=")[0] for text in required_settings(config.name)]
    needed = [given[name] for name in required if name in given]
    function = find(config.name)
    choices = []
    for name, hint in get_type_hints(function).items():
        if get_origin(hint) is Literal:
            default = signature(function).parameters[name].default
            choices.append([[] if option == default else [f"{name}={option}"] for option in get_args(hint)])
    for chosen in product(*choices):
        yield [*needed, *chain(*chosen)]


def _changes(base: RunConfig, config: RunConfig) -> list[str]:
    """The settings that make `config` of `base`.

    Another kind of a section has not the settings of the first one. Another algorithm has no modifiers unless they are
    named.
    """
    changes = {key: value for key, _, value in differences(to_dict(base), to_dict(config))}
    if "algorithm.kind" in changes and (modifiers := flat(to_dict(config)).get("algorithm.modifiers")):
        changes["algorithm.modifiers"] = modifiers
    other = tuple(key.removesuffix("kind") for key in changes if key.endswith(".kind"))
    kept = {key: value for key, value in changes.items() if value is not None or not key.startswith(other)}
    return [f"{key}={write(value)}" for key, value in kept.items()]


def _without_folders(setting: str) -> str:
    """`setting` without the folders of an absolute path: they exist on one computer only."""
    key, _, value = setting.partition("=")
    path = value.strip('"')
    return f"{key}={Path(path).name}" if path.startswith("/") else setting


def _model(config: RunConfig, run: Path) -> str:
    model = config.model if config.initial_run is None else config.initial_run.model
    named = Path(model.path.replace("{run}", str(run)))
    if not named.is_dir() and "{run}" not in model.path:
        return model.path
    folder = named if named.is_dir() else run / "final"
    [architecture] = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"]
    return f"{architecture}, {sum(map(_num_parameters, folder.glob('*.safetensors'))):,} parameters"


def _num_parameters(file: Path) -> int:
    """The number of values in a safetensors file, from its header."""
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        header = json.loads(opened.read(length))
    total = 0
    for name, entry in header.items():
        if name != "__metadata__":
            count = 1
            for size in entry["shape"]:
                count *= size
            total += count
    return total


def _curve(records: Iterable[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    return [(record["step"], record[name]) for record in records if record.get(name) is not None]


def _digest(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
