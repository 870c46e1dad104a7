"""The time until a command answers: libraries that are loaded before, and calls that are made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.calls import COMMAND, calls
from tests.forks import Forks

COMMANDS = Forks("purerl_cli.main")
"""Commands of a process that has imported the command line, which loads none of the libraries below."""

BROKEN = 'name = "x"\nbatch_size = [\n'
UNKNOWN_KEY = 'name = "x"\nmodel = "m"\nalgorithm = "grpo"\n[trainer]\nkind = "hf"\nlrr = 1e-3\n'

_REPORT = """
import atexit, os, sys
names = ("torch._C", "tensordict", "torch._dynamo", "transformers", "pyarrow", "purerl.loop.train")
atexit.register(lambda: os.write(2, f"LOADED {' '.join(n for n in names if n in sys.modules)}\\n".encode()))
sys.argv[0] = "purerl"
from purerl_cli.main import main
main()
"""


def _run(
    *arguments: str, forks: Forks | ModuleType = COMMANDS, status: int = 2, **variables: str
) -> tuple[str, set[str]]:
    """The error message of a command, and those of the libraries above that it has loaded.

    torch is loaded if its library is: the module `torch` exists before its first use.

    If `forks` is `subprocess`, it is started. Otherwise what the server has loaded counts too.
    """
    command, environment = [sys.executable, "-c", _REPORT, *arguments], os.environ | variables
    process = forks.run(command, capture_output=True, text=True, env=environment)
    message, _, loaded = process.stderr.rpartition("LOADED")
    assert process.returncode == status, process.stderr
    assert "Traceback" not in message
    return message, set(loaded.partition("\n")[0].split())  # a slow command may print its first line after that


SOON = [
    (["train", "adition"], "unknown recipe 'adition'"),
    (["train", "no-such.toml"], "'no-such.toml' cannot be read"),
    (["train", "no-such.py:recipe"], "file 'no-such.py'"),
    (["nosuch"], "No such command 'nosuch'"),
    (["train", "{folder}/broken.toml"], "cannot be read"),
    (["train", "{folder}/key.toml"], "trainer.lrr"),
    (["train", "addition", "--set", "max_step=3"], "did you mean 'max_steps'?"),
    (["train", "addition", "--set", "trainer.lrr=3"], "did you mean 'lr'?"),
    (["train", "addition", "--set", "initial_run.trainer.lrr=3"], "initial_run.trainer.lrr"),
    (["train", "gsm8k", "--set", "rollout.max_token=3"], "did you mean 'max_tokens'?"),
    (["train", "gsm8k", "--set", "tets=t.parquet"], "did you mean 'test'?"),
    (["train", "gsm8k", "--set", "algorithm.clip_hihg=1"], "did you mean 'clip_high'?"),
    (["train", "gsm8k", "--set", "algorithm.kl_loss.coeff=1"], "algorithm.kl_loss.coeff"),
    (["config", "chat", "--set", "modle=m"], "did you mean 'model'?"),
    (["train", "tests.loop.small:fake", "--set", "max_step=3"], "did you mean 'max_steps'?"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), SOON, ids=lambda value: value if isinstance(value, str) else None)
def test_unknown_names_and_broken_files_are_reported_before_torch_is_loaded(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "broken.toml").write_text(BROKEN)
    (tmp_path / "key.toml").write_text(UNKNOWN_KEY)
    error, loaded = _run(*(argument.replace("{folder}", str(tmp_path)) for argument in arguments))
    assert message in error
    assert loaded == set()


def test_process_that_is_started_reports_a_mistake_before_torch_is_loaded() -> None:
    error, loaded = _run("train", "addition", "--set", "max_step=3", forks=subprocess)
    assert "did you mean 'max_steps'?" in error
    assert loaded == set()


LATER = [
    (["train", "gsm8k", "--set", "algorithm=grpo@trl", "--set", "algorithm.beta=1"], "algorithm.beta\n"),
    (["train", "addition", "--set", "trainer.lr=fast"], "trainer.lr\n"),
    (["train", "addition", "--set", "rollout="], "rollout is missing\n"),
    (["train", "addition", "--dry-run", "--set", "max_steps=0"], "max_steps\n"),
    (["train", "gsm8k", "--set", "model=m"], "recipe 'gsm8k'\n"),
    (["train", "gsm8k", "--set", "model=m", "--set", "data=d", "--reward", "no.such:f"], "cannot find 'no.such:f'\n"),
]


@pytest.mark.parametrize(("arguments", "message"), LATER, ids=lambda value: value if isinstance(value, str) else None)
def test_other_mistakes_are_reported_before_torch_is_loaded_too(arguments: list[str], message: str) -> None:
    error, loaded = _run(*arguments)
    assert f"error: {message}" in error
    assert loaded == set()


LIGHT = [
    ["--help"],
    ["algo", "list"],
    ["algo", "modifiers"],
    ["algo", "presets"],
    ["algo", "show", "grpo"],
    ["recipes"],
    ["config", "gsm8k"],
    ["config", "addition", "--toml"],
]


@pytest.mark.parametrize("arguments", LIGHT, ids=" ".join)
def test_commands_that_compute_nothing_load_no_library(arguments: list[str]) -> None:
    _, loaded = _run(*arguments, status=0)
    assert loaded == set()


@pytest.mark.parametrize("setting", ["trainer.l", "algorithm.", "trainer.mixed_precision="])
def test_completion_loads_no_library(setting: str) -> None:
    words = {"COMP_WORDS": f"purerl train gsm8k --set {setting}", "COMP_CWORD": "4"}
    _, loaded = _run(status=0, _PURERL_COMPLETE="complete_bash", **words)
    assert loaded == set()


def test_torch_is_an_ordinary_module_after_its_first_use() -> None:
    code = """
import sys
from types import ModuleType
from purerl_cli.lazy_torch import import_torch_lazily

import_torch_lazily()
import torch

assert "torch._C" not in sys.modules
from torch.nn.functional import pad

assert "torch._C" in sys.modules and type(torch) is ModuleType
assert torch.nn is sys.modules["torch.nn"] and torch.nn.functional.pad is pad
assert torch.nn.Module is torch.nn.modules.module.Module
assert torch.nn.__spec__.loader is torch.nn.__loader__
assert not [finder for finder in sys.meta_path if type(finder).__module__ == "purerl_cli.lazy_torch"]
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


def test_missing_data_file_is_reported_before_transformers_is_loaded(tmp_path: Path) -> None:
    settings = ["--set", f"model={tmp_path}", "--set", "data=no-such.parquet", "--directory", str(tmp_path / "run")]
    error, loaded = _run("train", "gsm8k", *settings, forks=subprocess)
    assert "error: data set 'no-such.parquet'\n" in error
    assert loaded & {"transformers", "pyarrow", "torch._dynamo"} == set()


@pytest.mark.slow
def test_messages_take_little_longer_than_the_libraries_that_they_need() -> None:
    """Calls are counted, and not seconds. Nothing of this needs torch."""
    torch = calls("import torch")
    assert calls(COMMAND, "train", "addition", "--set", "max_step=3", status=2) < 0.6 * torch
    assert calls(COMMAND, "train", "addition", "--set", "trainer.lr=fast", status=2) < torch
    assert calls(COMMAND, "algo", "list") < torch
