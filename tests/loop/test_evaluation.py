"""Evaluations of several data sets, in runs and outside of them: the same numbers by the same code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from attrs import evolve

from purerl.backends.fake import generator as fake_generator
from purerl.backends.hf import generator
from purerl.backends.tokenizer import load_tokenizer
from purerl.config.check import check, evaluated
from purerl.config.schema import Data, Evaluate, RunConfig, StopWhen
from purerl.config.structure import apply, from_dict, read_toml, to_dict
from purerl.errors import ConfigError, InputError, RewardError, RunDirectoryError
from purerl.evaluation.results import Attempt, Problem, dataset_metrics, metrics
from purerl.evaluation.statistics import pass_at_k
from purerl.loop.evaluation import Exam, exam_of_run, examine, write_json
from purerl.loop.evaluation import exam_of_model as _exam_of_model
from purerl.loop.train import Summary, train
from purerl.protocols import Model
from purerl.recipes.addition import prepare
from purerl.rewards.runner import RewardResult
from tests.data.made import write

from .small import fake, small

DIGITS, BROKEN = "tests.loop.rewards:digits", "tests.loop.test_evaluation:broken"
HALF = {"max_examples": 3, "samples_per_prompt": 4, "temperature": 1.5, "max_tokens": 4, "pass_at_k": (1, 2, 4)}


def exam_of_model(model: Model, settings: Evaluate, **others: Any) -> Exam:
    """With the engine that the command line names."""
    return _exam_of_model(model, settings, generator=generator.Config(), **others)


def first_two(completion: str) -> str | None:
    """What an answer is in these tests."""
    return completion[:2] or None


def broken(completion: str, example: Mapping[str, Any]) -> float:
    """A reward function that fails on one of two."""
    if int(example["answer"]) % 2:
        raise ValueError("odd")
    return 1.0


def sum_of(completion: str, example: Mapping[str, Any]) -> float:
    """The right answer itself: it tells which problem a completion was judged by."""
    return float(example["answer"][::-1])


def starts_with_a_digit(completion: str, example: Mapping[str, Any]) -> float:
    """Something that a model which knows nothing is right about now and then."""
    return float(completion[:1].isdecimal() and completion[:1] < "5")


EASY = "tests.loop.test_evaluation:starts_with_a_digit"


def _real(**changes: Any) -> RunConfig:
    """Two steps of a real model that knows nothing."""
    return small(**{"max_steps": 2, "initial_run": None, "model": Model("{run}/prepared/model")} | changes)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real model that knows nothing, and its problems in two files."""
    folder = tmp_path_factory.mktemp("prepared")
    prepare(folder, seed=0)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """A finished run that was evaluated on two data sets, four times on each problem."""
    data = {"new": "{run}/prepared/held_out.parquet", "old": "{run}/prepared/train.parquet"}
    settings = Evaluate(data=data, every=2, answer_extractor="tests.loop.test_evaluation:first_two", **HALF)
    folder = tmp_path_factory.mktemp("run") / "run"
    return train(_real(evaluate=settings, rewards=(EASY,)), directory=folder)


# --- in a run ----------------------------------------------------------------------------------------------------


def test_several_data_sets_have_a_name_each_and_a_mean(run: Summary) -> None:
    settings = read_toml(run.directory / "config.toml", RunConfig).evaluate
    assert sorted(run.after) == sorted(evaluated(settings))
    assert {"eval/new/pass@2", "eval/old/maj@4", "eval/new/accuracy_low"} <= set(run.after)
    assert run.after["eval/accuracy"] == fmean(run.after[f"eval/{name}/accuracy"] for name in ("new", "old"))
    for name in ("new", "old"):
        found = {key.rpartition("/")[2]: value for key, value in run.after.items() if f"/{name}/" in key}
        assert found["pass@1"] == pytest.approx(found["accuracy"])
        assert found["pass@1"] <= found["pass@2"] <= found["pass@4"]
        assert found["accuracy_low"] <= found["accuracy"] <= found["accuracy_high"]
        assert found["valid_fraction"] == 1


