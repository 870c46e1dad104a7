"""The checks of `purerl doctor` pass on a working installation and report what is missing or broken."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from attrs import asdict, evolve
from typer.testing import CliRunner

from purerl import doctor
from purerl.backends.fake.model import OUTPUTS
from purerl.backends.logits import FILTERS
from purerl.backends.plugin import TrainerPlugin
from purerl.config.check import check
from purerl.doctor import Finding, check_installation
from purerl.errors import SandboxError
from purerl.models import cache
from purerl.plugins import find, names
from purerl.protocols import Capabilities
from purerl.recipes import resolve
from purerl.rewards.workers import WorkerPool
from purerl.sandbox import layers
from purerl.sandbox.failures import LAYERS, REMEDIES
from purerl.sandbox.layers import Layer, find_devices
from purerl.settings import Model
from purerl.system.installation import EXTRAS, REQUIRED, install_command
from purerl_cli.main import app
from tests.sandbox.hosts import run_where

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


SERVED = ("generator sglang", "generator vllm")


def test_doctor_lists_every_dependency_and_every_extra() -> None:
    assert sorted(REQUIRED) == sorted(requirement.partition(">")[0] for requirement in PROJECT["dependencies"])
    extras = {name: packages for name, packages in PROJECT["optional-dependencies"].items() if name != "dev"}
    assert sorted(EXTRAS) == sorted(extras)
    for extra, (package, _) in EXTRAS.items():
        assert any(requirement.startswith(package) for requirement in extras[extra])


def test_doctor_finds_no_problem_in_the_test_environment() -> None:
    findings = list(check_installation())
    assert [finding for finding in findings if finding.state == "bad"] == []
    sections = list(dict.fromkeys(finding.section for finding in findings))
    assert sections == ["machine", "packages", "extras", "engines", "sandbox", "devices", "tests"]
    assert findings[-1].text.startswith("1 step: sampled, scored, trained, evaluated, saved, ")
    engines = {finding.name: finding.text for finding in findings if finding.section == "engines"}
    kinds = {f"{group} {kind}" for group in ("trainer", "generator") for kind in names(group)}
    assert set(engines) == kinds
    assert engines["trainer fake"] == f"outputs: {', '.join(sorted(OUTPUTS))}"
    sampling = f"sampling: {', '.join(sorted(FILTERS))}"
    extent = "batch_invariant (tokens, not the last bits of log-probabilities)"
    assert engines["generator hf"] == f"{sampling}; {extent}, seeded, in_process, adapters"


def test_missing_extra_is_reported_as_missing_and_missing_package_as_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    assert doctor._extra("wandb", "wandb", "purpose") == Finding(
        "extras", "wandb", "missing", "purpose", install_command("wandb")
    )
    assert doctor._required("torch", "tensors") == Finding("packages", "torch", "bad", "tensors", "pip install torch")


def test_exception_in_a_check_is_reported() -> None:
    finding = doctor._timed("tests", "division", lambda: str(1 / 0), do="divide by 1")
    assert (finding.state, finding.text, finding.do) == ("bad", "ZeroDivisionError: division by zero", "divide by 1")


def test_capabilities_of_the_module_are_those_of_a_generator_that_was_built() -> None:
    module = find("generator", "fake")
    generator = module.build(module.Config(max_sequence_length=64), model=Model("none"), seed=0)
    assert asdict(generator.capabilities) == asdict(module.capabilities()) | {"max_sequence_length": 64}


def test_plugin_without_capabilities_and_plugin_that_fails_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Capabilities:
        raise RuntimeError("no driver")

    silent = TrainerPlugin(Config=object, build=list)
    plugins = {"silent": silent, "failing": evolve(silent, capabilities=fail)}
    monkeypatch.setattr(doctor, "engine_plugin", lambda group, kind: plugins[kind])
    silent, failing = (doctor._engine("trainer", kind) for kind in plugins)
    assert (silent.state, silent.text) == ("good", "its capabilities are known when it loads a model")
    assert (failing.name, failing.state, failing.text) == ("trainer failing", "bad", "RuntimeError: no driver")


@pytest.mark.parametrize("version", ["0.32.0", "0.31.0", None])
def test_engine_in_an_environment_of_its_own_is_examined_there(tmp_path: Path, version: str | None) -> None:
    """In place of the environment, an interpreter that finds a module, and the metadata of its package."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/packages exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    if version is not None:
        (folder := tmp_path / f"packages/vllm-{version}.dist-info").mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        (tmp_path / "packages/vllm.py").touch()
    finding = doctor._engine("generator", "vllm", str(python))
    own = {"0.32.0": "", "0.31.0": "; purerl uses the interface of vllm 0.32", None: f"; '{python}', which has no vllm"}
    assert finding.text.startswith(f"{version}: sampling: " if version else "sampling: ")
    assert finding.text.endswith("seeded" + own[version])
    assert finding.state == ("bad" if own[version] else "good")


