"""Guards against unintended changes: values of the whole library that are compared with `recorded.json`.

    python -m tests.guards [NAME ...]    record the values again: all of them, or those that are named

metrics      the metrics of a short run of the default recipe, and the digest of the trained weights, bit for bit
recipes      the configuration of each recipe as TOML, and its digest, which decides whether a run can be resumed
algorithms   the fingerprint of each algorithm, which rollouts store
modifiers    the fingerprint of all algorithms that each modifier has changed
imports      circles of imports and imports of higher layers, which may only become fewer

A commit that changes one of the first four on purpose records it again and says so.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from attrs import evolve

from purerl import plugins
from purerl.algos.algebra import Algorithm, fingerprint
from purerl.composition import with_modifiers
from purerl.config.schema import RunConfig
from purerl.config.structure import digest, dumps
from purerl.errors import ConfigError
from purerl.loop.train import train
from purerl.recipes import names, required_settings, resolve
from purerl.recipes.addition import addition
from purerl.store.lines import read_lines
from purerl.store.settings import Checkpoint

__all__ = ["RECORDED", "algorithms", "default_metrics", "machine", "modifiers", "recipes", "recorded"]

RECORDED = Path(__file__).with_name("recorded.json")


def recorded() -> dict[str, Any]:
    """The recorded values, by the name of the guard."""
    return json.loads(RECORDED.read_text(encoding="utf-8"))


def machine() -> str:
    """The kind of machine and the libraries on which the bits of a result depend."""
    try:
        information = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        information = ""
    vendor = (re.findall(r"^vendor_id\s*: (\w+)", information, re.MULTILINE) or [platform.processor()])[0]
    instructions = torch.backends.cpu.get_cpu_capability()
    libraries = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{platform.machine()} {vendor} {instructions}, {libraries}"


def default_metrics() -> dict[str, Any]:
    """The metrics of each step of a short default run, without times, and the digests of the weights."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            train(_short_default_run(), directory=folder)
            return {phase: _results(Path(folder) / phase) for phase in ("initial_run", ".")}
    finally:
        torch.set_num_threads(before)


def _short_default_run() -> RunConfig:
    """The default recipe with few and small steps. Rewards for single digits give its first steps advantages."""
    config = addition(max_steps=3)
    initial = evolve(
        config.initial_run,
        max_steps=4,
        batch_size=32,
        stop_when=None,
        evaluate=evolve(config.initial_run.evaluate, every=4, max_examples=32),
    )
    return evolve(
        config,
        initial_run=initial,
        batch_size=16,
        rewards=(*config.rewards, "tests.loop.rewards:digits"),
        trainer=evolve(config.trainer, warmup_ratio=None, warmup_steps=2),
        evaluate=evolve(config.evaluate, every=2, max_examples=32),
        checkpoint=Checkpoint(every=2),
    )


def _results(directory: Path) -> dict[str, Any]:
    steps = [
        {name: value for name, value in record.items() if not name.startswith("time/")}
        for record in read_lines(directory / "metrics.jsonl")
    ]
    weights = hashlib.sha256((directory / "final" / "model.safetensors").read_bytes()).hexdigest()
    return {"steps": steps, "weights": weights}


def recipes() -> dict[str, dict[str, Any]]:
    """The digest and the lines of the configuration of each recipe; required arguments are their names in capitals."""
    configs = {name: resolve(name, required_settings(name)) for name in names()}
    return {name: {"digest": digest(config), "toml": dumps(config).splitlines()} for name, config in configs.items()}


def algorithms() -> dict[str, str]:
    """The fingerprint of each algorithm with its default settings."""
    return {name: fingerprint(algorithm) for name, algorithm in _algorithms().items()}


def modifiers() -> dict[str, str]:
    """The fingerprint of all algorithms that each modifier has changed, with default settings, and of its refusals."""
    unchanged = _algorithms()
    configs = {name: plugins.find("modifier", name).Config() for name in plugins.names("modifier")}
    return {
        name: fingerprint(tuple((base, _changed(algorithm, config)) for base, algorithm in unchanged.items()))
        for name, config in configs.items()
    }


def _algorithms() -> dict[str, Algorithm]:
    modules = {name: plugins.find("algorithm", name) for name in sorted(plugins.names("algorithm"))}
    return {name: module.algorithm(module.Config()) for name, module in modules.items()}


def _changed(algorithm: Algorithm, config: Any) -> Algorithm | str:
    try:
        return with_modifiers(algorithm, config)
    except ConfigError as error:
        return str(error)
