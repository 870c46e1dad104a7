"""`purerl laws`: its exit status, its output, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from purerl.testing import LAWS
from purerl_cli.main import app

FILE = "tests.testing.plain_losses"


def _laws(*arguments: str):
    return CliRunner().invoke(app, ["laws", *arguments, "--batches", "1"])


def test_a_law_that_fails_is_exit_status_1_and_shows_the_batch() -> None:
    laws = ("--law", "microbatch_invariance", "--law", "no_hidden_state", "--law", "picklable")
    result = _laws(f"{FILE}:denominator_of_the_micro_batch", *laws)
    assert result.exit_code == 1
    assert "microbatch_invariance: objective 'policy': gradient of logp" in result.stdout
    assert "* marks the difference" in result.stdout
    assert result.stdout.endswith("1 passed, 1 failed, 1 not applicable\n")


def test_an_exemption_with_a_reason_is_exit_status_0() -> None:
    law = "microbatch_invariance"
    result = _laws(
        f"{FILE}:denominator_of_the_micro_batch", "--law", law, "--exempt", f"{law}=one micro-batch", "--json"
    )
    assert result.exit_code == 0
    assert json.loads(result.stdout) == [{"law": law, "status": "exempt", "text": "one micro-batch"}]


def test_settings_reach_the_loss() -> None:
    settings = ("--set", "config.clip_ratio_high=0.28", "--set", "loss_agg_mode=seq-mean-token-mean")
    result = _laws(f"{FILE}:of_verl", "--law", "no_hidden_state", *settings)
    assert result.exit_code == 2
    assert "got:  AssertionError" in result.stderr  # the loss asserts another mode


MODULE = """
import torch
from attrs import frozen

from purerl.algos import grpo
from purerl.algos.algebra import bind
from purerl.algos.parts.settings import number
from purerl.algos.parts.transforms import outcome_advantage

EXEMPTIONS = {"picklable": "never"}


@frozen
class Config:
    scale: float = number("the divisor of the advantage", 1.0, min=0)


def scaled(score, group, counted, *, scale):
    return torch.where(counted, score, 0) / scale


def algorithm(config=Config()):
    return grpo.algorithm()._replace(advantage=outcome_advantage(bind(scaled, scale=config.scale)))
"""


def test_the_module_of_an_algorithm_is_tested_with_its_exemptions_and_settings(tmp_path: Path) -> None:
    file = tmp_path / "own_scaled_algorithm.py"
    file.write_text(MODULE)
    result = _laws(str(file), "--json")
    assert result.exit_code == 1
    results = {each.pop("law"): each for each in json.loads(result.stdout)}
    assert [*results] == [*(law.__name__ for law in LAWS), "check_settings", "check_bounds"]
    assert results["picklable"]["status"] == "failed"
    assert "exempt from picklable, but satisfies it" in results["picklable"]["text"]
    assert results["padding_invariance"] == {"status": "passed", "text": ""}
    assert results["reward_shift_invariance"]["status"] == "failed"
    assert results["reward_shift_invariance"]["text"].endswith("['default']")
    assert results["check_settings"]["status"] == "passed"
    text = "own_scaled_algorithm: scale = 0, at its bound >= 0: finite_at_extreme_ratios: "
    assert results["check_bounds"]["text"].startswith(text)


def test_an_algorithm_of_purerl_is_found_by_its_name() -> None:
    result = _laws("gspo", "--law", "picklable", "--law", "group_label_invariance")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "2 passed")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((f"{FILE}:__doc__",), "need: a function, or a module with Config and algorithm"),
        ((FILE,), f"do:   name a function: {FILE}:FUNCTION"),
        (("grpo", "--set", "clip_low=0.1"), "--set has no effect\n  got:  the algorithm grpo\n  need: a loss"),
        (("grpo", "--exempt", "picklable=no"), "do:   declare it in EXEMPTIONS of the module"),
        (("grpo", "--law", "picklabel"), "did you mean 'picklable'"),
        ((f"{FILE}:own", "--exempt", "padding_invariance"), "need: LAW=REASON"),
        ((f"{FILE}:of_verl", "--set", "config.clip_ratio_hi=1"), "did you mean 'clip_ratio_high'"),
        ((f"{FILE}:own", "--law", "padding_invarance"), "did you mean 'padding_invariance'"),
    ],
)
def test_invalid_input_is_exit_status_2(arguments: tuple[str, ...], message: str) -> None:
    result = _laws(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
