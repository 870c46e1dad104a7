"""The commands, versions and dependencies that the repository documents are correct."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

from purerl.algos import ppo
from purerl.algos.modifiers import kl_reward
from purerl.composition import Composition
from purerl.loop.train import train
from tests.forks import TORCH
from tests.loop.small import fake

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_ci_runs_the_second_command_of_the_readme() -> None:
    [command] = [line for line in _read(".ci/run").splitlines() if line.endswith("/nox")]
    assert command in _read("README.md").splitlines()
    assert command in _read("CONTRIBUTING.md").splitlines()


def test_pyproject_has_lower_bounds_and_only_the_constraints_pin_versions() -> None:
    optional = PROJECT["optional-dependencies"]
    requirements = [*PROJECT["dependencies"], *(requirement for extra in optional.values() for requirement in extra)]
    invalid = [
        requirement for requirement in requirements if ">=" not in requirement or "==" in requirement.partition(";")[0]
    ]
    assert [requirement for requirement in invalid if not requirement.startswith("purerl[")] == [], (
        "only a requirement of another extra of purerl may have no lower bound"
    )
    pins = [line for line in _read("constraints/default.txt").splitlines() if not line.startswith("#")]
    assert "torch==2.13.0" in pins
    assert [line for line in pins if "==" not in line] == []


def test_readme_script_equals_the_example_and_learns() -> None:
    script = _read("README.md").partition("```python\nimport torch")[2].partition("```")[0]
    example = _read("examples/algos_alone.py").partition("import torch")[2]
    assert script == example
    assert len([line for line in ("import torch" + script).splitlines() if line.strip()]) == 15
    process = TORCH.run([sys.executable, ROOT / "examples" / "algos_alone.py"], capture_output=True, text=True)
    assert process.stdout == "[3, 1, 4, 1, 5]\n"


def test_every_logged_metric_is_documented(tmp_path: Path) -> None:
    algorithm = Composition(ppo.Config(), (kl_reward.Config(coef=0.01),))
    summary = train(fake(algorithm=algorithm), directory=tmp_path / "run")
    lines = (summary.directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    documented = _read("docs/reference/metrics.md")
    for name in {name for line in lines for name in json.loads(line)}:
        pattern = re.sub(r"^critic/.*|^policy/loss/.*|^(eval/)?reward/digits$", "", name)
        assert f"`{pattern}`" in documented or not pattern, name


def test_readme_is_short_says_what_has_never_run_and_how_to_install_from_git() -> None:
    readme = _read("README.md")
    assert len(readme.splitlines()) <= 130
    [row] = [line for line in readme.splitlines() if line.startswith("| never run |")]
    assert "several GPUs; vLLM and SGLang on a GPU;" in row
    assert "Not vLLM and SGLang, and not several GPUs" in _read("docs/reference/devices.md")
    [extra] = re.findall(r"^pip install 'purerl\[(\w+)\] @ git\+https://\S+\.git'", readme, re.MULTILINE)
    assert extra in PROJECT["optional-dependencies"]
