"""docs/how-to/workflows.md: the workflow conforms, and its test finds a mistake."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from .test_quickstart import ROOT

PAGE = (ROOT / "docs" / "how-to" / "workflows.md").read_text(encoding="utf-8")
WORKFLOW, TEST, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def run_test(folder: Path, monkeypatch: pytest.MonkeyPatch, workflow: str) -> None:
    (folder / "self_check.py").write_text(workflow, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "self_check", raising=False)
    namespace: dict = {}
    exec(TEST, namespace)
    namespace["test_self_check"]()


def test_workflow_conforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_test(tmp_path, monkeypatch, WORKFLOW)


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("derive_seed(*draw.seeds, k, turn)", "derive_seed(*draw.seeds, turn)", "seeds_come_from_the_draw"),
        ("[True] * len(completion.tokens)", "[False] * len(completion.tokens)", "sampled_tokens_are_unchanged"),
        ('if completion.finish == "error"', "if False", "failed_request_is_a_missing_sample"),
        ("draw.number * self.samples + k", "k", "labels_are_those_of_the_draw"),
    ],
)
def test_mistakes_are_found(
    right: str, wrong: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert right in WORKFLOW
    with pytest.raises(AssertionError, match=message):
        run_test(tmp_path, monkeypatch, WORKFLOW.replace(right, wrong))


def test_checks_on_the_page_exist() -> None:
    from purerl.testing.rollouts import CHECKS

    names = re.findall(r'exempt=\["(\w+)"\]', PAGE)
    assert names
    assert {*names} <= {check.__name__ for check in CHECKS}