def test_a_metric_of_one_of_them_can_end_a_run() -> None:
    files = {"a": "a.parquet", "b": "b.parquet"}
    several = evolve(fake().evaluate, data=files, samples_per_prompt=2, temperature=1.0)
    check(fake(evaluate=several, stop_when=StopWhen(metric="eval/b/pass@2", at_least=1.0)))
    with pytest.raises(ConfigError, match="did you mean 'eval/a/accuracy'"):
        check(fake(evaluate=several, stop_when=StopWhen(metric="eval/a/acuracy", at_least=1.0)))


# --- outside of a run --------------------------------------------------------------------------------------------


def test_a_finished_run_is_examined_as_it_examined_itself(run: Summary) -> None:
    exam = exam_of_run(run.directory, {})
    assert metrics(examine(exam), exam.settings) == run.after


def test_an_exam_can_differ_from_the_runs(run: Summary) -> None:
    exam = exam_of_run(
        run.directory,
        {"max_examples": 2, "samples_per_prompt": 1, "temperature": 0.0, "pass_at_k": (), "answer_extractor": None},
    )
    results = examine(exam)
    assert [len(problems) for problems in results.values()] == [2, 2]
    assert all(len(problem.attempts) == 1 for problem in results["new"])


def test_an_attempt_ends_where_the_model_says(prepared: Path, tmp_path: Path) -> None:
    """Outside of a run, and in the exam of a run's model, which has what the model was given."""
    model = tmp_path / "model"
    shutil.copytree(prepared / "model", model)
    digits = load_tokenizer(Model(str(model))).convert_tokens_to_ids([*"0123456789"])
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": digits}))
    data = {"old": str(prepared / "train.parquet")}
    exam = exam_of_model(Model(str(model)), Evaluate(data=data, **HALF), rewards=[EASY])
    texts = [attempt.completion for one in examine(exam)["old"] for attempt in one.attempts]
    assert {len(text) for text in texts if text[:1].isdecimal()} == {1}
    settings = _real(model=Model(str(model)), evaluate=Evaluate(data=data, every=9, **HALF), rewards=(EASY,))
    done = train(settings, directory=tmp_path / "run")
    assert set(digits) <= set(exam_of_run(done.directory, {}).chat.stop_tokens)


def test_a_real_model_is_examined_on_two_data_sets(prepared: Path, tmp_path: Path) -> None:
    files = [str(prepared / "held_out.parquet"), f"old={prepared / 'train.parquet'}"]
    exam = exam_of_model(Model(str(prepared / "model")), Evaluate(data=files, **HALF), rewards=[EASY])
    results = examine(exam)
    assert {name: [problem.index for problem in one] for name, one in results.items()} == {
        "held_out": [0, 1, 2],
        "old": [0, 1, 2],
    }
    attempts = [attempt for one in results.values() for problem in one for attempt in problem.attempts]
    assert len({attempt.completion for attempt in attempts}) > 12, "samples differ"
    assert 0 < sum(attempt.is_correct for attempt in attempts) < 24
    again = exam_of_model(Model(str(prepared / "model")), evolve(exam.settings, max_examples=2), rewards=[EASY])
    assert examine(again)["old"] == results["old"][:2], "a problem's attempts depend on nothing beside it"
    other = exam_of_model(Model(str(prepared / "model")), exam.settings, rewards=[EASY], seed=1)
    assert examine(other)["old"] != results["old"]
    write_json(tmp_path / "all.json", exam, results)
    written = json.loads((tmp_path / "all.json").read_text())
    assert written["metrics"] == metrics(results, exam.settings)
    assert written["settings"] | {"every": 20} == to_dict(exam.settings)
    for name, one in results.items():
        for problem, said in zip(one, written["data"][name]["problems"], strict=True):
            assert said["num_correct"] == sum(attempt.is_correct for attempt in problem.attempts)
            assert [a["completion"] for a in said["attempts"]] == [a.completion for a in problem.attempts]
        num_correct = [said["num_correct"] for said in written["data"][name]["problems"]]
        assert written["data"][name]["metrics"]["pass@2"] == fmean(pass_at_k(c, 4, k=2) for c in num_correct)


