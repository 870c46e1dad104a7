"""Checks of the installation: the computer, the packages, the engines, and small computations."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import PackageNotFoundError, version
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import attrs
from attrs import evolve, frozen

from purerl.plugins import find, names

if TYPE_CHECKING:
    from purerl.protocols import Capabilities

__all__ = ["EXTRAS", "REQUIRED", "Finding", "check_installation"]

REQUIRED = {
    "attrs": "settings",
    "cattrs": "reading and writing settings",
    "httpx": "connections to the hub",
    "huggingface-hub": "uploading models",
    "jinja2": "chat templates",
    "numpy": "arrays between libraries",
    "pebble": "worker processes of reward functions",
    "pyarrow": "data and rollouts as Parquet",
    "rich": "the console",
    "safetensors": "weights on disk",
    "tensordict": "batches",
    "tokenizers": "tokenizers",
    "tomli-w": "configurations as TOML",
    "torch": "tensors, gradients, devices",
    "transformers": "models",
    "typer": "the command line",
}
"""Required package -> what purerl uses it for."""
EXTRAS = {
    "docs": ("sphinx", "builds the documentation"),
    "math": ("math-verify", "scores answers that are formulas"),
    "mlflow": ("mlflow-skinny", "logs runs to an MLflow server; pip install mlflow for a local database"),
    "swanlab": ("swanlab", "logs runs to SwanLab"),
    "tensorboard": ("tensorboard", "logs runs to TensorBoard"),
    "testing": ("hypothesis", "laws of algorithms, conformance tests of engines"),
    "trackio": ("trackio", "logs runs to Trackio"),
    "wandb": ("wandb", "logs runs to Weights & Biases"),
}
"""Extra -> its package, and what purerl uses it for."""


@frozen
class Finding:
    """The result of one check.

    state  "good"; "missing", for an optional package; or "bad"
    do     how to fix it; empty if there is nothing to fix
    """

    section: str
    name: str
    state: Literal["good", "missing", "bad"]
    text: str
    do: str = ""


def check_installation() -> Iterator[Finding]:
    """Check packages, engines and devices, and then run small computations. It takes a few seconds."""
    yield Finding("machine", "python", "good", f"{platform.python_version()}, {sys.executable}")
    yield Finding("machine", "system", "good", f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores")
    yield _disk()
    yield _required("purerl", "this package")
    yield from (_required(name, purpose) for name, purpose in REQUIRED.items())
    yield from (_extra(extra, *package) for extra, package in EXTRAS.items())
    yield from (_engine(group, kind) for group in ("trainer", "generator") for kind in names(group))
    yield _timed("devices", "torch", _devices)
    yield _timed("tests", "matrix product", lambda: _product("float32"))
    yield _timed("tests", "bfloat16", lambda: _product("bfloat16"))
    yield _timed("tests", "a run", _run)


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    text, do = f"{free:.0f} GB free in this directory", "runs store rollouts and checkpoints: free space"
    return Finding("machine", "disk", "good", text) if free >= 1 else Finding("machine", "disk", "bad", text, do)


def _required(name: str, purpose: str) -> Finding:
    installed = _version(name)
    if installed is None:
        return Finding("packages", name, "bad", purpose, f"pip install {name}")
    return Finding("packages", name, "good", f"{installed}: {purpose}")


def _extra(extra: str, name: str, purpose: str) -> Finding:
    installed = _version(name)
    if installed is None:
        return Finding("extras", name, "missing", purpose, f"pip install 'purerl[{extra}]'")
    return Finding("extras", name, "good", f"{installed}: {purpose}")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


# --- engines -----------------------------------------------------------------------------------------------------


def _engine(group: str, kind: str) -> Finding:
    """What the engine `kind` can do with any model. No model is loaded."""
    try:
        capabilities = getattr(find(group, kind), "capabilities", None)
        text = _describe(capabilities()) if capabilities else "its capabilities are known when it loads a model"
    except Exception as error:  # noqa: BLE001 - a plugin may raise anything
        return _failure("engines", f"{group} {kind}", error)
    return Finding("engines", f"{group} {kind}", "good", text)


def _describe(capabilities: Capabilities) -> str:
    """`capabilities` in words.

    >>> from purerl.protocols import Capabilities
    >>> _describe(Capabilities(outputs=frozenset({"logp", "entropy"})))
    'outputs: entropy, logp'
    >>> _describe(Capabilities(max_sequence_length=512, seeded=True, in_process=True))
    'max_sequence_length: 512; seeded, in_process'
    """
    values = attrs.asdict(capabilities)
    outputs, length = ", ".join(sorted(capabilities.outputs)), capabilities.max_sequence_length
    parts = [
        f"max_sequence_length: {length:,}" if length is not None else "",
        f"outputs: {outputs}" if outputs else "",
        ", ".join(name for name, value in values.items() if value is True),
    ]
    return "; ".join(filter(None, parts)) or "no optional capability"


# --- computations ------------------------------------------------------------------------------------------------


def _timed(section: str, name: str, check: Callable[[], str]) -> Finding:
    """The result of `check` and how long it took, or the exception that it raised."""
    start = time.perf_counter()
    try:
        text = check()
    except Exception as error:  # noqa: BLE001 - any exception is a finding
        return _failure(section, name, error)
    return Finding(section, name, "good", f"{text}, {time.perf_counter() - start:.1f} s")


def _failure(section: str, name: str, error: Exception) -> Finding:
    return Finding(
        section, name, "bad", f"{type(error).__name__}: {error}", "fix or reinstall the package that it names"
    )


def _devices() -> str:
    import torch

    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        return f"cpu, threads: {torch.get_num_threads()}"
    count = torch.accelerator.device_count()
    kinds = {torch.cuda.get_device_name(k) for k in range(count)} if accelerator.type == "cuda" else {accelerator.type}
    return f"{count} x {', '.join(sorted(kinds))}; cpu, threads: {torch.get_num_threads()}"


_SIZE = 256


def _product(dtype: str) -> str:
    """Compare a matrix product, on the device that runs use by default, with the same product in float64.

    If products are accumulated in float32, the rounding error is bounded by

        |result - exact| <= (4 eps(dtype) + n eps(float32)) |a| |b|        (Frobenius norms, n x n matrices)

    because each input and the result are rounded once to `dtype`, and each sum of n products n times to float32.
    """
    import torch

    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    a = torch.linspace(-1, 1, _SIZE * _SIZE, dtype=torch.float64).reshape(_SIZE, _SIZE).sin()
    low_precision = getattr(torch, dtype)
    result = (a.to(device, low_precision) @ a.to(device, low_precision)).cpu().double()
    error = ((result - a @ a).norm() / a.norm().square()).item()
    bound = 4 * torch.finfo(low_precision).eps + _SIZE * torch.finfo(torch.float32).eps
    if not error <= bound:
        raise ArithmeticError(f"a {dtype} matrix product on {device} has relative error {error:.1e}, above {bound:.1e}")
    return f"on {device}, relative error {error:.0e}"


def _run() -> str:
    """One step of a complete run in a temporary directory, from preparing the data to saving the model."""
    from purerl.algos import grpo
    from purerl.loop.train import train
    from purerl.recipes.addition import addition

    config = addition(max_steps=1)
    small = evolve(
        config,
        initial_run=None,
        model=evolve(config.model, path="{run}/prepared/model"),
        batch_size=4,
        num_minibatches=1,
        rollout=evolve(config.rollout, samples_per_prompt=4),
        evaluate=evolve(config.evaluate, max_examples=4),
        algorithm=grpo.Config(),
    )
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        summary = train(small, directory=Path(folder) / "run")
    return f"{summary.steps} step: sampled, scored, trained, evaluated, saved"
