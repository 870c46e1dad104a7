"""docs/explanation/paper_671b.md: its command prints what the page shows, from which its numbers follow."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from purerl.backends.hf.memory.simulation import fake_model
from purerl.settings import Model
from purerl_cli.main import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "paper_671b.md").read_text(encoding="utf-8")
PARAMETERS = 671_026_404_352


@pytest.fixture(scope="module")
def command() -> Iterator[list[str]]:
    """The arguments of the command of the page, in the directory of the repository."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(ROOT)
        [line] = re.findall(r"^```sh\npurerl (.*)\n```$", PAGE, re.MULTILINE)
        yield shlex.split(line)


@pytest.fixture(scope="module")
def plan(command: list[str]) -> dict[str, Any]:
    """The output of the command with --json."""
    return json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def test_the_command_prints_what_the_page_shows(command: list[str]) -> None:
    result = CliRunner().invoke(app, command)
    [shown] = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert _lines(result.stdout) == _lines(shown)
    assert result.exit_code == 1, "the trainer refuses the model"


def test_the_numbers_of_the_text_are_those_of_the_plan(plan: dict[str, Any]) -> None:
    speed = plan["speed"]
    assert speed["weight_bytes"] == 2 * PARAMETERS
    assert f"= {speed['transfer_seconds']:.1f}\n$$" in PAGE
    assert f"= {speed['trained_tokens_per_second']:,.0f}".replace(",", "{,}") in PAGE
    attention = 12 * 61 * 128 * (192 + 128) / 2 * 4096
    assert f"$N$ is {(speed['flops_per_token'] - attention) / 6 / 1e9:.1f} billion weights" in PAGE
    published = 14.8e12 / 2.664e6 / 3600
    assert f"which is {published:,.0f} tokens per second on each GPU" in PAGE
    assert f"that is {published * speed['flops_per_token'] / speed['peak_flops']:.0%}".replace("%", " %") in PAGE
    assert f"the weights take {2 * PARAMETERS / 32 / 2**30:.1f} GiB" in PAGE


def test_the_page_of_megatron_says_what_offload_saves(command: list[str], plan: dict[str, Any]) -> None:
    changed = [*command, "--set", "trainer.optimizer_offload=true", "--json"]
    before, after = plan, json.loads(CliRunner().invoke(app, changed).stdout)
    host = sum(max(phases.values()) for name, phases in after["main_memory"].items() if name.startswith("policy: "))
    page = (ROOT / "docs" / "how-to" / "megatron.md").read_text(encoding="utf-8")
    of_device = f"{after['peak'] / 2**30:.1f} GiB of a GPU instead of {before['peak'] / 2**30:.1f}, and each rank"
    assert f"{of_device} {host / 2**30:.1f} GiB of main memory" in " ".join(page.split())


def test_the_number_of_parameters_is_that_of_transformers() -> None:
    causal = fake_model(Model(str(ROOT / "docs" / "deepseek_v3")))
    assert sum(parameter.numel() for parameter in causal.parameters()) == PARAMETERS
    assert f"{PARAMETERS:,}." in PAGE
    assert PAGE.count(f"{PARAMETERS:,}".replace(",", "{,}")) == 1
