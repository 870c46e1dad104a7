"""Begin and end of warnings: once per cause, after a resume, and with bounded memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from purerl.loop.train import train
from purerl.monitoring.warnings.history import Facts
from purerl.monitoring.warnings.monitor import diagnose, initial, observe
from purerl.monitoring.warnings.run import Monitor, facts_of_run
from purerl.store.lines import read_lines
from tests.loop.runs import train_until
from tests.loop.small import fake
from tests.monitoring.sample_trackers import untimed_metrics


def _records(rates: list[float]) -> list[dict[str, Any]]:
    return [{"step": step, "policy/learning_rate": rate} for step, rate in enumerate(rates, start=1)]


def test_a_warning_is_raised_once_and_again_only_after_it_has_ended() -> None:
    rates = [0.0] * 8 + [1.0] + [0.0] * 8 + [1.0] * 20 + [0.0] * 6
    episodes = diagnose(_records(rates), Facts())
    # A single step without the cause does not end it. It applies last in step 17, and ends 10 steps later.
    assert [(episode.warning.step, episode.end) for episode in episodes] == [(5, 27), (42, None)]


def test_a_warning_is_not_raised_while_its_cause_is_present_and_does_not_end_because_of_it() -> None:
    """The rewards are equal from the start, the gradient is 0, and in step 30 the entropy collapses."""
    zero = {"reward/mean": 0.0, "reward/std": 0.0, "reward/min": 0.0, "reward/max": 0.0, "policy/grad_norm": 0.0}
    records = [{"step": k, **zero, "policy/entropy": 1.0 if k < 30 else 0.001} for k in range(1, 70)]
    episodes = diagnose(records, Facts())
    assert [(e.warning.name, e.warning.step, e.end) for e in episodes] == [
        ("constant_reward", 10, None),
        ("entropy_collapse", 39, None),
    ]


def test_state_does_not_depend_on_where_a_run_was_resumed_and_does_not_grow() -> None:
    records = _records([0.0] * 300 + [1.0] * 30)
    state, raised = initial(Facts()), []
    for record in records:
        state, new = observe(state, record)
        raised += new
        assert len(state.history.first) + len(state.history.recent) <= 25
    assert [warning.step for warning in raised] == [5]
    again = initial(Facts())
    for record in json.loads(json.dumps(records)):
        again, _ = observe(again, record)
    assert again == state


def test_facts_are_read_from_the_directory_and_have_defaults(tmp_path: Path) -> None:
    assert facts_of_run(tmp_path) == Facts()
    (tmp_path / "config.toml").write_text(
        "[rollout]\nmax_tokens = 7\nmax_staleness = 1\n[reward_workers]\nmax_failure_rate = 0.5\n"
    )
    (tmp_path / "data.json").write_text('{"learns_from_rewards": false}')
    assert facts_of_run(tmp_path) == Facts(False, 0.5, 7, 1)
    (tmp_path / "data.json").write_text("{")
    assert facts_of_run(tmp_path).learns_from_rewards
    (tmp_path / "config.toml").write_text('[rollout]\nrecorded = "runs/other"\n')
    assert facts_of_run(tmp_path).max_staleness == 1


def _zero(completion: str, example: dict[str, Any]) -> float:
    return 0.0


@pytest.mark.parametrize("content", ["null", "[]", '{"learns_from_rewards": []}'])
def test_damaged_facts_have_defaults(tmp_path: Path, content: str) -> None:
    (tmp_path / "data.json").write_text(content)
    (tmp_path / "config.toml").write_text('rollout = 5\n[reward_workers]\nmax_failure_rate = "x"\n')
    assert facts_of_run(tmp_path) == Facts()


def test_a_run_warns_once_and_does_not_repeat_it_when_it_is_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = fake(max_steps=16, rewards=())
    train_until(13, config, rewards=[_zero], directory=tmp_path / "run")
    first = capsys.readouterr().out
    assert first.count("warning: step 10, constant_reward: all completions of the last 10 steps have the reward 0") == 1
    assert first.count("warning:") == first.count("Likely cause: ") == first.count("Try: ") == 1
    train(config, rewards=[_zero], directory=tmp_path / "run")
    assert "warning:" not in capsys.readouterr().out
    facts = facts_of_run(tmp_path / "run")
    assert facts == Facts(max_tokens=4, mismatch_level=facts.mismatch_level, mismatch_limit=1e-4)
    assert 0 < (facts.mismatch_level or 0) < 1e-6
    records = read_lines(tmp_path / "run" / "metrics.jsonl")
    [episode] = diagnose(records, facts_of_run(tmp_path / "run"))
    assert (episode.warning.name, episode.warning.step, episode.end) == ("constant_reward", 10, None)
    assert Monitor.of_run(tmp_path / "run", records[:9]).observe(records[9]) == ()
    assert Monitor.of_run(tmp_path / "run", records[:10]).observe(records[10]) == (episode.warning,)


def test_a_run_that_is_resumed_before_a_warning_raises_it_in_the_same_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = fake(max_steps=12, rewards=())
    train(config, rewards=[_zero], directory=tmp_path / "whole")
    train_until(7, config, rewards=[_zero], directory=tmp_path / "resumed")
    assert capsys.readouterr().out.count("constant_reward") == 1
    train(config, rewards=[_zero], directory=tmp_path / "resumed")
    assert "step 10, constant_reward" in capsys.readouterr().out
    assert untimed_metrics(tmp_path / "whole") == untimed_metrics(tmp_path / "resumed")
