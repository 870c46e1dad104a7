"""Code of the user that is edited between two parts of a run: what is refused, what is accepted, what is recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from purerl.config.schema import RunConfig
from purerl.errors import RewardError, RunDirectoryError
from purerl.loop.train import train
from purerl.runs.dry_run import dry_run
from purerl.store.code import code_changes
from tests.loop.runs import records, train_until
from tests.loop.small import fake

REWARD = "from scales import SCALE\n\n\ndef length(completion, example):\n    return SCALE * len(completion)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with a reward function in a file of its own, which imports another one."""
    before = [*sys.path]
    (folder := tmp_path / "code").mkdir()
    (folder / "lengths.py").write_text(REWARD)
    (folder / "scales.py").write_text("SCALE = 0.1\n")
    (folder / "other.py").write_text("SCALE = 1.0\n")
    yield folder
    sys.path[:] = before
    for name in ("lengths", "scales"):
        sys.modules.pop(name, None)


def _config(folder: Path, **changes: Any) -> RunConfig:
    return fake(rewards=(f"{folder}/lengths.py:length",), **changes)


def test_edited_code_stops_a_resumed_run_unless_it_is_accepted(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, run = _config(folder), tmp_path / "run"
    train_until(3, config, directory=run)
    (folder / "scales.py").write_text("SCALE = 0.2\n")
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(RunDirectoryError) as caught:
        train(config, directory=run)
    assert str(caught.value) == (
        f"the code of the run in '{run}' has changed since step 2\n"
        "  got:  edited: scales.py\n"
        "  need: the same code, to resume the run: other code may give other results\n"
        "  do:   restore it, accept it with --accept-changed-code, name another directory, or discard the run with "
        "--fresh; in Python, accept_changed_code=True"
    )
    assert (run / "metrics.jsonl").read_bytes() == before, "a run that is refused is unchanged"
    with pytest.raises(RunDirectoryError, match="edited: scales.py"):
        dry_run(config, run)
    assert dry_run(config, run, accept_changed_code=True) is not None
    capsys.readouterr()
    summary = train(config, directory=run, accept_changed_code=True)
    assert capsys.readouterr().out.startswith("addition: resumed from step 2; changed code: edited: scales.py\n")
    assert code_changes(run) == [(2, "edited: scales.py")]
    assert [record["step"] for record in records(summary)] == [0, 1, 2, 3, 4]
    assert train(config, directory=run).was_finished, "a finished run uses no code"


@pytest.mark.parametrize("name", ["lengths.py", "scales.py"])
def test_a_comment_is_an_edit_and_a_restored_file_is_none(folder: Path, tmp_path: Path, name: str) -> None:
    config, file = _config(folder), folder / name
    train_until(3, config, directory=tmp_path / "run")
    text = file.read_text()
    file.write_text(f"{text}# a comment\n")
    with pytest.raises(RunDirectoryError, match=f"edited: {name}"):
        train(config, directory=tmp_path / "run")
    file.write_text(text)
    (folder / "other.py").write_text("SCALE = 2.0\n")
    train(config, directory=tmp_path / "run")
    assert code_changes(tmp_path / "run") == []


def test_code_may_be_edited_before_the_first_checkpoint(folder: Path, tmp_path: Path) -> None:
    config = _config(folder)
    train_until(1, config, directory=tmp_path / "run")
    (folder / "scales.py").write_text("SCALE = 0.3\n")
    train(config, directory=tmp_path / "run")
    assert code_changes(tmp_path / "run") == []


def test_a_longer_run_needs_the_code_of_the_finished_one(folder: Path, tmp_path: Path) -> None:
    train(_config(folder, max_steps=2), directory=tmp_path / "run")
    (folder / "lengths.py").write_text(REWARD.replace("scales", "other"))
    longer = _config(folder, max_steps=3)
    message = "edited: lengths.py; not used any more: scales.py; new: other.py"
    with pytest.raises(RunDirectoryError, match=message):
        train(longer, directory=tmp_path / "run")
    train(longer, directory=tmp_path / "run", accept_changed_code=True)
    assert code_changes(tmp_path / "run") == [(2, message)]


def test_a_run_that_starts_from_another_one_may_have_other_code(folder: Path, tmp_path: Path) -> None:
    train(_config(folder, max_steps=2), directory=tmp_path / "run")
    (folder / "scales.py").write_text("SCALE = 0.4\n")
    train(_config(folder, max_steps=3), directory=tmp_path / "next", resume_from=tmp_path / "run")
    assert code_changes(tmp_path / "next") == []


def test_the_file_of_a_function_that_is_passed_as_an_object_counts(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    function = import_module("lengths").length
    train_until(3, fake(), rewards=[function], directory=tmp_path / "run")
    (folder / "scales.py").write_text("SCALE = 0.5\n")
    with pytest.raises(RunDirectoryError, match="edited: scales.py"):
        train(fake(), rewards=[function], directory=tmp_path / "run")


def test_a_reward_that_failed_in_the_first_step_is_fixed_and_the_same_command_starts_again(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "lengths.py").write_text("def length(completion, example):\n    raise ValueError\n")
    with pytest.raises(RewardError):
        train(_config(folder), directory=tmp_path / "run")
    (folder / "lengths.py").write_text(REWARD)
    del sys.modules["lengths"]
    assert train(_config(folder), directory=tmp_path / "run").steps == 4


def test_damaged_record_is_refused(folder: Path, tmp_path: Path) -> None:
    train_until(3, _config(folder), directory=tmp_path / "run")
    (tmp_path / "run" / "code.json").write_text('{"versions": [1]}')
    with pytest.raises(RunDirectoryError, match=r"code.json' is damaged\n.*\n  need: the digests of the files"):
        train(_config(folder), directory=tmp_path / "run")
