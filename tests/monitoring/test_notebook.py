"""The console of a run in a notebook, and how it is chosen."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from purerl.loop.train import train
from purerl.monitoring.console.live import Console
from purerl.monitoring.console.notebook import NotebookConsole, is_notebook
from purerl.monitoring.trackers.open import open_console
from tests.loop.small import fake


def _cells(html: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    return [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in rows]


def test_the_bar_and_the_table_have_the_last_steps() -> None:
    shown, now = list[str](), [0.0]
    console = NotebookConsole("a <run>", 100, title="grpo", note="8 rows", show=shown.append, clock=lambda: now[0])
    assert '<b>a &lt;run&gt;</b> grpo<br>8 rows<br><progress value="0" max="100"></progress> step 0 of 100' in shown[0]
    for step in range(13):
        now[0] = 2.0 * step
        console.log({"step": step, "reward/mean": step / 100, "time/sampled_tokens_per_second": 1234.5})
    assert '<progress value="12" max="100"></progress> step 12 of 100, 0:24 elapsed, 2:56 remaining' in shown[-1]
    head, *rows = _cells(shown[-1])
    assert head == ["step", "reward", "sampled_tokens/s"]
    assert rows == [[str(step), f"{step / 100:.3f}", "1,234"] for step in range(12, 2, -1)]
    console.warn(12, "no_variance", "<b>all</b> are equal")
    assert "<p>warning: step 12, no_variance: &lt;b&gt;all&lt;/b&gt; are equal</p>" in shown[-1]
    console.close(failed=False)
    assert "step 12 of 100, 0:24 elapsed, done" in shown[-1]


def test_it_is_redrawn_at_most_twice_a_second_and_at_the_end() -> None:
    shown, now = list[str](), [0.0]
    console = NotebookConsole("a run", 1000, show=shown.append, clock=lambda: now[0])
    for step in range(1000):
        now[0] = step / 100
        console.log({"step": step, "reward/mean": 0.5})
    assert len(shown) <= 21
    console.close(failed=True)
    assert '<progress value="999"' in shown[-1]
    assert shown[-1].count("<tr>") == 11
    assert "failed" in shown[-1]


def test_a_step_without_a_metric_has_an_empty_cell_and_a_resumed_step_is_shown_once() -> None:
    shown = list[str]()
    console = NotebookConsole("a run", 9, history=[{"step": 1, "reward/mean": 0.5}], show=shown.append)
    console.log({"step": 1, "reward/mean": 0.5})
    console.log({"step": 2, "eval/accuracy": 0.25})
    console.close(failed=False)
    assert _cells(shown[-1]) == [["step", "reward", "accuracy"], ["2", "", "0.250"], ["1", "0.500", ""]]


class _Notebook(ModuleType):
    """The parts of IPython that are used, in a kernel; `outputs` are the contents of each display."""

    def __init__(self, shell: Any) -> None:
        super().__init__("IPython")
        self.outputs: list[list[str]] = []
        self.display = ModuleType("IPython.display")
        vars(self.display).update(HTML=str, display=self._show)
        self.get_ipython = lambda: shell

    def _show(self, html: str, *, display_id: bool) -> Any:
        assert display_id
        output = [html]
        self.outputs.append(output)
        return SimpleNamespace(update=output.append)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> _Notebook:
    made = _Notebook(SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", made)
    monkeypatch.setitem(sys.modules, "IPython.display", made.display)
    return made


def test_a_run_in_a_notebook_has_one_output_and_no_lines(
    notebook: _Notebook, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(fake(max_steps=3), directory=tmp_path / "run")
    [output] = notebook.outputs
    assert "step 3 of 3" in output[-1]
    head, *rows = _cells(output[-1])
    assert [row[0] for row in rows] == ["3", "2", "1", "0"]
    assert {"step", "reward", "lr", "sampled_tokens/s"} <= {*head}
    assert "step" not in capsys.readouterr().out


def test_an_interactive_shell_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_notebook()
    monkeypatch.setitem(sys.modules, "IPython", _Notebook(SimpleNamespace()))
    assert not is_notebook()
    trackers = open_console("a run", 1, title="", note="")
    assert isinstance(trackers._trackers["console"][0], Console)
    trackers.close(failed=False)
