"""docs/tutorials/sft.md: its commands are run with a tiny model on two ranks."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.loop.runs import records
from tests.placement.forked_launcher import run_forked
from tests.recipes.made import needs_published_problems, write_model, write_published_problems

from .test_quickstart import FENCE, ROOT

PAGE = (ROOT / "docs" / "tutorials" / "sft.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for language, _, code in FENCE.findall(PAGE)
    if language == "sh"
    for line in code.replace("\\\n", " ").splitlines()
    if line
]
SMALL = {
    "train chat": "trainer.lr=4e-3 trainer.mixed_precision=off batch_size=4 num_epochs=2 validation.every=1",
    "train gsm8k": "trainer.mixed_precision=off trainer.warmup_ratio=0 batch_size=4 num_minibatches=1 max_steps=2 "
    "rollout.samples_per_prompt=2 rollout.max_tokens=8 evaluate.max_tokens=8 reward_workers.num_workers=2",
}


def _small(command: str) -> list[str]:
    """The arguments of `command` on two ranks, with the settings of a small run."""
    command = command.replace("placement.ranks=8", "placement.ranks=2").replace("fraction=0.05", "fraction=0.3")
    arguments = shlex.split(command)
    arguments = [argument.replace("Qwen/Qwen2.5-0.5B", "tiny") for argument in arguments[1:]]
    settings = SMALL.get(" ".join(arguments[:2]), "").split()
    extra = ["--max-tokens", "8"] if arguments[0] == "eval" else []
    return [*arguments, *extra, *(part for setting in settings for part in ("--set", setting))]


@pytest.mark.parallel
@needs_published_problems
def test_the_commands_train_a_model_by_sft_and_then_by_rl(tmp_path: Path) -> None:
    write_model(tmp_path / "tiny")
    (tmp_path / "SOURCE").mkdir()
    write_published_problems(tmp_path / "SOURCE")
    for file in (tmp_path / "SOURCE").glob("*.parquet"):
        file.unlink()  # the first command writes them
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "cli")])}
    for command in COMMANDS:
        done = run_forked(
            [sys.executable, "-m", "purerl_cli", *_small(command)],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stderr[-4000:]}"
    sft, rl = (records(tmp_path / "runs" / name) for name in ("sft", "rl"))
    assert sft[-1]["validation/loss"] < sft[0]["validation/loss"]
    assert [record["step"] for record in rl] == [0, 1, 2]
    start = (tmp_path / "runs/rl/config.toml").read_text()
    assert 'path = "runs/sft/final"' in start or 'model = "runs/sft/final"' in start


def test_every_command_is_one_of_purerl() -> None:
    assert [command.split()[1] for command in COMMANDS] == ["data", "train", "train", "train", "eval"]