def test_every_attempt_is_judged_by_its_own_problem(prepared: Path) -> None:
    settings = Evaluate(
        data=str(prepared / "train.parquet"), samples_per_prompt=2, temperature=1.0, max_examples=3, max_tokens=1
    )
    exam = exam_of_model(Model(str(prepared / "model")), settings, rewards=["tests.loop.test_evaluation:sum_of"])
    for problem in examine(exam)["train"]:
        a, b = problem.prompt.rstrip("=").split("+")
        assert [attempt.result.reward for attempt in problem.attempts] == [int(a) + int(b)] * 2


def test_greedy_attempts_are_the_default_and_nothing_need_judge_them(prepared: Path) -> None:
    settings = Evaluate(data=str(prepared / "held_out.parquet"), max_examples=2, max_tokens=4)
    exam = exam_of_model(Model(str(prepared / "model")), settings)
    problems = examine(exam)["held_out"]
    assert [len(problem.attempts) for problem in problems] == [1, 1]
    assert set(dataset_metrics(problems, settings)) == {"length", "truncated", "valid_fraction", "failed", "timed_out"}


def test_any_engine_samples(prepared: Path) -> None:
    settings = Evaluate(data=str(prepared / "held_out.parquet"), max_examples=2, max_tokens=4)
    engine = fake_generator.Config(vocabulary=14)
    exam = _exam_of_model(Model(str(prepared / "model")), settings, generator=engine)
    assert exam.generator == engine
    [found], [other] = examine(exam).values(), examine(exam_of_model(exam.model, settings)).values()
    assert [problem.prompt for problem in found] == [problem.prompt for problem in other]
    assert found != other, "the bigram table is no Qwen3"


def length(completion: str, example: Any) -> float:
    return len(completion)


def now_and_then(completion: str, example: Any) -> float:
    if example["index"] == 3:
        raise ValueError("the third")
    return 1.0


def test_functions_of_this_process_judge_too(prepared: Path) -> None:
    settings = Evaluate(data=str(prepared / "train.parquet"), max_examples=2, max_tokens=3)
    for problem in examine(exam_of_model(Model(str(prepared / "model")), settings, rewards=[length]))["train"]:
        [attempt] = problem.attempts
        assert attempt.result.components == {"length": len(attempt.completion)}


def test_a_few_failures_are_told(prepared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"prompt": f"{k}+{k}=", "index": k} for k in range(12)]
    settings = Evaluate(data=write(tmp_path / "rows.jsonl", rows), max_tokens=1)
    exam = exam_of_model(Model(str(prepared / "model")), settings, rewards=[now_and_then])
    results = examine(exam)
    assert "a reward function failed on 1 of 12 completions, which are left out; the first:" in caplog.text
    assert "ValueError: the third" in caplog.text
    write_json(tmp_path / "all.json", exam, results)
    [attempt] = json.loads((tmp_path / "all.json").read_text())["data"]["rows"]["problems"][3]["attempts"]
    assert "ValueError: the third" in attempt["traceback"]


def second_word(completion: str) -> int:
    return len(completion.split()[1])


def two(completion: str, example: Any) -> None:
    return None


def test_an_answer_that_cannot_be_found_is_none_and_told_once(prepared: Path, caplog: pytest.LogCaptureFixture) -> None:
    sampled = {"samples_per_prompt": 2, "temperature": 1.0, "max_tokens": 1, "max_examples": 2}
    settings = Evaluate(
        data=str(prepared / "train.parquet"), answer_extractor="tests.loop.test_evaluation:second_word", **sampled
    )
    results = examine(exam_of_model(Model(str(prepared / "model")), settings, rewards=[EASY]))
    assert {attempt.answer for problem in results["train"] for attempt in problem.attempts} == {None}
    assert caplog.text.count("second_word raised, so there is no answer") == 1


def test_too_many_failures_end_an_exam(prepared: Path) -> None:
    settings = Evaluate(data=str(prepared / "train.parquet"), max_examples=8, max_tokens=1)
    exam = exam_of_model(Model(str(prepared / "model")), settings, rewards=[BROKEN])
    with pytest.raises(RewardError, match="(?s)ValueError: odd.*of 8.*do:   mend the function"):
        examine(exam)


