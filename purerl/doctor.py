"""What this machine has, and what of purerl works on it: tried, not guessed."""

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
from typing import Literal

from attrs import frozen

__all__ = ["EXTRAS", "REQUIRED", "Finding", "examine"]

REQUIRED = {
    "attrs": "settings",
    "cattrs": "settings, read and written",
    "jinja2": "chat templates",
    "numpy": "random states, arrays between libraries",
    "pebble": "reward functions in processes of their own",
    "pyarrow": "data and rollouts, as Parquet",
    "rich": "the console",
    "safetensors": "weights on disk",
    "tensordict": "batches",
    "tokenizers": "tokenizers",
    "tomli-w": "configurations as files",
    "torch": "tensors, gradients, devices",
    "transformers": "models",
    "typer": "the command line",
}
"""What purerl cannot do without, and what for."""
EXTRAS = {
    "docs": ("sphinx", "builds the documentation"),
    "math": ("math-verify", "judges answers that are formulas"),
    "mlflow": ("mlflow-skinny", "tells runs to an MLflow server; pip install mlflow for a database"),
    "swanlab": ("swanlab", "tells runs to SwanLab"),
    "tensorboard": ("tensorboard", "tells runs to TensorBoard"),
    "testing": ("hypothesis", "the laws of algorithms, the suites of engines"),
    "trackio": ("trackio", "tells runs to Trackio"),
    "wandb": ("wandb", "tells runs to Weights & Biases"),
}
"""Extra -> its package, and what for."""


@frozen
class Finding:
    """One thing that was looked at: `state` is "good", "missing" (and not needed), or "bad"; `do` mends it."""

    section: str
    name: str
    state: Literal["good", "missing", "bad"]
    text: str
    do: str = ""


def examine() -> Iterator[Finding]:
    """Look at packages, then devices, then try things out, a few seconds in all."""
    yield Finding("machine", "python", "good", f"{platform.python_version()}, {sys.executable}")
    yield Finding("machine", "system", "good", f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores")
    yield _disk()
    yield _required("purerl", "this")
    yield from (_required(name, purpose) for name, purpose in REQUIRED.items())
    yield from (_extra(extra, *package) for extra, package in EXTRAS.items())
    yield _try("devices", "torch", _devices)
    yield _try("tried", "matrix product", lambda: _product("float32"))
    yield _try("tried", "bfloat16", lambda: _product("bfloat16"))
    yield _try("tried", "a run", _run)


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    text, do = f"{free:.0f} GB free here", "runs keep rollouts and checkpoints: make room, or use --directory"
    return Finding("machine", "disk", "good", text) if free >= 1 else Finding("machine", "disk", "bad", text, do)


def _required(name: str, purpose: str) -> Finding:
    found = _version(name)
    if found is None:
        return Finding("packages", name, "bad", purpose, f"pip install {name}")
    return Finding("packages", name, "good", f"{found}: {purpose}")


def _extra(extra: str, name: str, purpose: str) -> Finding:
    found = _version(name)
    if found is None:
        return Finding("extras", name, "missing", purpose, f"pip install 'purerl[{extra}]'")
    return Finding("extras", name, "good", f"{found}: {purpose}")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


# --- what is tried -----------------------------------------------------------------------------------------------


def _try(section: str, name: str, act: Callable[[], str]) -> Finding:
    """What `act` says, and how long it took; or that it failed."""
    begin = time.perf_counter()
    try:
        text = act()
    except Exception as error:  # noqa: BLE001 - this is what is to be found out
        return Finding(section, name, "bad", f"{type(error).__name__}: {error}", "reinstall what it names")
    return Finding(section, name, "good", f"{text}, {time.perf_counter() - begin:.1f} s")


def _devices() -> str:
    import torch

    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        return f"cpu, threads: {torch.get_num_threads()}"
    count = torch.accelerator.device_count()
    names = {torch.cuda.get_device_name(k) for k in range(count)} if accelerator.type == "cuda" else {accelerator.type}
    return f"{count} x {', '.join(sorted(names))}; cpu, threads: {torch.get_num_threads()}"


_SIZE = 256


def _product(dtype: str) -> str:
    """A matrix product on the device that runs would use, compared with float64.

    With products accumulated in float32, rounding alone gives

        |found - exact| <= (4 eps(dtype) + n eps(float32)) |a| |b|        (Frobenius norms, n x n matrices)

    because each input and the result are rounded once to `dtype`, and each sum of n products n times to float32.
    """
    import torch

    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    a = torch.linspace(-1, 1, _SIZE * _SIZE, dtype=torch.float64).reshape(_SIZE, _SIZE).sin()
    narrow = getattr(torch, dtype)
    found = (a.to(device, narrow) @ a.to(device, narrow)).cpu().double()
    error = ((found - a @ a).norm() / a.norm().square()).item()
    bound = 4 * torch.finfo(narrow).eps + _SIZE * torch.finfo(torch.float32).eps
    if not error <= bound:
        raise ArithmeticError(f"a {dtype} matrix product on {device} has relative error {error:.1e}, above {bound:.1e}")
    return f"on {device}, relative error {error:.0e}"


def _run() -> str:
    """One step of a real run, from its data to its trained model, in a folder that is thrown away."""
    from attrs import evolve

    from purerl.algos import grpo
    from purerl.loop.train import train
    from purerl.recipes.addition import addition

    config = addition()
    small = evolve(
        config,
        initial_run=None,
        model=evolve(config.model, path="{run}/prepared/model"),
        max_steps=1,
        batch_size=4,
        num_minibatches=1,
        rollout=evolve(config.rollout, samples_per_prompt=4),
        trainer=evolve(config.trainer, warmup_steps=0),
        evaluate=evolve(config.evaluate, max_examples=4),
        algorithm=grpo.Config(),
    )
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        summary = train(small, directory=Path(folder) / "run")
    return f"{summary.steps} step: sampled, judged, trained, evaluated, saved"
