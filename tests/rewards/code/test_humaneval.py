"""The published problems of HumanEval, if they are available: every solution passes, as a body and as a function."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from purerl.rewards.code.grades import Grade
from purerl.rewards.kinds.code import Config, build
from tests.data.test_convert import PUBLISHED

_FILES = sorted((PUBLISHED / "humaneval").glob("*.jsonl"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not _FILES, reason="HumanEval is not available: set PURERL_TEST_DATA"),
]


def test_every_solution_passes_and_no_body_that_does_nothing() -> None:
    problems = [json.loads(line) for path in _FILES for line in path.read_text().splitlines() if line.strip()]
    with closing(build(Config(timeout=20))) as code, ThreadPoolExecutor(4) as executor:

        def grade(problem: dict[str, str]) -> list[Grade]:
            body = problem["canonical_solution"]
            whole = f"It is this function:\n```python\n{problem['prompt']}{body}```\n"
            return [code.grade(completion, problem) for completion in (body, whole, "    return None\n")]

        grades = {
            problem["task_id"]: found for problem, found in zip(problems, executor.map(grade, problems), strict=True)
        }
    assert len(grades) >= 82
    assert {name: found[:2] for name, found in grades.items() if found[:2] != [Grade(1.0)] * 2} == {}
    assert {name for name, found in grades.items() if found[2].score != 0.0} == set()
