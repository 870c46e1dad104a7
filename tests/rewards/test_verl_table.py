"""The kind `verl`: its table of data sources, with purerl's functions and with those of a package `verl`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from purerl.errors import ConfigError
from purerl.rewards.adapters import RewardInput
from purerl.rewards.check import check_rewards
from purerl.rewards.exact import answers_question
from purerl.rewards.kinds import verl
from purerl.rewards.routing import routes_of
from purerl.rewards.runner import RewardRunner
from purerl.rewards.settings import Reward, RewardWorkers

ROWS = {
    "openai/gsm8k": ("so\n#### 72", "#### 71", "72"),
    "lighteval/MATH": (r"\boxed{\frac12}", r"\boxed{2}", r"\frac{1}{2}"),
    "numina_cn_k12": (r"\boxed{x^2}", r"\boxed{x}", "x^2"),
    "hiyouga/geometry3k": (r"<think>a</think> \boxed{3}", r"\boxed{4}", "3"),
    "math_dapo": ("Answer: 34", "Answer: 33", "34"),
    "aime2025": ("Answer: 204", "Answer: 205", "204"),
    "searchR1_nq": ("<answer>the Louvre</answer>", "<answer>Orsay</answer>", {"target": ["Louvre", "Musée du Louvre"]}),
}
"""By data source: a correct completion, a wrong one, and the ground truth."""

VERL = """
def default_compute_score(data_source, solution_str, ground_truth, extra_info=None, sandbox_fusion_url=None,
                          concurrent_semaphore=None, memory_limit_mb=None, **kwargs):
    return {"score": len(solution_str) + len(ground_truth), "sandbox": (sandbox_fusion_url, memory_limit_mb)}
"""


def _input(source: str, completion: str, ground_truth: Any) -> RewardInput:
    return RewardInput("0", completion, {"data_source": source, "reward_model": {"ground_truth": ground_truth}})


def _rewards(inputs: list[RewardInput], **settings: Any) -> list[float | None]:
    with RewardRunner([verl.Config(**settings)], functions={}, timeout=60.0, num_workers=1) as runner:
        return [result.reward for result in runner.run(inputs)]


def test_each_data_source_has_its_function() -> None:
    correct = [_input(source, completion, truth) for source, (completion, _, truth) in ROWS.items()]
    wrong = [_input(source, completion, truth) for source, (_, completion, truth) in ROWS.items()]
    assert _rewards([*correct, *wrong]) == [1.0] * len(ROWS) + [0.0] * len(ROWS)


def test_every_source_in_the_table_has_one_function() -> None:
    names = verl.data_sources(verl.Config())
    assert len({*names}) == len(names) == 22
    assert {*verl.data_sources(verl.Config(functions="verl"))} == {*names, *verl.CODE}
    assert routes_of(Reward(config=verl.Config())) == (tuple(names),)


def test_programs_and_other_sources_have_no_function_of_purerl() -> None:
    runner = RewardRunner([verl.Config()], functions={}, timeout=1.0, num_workers=1)
    runner.check_sources(dict.fromkeys(ROWS, 1), "train.parquet")
    with pytest.raises(ConfigError, match=r"the data_source 'apps' \(2 rows\), 'mine' \(1 rows\)\n"):
        runner.check_sources({"apps": 2, "openai/gsm8k": 1, "mine": 1}, "train.parquet")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with the function of verl."""
    path = tmp_path / "verl" / "utils" / "reward_score"
    path.mkdir(parents=True)
    (path / "__init__.py").write_text(VERL)
    for name in [name for name in sys.modules if name.partition(".")[0] == "verl"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()


@pytest.mark.usefixtures("package")
def test_functions_of_verl_score_the_rows_unchanged() -> None:
    check_rewards([Reward(config=verl.Config(functions="verl"))], [], RewardWorkers(), {})
    assert _rewards([_input("openai/gsm8k", "abc", "de"), _input("taco", "a", "b")], functions="verl") == [5.0, 2.0]
    function = verl.build(verl.Config(functions="verl", sandbox_fusion_url="http://s", memory_limit_mb=9))
    assert function("taco", "a", "b")["sandbox"] == ("http://s", 9)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"functions": "trl"}, "functions\n  got:  'trl'\n  need: one of: purerl, verl\n"),
        (
            {"sandbox_fusion_url": "http://u"},
            "sandbox_fusion_url has no effect\n  got:  'http://u'\n  need: functions = \"verl\"",
        ),
        (
            {"functions": "verl", "memory_limit_mb": 1},
            "memory_limit_mb has no effect\n  got:  1\n  need: sandbox_fusion_url",
        ),
    ],
)
def test_invalid_settings_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        verl.Config(**settings)
    assert str(caught.value).startswith(message)


def test_verl_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verl, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        check_rewards([Reward(config=verl.Config(functions="verl"))], [], RewardWorkers(), {})
    assert str(caught.value) == (
        "reward 'verl'.functions\n  got:  'verl', which is not installed\n  need: the package verl\n"
        '  do:   pip install --no-deps verl, and what its functions need; or use functions = "purerl"'
    )


@pytest.mark.parametrize(
    ("completion", "answer", "reward"),
    [
        ("<answer>The  Louvre!</answer>", "louvre", 1.0),
        ("<answer>Louvre</answer> or <answer>Orsay</answer>", "Louvre", 0.0),
        ("<answer>\nOrsay\n</answer>", ["Louvre", "Orsay"], 1.0),
        ("Louvre", "Louvre", 0.0),
        ("<answer>an apple a day</answer>", "apple day", 1.0),
        ("<answer>theatre</answer>", "atre", 0.0),
    ],
)
def test_answers_to_questions_are_compared_without_case_punctuation_and_articles(
    completion: str, answer: Any, reward: float
) -> None:
    for example in (
        {"answer": answer},
        {"reward_model": {"ground_truth": answer}},
        {"reward_model": {"ground_truth": {"target": answer}}},
    ):
        assert answers_question(completion, example) == reward


def test_a_missing_answer_is_an_error() -> None:
    for example in ({}, {"answer": []}, {"answer": {"target": None}}, {"answer": 3}):
        with pytest.raises((KeyError, TypeError)):
            answers_question("<answer>x</answer>", example)
