"""`purerl eval --run RUN:STEP`: checkpoints of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from purerl.loop.train import train
from purerl.store.settings import Checkpoint
from purerl_cli.main import app
from tests.loop.runs import records
from tests.loop.small import fake


def _evaluate(run: str, *arguments: object) -> Result:
    return CliRunner().invoke(app, ["eval", "--run", run, *map(str, arguments)])


def test_checkpoint_of_a_finished_run_is_evaluated_by_its_step(tmp_path: Path) -> None:
    run = tmp_path / "run"
    summary = train(fake(4, checkpoint=Checkpoint(every=2, keep=2, best="eval/accuracy")), directory=run)
    recorded = {record["step"]: record["eval/accuracy"] for record in records(run) if "eval/accuracy" in record}
    for name, step in (("2", 2), ("4", 4), ("best", summary.best_step)):
        result = _evaluate(f"{run}:{name}", "--json", tmp_path / "all.json")
        assert result.exit_code == 0, result.output
        assert f"the checkpoint of step {step} is evaluated" in result.stderr
        accuracy = json.loads((tmp_path / "all.json").read_text())["metrics"]["eval/accuracy"]
        assert accuracy == pytest.approx(recorded[step])
    refused = _evaluate(f"{run}:3")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "no complete checkpoint of step 3\n  need: one of: 2, 4" in refused.stderr
    refused = _evaluate(f"{run}:last")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--run\n  got:  " in refused.stderr
