"""docs/how-to/callbacks.md: each block of Python is executed, and the methods of `Control` are all on the page."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import purerl
from purerl.loop.callbacks import Callbacks
from purerl.loop.callbacks.control import Control
from tests.loop.small import fake

from .test_quickstart import FENCE, ROOT

PAGE = (ROOT / "docs" / "how-to" / "callbacks.md").read_text(encoding="utf-8")
FIRST, EARLY_STOPPING, SAMPLES = [code for language, _, code in FENCE.findall(PAGE) if language == "python"]


def _captured(code: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The keyword arguments of `purerl.train` in `code`."""
    calls: list[dict[str, Any]] = []

    def train(*args: object, **kwargs: Any) -> SimpleNamespace:
        calls.append(kwargs)
        return SimpleNamespace(steps=0, best_checkpoint=None)

    monkeypatch.setattr(purerl, "train", train, raising=False)
    exec(compile(code, "callbacks.md", "exec"), {})
    [kwargs] = calls
    return kwargs


def test_callbacks_of_the_first_block_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = FIRST.replace('"addition"', 'small(), directory="run"').replace("> 0.5", ">= 0")
    exec(compile(code, "callbacks.md", "exec"), {"small": lambda: fake(max_steps=2)})
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("accuracy ") for line in lines) == 2
    assert sum("truncated completions: ['" in line for line in lines) == 2
    assert sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir()) == ["000001", "000002"]


@pytest.mark.parametrize(
    ("accuracy", "stops"),
    [([0.1], False), ([0.5, 0.1, 0.2, 0.3], True), ([0.1, 0.1, 0.1, 0.2], False), ([0.1, 0.5, 0.5, 0.4, 0.5], True)],
)
def test_early_stopping_has_the_patience_of_the_page(
    accuracy: list[float], *, stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kwargs = _captured(EARLY_STOPPING, monkeypatch)
    assert kwargs["settings"] == {"checkpoint.best": "eval/accuracy"}
    stopped: list[bool] = []
    control = SimpleNamespace(history=lambda name: dict(enumerate(accuracy)), stop=lambda: stopped.append(True))
    kwargs["on_evaluation"]({"step": len(accuracy)}, control)
    assert bool(stopped) is stops
    assert Callbacks(on_evaluation=kwargs["on_evaluation"])


def test_samples_are_logged_every_ten_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[Any, int]] = []
    board = SimpleNamespace(log=lambda values, step: logged.append((values, step)))
    wandb = SimpleNamespace(init=lambda **_: board, Table=lambda columns, data: data)
    monkeypatch.setitem(sys.modules, "wandb", wandb)  # pyright: ignore[reportArgumentType]
    on_step = _captured(SAMPLES, monkeypatch)["on_step"]
    control = SimpleNamespace(sample=lambda prompts, **_: [prompt.upper() for prompt in prompts])
    for step in (9, 10):
        on_step({"step": step}, control)
    assert [step for _, step in logged] == [10]
    assert logged[0][0]["samples"][0] == ("What is 2 + 3?", "WHAT IS 2 + 3?")


def test_every_method_of_control_is_on_the_page() -> None:
    methods = [name for name, value in vars(Control).items() if callable(value) and not name.startswith("_")]
    assert {"stop", "evaluate", "save", "log", "history", "sample"} <= {*methods}
    assert [name for name in methods if f"| `{name}(" not in PAGE] == []
