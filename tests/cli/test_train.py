"""`purerl train`: recipes of every sort, settings, the dry run, a real run, and what a mistake is told."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tomllib
from io import BytesIO
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import purerl
from purerl import RunConfig, doctor
from purerl.config.structure import dumps, from_dict
from purerl.errors import EngineError
from purerl.loop.checkpoint import newest
from purerl.loop.train import Summary
from purerl.recipes.addition import addition
from purerl_cli.main import app
from purerl_cli.output import finished

from .terminal import in_terminal

_HIDDEN, _SHOWN = "\x1b[?25l", "\x1b[?25h"  # the cursor

RECIPE = """
from purerl.recipes.addition import addition
from attrs import evolve

def mine():
    return evolve(addition(), name="mine")

def nothing():
    return None

number = 3
"""


def _train(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["train", *map(str, arguments)])


def _config(result: Result) -> RunConfig:
    assert result.exit_code == 0, result.output
    return from_dict(RunConfig, tomllib.loads(result.stdout))


# --- recipes, settings, the dry run ------------------------------------------------------------------------------


def test_a_dry_run_prints_a_plan_and_toml_that_is_the_run(tmp_path: Path) -> None:
    result = _train("--dry-run", "--directory", tmp_path / "run")
    assert result.stdout.startswith("# addition, start: sft, 600 steps\n")
    assert _config(result) == addition()
    assert not (tmp_path / "run").exists()


def test_settings_are_made() -> None:
    config = _config(_train("addition", "--dry-run", "--set", "algorithm.kind=rloo", "--set", "seed=7"))
    assert type(config.algorithm).__module__ == "purerl.algos.rloo"
    assert config.seed == 7


def test_a_recipe_can_be_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my-recipe.py").write_text(RECIPE)
    (tmp_path / "my.toml").write_text(dumps(addition()))
    assert _config(_train("--dry-run", tmp_path / "my.toml")) == addition()
    assert _config(_train("--dry-run", "purerl.recipes.addition:addition")) == addition()
    assert _config(_train("--dry-run", f"{tmp_path}/my-recipe.py:mine")).name == "mine"


# --- a run -------------------------------------------------------------------------------------------------------


def test_a_run_ends_with_a_model_and_is_not_done_twice(tmp_path: Path) -> None:
    run = (
        "tests.loop.small:small",
        "--set",
        "max_steps=1",
        "--set",
        "trainer.warmup_steps=0",
        "--directory",
        tmp_path / "run",
    )
    first = _train(*run)
    assert first.exit_code == 0, first.output
    place = tmp_path / "run"
    again = f"purerl train {place}/config.toml"
    assert re.sub(r"\d\.\d{3}", "0.123", first.stdout).splitlines()[-6:] == [
        "held-out accuracy  0.123 before, 0.123 after 1 steps",
        f"model              {place}/final, in Hugging Face's format",
        f"checkpoint         {place}/checkpoints/000001",
        f"metrics            {place}/metrics.jsonl",
        f"next               {again} --set seed=1 --directory {place}-1    another seed",
        f"{'':<19}{again} --set algorithm.kind=dr_grpo --directory {place}-dr_grpo    another algorithm",
    ]
    assert (place / "checkpoints" / "000001" / "manifest.json").exists()
    assert (tmp_path / "run" / "final" / "model.safetensors").exists()
    again = _train(*run)
    assert (again.exit_code, again.stdout) == (1, "")
    assert again.stderr.startswith("error: the run in ")
    assert _train(*run, "--fresh").exit_code == 0


@pytest.mark.parametrize(
    ("directory", "file", "place"),
    [
        ("runs/a", "runs/a/config.toml", "runs/a-1"),
        ("runs/it's $HOME", "'runs/it'\"'\"'s $HOME/config.toml'", "'runs/it'\"'\"'s $HOME-1'"),
        (".", "config.toml", "{here}-1"),
        ("a/..", "a/../config.toml", "{here}-1"),
    ],
)
def test_what_to_type_next_is_for_a_shell_and_another_directory(
    directory: str, file: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    said = finished(addition(), Summary(Path(directory), 1, {}, {}))
    line = next(line for line in said.splitlines() if line.endswith("another seed"))
    expected = f"purerl train {file} --set seed=1 --directory {place.format(here=tmp_path)}"
    assert line.split(None, 1)[1].rpartition("    ")[0] == expected


# --- mistakes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["adition"], "no recipe is called 'adition'\n  need: one of ours, module:function, file.py:function, "),
        (["no.such:recipe"], "nothing is found at 'no.such:recipe'\n  got:  No module named 'no'"),
        (["no-such.py:recipe"], "file 'no-such.py'\n  got:  no such file\n  need: a Python file"),
        (["no-such.toml"], "'no-such.toml' cannot be read\n  got:  [Errno 2] No such file"),
        (["purerl.recipes.addition:_EXACT"], "recipe 'purerl.recipes.addition:_EXACT'\n  got:  'purerl.rewards"),
        (["os:getcwd"], "recipe 'os:getcwd'\n  got:  it returned "),
        (["--set", "trainer.lrate=1"], "trainer.lrate\n  got:  no such setting"),
        (["--set", "trainer.lr=-1"], "trainer.lr\n  got:  -1.0\n"),
        (["--set", "algorithm.kind=gropo"], "algorithm.kind: no algorithm is called 'gropo'\n"),
        (["--set", "rollout="], "rollout is missing\n"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_without_a_traceback(arguments: list[str], message: str) -> None:
    result = _train("--dry-run", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {message}")
    assert "Traceback" not in result.stderr


def test_debug_shows_where_a_mistake_comes_from() -> None:
    result = _train("--dry-run", "--debug", "adition")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert result.stderr.rstrip().endswith("did you mean 'addition'?")


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (EngineError("the sampler failed"), 1, "error: the sampler failed\n"),
        (KeyboardInterrupt(), 130, "interrupted; the same command goes on from the last checkpoint, if there is one\n"),
    ],
)
def test_a_run_that_fails_says_so_in_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: int, message: str
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise raised

    monkeypatch.setattr(purerl, "train", fail, raising=False)
    result = _train()
    assert (result.exit_code, result.stderr) == (code, message)


def test_only_a_run_is_said_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "examine", stop)
    result = CliRunner().invoke(app, ["doctor"])
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize(
    ("sign", "code", "said"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_run_that_is_told_to_stop_gives_the_terminal_back_and_keeps_its_checkpoint(
    sign: signal.Signals, code: int, said: str, tmp_path: Path
) -> None:
    checkpoints, sent = tmp_path / "run" / "checkpoints", []

    def hear(process: subprocess.Popen, so_far: str) -> None:
        if not sent and [*checkpoints.glob("*/manifest.json")] and so_far.rfind(_HIDDEN) > so_far.rfind(_SHOWN):
            sent.append(process.send_signal(sign))

    command = ["-m", "purerl_cli", "train", "tests.loop.small:small", "--set", "max_steps=5000", "--directory"]
    seen, found = in_terminal([sys.executable, *command, str(tmp_path / "run")], hear)
    assert found == code, seen
    assert seen.rfind(_SHOWN) > seen.rfind(_HIDDEN) > 0, "the cursor is there again"
    assert seen.endswith(f"{said}; the same command goes on from the last checkpoint, if there is one\n"), seen[-500:]
    assert "Traceback" not in seen
    assert newest(checkpoints) is not None
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize(
    ("sign", "code", "said"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_run_that_is_told_to_stop_while_torch_writes_a_file_says_that_it_was_told_to(
    sign: signal.Signals, code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Disk(BytesIO):
        """Told to stop between two writes, which leaves torch an archive that it cannot close."""

        def write(self, data: object) -> int:
            if self.tell():
                signal.raise_signal(sign)
            return super().write(bytes(data))

    def save(*args: object, **kwargs: object) -> None:
        torch.save({"weights": torch.ones(2)}, Disk())

    monkeypatch.setattr(purerl, "train", save, raising=False)
    result = _train()
    assert result.exit_code == code, result.exception
    assert result.stderr == f"{said}; the same command goes on from the last checkpoint, if there is one\n"


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(purerl, "train", fail, raising=False)
    assert isinstance(_train().exception, ZeroDivisionError)
