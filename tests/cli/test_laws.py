"""`purerl laws`: its exit status, its output, and what it refuses."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((f"{FILE}:__doc__",), "need: a function"),
        ((FILE,), f"do:   name one in it: {FILE}:FUNCTION"),
        ((f"{FILE}:own", "--exempt", "padding_invariance"), "need: LAW=REASON"),
        ((f"{FILE}:of_verl", "--set", "config.clip_ratio_hi=1"), "did you mean 'clip_ratio_high'"),
        ((f"{FILE}:own", "--law", "padding_invarance"), "did you mean 'padding_invariance'"),
    ],
)
def test_invalid_input_is_exit_status_2(arguments: tuple[str, ...], message: str) -> None:
    result = _laws(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
