"""The checks of `purerl doctor` pass on a working installation and report what is missing or broken."""

from __future__ import annotations

import shutil
import tomllib
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from purerl import doctor
from purerl.doctor import EXTRAS, REQUIRED, Finding, examine

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_doctor_lists_every_dependency_and_every_extra() -> None:
    assert sorted(REQUIRED) == sorted(requirement.partition(">")[0] for requirement in PROJECT["dependencies"])
    extras = {name: packages for name, packages in PROJECT["optional-dependencies"].items() if name != "dev"}
    assert sorted(EXTRAS) == sorted(extras)
    for extra, (package, _) in EXTRAS.items():
        assert any(requirement.startswith(package) for requirement in extras[extra])


def test_doctor_finds_no_problem_in_the_test_environment() -> None:
    findings = list(examine())
    assert [finding for finding in findings if finding.state == "bad"] == []
    assert {finding.section for finding in findings} == {"machine", "packages", "extras", "devices", "tried"}
    assert findings[-1].text.startswith("1 step: sampled, judged, trained, evaluated, saved, ")


def test_missing_extra_is_reported_as_missing_and_missing_package_as_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    assert doctor._extra("wandb", "wandb", "purpose") == Finding(
        "extras", "wandb", "missing", "purpose", "pip install 'purerl[wandb]'"
    )
    assert doctor._required("torch", "tensors") == Finding("packages", "torch", "bad", "tensors", "pip install torch")


def test_exception_in_a_check_is_reported() -> None:
    finding = doctor._try("tried", "division", lambda: str(1 / 0))
    assert (finding.state, finding.text) == ("bad", "ZeroDivisionError: division by zero")


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
    finding = doctor._try("tried", "matrix product", lambda: doctor._product(dtype))
    assert (finding.state == "good") == is_rounding, finding.text


def test_full_disk_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")  # noqa: PYI024 - shutil.disk_usage returns such a tuple
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 10**8))
    assert doctor._disk().state == "bad"