def test_interpreter_of_an_engine_that_does_not_exist(tmp_path: Path) -> None:
    finding = doctor._engine("generator", "sglang", str(tmp_path / "python"))
    assert (finding.state, finding.text.endswith("/python', which is not a program")) == ("bad", True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--engine", "hf=python"],
            "error: --engine\n  got:  'hf=python'\n  need: KIND=PYTHON, and the kind sglang or vllm\n",
        ),
        (["--engine", "vllm"], "error: --engine\n  got:  'vllm'\n  need: KIND=PYTHON"),
        (["runs/a", "--engine", "vllm=python"], "error: --engine has no effect\n  got:  a run directory\n"),
        (["runs/a", "--again"], "error: --again has no effect\n  got:  a run directory\n"),
    ],
)
def test_interpreter_without_effect_is_refused(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["doctor", *arguments])
    assert (result.exit_code, words in result.stderr) == (2, True)


def test_file_in_the_place_of_a_device_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "dev"
    folder.mkdir()
    (folder / "null").write_text("once it was a device")
    (folder / "zero").mkdir()
    (folder / "full").symlink_to("/dev/null")
    (folder / "random").symlink_to("/dev/random")
    found = {device.name: device for device in find_devices(str(tmp_path))}
    assert [name for name, device in found.items() if device.is_active] == ["/dev/random"]
    assert found["/dev/null"].text == found["/dev/zero"].text == "no device, but a file or a directory"
    assert found["/dev/full"].text == "another device: 1:3 in place of 1:7"
    assert found["/dev/urandom"].text == "No such file or directory"
    assert found["/dev/null"].do == "as root: rm -f /dev/null; mknod -m 666 /dev/null c 1 3"


def test_broken_device_and_broken_sandbox_fail_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Layer("/dev/null", is_active=False, text="no device, but a file or a directory", do="as root: ...")

    def fail() -> None:
        raise SandboxError("a sandbox", got="something else")

    monkeypatch.setattr(layers, "find_devices", lambda: [broken])
    monkeypatch.setattr(layers, "find_layers", fail)
    states = {finding.name: finding.state for finding in doctor._sandbox()}
    assert states == {"/dev/null": "bad", "a program": "bad"}


def test_layers_of_the_sandbox_are_listed_and_a_missing_one_is_no_error() -> None:
    findings = {finding.name: finding for finding in doctor._sandbox()}
    assert list(findings) == ["devices", *(name.removesuffix(" namespace") for name in LAYERS)]
    assert {finding.state for finding in findings.values()} == {"good"}
    assert ", by " in findings["accounting"].text
    code = "from purerl import doctor\nfor f in doctor._sandbox(): print(f.name, f.state, f.do, sep='|')"
    outputs = {name: run_where(name, code).splitlines() for name in ("user namespaces", "landlock")}
    assert [lines.pop(0) for lines in outputs.values()] == ["devices|good|"] * 2
    assert outputs["user namespaces"] == [f"user|missing|{REMEDIES['user namespace']}"]
    first, *others = outputs["landlock"]
    assert first == f"landlock|missing|{REMEDIES['landlock']}"
    assert others == [f"{name.removesuffix(' namespace')}|good|" for name in LAYERS if name != "landlock"]


CASES = [("float32", 1.3e-7, True), ("float32", 1.5e-6, True), ("float32", 1e-4, False), ("bfloat16", 0.1, True)]


