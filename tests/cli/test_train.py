"""`purerl train`: recipes, settings, dry runs, a run, error messages, and interruptions."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
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
from purerl.loop.train import Summary
from purerl.recipes.addition import addition
from purerl.rewards.kinds import format as format_kind
from purerl.rewards.settings import Reward
from purerl.store.checkpoint import newest
from purerl_cli.main import app
from purerl_cli.output import format_summary
from tests.forks import PROGRAMS

from .terminal import run_in_terminal

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
HINT = "the same command resumes from the last checkpoint, if there is one"
SIGNALS = [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
ENDINGS = [
    (signal.SIGINT, 130, f"interrupted; {HINT}\n"),
    (signal.SIGTERM, 75, "  do:   the same command resumes the run\n"),
]

RECIPE = """
from purerl.recipes.addition import addition
from attrs import evolve

def mine():
    return evolve(addition(), name="mine")
"""


def _train(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["train", *map(str, arguments)])


def _read_config(result: Result) -> RunConfig:
    assert result.exit_code == 0, result.output
    return from_dict(RunConfig, tomllib.loads(result.stdout))


# --- recipes, settings, the dry run ------------------------------------------------------------------------------


def test_dry_run_prints_the_configuration_and_creates_nothing(tmp_path: Path) -> None:
    result = _train("--dry-run", "--directory", tmp_path / "run")
    assert result.stdout.startswith("# addition, initial run: sft, 600 steps\n")
    assert _read_config(result) == addition()
    assert not (tmp_path / "run").exists()


def test_set_changes_settings() -> None:
    settings = ("algorithm.kind=rloo", "num_minibatches=1", "seed=7")
    config = _read_config(_train("addition", "--dry-run", *(part for s in settings for part in ("--set", s))))
    assert type(config.algorithm.base).__module__ == "purerl.algos.rloo"
    assert config.seed == 7


@pytest.mark.parametrize("command", [["train", "--dry-run"], ["config", "--toml"]])
def test_settings_without_an_option_are_those_of_set(command: list[str]) -> None:
    mixed = CliRunner().invoke(app, [*command, "addition", "trainer.lr=2e-3", "--set", "seed=7", "ppo_epochs=2"])
    config, options = _read_config(mixed), ["trainer.lr=2e-3", "seed=7", "ppo_epochs=2"]
    assert (config.trainer.lr, config.seed, config.ppo_epochs) == (2e-3, 7, 2)
    with_set = CliRunner().invoke(app, [*command, "addition", *(part for each in options for part in ("--set", each))])
    assert config == _read_config(with_set)


def test_reward_replaces_the_rewards_of_the_recipe(tmp_path: Path) -> None:
    exact, digits = "purerl.rewards.exact:exact_match", "tests.loop.rewards:digits"
    config = _read_config(_train("--dry-run", "--reward", digits, "--reward", f"{exact}=0.5"))
    assert config.rewards == (Reward(digits), Reward(exact, 0.5))
    config = _read_config(_train("--dry-run", "--reward", digits, "--reward", '{kind = "format", weight = 0.5}'))
    assert config.rewards == (Reward(digits), Reward(config=format_kind.Config(), weight=0.5))
    for arguments, message in (
        (["--reward", f"{exact}=much"], f"--reward '{exact}=much'\n  got:  the weight 'much'\n"),
        (["--reward", '{kind="fromat"}'], "rewards.kind: unknown reward 'fromat'\n  do:   did you mean 'format'?"),
        (["--reward", "{kind=format}"], "--reward '{kind=format}'\n  got:  Invalid value (at line 1, column 15)\n"),
        (["--reward", exact, "--set", "rewards=[]"], "--reward and --set rewards\n  got:  both\n"),
    ):
        result = _train("--dry-run", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"error: {message}")


ALGORITHM = """
from attrs import frozen
from purerl.algos import grpo

@frozen
class Config:
    size: int = 3

def algorithm(config):
    return grpo.algorithm()
