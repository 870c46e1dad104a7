"""docs/how-to/judges.md: its commands train a reward model and use it in the next run; its settings are valid."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

import purerl
from purerl.config.check import check
from purerl.config.schema import RunConfig
from purerl.config.structure import from_dict, to_dict
from purerl.recipes.addition import addition
from tests.data.made import assistant, user, write
from tests.loop.runs import records
from tests.recipes.made import write_model, write_problems

from .test_quickstart import FENCE, ROOT

PAGE = (ROOT / "docs" / "how-to" / "judges.md").read_text(encoding="utf-8")
BLOCKS = {
    kind: [code for language, _, code in FENCE.findall(PAGE) if language == kind] for kind in ("sh", "toml", "python")
}
COMMANDS = [line for code in BLOCKS["sh"] for line in code.replace("\\\n", " ").splitlines()]
SHARED = "trainer.lr=3e-3 trainer.mixed_precision=off batch_size=4"
SMALL = {
    "preference_classifier": "data.validation_fraction=0.2 num_epochs=1 validation.every=2",
    "gsm8k": "data.validation_fraction=0.3 trainer.warmup_ratio=0 num_minibatches=1 max_steps=2 "
    "rollout.samples_per_prompt=2 rollout.max_tokens=8 evaluate.max_tokens=8 reward_workers.num_workers=1",
}


@pytest.mark.slow
def test_the_commands_train_a_reward_model_and_use_it_in_the_next_run(tmp_path: Path) -> None:
    write_model(tmp_path / "tiny")
    pairs = [
        {"prompt": [user(f"{k}?")], "chosen": [assistant("Yes")], "rejected": [assistant("No")]} for k in range(20)
    ]
    write(tmp_path / "pairs.jsonl", pairs)
    Path(write_problems(tmp_path)).rename(tmp_path / "train.parquet")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "cli")])}
    for command in COMMANDS:
        for name, small in (("Qwen/Qwen2.5-0.5B-Instruct", "tiny"), ("pairs.parquet", "pairs.jsonl"), ("gsm8k/", "")):
            command = command.replace(name, small)
        _, *arguments = shlex.split(command)
        settings = f"{SHARED} {SMALL[arguments[1]]}".split()
        done = subprocess.run(
            [sys.executable, "-m", "purerl_cli", *arguments, *(part for each in settings for part in ("--set", each))],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stderr[-4000:]}"
    trained, used = (records(tmp_path / "runs" / name) for name in ("reward_model", "rl"))
    assert {"validation/accuracy", "validation/loss"} <= trained[-1].keys()
    assert [record["step"] for record in used] == [0, 1, 2]
    assert used[1]["reward/preferred"] != 0
    assert used[1]["reward/mean"] == pytest.approx(used[1]["reward/gsm8k"] + 0.1 * used[1]["reward/preferred"])


@pytest.mark.parametrize("code", BLOCKS["toml"])
def test_a_block_of_toml_is_valid(code: str) -> None:
    check(evolve(from_dict(RunConfig, {**to_dict(addition()), **tomllib.loads(code)}), initial_run=None))


def test_the_block_of_python_is_a_valid_run(monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[RunConfig] = []

    def train(recipe: str, **settings: Any) -> None:
        configs.append(evolve(addition(), **settings))

    monkeypatch.setattr(purerl, "train", train)
    [code] = BLOCKS["python"]
    exec(compile(code, "judges.md", "exec"), {})
    [config] = configs
    check(config)
    assert [reward.weight for reward in config.rewards] == [1.0, 0.5]
