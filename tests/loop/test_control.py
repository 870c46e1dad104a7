"""Requests of callbacks, and their effects on the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

import purerl
from purerl.algos import grpo, sft
from purerl.algos.modifiers import bypass
from purerl.composition import Composition
from purerl.errors import ConfigError, InputError
from purerl.loop.callbacks.control import Control
from purerl.loop.summary import Summary
from purerl.store.checkpoint import saved_steps
from purerl.store.settings import Checkpoint

from .small import fake, small_real
from .test_callbacks import _records, without_times

Record = Mapping[str, Any]


def _after(step: int, action: Callable[[Control], object]) -> Callable[[Record, Control], None]:
    """A callback that does `action` after this step."""

    def call(record: Record, control: Control) -> None:
        if record["step"] == step:
            action(control)

    return call


def _sparse(max_steps: int = 6, **changes: Any) -> Any:
    """A run with an evaluation and a checkpoint after its last step only."""
    config = fake(max_steps)
    evaluate = evolve(config.evaluate, every=100)
    return evolve(config, evaluate=evaluate, checkpoint=Checkpoint(every=100, keep=9), **changes)


def _evaluated(run: Path) -> list[int]:
    return [record["step"] for record in _records(run) if "eval/accuracy" in record]


@pytest.mark.parametrize("callback", ["on_step", "on_evaluation"])
def test_stop_ends_the_run_after_the_step_as_after_its_last_one(tmp_path: Path, callback: str) -> None:
    run = tmp_path / "run"
    config = evolve(fake(8), checkpoint=Checkpoint(every=100))
    summary = purerl.train(config, directory=run, **{callback: _after(2, Control.stop)})
    assert summary.steps == 2
    assert summary.model.is_dir()
    assert [*saved_steps(run / "checkpoints")] == [2]
    assert _evaluated(run) == [0, 2]
    assert [record.get("callback/stop") for record in _records(run)] == [None, None, 1.0]
    again = purerl.train(config, directory=run)
    assert again.was_finished
    assert again == summary
    other = purerl.train(config, directory=tmp_path / "longer", resume_from=run)
    assert other.steps == 8, "a run that starts from the checkpoint is not over"


def test_stop_is_known_if_the_run_is_killed_before_its_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> Summary:
        raise ZeroDivisionError

    config, run = fake(8), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("purerl.loop.train.summarize", fail)
        with pytest.raises(ZeroDivisionError):
            purerl.train(config, directory=run, on_step=_after(3, Control.stop))
    steps: list[int] = []
    summary = purerl.train(config, directory=run, on_step=lambda record, _: steps.append(record["step"]))
    assert (summary.steps, steps) == (3, [])


def test_stop_before_the_first_step(tmp_path: Path) -> None:
    summary = purerl.train(fake(4), directory=tmp_path / "run", on_evaluation=_after(0, Control.stop))
    assert summary.steps == 0


def test_evaluate_and_save(tmp_path: Path) -> None:
    run, written = tmp_path / "run", []

    def both(control: Control) -> None:
        control.evaluate()
        control.save()

    purerl.train(
        _sparse(),
        directory=run,
        on_step=_after(3, both),
        on_checkpoint=lambda path, control: written.append(int(path.name)),
    )
    assert _evaluated(run) == [0, 3, 6]
    assert written == [3, 6]
    purerl.train(_sparse(), directory=tmp_path / "other")
    others = {record["step"]: record for record in without_times(_records(tmp_path / "other"))}
    for record in without_times(_records(run)):
        expected = others[record["step"]]
        assert {name: record[name] for name in expected} == expected


def test_requests_of_on_checkpoint_belong_to_the_next_step(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def on_checkpoint(path: Path, control: Control) -> None:
        if path.name == "000002":
            control.log("callback/saved", 2)
            control.evaluate()
            control.stop()

    config = evolve(_sparse(8), checkpoint=Checkpoint(every=2))
    summary = purerl.train(config, directory=run, on_checkpoint=on_checkpoint)
    assert summary.steps == 3
    assert [record.get("callback/saved") for record in _records(run)] == [None, None, None, 2.0]
    assert _evaluated(run) == [0, 3]


def test_request_of_on_checkpoint_after_the_last_step_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    purerl.train(fake(2), directory=tmp_path / "run", on_checkpoint=lambda path, control: control.save())
    assert "requests of on_checkpoint after the last step have no effect" in caplog.text


def test_log_adds_a_metric_to_the_record(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def on_step(record: Record, control: Control) -> None:
        control.log("callback/twice", 2 * record["step"])

    def on_evaluation(record: Record, control: Control) -> None:
        control.log("callback/nan", float("nan"))
        assert record["step"] == 0 or record["callback/twice"] == 2 * record["step"]

    purerl.train(fake(2), directory=run, on_step=on_step, on_evaluation=on_evaluation)
    assert [record.get("callback/twice") for record in _records(run)] == [None, 2.0, 4.0]
    assert [record.get("callback/nan", "none") for record in _records(run)] == [None, "none", None]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("reward/mean", 1.0, "got:  a metric that this step has"),
        ("eval/mine", 1.0, "need: a name that does not begin with eval/, validation/, time/"),
        ("callback/stop", 1.0, "got:  a metric that this step has"),
        ("mine", "many", "got:  'many'"),
        ("", 1.0, "need: a name"),
    ],
)
def test_metric_that_cannot_be_logged(tmp_path: Path, name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s)^control.log.*{message}"):
        purerl.train(fake(2), directory=tmp_path / "run", on_step=lambda record, control: control.log(name, value))


def test_history_is_that_of_the_whole_run_also_if_it_was_resumed(tmp_path: Path) -> None:
    run, seen = tmp_path / "run", []

    def on_evaluation(record: Record, control: Control) -> None:
        seen.append(control.history("eval/accuracy"))
        if record["step"] == 4 and len(seen) == 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        purerl.train(fake(4), directory=run, on_evaluation=on_evaluation)
    purerl.train(fake(4), directory=run, on_evaluation=on_evaluation)
    accuracy = {record["step"]: record["eval/accuracy"] for record in _records(run) if "eval/accuracy" in record}
    assert [[*each] for each in seen] == [[0], [0, 2], [0, 2, 4], [0, 2, 4]]
    assert seen[-1] == accuracy


@pytest.mark.parametrize("config", [fake(3), small_real(3)], ids=["fake", "hf"])
def test_run_that_samples_in_callbacks_has_the_same_results(tmp_path: Path, config: Any) -> None:
    texts: dict[int, list[str]] = {}

    def on_step(record: Record, control: Control) -> None:
        texts[record["step"]] = control.sample(["1+2=", "33+4="], temperature=1.0, max_tokens=5)
        assert control.sample(["1+2=", "33+4="], temperature=1.0, max_tokens=5) == texts[record["step"]]
        control.sample(["9+9="])

    sampled = purerl.train(config, directory=tmp_path / "sampled", on_step=on_step, on_evaluation=on_step)
    plain = purerl.train(config, directory=tmp_path / "plain")
    assert without_times(_records(sampled.directory)) == without_times(_records(plain.directory))
    weights = [(summary.model / "model.safetensors").read_bytes() for summary in (sampled, plain)]
    assert weights[0] == weights[1]
    assert [*texts] == [0, 1, 2, 3]
    assert all(len(each) == 2 for each in texts.values())
    assert len({tuple(each) for each in texts.values()}) > 1


def test_run_with_draws_in_flight_that_samples_in_callbacks_has_the_same_results(tmp_path: Path) -> None:
    config = small_real(3, algorithm=Composition(grpo.Config(), (bypass.Config(),)), evaluate=None)
    config = evolve(config, rollout=evolve(config.rollout, max_staleness=1))
    runs = [
        purerl.train(config, directory=tmp_path / name, on_step=lambda _, control, k=k: control.sample(["1+2="] * k))
        for k, name in enumerate(("plain", "sampled"))
    ]
    records = [without_times(_records(run.directory)) for run in runs]
    assert records[0] == records[1]
    assert (runs[0].model / "model.safetensors").read_bytes() == (runs[1].model / "model.safetensors").read_bytes()


def test_prompt_that_is_too_long(tmp_path: Path) -> None:
    message = r"^prompt 1 of control.sample\(\)\n  got:  \d{4} tokens, and max_tokens 8\n  need: at most \d+ tokens"
    with pytest.raises(InputError, match=message):
        purerl.train(
            small_real(1),
            directory=tmp_path / "run",
            on_step=lambda record, control: control.sample(["1", "2" * 9000], max_tokens=8),
        )


def test_run_without_a_generator_cannot_sample(tmp_path: Path) -> None:
    config = small_real(1, algorithm=sft.Config(), rollout=None, generator=None, evaluate=None, rewards=())
    with pytest.raises(ConfigError, match=r"^control.sample\(\)\n  got:  a run that samples nothing"):
        purerl.train(config, directory=tmp_path / "a", on_step=lambda record, control: control.sample(["1"]))
    with pytest.raises(ConfigError, match=r"^control.evaluate\(\)\n  got:  a run without evaluations"):
        purerl.train(config, directory=tmp_path / "b", on_step=lambda record, control: control.evaluate())
