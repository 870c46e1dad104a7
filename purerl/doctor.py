"""Checks of the installation: the computer, the packages, the engines, and small computations."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib.metadata import PackageNotFoundError, version
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import attrs
from attrs import evolve, frozen

from purerl.backends.plugin import GeneratorPlugin, engine_plugin
from purerl.backends.serving.versions import is_version, version_in
from purerl.errors import ConfigError, SandboxError
from purerl.models.cache import stored
from purerl.plugins import names
from purerl.system.devices.kinds import DEVICE_VARIABLES
from purerl.system.installation import EXTRAS, REQUIRED, install_command
from purerl.system.private_files import private_folder

if TYPE_CHECKING:
    from purerl.protocols import Capabilities

__all__ = ["Finding", "check_installation"]


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


def check_installation(interpreters: Mapping[str, str] | None = None, *, again: bool = False) -> Iterator[Finding]:
    """Check packages, engines and devices, and then do small computations and a run. It takes a few seconds.

    interpreters  kind of a generator -> the Python interpreter of the environment in which its engine is installed
    again         do the run also if it has passed today
    """
    pythons = interpreters or {}
    yield Finding("machine", "python", "good", f"{platform.python_version()}, {sys.executable}")
    yield Finding("machine", "system", "good", f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores")
    yield _disk()
    yield from _threads(os.environ)
    yield _required("purerl", "this package")
    yield from (_required(name, purpose) for name, purpose in REQUIRED.items())
    yield from (_extra(extra, *package) for extra, package in EXTRAS.items())
    yield from (_engine("trainer", kind) for kind in names("trainer"))
    yield from (_engine("generator", kind, pythons.get(kind)) for kind in names("generator"))
    yield from _sandbox()
    yield _timed("devices", "torch", _devices, do=_REINSTALL_TORCH)
    yield _timed("tests", "matrix product", lambda: _product("float32"), do=_OTHER_DEVICE)
    yield _timed("tests", "bfloat16", lambda: _product("bfloat16"), do=_OTHER_DEVICE)
    yield _timed("tests", "reward workers", _score, do=_PROCESSES)
    yield _run_of_today(again=again)


_REINSTALL_TORCH = "pip install --force-reinstall torch"
_OTHER_DEVICE = "update the driver and torch, or use the CPU: --set trainer.device=cpu --set generator.device=cpu"
_PROCESSES = (
    "worker processes need permission to start processes, and a directory for temporary files. From Python, functions "
    "that are passed as objects need no worker process"
)
_TRACEBACK = "`purerl train addition --debug` shows the traceback"
_TEMPORARY = "set TMPDIR to a directory with free space"
_OTHER_DIRECTORY = "choose another directory: cd, or the option --directory"


def _threads(environment: Mapping[str, str]) -> Iterator[Finding]:
    """A setting of OpenMP with which matrix products on the CPU are wrong while the computer is busy.

    OpenMP then starts fewer threads than oneDNN has divided the work into, and parts of the result are never written.
    """
    if environment.get("OMP_DYNAMIC", "").strip().lower() in ("true", "1"):
        text = "OMP_DYNAMIC is set: products in bfloat16 on the CPU can be wrong"
        yield Finding("machine", "threads", "bad", text, "unset OMP_DYNAMIC")


# --- directories -------------------------------------------------------------------------------------------------

_RUN_BYTES = 64e6  # the default run of 160 steps has less than 16 MB; the run of the doctor has less


def _disk() -> Finding:
    """Free space in the working directory, in which runs are stored by default."""
    try:
        folder = Path.cwd()
        free, is_writable = shutil.disk_usage(folder).free, os.access(folder, os.W_OK)
    except OSError as error:
        return Finding("machine", "disk", "bad", f"the working directory cannot be read: {error}", _OTHER_DIRECTORY)
    text = f"{free / 1e9:.1f} GB free in this directory"
    if not is_writable:
        text, do = f"{text}, which is read-only", "runs need --directory DIR"
        return Finding("machine", "disk", "good", text, do)
    do = "" if free >= _RUN_BYTES else "runs store rollouts and checkpoints: free space"
    return Finding("machine", "disk", "bad" if do else "good", text, do)


def _folder_with_space() -> Path:
    """The directory for temporary files, or the working directory, if it has space for a small run.

    Raises: OSError if neither of them has.
    """
    for folder in (tempfile.gettempdir, Path.cwd):
        with suppress(OSError):
            path = Path(folder())
            if shutil.disk_usage(path).free >= _RUN_BYTES and os.access(path, os.W_OK):
                return path
    raise OSError(errno.ENOSPC, f"neither TMPDIR nor the working directory has {_RUN_BYTES / 1e6:.0f} MB of free space")


def _required(name: str, purpose: str) -> Finding:
    installed = _version(name)
    if installed is None:
        return Finding("packages", name, "bad", purpose, f"pip install {name}")
    return Finding("packages", name, "good", f"{installed}: {purpose}")


def _extra(extra: str, name: str, purpose: str) -> Finding:
    installed = _version(name)
    if installed is None:
        return Finding("extras", name, "missing", purpose, install_command(extra))
    return Finding("extras", name, "good", f"{installed}: {purpose}")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


# --- engines -----------------------------------------------------------------------------------------------------


def _engine(group: str, kind: str, python: str | None = None) -> Finding:
    """Capabilities of the engine `kind` for any model, and what is missing here, or in the environment of `python`.

    No model is loaded. What is missing is an error only if `python` names an environment.
    """
    try:
        plugin = engine_plugin(group, kind)
        text = (
            _describe(plugin.capabilities())
            if plugin.capabilities
            else "its capabilities are known when it loads a model"
        )
        installed = _version(kind) if python is None else version_in(python, kind)
        if installed is not None:
            text = f"{installed}: {text}"
        problem = _missing(plugin, python) if isinstance(plugin, GeneratorPlugin) else ""
        if not problem and plugin.VERSION is not None:
            is_right = installed is not None and is_version(installed, plugin.VERSION)
            problem = "" if is_right else f"purerl uses the interface of {kind} {plugin.VERSION}"
        if problem:
            state = "missing" if python is None else "bad"
            return Finding("engines", f"{group} {kind}", state, f"{text}; {problem}", _OWN_ENVIRONMENT)
    except Exception as error:  # noqa: BLE001 - a plugin may raise anything
        return _failure("engines", f"{group} {kind}", error, do="update or uninstall the package of this engine")
    return Finding("engines", f"{group} {kind}", "good", text)


_OWN_ENVIRONMENT = "docs/how-to/servers.md shows how to install it into an environment of its own"


def _missing(plugin: GeneratorPlugin, python: str | None) -> str:
    """The missing requirements of the engine `plugin`, with its default settings and `python`; empty without any."""
    try:
        config = plugin.Config()
        if python is not None:
            config = evolve(config, server=evolve(config.server, python=python))
        plugin.check(config)
    except ConfigError as error:
        return str(error).partition("got:  ")[2].splitlines()[0]
    return ""


_EXTENT = {"batch_invariant": "batch_invariant (tokens, not the last bits of log-probabilities)"}
"""Capabilities with what they hold for."""


def _describe(capabilities: Capabilities) -> str:
    """`capabilities` in words.

    >>> from purerl.protocols import Capabilities
    >>> _describe(Capabilities(outputs=frozenset({"logp", "entropy"})))
    'outputs: entropy, logp'
    >>> _describe(Capabilities(max_sequence_length=512, seeded=True, in_process=True))
    'max_sequence_length: 512; seeded, in_process'
    >>> _describe(Capabilities(batch_invariant=True))
    'batch_invariant (tokens, not the last bits of log-probabilities)'
    >>> _describe(Capabilities(sampling=frozenset({"top_k", "top_p"})))
    'sampling: top_k, top_p'
    """
    values = attrs.asdict(capabilities)
    outputs, length = ", ".join(sorted(capabilities.outputs)), capabilities.max_sequence_length
    parts = [
        f"max_sequence_length: {length:,}" if length is not None else "",
        f"outputs: {outputs}" if outputs else "",
        f"sampling: {', '.join(sorted(capabilities.sampling))}" if capabilities.sampling else "",
        f"max_temperature: {values['max_temperature']:g}" if capabilities.max_temperature is not None else "",
        ", ".join(_EXTENT.get(name, name) for name, value in values.items() if value is True),
    ]
    return "; ".join(filter(None, parts)) or "no optional capability"


# --- sandbox -----------------------------------------------------------------------------------------------------


def _sandbox() -> Iterator[Finding]:
    """The devices and the layers of sandboxes. Most runs need no sandbox, so a missing layer is no error here."""
    from purerl.sandbox.layers import find_devices, find_layers

    broken = [device for device in find_devices() if not device.is_active]
    yield from (Finding("sandbox", device.name, "bad", device.text, device.do) for device in broken)
    if not broken:
        yield Finding("sandbox", "devices", "good", "/dev/null and others are devices that can be read and written")
    try:
        for layer in find_layers():
            yield Finding(
                "sandbox",
                layer.name.removesuffix(" namespace"),
                "good" if layer.is_active else "missing",
                layer.text,
                layer.do,
            )
    except SandboxError as error:
        text = " ".join(str(error).split())
        yield Finding("sandbox", "a program", "bad", text, "see docs/explanation/sandbox.md")


# --- computations ------------------------------------------------------------------------------------------------


def _timed(section: str, name: str, check: Callable[[], str], *, do: str) -> Finding:
    """The result of `check` and how long it took, or the exception that it raised, and then `do`."""
    start = time.perf_counter()
    try:
        text = check()
    except Exception as error:  # noqa: BLE001 - any exception is a finding
        return _failure(section, name, error, do=_TEMPORARY if _is_full(error) else do)
    return Finding(section, name, "good", f"{text}, {time.perf_counter() - start:.1f} s")


def _is_full(error: BaseException | None) -> bool:
    """Whether the cause of `error` is a full disk."""
    return error is not None and (getattr(error, "errno", None) == errno.ENOSPC or _is_full(error.__cause__))


def _failure(section: str, name: str, error: Exception, *, do: str) -> Finding:
    return Finding(section, name, "bad", f"{type(error).__name__}: {error}", do)


def _devices() -> str:
    import torch

    from purerl.system.devices.accelerator import current_accelerator, device_name

    accelerator = current_accelerator()
    if accelerator is None:
        return f"cpu, threads: {torch.get_num_threads()}"
    count = torch.accelerator.device_count()
    names = {device_name(torch.device(accelerator.type, index)) for index in range(count)}
    return f"{count} x {', '.join(sorted(names))}; cpu, threads: {torch.get_num_threads()}"


_ROWS, _INNER = 256, 32
_TF32_ROUNDING = 2.0**-10  # if a float32 is truncated to 10 bits after the leading one


def _product(dtype: str) -> str:
    """Compare a matrix product, on the device that runs use by default, with the same product in float64.

    The product is a a^T for a matrix a of the shape [_ROWS, _INNER] with similar rows, so that its norm is about |a|^2:
    a result of zeros has the relative error 1.
    """
    import torch

    from purerl.system.devices.accelerator import default_device

    device = default_device()
    a = torch.linspace(-1, 1, _ROWS * _INNER, dtype=torch.float64).reshape(_ROWS, _INNER).sin()
    low_precision = a.to(getattr(torch, dtype)).to(device)
    result = (low_precision @ low_precision.mT).cpu().double()
    error = ((result - a @ a.mT).norm() / a.norm().square()).item()
    bound = _rounding_bound(dtype, device.type)
    if not error <= bound:
        raise ArithmeticError(f"a {dtype} matrix product on {device} has relative error {error:.1e}, above {bound:.1e}")
    return f"on {device}, relative error {error:.0e}"


def _rounding_bound(dtype: str, device: str) -> float:
    """The bound of the relative error of a product of matrices with `_INNER` products in each sum.

        |result - exact| <= (2 i + i^2 + n s + o) |a| |b|        (Frobenius norms)

    i, s and o are the relative roundings of the inputs, of each of the n partial sums, and of the result. All of them
    are that of `dtype`, also if the hardware is more precise. Accelerators may round the inputs of a float32 product to
    TF32, depending on variables such as NVIDIA_TF32_OVERRIDE.
    """
    import torch

    rounding = torch.finfo(getattr(torch, dtype)).eps / 2
    inputs = rounding if device == "cpu" or dtype != "float32" else _TF32_ROUNDING
    return 2 * inputs + inputs**2 + _INNER * rounding + rounding


def _score() -> str:
    """Score one completion in a worker process. The timeout is long, because the computer may be busy."""
    from purerl.rewards.adapters import RewardInput
    from purerl.rewards.runner import RewardRunner

    runner = RewardRunner(["purerl.rewards.exact:exact_match"], functions={}, timeout=600, num_workers=1)
    with runner:
        [result] = runner.run([RewardInput("0", "42", {"answer": "42"})])
    if result.reward != 1:
        raise RuntimeError(f"a worker process returned {result}")
    return "a completion was scored in a worker process"


_LIBRARIES = ("GOMP", "HF_", "KMP", "LD_", "MKL", "NVIDIA", "OMP", "PYTHON", "PYTORCH", "TORCH", "TRANSFORMERS")
_VARIABLES = (*DEVICE_VARIABLES, *_LIBRARIES)
"""Beginnings of the names of variables that change what packages do."""


def _run_of_today(*, again: bool) -> Finding:
    """The finding of `_run`, or of the one that has passed today with the same code, packages and variables.

    A run that has failed is done each time.
    """
    done: list[Finding] = []

    def run() -> Finding:
        done.append(_timed("tests", "a run", _run, do=_TRACEBACK))
        if done[0].state == "bad":
            raise _NotStoredError
        past = f"at {time.strftime('%H:%M')} today with the same code and packages; --again does it again"
        return evolve(done[0], text=f"{done[0].text}, {past}")

    variables = sorted(item for item in os.environ.items() if item[0].startswith(_VARIABLES))
    state = (time.strftime("%Y-%m-%d"), [*map(_version, REQUIRED)], variables, tempfile.gettempdir())
    with suppress(_NotStoredError):
        past = run() if again else stored(Finding, run, "a run of the doctor", state)
    return done[0] if done else past


class _NotStoredError(Exception):
    """The run has failed."""


def _run() -> str:
    """One step of a complete run in a temporary directory, from preparing the data to saving the model.

    The reward function runs in this process: worker processes have a test of their own.
    """
    from purerl.algos import grpo
    from purerl.loop.train import train
    from purerl.recipes.addition import addition
    from purerl.rewards.exact import exact_match

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
    parent = _folder_with_space()
    with private_folder("purerl-doctor-", parent) as folder, redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        summary = train(small, rewards=(exact_match,), directory=folder / "run")
    return f"{summary.steps} step: sampled, scored, trained, evaluated, saved"