"""


def test_algorithm_may_be_its_name_a_file_or_a_module_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_here.py").write_text(ALGORITHM)
    (tmp_path / "own_folder").mkdir()
    (tmp_path / "own_folder" / "own_there.py").write_text(ALGORITHM)
    assert str(_read_config(_train("--dry-run", "--set", "algorithm=grpo")).algorithm) == "grpo"
    assert str(_read_config(_train("--dry-run", "--set", "algorithm=own_here")).algorithm) == "own_here"
    settings = ("--set", "algorithm=own_folder/own_there.py", "--set", "algorithm.size=4")
    result = _train("--dry-run", *settings)
    config = _read_config(result)
    assert (str(config.algorithm), config.algorithm.base.size) == ("own_folder/own_there.py", 4)
    # As when a run is resumed: another process has no module with this name.
    (tmp_path / "config.toml").write_text(result.stdout.replace('kind = "hf"', 'kind = "hf"'))
    command = [sys.executable, "-m", "purerl_cli", "train", "--dry-run", "config.toml"]
    again = PROGRAMS.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    text = result.stdout[result.stdout.index("\n[algorithm]") :].split("\n\n")[0]
    short = tmp_path / "short.toml"
    short.write_text(result.stdout.replace(text, "").replace("\nname =", '\nalgorithm = "gspo"\nname =', 1))
    assert str(_read_config(_train("--dry-run", short)).algorithm) == "gspo"


def test_recipe_can_be_a_toml_file_a_function_or_a_python_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my-recipe.py").write_text(RECIPE)
    (tmp_path / "my.toml").write_text(dumps(addition()))
    assert _read_config(_train("--dry-run", tmp_path / "my.toml")) == addition()
    assert _read_config(_train("--dry-run", "purerl.recipes.addition:addition")) == addition()
    assert _read_config(_train("--dry-run", f"{tmp_path}/my-recipe.py:mine")).name == "mine"


# --- a run -------------------------------------------------------------------------------------------------------


def test_run_writes_a_model_and_a_finished_run_exits_with_status_0(tmp_path: Path) -> None:
    settings = ("--set", "max_steps=1", "--set", "trainer.warmup_steps=0")
    arguments = ("tests.loop.small:small", *settings, "--directory", tmp_path / "run")
    first = _train(*arguments)
    assert first.exit_code == 0, first.output
    run = tmp_path / "run"
    command = f"purerl train {run}/config.toml"
    *performance, tokens, memory = [line for line in first.stdout.splitlines() if line.startswith(("tokens/s", "peak"))]
    assert not performance
    assert re.fullmatch(r"tokens/s           (sampling|scoring|training).*", tokens)
    assert re.fullmatch(r"peak memory        \d+\.\d\d GiB resident in the process", memory)
    others = [line for line in first.stdout.splitlines() if line not in (tokens, memory)]
    assert [re.sub(r"\d\.\d{3}", "0.123", line) for line in others[-6:]] == [
        "held-out accuracy  0.123 before, 0.123 after 1 steps",
        f"model              {run}/final, in Hugging Face's format",
        f"checkpoint         {run}/checkpoints/000001",
        f"metrics            {run}/metrics.jsonl",
        f"next               {command} --set seed=1 --directory {run}-1    another seed",
        f"{'':<19}{command} --set algorithm.kind=dr_grpo --directory {run}-dr_grpo    another algorithm",
    ]
    assert (run / "checkpoints" / "000001" / "manifest.json").exists()
    assert (run / "final" / "model.safetensors").exists()
    second = _train(*arguments)
    assert second.exit_code == 0, second.output
    finished, *rest = second.stdout.splitlines()
    assert finished == "finished           before this command: nothing to do; --fresh discards the run"
    assert rest == first.stdout.splitlines()[-8:]
    assert _train(*arguments, "--fresh").exit_code == 0


@pytest.mark.parametrize(
    ("directory", "file", "new_directory"),
    [
        ("runs/a", "runs/a/config.toml", "runs/a-1"),
        ("runs/it's $HOME", "'runs/it'\"'\"'s $HOME/config.toml'", "'runs/it'\"'\"'s $HOME-1'"),
        (".", "config.toml", "{here}-1"),
        ("a/..", "a/../config.toml", "{here}-1"),
    ],
)
def test_suggested_command_is_quoted_and_names_a_new_directory(
    directory: str, file: str, new_directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    output = format_summary(addition(), Summary(Path(directory), 1, {}, {}))
    line = next(line for line in output.splitlines() if line.endswith("another seed"))
    expected = f"purerl train {file} --set seed=1 --directory {new_directory.format(here=tmp_path)}"
    assert line.split(None, 1)[1].rpartition("    ")[0] == expected


# --- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["adition"], "unknown recipe 'adition'\n  need: a recipe of purerl, module:function, file.py:function, "),
        (["no.such:recipe"], "cannot find 'no.such:recipe'\n  got:  No module named 'no'"),
        (["no-such.py:recipe"], "file 'no-such.py'\n  got:  no such file\n  need: a Python file"),
        (["no-such.toml"], "'no-such.toml' cannot be read\n  got:  [Errno 2] No such file"),
        (["purerl.recipes.addition:_EXACT"], "recipe 'purerl.recipes.addition:_EXACT'\n  got:  'purerl.rewards"),
        (["os:getcwd"], "recipe 'os:getcwd'\n  got:  it returned "),
        (["--set", "trainer.lrate=1"], "trainer.lrate\n  got:  no such setting"),
        (["--set", "trainer.lr=-1"], "trainer.lr\n  got:  -1.0\n"),
        (["--set", "algorithm.kind=gropo"], "algorithm.kind: unknown algorithm 'gropo'\n"),
        (["--set", "rollout="], "rollout is missing\n"),
        (["addition", "trainer.lrate=1"], "trainer.lrate\n  got:  no such setting"),
        (["addition", "seed"], "setting 'seed'\n  need: key=value"),
        (["addition", "seed=1", "--set", "seed=2"], "seed\n  got:  both --set and 'seed=1'\n  need: one of the two\n"),
        (["seed=1", "max_steps=2"], ("unknown recipe 'seed=1'\n  need: a recipe of purerl, module:function, "
            "file.py:function, or file.toml\n  do:   write the recipe before its settings: addition seed=1")),
    ],
)  # fmt: skip
def test_invalid_input_is_reported_without_a_traceback(arguments: list[str], message: str) -> None:
    result = _train("--dry-run", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {message}")
    assert "Traceback" not in result.stderr


def test_debug_prints_the_traceback_of_invalid_input() -> None:
    result = _train("--dry-run", "--debug", "adition")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert result.stderr.rstrip().endswith("did you mean 'addition'?")


@pytest.mark.parametrize(
    ("raised", "status", "message"),
    [
        (EngineError("the generator failed"), 1, "error: the generator failed\n"),
        (KeyboardInterrupt(), 130, f"interrupted; {HINT}\n"),
    ],
)
def test_exit_status_of_a_run_that_failed(
    monkeypatch: pytest.MonkeyPatch, raised: BaseException, status: int, message: str
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise raised

    monkeypatch.setattr(purerl, "train", fail, raising=False)
    result = _train()
    assert (result.exit_code, result.stderr) == (status, message)


def test_command_that_cannot_be_resumed_gives_no_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(interpreters: object, *, again: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "check_installation", interrupt)
    result = CliRunner().invoke(app, ["doctor"])
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize(("sign", "status", "ending"), ENDINGS)
def test_signal_restores_the_terminal_and_keeps_the_checkpoint(
    sign: signal.Signals, status: int, ending: str, tmp_path: Path
) -> None:
    checkpoints, sent = tmp_path / "run" / "checkpoints", []

    def send_signal(process: subprocess.Popen, output: str) -> None:
        is_live = output.rfind(HIDE_CURSOR) > output.rfind(SHOW_CURSOR)
        if is_live and not sent and [*checkpoints.glob("*/manifest.json")]:
            sent.append(process.send_signal(sign))

    command = ["-m", "purerl_cli", "train", "tests.loop.small:small", "--set", "max_steps=5000", "--directory"]
    start = subprocess.Popen if sign == signal.SIGINT else PROGRAMS.Popen
    output, actual_status = run_in_terminal([sys.executable, *command, str(tmp_path / "run")], send_signal, start)
    assert actual_status == status, output
    assert output.rfind(SHOW_CURSOR) > output.rfind(HIDE_CURSOR) > 0, "the cursor is not visible"
    assert output.endswith(ending), output[-500:]
    assert "Traceback" not in output
    assert newest(checkpoints) is not None
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize(("sign", "status", "word"), SIGNALS)
def test_signal_whose_exception_a_library_ignores_is_repeated(
    sign: signal.Signals, status: int, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignored = []

    def run(*args: object, **kwargs: object) -> None:
        signal.raise_signal(signal.SIGUSR1)  # asks the run to stop after the step; the next signal stops it at once
        try:
            signal.raise_signal(sign)
        except KeyboardInterrupt as error:
            ignored.append(error)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            time.sleep(0.01)

    monkeypatch.setattr("purerl_cli.output._SECONDS_UNTIL_REPEATED", 0.05)
    monkeypatch.setattr("purerl_cli.stopping._MIN_SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(purerl, "train", run, raising=False)
    before = signal.getsignal(sign), signal.getsignal(signal.SIGALRM)
    result = _train()
    assert (result.exit_code, result.stderr, len(ignored)) == (status, f"{word}; {HINT}\n", 1)
    assert (signal.getsignal(sign), signal.getsignal(signal.SIGALRM)) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize(("sign", "status", "word"), SIGNALS)
def test_signal_while_torch_writes_a_file_is_reported_as_the_signal(
    sign: signal.Signals, status: int, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class InterruptedFile(BytesIO):
        """Raises the signal between two writes. torch then fails to close its incomplete archive."""

        def write(self, data: object) -> int:
            if self.tell():
                signal.raise_signal(sign)
            return super().write(bytes(data))

    def save(*args: object, **kwargs: object) -> None:
        signal.raise_signal(signal.SIGUSR1)
        torch.save({"weights": torch.ones(2)}, InterruptedFile())

    monkeypatch.setattr("purerl_cli.stopping._MIN_SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(purerl, "train", save, raising=False)
    result = _train()
    assert result.exit_code == status, result.exception
    assert result.stderr == f"{word}; {HINT}\n"


def test_unexpected_exception_is_not_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(purerl, "train", fail, raising=False)
    assert isinstance(_train().exception, ZeroDivisionError)