@pytest.mark.parametrize(
    ("dtype", "error", "is_rounding"),
    [*CASES, *((dtype, error, False) for dtype in ("float32", "bfloat16") for error in (0.3, float("nan")))],
)
def test_matrix_product_fails_only_above_the_rounding_bound(
    dtype: str, error: float, is_rounding: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = torch.Tensor.__matmul__

    def inexact_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """A product whose error has the Frobenius norm `error` * |a| * |b|."""
        entry_error = error * a.double().norm() * b.double().norm() / a.shape[0]
        return product(a, b) if a.dtype == torch.float64 else (product(a.double(), b.double()) + entry_error).to(a)

    monkeypatch.setattr(torch.Tensor, "__matmul__", inexact_product)
    finding = doctor._timed("tests", "matrix product", lambda: doctor._product(dtype), do="")
    assert (finding.state == "good") == is_rounding, finding.text


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_matrix_product_of_zeros_is_wrong(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    product = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: product(a, b) * (1 if a.dtype == torch.float64 else 0))
    with pytest.raises(ArithmeticError, match="relative error 1"):
        doctor._product(dtype)


def _truncated_to_tf32(x: torch.Tensor) -> torch.Tensor:
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


def test_products_of_tf32_and_sums_in_bfloat16_are_within_the_bounds_of_accelerators() -> None:
    a = torch.linspace(-1, 1, doctor._ROWS * doctor._INNER, dtype=torch.float64).reshape(-1, doctor._INNER).sin()
    exact, size = a @ a.mT, a.norm().square()
    truncated = _truncated_to_tf32(a.float())
    tf32 = ((truncated @ truncated.mT).double() - exact).norm() / size
    assert doctor._rounding_bound("float32", "cpu") < tf32 <= doctor._rounding_bound("float32", "cuda")
    total, low = torch.zeros(exact.shape, dtype=torch.bfloat16), a.bfloat16().float()
    for k in range(doctor._INNER):
        total = (total.float() + low[:, k, None] * low[None, :, k]).bfloat16()
    assert (total.double() - exact).norm() / size <= doctor._rounding_bound("bfloat16", "cuda")


# --- directories -------------------------------------------------------------------------------------------------


def _with_free_bytes(free: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")  # noqa: PYI024 - shutil.disk_usage returns such a tuple
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, free[str(path)]))


@pytest.mark.parametrize(("free", "state"), [(10**7, "bad"), (2 * 10**8, "good")])
def test_full_disk_is_reported(free: int, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _with_free_bytes({str(Path.cwd()): free}, monkeypatch)
    assert doctor._disk().state == state


def test_read_only_directory_is_no_problem_of_the_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    finding = doctor._disk()
    assert (finding.state, finding.do) == ("good", "runs need --directory DIR")
    assert finding.text.endswith("in this directory, which is read-only")


def test_removed_directory_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    (tmp_path / "removed").rmdir()
    finding = doctor._disk()
    assert (finding.state, finding.do) == ("bad", doctor._OTHER_DIRECTORY)


def test_small_temporary_directory_is_replaced_by_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "small"))
    _with_free_bytes({str(tmp_path / "small"): 10**6, str(tmp_path): 10**9}, monkeypatch)
    assert doctor._folder_with_space() == tmp_path
    _with_free_bytes({str(tmp_path / "small"): 10**6, str(tmp_path): 10**6}, monkeypatch)
    finding = doctor._timed("tests", "a run", doctor._run, do=doctor._TRACEBACK)
    assert (finding.state, finding.do) == ("bad", doctor._TEMPORARY)


# --- a run that has passed ---------------------------------------------------------------------------------------


