"""The doctor: what it says of a machine that is well, and of one that is not."""

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


def test_it_knows_what_is_required_and_every_extra() -> None:
    assert sorted(REQUIRED) == sorted(one.partition(">")[0] for one in PROJECT["dependencies"])
    extras = {name: packages for name, packages in PROJECT["optional-dependencies"].items() if name != "dev"}
    assert sorted(EXTRAS) == sorted(extras)
    for extra, (package, _) in EXTRAS.items():
        assert any(one.startswith(package) for one in extras[extra])


def test_this_machine_is_well() -> None:
    findings = list(examine())
    assert [one for one in findings if one.state == "bad"] == []
    assert {one.section for one in findings} == {"machine", "packages", "extras", "devices", "tried"}
    assert findings[-1].text.startswith("1 step: sampled, judged, trained, evaluated, saved, ")


def test_a_missing_extra_is_no_illness_and_a_missing_package_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    assert doctor._extra("wandb", "wandb", "tells") == Finding(
        "extras", "wandb", "missing", "tells", "pip install 'purerl[wandb]'"
    )
    assert doctor._required("torch", "tensors") == Finding("packages", "torch", "bad", "tensors", "pip install torch")


def test_what_fails_when_tried_is_told_by_its_error() -> None:
    found = doctor._try("tried", "it", lambda: str(1 / 0))
    assert (found.state, found.text) == ("bad", "ZeroDivisionError: division by zero")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("error", "is_rounding"), [(1.3e-7, True), (3e-6, True), (0.3, False), (float("nan"), False)])
def test_a_matrix_product_is_wrong_only_beyond_the_bound_of_rounding(
    dtype: str, error: float, is_rounding: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = torch.Tensor.__matmul__

    def inexact(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Every entry off by `error` times the norms of the factors, spread over the entries."""
        size = a.double().norm() * b.double().norm() / a.shape[0]
        return product(a, b) if a.dtype == torch.float64 else (product(a.double(), b.double()) + error * size).to(a)

    monkeypatch.setattr(torch.Tensor, "__matmul__", inexact)
    found = doctor._try("tried", "matrix product", lambda: doctor._product(dtype))
    assert (found.state == "good") == is_rounding, found.text


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")  # noqa: PYI024 - as shutil's own
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 10**8))
    assert doctor._disk().state == "bad"