# --- the numbers -------------------------------------------------------------------------------------------------


def _problem(*said: tuple[float | None, str | None]) -> Problem:
    attempts = [
        Attempt("", 2, "stop", answer, RewardResult() if value is None else RewardResult({"a": value}, {"a": value}))
        for value, answer in said
    ]
    return Problem(0, "", tuple(attempts))


def test_problems_count_alike_and_what_is_not_judged_counts_nowhere() -> None:
    settings = Evaluate(max_tokens=4, samples_per_prompt=3, temperature=1.0, pass_at_k=(1, 3), answer_extractor="m:f")
    problems = [
        _problem((1.0, "x"), (0.5, "y"), (0.0, "y")),
        _problem((1.0, "x"), (None, "y"), (None, "y")),
        _problem((None, "x"), (None, "x"), (None, "x")),
    ]
    found = dataset_metrics(problems, settings)
    assert found["accuracy"] == found["pass@1"] == pytest.approx((1 / 3 + 1) / 2)
    assert found["reward"] == pytest.approx((0.5 + 1) / 2)
    assert found["pass@3"] == 1.0, "of the one problem with three judged completions"
    assert found["maj@3"] == 0.5
    assert found["valid_fraction"] == pytest.approx(4 / 9)
    assert found["length"] == 2


# --- settings ----------------------------------------------------------------------------------------------------


def test_data_can_be_said_in_three_ways() -> None:
    for said, data in (
        ("d/a.parquet", {"a": "d/a.parquet"}),
        ("b=d/a.parquet", {"b": "d/a.parquet"}),
        ("d/k=1/a b.parquet", {"a_b": "d/k=1/a b.parquet"}),
        (["a.parquet", "c=b.jsonl"], {"a": "a.parquet", "c": "b.jsonl"}),
        ({"x": "a.parquet"}, {"x": "a.parquet"}),
    ):
        assert Evaluate(data=said, max_tokens=1).data == data
        table = to_dict(fake())
        table["evaluate"]["data"] = said
        assert from_dict(RunConfig, table).evaluate.data == data
    two = apply(fake(), ["evaluate.data.more=m.parquet"]).evaluate.data
    assert two == {"held_out": "{run}/prepared/held_out.parquet", "more": "m.parquet"}
    assert apply(fake(), ["evaluate.data.more=m.parquet", "evaluate.data.held_out="]).evaluate.data == {
        "more": "m.parquet"
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"samples_per_prompt": 8},
            (
                "samples_per_prompt has no effect\n"
                "  got:  8\n"
                "  need: a temperature above 0: greedy completions of a problem are all the same\n"
                "  do:   set temperature, to 1.0 say"
            ),
        ),
        (
            {"answer_extractor": "m:f"},
            (
                "answer_extractor has no effect\n"
                "  got:  'm:f'\n"
                "  need: several samples, to find the most frequent answer\n"
                "  do:   set samples_per_prompt"
            ),
        ),
        ({"pass_at_k": (2,)}, "pass_at_k\n  got:  (2,)\n  need: from 1 to samples_per_prompt, 1"),
        ({"pass_at_k": (1, 1)}, "pass_at_k\n  got:  (1, 1)\n  do:   name each k once"),
        ({"temperature": -1.0}, "temperature\n  got:  -1.0\n  need: 0 or above, and finite"),
        ({"data": {"a b": "c"}}, "data\n  got:  the name 'a b'\n  need: letters, digits, ., - and _"),
        ({"data": {"a": 1}}, "data\n  got:  1\n  need: a file, as a text"),
        (
            {"data": ["x/a.parquet", "y/a.parquet"]},
            "files of one name\n  got:  x/a.parquet, y/a.parquet\n  do:   name them: NAME=FILE",
        ),
    ],
)
def test_what_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Evaluate(**{"max_tokens": 4} | settings)
    assert str(caught.value) == message