def _runs_of(
    results: list[str | Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, again: bool = False
) -> list[Finding]:
    """The findings of calls with an empty cache, in which the run has each of the `results` that is still there."""

    def run() -> str:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    (tmp_path / "cache").mkdir(mode=0o700)
    monkeypatch.setattr(cache, "user_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(doctor, "_run", run)
    return [doctor._run_of_today(again=again) for _ in range(2)]


def test_run_that_has_passed_today_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = _runs_of(["saved"], tmp_path, monkeypatch)
    assert re.fullmatch(r"saved, \d+\.\d s", first.text)
    past = r", at \d\d:\d\d today with the same code and packages; --again does it again"
    assert re.fullmatch(re.escape(first.text) + past, second.text)
    assert evolve(second, text=first.text) == first
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with pytest.raises(IndexError):
        doctor._run()  # no result is left
    assert "IndexError" in doctor._run_of_today(again=False).text, "another variable needs another run"


def test_run_is_done_again_on_request_and_on_another_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[str | Exception] = ["first", "second", "third"]
    texts = [finding.text.split(",")[0] for finding in _runs_of(results, tmp_path, monkeypatch, again=True)]
    assert texts == ["first", "second"]
    assert doctor._run_of_today(again=False).text.startswith("third, ")
    monkeypatch.setattr(doctor.time, "strftime", lambda form: f"other {form}")
    assert "IndexError" in doctor._run_of_today(again=False).text


def test_run_that_has_failed_is_done_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[str | Exception] = [ValueError("a bug"), "saved"]
    first, second = _runs_of(results, tmp_path, monkeypatch)
    assert (first.state, first.text, first.do) == ("bad", "ValueError: a bug", doctor._TRACEBACK)
    assert (second.state, second.text.split(",")[0]) == ("good", "saved")


# --- circumstances that are no problem ---------------------------------------------------------------------------


def _purerl_doctor(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "purerl_cli", "doctor"]
    env = {**os.environ, **variables}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.slow
def test_no_problem_with_another_home_and_other_numbers_of_threads(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    variables = {"HOME": missing, "HF_HOME": missing, "TMPDIR": missing, "OMP_NUM_THREADS": "7"}
    process = _purerl_doctor(tmp_path, **variables)
    assert "  bad " not in process.stdout, process.stdout
    assert process.returncode == 0, process.stderr
    assert list(tmp_path.iterdir()) == []


def test_setting_of_openmp_that_makes_products_wrong_is_reported() -> None:
    assert list(doctor._threads({"OMP_DYNAMIC": "false", "OMP_NUM_THREADS": "64"})) == []
    [finding] = doctor._threads({"OMP_DYNAMIC": "TRUE"})
    assert (finding.state, finding.do) == ("bad", "unset OMP_DYNAMIC")


def test_no_problem_without_optional_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    optional, installed = {package for package, _ in EXTRAS.values()}, doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name in optional else installed(name))
    monkeypatch.setattr(doctor, "_run", lambda: "done")
    states = {finding.name: finding.state for finding in check_installation()}
    assert "bad" not in states.values()
    missing = [name for name, state in states.items() if state == "missing" and name not in SERVED]
    assert missing == [package for package, _ in EXTRAS.values()]


def test_engines_that_are_not_installed_are_missing() -> None:
    findings = {name: doctor._engine("generator", name.split()[-1]) for name in SERVED}
    for name, finding in findings.items():
        assert finding.state == "missing", "they run in environments of their own"
        assert f"{name.split()[-1]} is not installed in the environment of purerl" in finding.text
        assert "docs/how-to/servers.md" in finding.do


def test_run_of_the_doctor_starts_no_worker_process_whose_timeout_a_busy_computer_could_exceed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(pool: object, length: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(WorkerPool, "start", refuse)
    assert doctor._run().startswith("1 step: ")
    finding = doctor._timed("tests", "reward workers", doctor._score, do=doctor._PROCESSES)
    assert (finding.state, finding.text) == ("bad", "OSError: no more processes")
    assert "permission to start processes" in finding.do


# --- remedies ----------------------------------------------------------------------------------------------------


def test_every_remedy_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [value for name, value in vars(doctor).items() if name.startswith("_") and isinstance(value, str)]
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    remedies = [doctor._required(name, "").do for name in REQUIRED]
    remedies += [doctor._extra(extra, *package).do for extra, package in EXTRAS.items()]
    extras = {name for text in remedies for name in re.findall(r"\[([\w-]+)\]", text)}
    assert extras == set(EXTRAS) <= set(PROJECT["optional-dependencies"])
    plain = [text.split()[-1] for text in remedies if "[" not in text]
    dependencies = [requirement.partition(">")[0] for requirement in PROJECT["dependencies"]]
    assert sorted(plain) == sorted(dependencies)
    commands = [command for text in texts for command in re.findall(r"`purerl (.+?)`", text)]
    assert commands
    for command in commands:
        assert CliRunner().invoke(app, [*command.split(), "--dry-run"]).exit_code == 0, command
    settings = [setting for text in texts for setting in re.findall(r"--set (\S+)", text)]
    check(resolve("addition", settings))
    assert settings == ["trainer.device=cpu", "generator.device=cpu"]
