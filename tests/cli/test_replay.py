"""`purerl replay`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from purerl.algos import dapo
from purerl.algos.modifiers import bypass
from purerl.composition import Composition
from purerl.loop.train import train
from purerl_cli.main import app
from tests.loop.small import fake


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of DAPO, which drops groups, with 20 steps."""
    config = fake(algorithm=dapo.Config(), evaluate=None, max_steps=20, batch_size=8)
    return train(config, directory=tmp_path_factory.mktemp("runs") / "dapo").directory


def _replay(run: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["replay", str(run), *arguments], env={"COLUMNS": "200"})


def test_own_algorithm_is_replayed_without_options(run: Path) -> None:
    lines = _replay(run).stdout.splitlines()
    assert lines[0] == f"{run}: dapo -> dapo, 20 steps"
    assert "note: the run's algorithm gives the recorded advantages bit for bit in 20 of 20 steps" in lines
    assert any("sampled rows are not recorded" in line for line in lines)


def test_table_has_some_steps_and_their_mean(run: Path) -> None:
    result = _replay(run, "--algorithm", "rloo")
    assert result.stdout.startswith(f"{run}: dapo -> rloo, 20 steps\n")
    first = [line.split()[0] for line in result.stdout.splitlines() if line.startswith("  ") and line.strip()]
    assert first == ["step", *(str(step) for step in range(1, 20, 2)), "20", "mean"]


def test_json_has_every_step(run: Path) -> None:
    found = json.loads(_replay(run, "--set", "clip_high=0.5", "--steps", "3-5", "--json").stdout)
    assert (found["recorded"], found["replayed"]) == ("dapo", "dapo with clip_high=0.5")
    assert [step["step"] for step in found["steps"]] == [3, 4, 5]
    assert all(step["difference"] == 0 and step["is_exact"] for step in found["steps"])
    assert found["mean"]["kept"] == 1.0
    assert found["notes"][0].endswith("3 of 3 steps")


def test_settings_may_be_written_as_in_a_run(run: Path) -> None:
    found, expected = (
        _replay(run, "--set", f"{name}=0.5", "--json").stdout for name in ("algorithm.clip_high", "clip_high")
    )
    assert found.replace("algorithm.clip_high", "clip_high") == expected


def test_unknown_loss_of_the_run_is_named(tmp_path: Path) -> None:
    """Bypass compares the policy with the generator: the generator's own log-probabilities cannot stand in."""
    composition = Composition(dapo.Config(), (bypass.Config(),))
    run = train(fake(algorithm=composition, evaluate=None, max_steps=2), directory=tmp_path / "run").directory
    lines = _replay(run, "--algorithm", "rloo").stdout.splitlines()
    assert " - -> 0." in next(line for line in lines if line.startswith("  mean")).replace("-> -", "-> ")
    assert any(line.startswith("note: no loss of the run's algorithm: the run did not record logp") for line in lines)
    own = _replay(run).stdout
    assert "->" not in own.partition("mean")[2].partition("note")[0].replace("% -> ", "")
    assert own.count("did not record logp") == 1


def test_reward_scores_the_completions_again(run: Path) -> None:
    lines = _replay(run, "--steps", "1", "--reward", "tests.loop.rewards:fails_on_odd_answers=2").stdout.splitlines()
    assert "reward" in lines[2]
    assert any("completions have no reward: tests.loop.rewards:fails_on_odd_answers raised" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--algorithm", "rlooo"), "unknown algorithm 'rlooo'\n  do:   did you mean 'rloo'?"),
        (
            ("--algorithm", "ppo"),
            "error: the advantages of this algorithm cannot be replayed\n  got:  no recorded old_va",
        ),
        (("--steps", "30-"), "error: --steps\n  got:  '30-'\n  need: recorded steps: there are 20 from 1 to 20"),
        (("--set", "clip_hihg=1"), "clip_hihg"),
        (("--reward", "tests.loop.rewards:nothing"), "nothing"),
    ],
)
def test_mistakes_are_refused(run: Path, arguments: tuple[str, ...], message: str) -> None:
    result = _replay(run, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_damaged_rollouts_are_refused_and_can_be_left_out(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    file = copy / "rollouts" / "000002.parquet"
    file.write_bytes(file.read_bytes()[:3000])
    pq.write_table(pa.table({"row": [1]}), copy / "rollouts" / "000003.parquet")
    for step in ("2", "3"):
        result = _replay(copy, "--steps", step)
        assert result.exit_code == 2
        assert f"error: rollouts of step {step} in " in result.stderr
        assert "do:   leave the step out: --steps" in result.stderr
    assert _replay(copy, "--steps", "4-6").exit_code == 0


def test_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    result = _replay(tmp_path)
    assert result.exit_code == 1
    assert "got:  no config.toml" in result.stderr
