"""The checks of `purerl doctor` pass on a working installation and report what is missing or broken."""

from __future__ import annotations

import shutil
import tomllib
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from attrs import asdict

from purerl import doctor
from purerl.backends.fake.trainer import OUTPUTS
from purerl.doctor import EXTRAS, REQUIRED, Finding, check_installation
from purerl.plugins import find, names
from purerl.settings import Model

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


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
    assert sections == ["machine", "packages", "extras", "engines", "devices", "tests"]
    assert findings[-1].text.startswith("1 step: sampled, scored, trained, evaluated, saved, ")
    engines = {finding.name: finding.text for finding in findings if finding.section == "engines"}
    kinds = {f"{group} {kind}" for group in ("trainer", "generator") for kind in names(group)}
    assert set(engines) == kinds
    assert engines["trainer fake"] == f"outputs: {', '.join(sorted(OUTPUTS))}"
    assert engines["generator hf"] == "batch_invariant, seeded, in_process"


def test_missing_extra_is_reported_as_missing_and_missing_package_as_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    assert doctor._extra("wandb", "wandb", "purpose") == Finding(
        "extras", "wandb", "missing", "purpose", "pip install 'purerl[wandb]'"
    )
    assert doctor._required("torch", "tensors") == Finding("packages", "torch", "bad", "tensors", "pip install torch")


def test_exception_in_a_check_is_reported() -> None:
    finding = doctor._timed("tests", "division", lambda: str(1 / 0))
    assert (finding.state, finding.text) == ("bad", "ZeroDivisionError: division by zero")


def test_capabilities_of_the_module_are_those_of_a_generator_that_was_built() -> None:
    module = find("generator", "fake")
    generator = module.build(module.Config(max_sequence_length=64), model=Model("none"), seed=0)
    assert asdict(generator.capabilities) == asdict(module.capabilities()) | {"max_sequence_length": 64}


def test_plugin_without_capabilities_and_plugin_that_fails_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        """An engine that has no function `capabilities`."""

    class Failing:
        @staticmethod
        def capabilities() -> None:
            raise RuntimeError("no driver")

    plugins = {"silent": Silent, "failing": Failing}
    monkeypatch.setattr(doctor, "find", lambda group, kind: plugins[kind])
    silent, failing = (doctor._engine("trainer", kind) for kind in plugins)
    assert (silent.state, silent.text) == ("good", "its capabilities are known when it loads a model")
    assert (failing.name, failing.state, failing.text) == ("trainer failing", "bad", "RuntimeError: no driver")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("error", "is_rounding"), [(1.3e-7, True), (3e-6, True), (0.3, False), (float("nan"), False)])
def test_matrix_product_fails_only_above_the_rounding_bound(
    dtype: str, error: float, is_rounding: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = torch.Tensor.__matmul__

    def inexact_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """A product whose error has the Frobenius norm `error` * |a| * |b|."""
        entry_error = error * a.double().norm() * b.double().norm() / a.shape[0]
        return product(a, b) if a.dtype == torch.float64 else (product(a.double(), b.double()) + entry_error).to(a)

    monkeypatch.setattr(torch.Tensor, "__matmul__", inexact_product)
    finding = doctor._timed("tests", "matrix product", lambda: doctor._product(dtype))
    assert (finding.state == "good") == is_rounding, finding.text


def test_full_disk_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")  # noqa: PYI024 - shutil.disk_usage returns such a tuple
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 10**8))
    assert doctor._disk().state == "bad"