def test_what_is_refused_has_its_key() -> None:
    for setting, message in (
        ("evaluate.data=3", "evaluate.data\n  got:  3\n  need: a text, a list of texts, or a section"),
        ("evaluate.data=[3]", "evaluate.data\n  got:  [3]\n  need: a text, a list of texts, or a section"),
        ('evaluate.data=["a/x", "b/x"]', "evaluate.data: files of one name\n  got:  a/x, b/x\n  do:   name them"),
        ("evaluate.samples_per_prompt=2", "evaluate.samples_per_prompt has no effect\n"),
    ):
        with pytest.raises(ConfigError) as caught:
            apply(fake(), [setting])
        assert str(caught.value).startswith(message), caught.value


def test_an_exam_that_lacks_something_is_refused(prepared: Path, run: Summary, tmp_path: Path) -> None:
    model, data = Model(str(prepared / "model")), str(prepared / "train.parquet")
    texts = write(tmp_path / "texts.jsonl", [{"prompt": "1"}])
    sampled = {"samples_per_prompt": 2, "temperature": 1.0, "max_tokens": 1}
    for message, make in (
        ("data is missing", lambda: exam_of_model(model, Evaluate(max_tokens=1))),
        ("gates has no effect", lambda: exam_of_model(model, Evaluate(data=data, max_tokens=1), gates=[EASY])),
        (
            "evaluate.answer_extractor\n  got:  str\n  need: a function (completion)",
            lambda: exam_of_model(
                model, Evaluate(data=data, answer_extractor="tests.loop.test_evaluation:EASY", **sampled)
            ),
        ),
        (
            "evaluate.answer_extractor\n  got:  a function (completion: 'str', example: 'Any')",
            lambda: exam_of_model(
                model, Evaluate(data=data, answer_extractor="tests.loop.test_evaluation:two", **sampled)
            ),
        ),
        (
            "system_prompt has no effect",
            lambda: exam_of_model(model, Evaluate(data=texts, max_tokens=1), system_prompt="be"),
        ),
        ("samples_per_prompt has no effect", lambda: exam_of_run(run.directory, {"temperature": 0.0})),
    ):
        with pytest.raises(InputError, match=message.replace("(", r"\(").replace(")", r"\)")):
            make()
    with pytest.raises(RunDirectoryError, match="no config.toml"):
        exam_of_run(tmp_path, {})
    (tmp_path / "config.toml").write_bytes((run.directory / "config.toml").read_bytes())
    with pytest.raises(RunDirectoryError, match="a run that is not finished, and has no checkpoint"):
        exam_of_run(tmp_path, {})


def test_an_unfinished_run_is_examined_at_its_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from purerl.loop import train as loop

    advance = loop.advance

    def until_the_fourth(run: Any, state: Any, *others: Any) -> Any:
        if state.step == 3:
            raise KeyboardInterrupt
        return advance(run, state, *others)

    monkeypatch.setattr(loop, "advance", until_the_fourth)
    trainer = evolve(small().trainer, lr=0.01)
    with pytest.raises(KeyboardInterrupt):
        train(_real(max_steps=4, trainer=trainer, evaluate=evolve(small().evaluate, every=2)), directory=tmp_path)
    before, _, second, _ = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    torn = tmp_path / "checkpoints" / "000003"
    torn.mkdir()
    exam = exam_of_run(tmp_path, {})
    results = examine(exam)
    found = metrics(results, exam.settings)
    assert found == {name: value for name, value in second.items() if name.startswith("eval/")}
    assert found != {name: before[name] for name in found}, "it has learned something"
    assert torn.exists(), "what another process may be writing is left alone"
    write_json(tmp_path / "all.json", exam, results)
    assert json.loads((tmp_path / "all.json").read_text())["model"] == str(tmp_path / "checkpoints" / "000002")


def test_what_was_held_out_is_examined_again(tmp_path: Path) -> None:
    data = Data(files=("{run}/prepared/train.parquet",), validation_fraction=0.05)
    config = _real(data=data, evaluate=evolve(fake().evaluate, data={}, max_examples=5))
    summary = train(config, directory=tmp_path / "run")
    exam = exam_of_run(summary.directory, {})
    assert metrics(examine(exam), exam.settings) == summary.after
