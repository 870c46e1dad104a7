"""Evaluations of several data sets, in runs and outside of runs: both have the same metrics."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from attrs import evolve

from purerl.backends.fake import generator as fake_generator
from purerl.backends.hf import generator
from purerl.config.schema import StopWhen
from purerl.config.structure import to_dict
from purerl.data.settings import Data
from purerl.errors import CheckpointError, ConfigError, InputError, RewardError, RunDirectoryError
from purerl.evaluation.problem_results import Problem, dataset_metrics, metrics
from purerl.evaluation.settings import Evaluate
from purerl.evaluation.statistics import pass_at_k
from purerl.loop.train import Summary, train
from purerl.models.tokenizer import load_tokenizer
from purerl.recipes.addition import addition
from purerl.runs.evaluation import Evaluation, evaluation_of_model, evaluation_of_run, run_evaluation, write_json
from purerl.settings import Model
from purerl_cli.output import format_summary
from tests.data.made import write

from .random_rewards import drawn
from .runs import records, train_until, without_times
from .small import fake, small, small_real

REWARDS = "tests.loop.rewards"
EASY, FRAGILE = f"{REWARDS}:starts_with_a_digit", f"{REWARDS}:fails_on_odd_answers"
SAMPLED: dict[str, Any] = {
    "max_examples": 3,
    "samples_per_prompt": 4,
    "temperature": 1.5,
    "max_tokens": 4,
    "pass_at_k": (1, 2, 4),
}
ANSWERED: dict[str, Any] = {"samples_per_prompt": 2, "temperature": 1.0, "max_tokens": 1, "max_examples": 2}
METRICS = {"length", "truncated", "valid_fraction", "failed", "timed_out"}
SCORED = METRICS | {"reward", "accuracy", "accuracy_low", "accuracy_high"}


def _evaluation(model: Path, settings: Evaluate, **kwargs: Any) -> Evaluation:
    """An evaluation of `model` with the engine for transformers models."""
    return evaluation_of_model(Model(str(model)), settings, **{"generator": generator.Config()} | kwargs)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """A finished run with evaluations on two data sets, four samples for each problem."""
    data = {"new": "{run}/prepared/held_out.parquet", "old": "{run}/prepared/train.parquet"}
    settings = Evaluate(data=data, every=2, answer_extractor=f"{REWARDS}:first_two", **SAMPLED)
    directory = tmp_path_factory.mktemp("finished") / "run"
    return train(small_real(evaluate=settings, rewards=(EASY,)), directory=directory)


# --- in a run ----------------------------------------------------------------------------------------------------


def test_each_data_set_has_its_metrics_and_accuracy_is_their_mean(finished: Summary) -> None:
    names = SCORED | {"pass@1", "pass@2", "pass@4", "maj@4", "reward/starts_with_a_digit"}
    assert set(finished.after) == {f"eval/{data}/{name}" for data in ("new", "old") for name in names} | {
        "eval/accuracy"
    }
    assert finished.after["eval/accuracy"] == fmean(finished.after[f"eval/{name}/accuracy"] for name in ("new", "old"))
    for name in ("new", "old"):
        values = {key.rpartition("/")[2]: value for key, value in finished.after.items() if f"/{name}/" in key}
        assert values["starts_with_a_digit"] == values["reward"]
        assert values["pass@1"] == pytest.approx(values["accuracy"])
        assert values["pass@1"] <= values["pass@2"] <= values["pass@4"]
        assert values["accuracy_low"] <= values["accuracy"] <= values["accuracy_high"]
        assert values["valid_fraction"] == 1


def test_metric_of_one_of_several_data_sets_can_stop_a_run(tmp_path: Path) -> None:
    files = {"a": "{run}/prepared/held_out.parquet", "b": "{run}/prepared/train.parquet"}
    config = fake(evaluate=evolve(fake().evaluate, data=files, samples_per_prompt=2, temperature=1.0))
    stopped = evolve(config, stop_when=StopWhen(metric="eval/b/pass@2", at_least=0.0))
    assert train(stopped, directory=tmp_path / "run").steps == 0
    misspelled = evolve(config, stop_when=StopWhen(metric="eval/a/acuracy", at_least=1.0))
    with pytest.raises(ConfigError, match="did you mean 'eval/a/accuracy'"):
        train(misspelled, directory=tmp_path / "run", fresh=True)


# --- outside of a run --------------------------------------------------------------------------------------------


def test_evaluation_of_a_finished_run_has_the_metrics_of_the_run(finished: Summary) -> None:
    evaluation = evaluation_of_run(finished.directory, {})
    assert metrics(run_evaluation(evaluation), evaluation.settings) == finished.after


def test_initial_run_is_evaluated_like_any_other_run(tmp_path: Path) -> None:
    config = small(2, prepare_data=addition().prepare_data)  # without a copy of files that were made before
    summary = train(config, directory=tmp_path / "run")
    evaluation = evaluation_of_run(summary.directory / "initial_run", {})
    stored = json.loads((summary.directory / "initial_run" / "summary.json").read_text())
    assert metrics(run_evaluation(evaluation), evaluation.settings) == stored["after"]


def test_evaluation_restores_the_global_random_generators(finished: Summary) -> None:
    file = str(finished.directory / "prepared" / "held_out.parquet")
    evaluation = _evaluation(
        finished.model, Evaluate(data={"new": file}, max_examples=1, max_tokens=1), rewards=[drawn]
    )
    before = random.getstate()
    run_evaluation(evaluation)
    assert random.getstate() == before


def test_settings_can_differ_from_those_of_the_run(finished: Summary) -> None:
    changes = {"samples_per_prompt": 1, "temperature": 0.0, "pass_at_k": (), "answer_extractor": None}
    results = run_evaluation(evaluation_of_run(finished.directory, {"max_examples": 2} | changes))
    assert [len(problems) for problems in results.values()] == [2, 2]
    assert all(len(problem.attempts) == 1 for problem in results["new"])


def test_evaluation_of_an_unfinished_run_uses_its_newest_checkpoint(tmp_path: Path) -> None:
    config = small_real(4, trainer=evolve(small_real().trainer, lr=0.01))
    train_until(3, config, directory=tmp_path)
    before, _, second, _ = records(tmp_path)
    uncommitted = tmp_path / "checkpoints" / "000003"
    uncommitted.mkdir()
    evaluation = evaluation_of_run(tmp_path, {})
    results = run_evaluation(evaluation)
    values = metrics(results, evaluation.settings)
    assert values == {name: value for name, value in second.items() if name.startswith("eval/")}
    assert values != {name: before[name] for name in values}, "the policy has changed"
    assert uncommitted.exists(), "another process may be writing it"
    write_json(tmp_path / "all.json", evaluation, results)
    assert json.loads((tmp_path / "all.json").read_text())["model"] == str(tmp_path / "checkpoints" / "000002")


def test_evaluation_before_training_can_be_left_out(tmp_path: Path) -> None:
    settings = fake()
    assert train(settings, directory=tmp_path / "both").before.keys() >= {"eval/accuracy"}
    settings = evolve(settings, evaluate=evolve(settings.evaluate, before_training=False))
    summary = train(settings, directory=tmp_path / "run")
    assert summary.before == {}
    assert [record["step"] for record in records(summary) if "eval/accuracy" in record] == [2, 4]
    whole, without = (without_times(records(tmp_path / name)) for name in ("both", "run"))
    assert without == [{"step": 0}, *whole[1:]]
    accuracy = summary.after["eval/accuracy"]
    assert f"held-out accuracy  {accuracy:.3f} after 4 steps\n" in format_summary(settings, summary)


def test_evaluation_can_be_turned_off(tmp_path: Path) -> None:
    settings = fake(evaluate=None)
    summary = train(settings, directory=tmp_path / "run")
    assert (summary.steps, summary.before, summary.after) == (4, {}, {})
    assert records(summary)[0] == {"step": 0}
    assert "accuracy" not in format_summary(settings, summary)


def test_validation_set_of_a_run_is_evaluated_again(tmp_path: Path) -> None:
    data = Data(files=("{run}/prepared/train.parquet",), validation_fraction=0.05)
    config = small_real(data=data, evaluate=evolve(fake().evaluate, data={}, max_examples=5))
    summary = train(config, directory=tmp_path / "run")
    evaluation = evaluation_of_run(summary.directory, {})
    assert metrics(run_evaluation(evaluation), evaluation.settings) == summary.after


def test_stop_tokens_of_the_model_end_an_attempt_inside_and_outside_of_a_run(prepared: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(prepared / "model", model)
    digits = load_tokenizer(Model(str(model))).convert_tokens_to_ids([*"0123456789"])
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": digits}))
    settings = Evaluate(data={"old": str(prepared / "train.parquet")}, every=9, **SAMPLED)
    results = run_evaluation(_evaluation(model, settings, rewards=[EASY]))
    completions = [attempt.completion for problem in results["old"] for attempt in problem.attempts]
    assert {len(completion) for completion in completions if completion[:1].isdecimal()} == {1}
    config = small_real(model=Model(str(model)), evaluate=settings, rewards=(EASY,))
    summary = train(config, directory=tmp_path / "run")
    assert set(digits) <= set(evaluation_of_run(summary.directory, {}).task.chat.stop_tokens)


# --- of a model --------------------------------------------------------------------------------------------------


def test_attempts_depend_only_on_the_seed_the_problem_and_their_number(prepared: Path, tmp_path: Path) -> None:
    files = [str(prepared / "held_out.parquet"), f"old={prepared / 'train.parquet'}"]
    evaluation = _evaluation(prepared / "model", Evaluate(data=files, **SAMPLED), rewards=[EASY])
    results = run_evaluation(evaluation)
    indices = {name: [problem.index for problem in problems] for name, problems in results.items()}
    assert indices == {"held_out": [0, 1, 2], "old": [0, 1, 2]}
    attempts = [attempt for problems in results.values() for problem in problems for attempt in problem.attempts]
    assert len({attempt.completion for attempt in attempts}) > 12, "samples differ"
    assert 0 < sum(bool(attempt.is_correct) for attempt in attempts) < 24
    fewer = _evaluation(prepared / "model", evolve(evaluation.settings, max_examples=2), rewards=[EASY])
    assert run_evaluation(fewer)["old"] == results["old"][:2]
    reseeded = _evaluation(prepared / "model", evaluation.settings, rewards=[EASY], seed=1)
    assert run_evaluation(reseeded)["old"] != results["old"]
    _check_json(tmp_path / "all.json", evaluation, results)


def _check_json(path: Path, evaluation: Evaluation, results: Mapping[str, Sequence[Problem]]) -> None:
    """The file of `write_json` has the settings, all attempts and their metrics."""
    write_json(path, evaluation, results)
    written = json.loads(path.read_text())
    assert written["metrics"] == metrics(results, evaluation.settings)
    assert written["settings"] | {"every": 20} == to_dict(evaluation.settings)
    for name, problems in results.items():
        tables = written["data"][name]["problems"]
        for problem, table in zip(problems, tables, strict=True):
            assert table["num_correct"] == sum(bool(attempt.is_correct) for attempt in problem.attempts)
            assert [a["completion"] for a in table["attempts"]] == [a.completion for a in problem.attempts]
        pass_at_2 = fmean(pass_at_k(table["num_correct"], 4, k=2) for table in tables)
        assert written["data"][name]["metrics"]["pass@2"] == pass_at_2


def test_each_attempt_is_scored_with_its_problem(prepared: Path) -> None:
    settings = Evaluate(data=str(prepared / "train.parquet"), **ANSWERED | {"max_examples": 3})
    for problem in run_evaluation(_evaluation(prepared / "model", settings, rewards=[f"{REWARDS}:sum_of"]))["train"]:
        a, b = problem.prompt.rstrip("=").split("+")
        assert [attempt.result.reward for attempt in problem.attempts] == [int(a) + int(b)] * 2


def test_attempts_are_greedy_by_default_and_rewards_are_optional(prepared: Path) -> None:
    settings = Evaluate(data=str(prepared / "held_out.parquet"), max_examples=2, max_tokens=4)
    problems = run_evaluation(_evaluation(prepared / "model", settings))["held_out"]
    assert [len(problem.attempts) for problem in problems] == [1, 1]
    assert set(dataset_metrics(problems, settings)) == METRICS


def test_any_generator_can_sample(prepared: Path) -> None:
    settings = Evaluate(data=str(prepared / "held_out.parquet"), max_examples=2, max_tokens=4)
    engine = fake_generator.Config(vocab_size=14)
    evaluation = _evaluation(prepared / "model", settings, generator=engine)
    assert evaluation.generator == engine
    [bigram], [qwen3] = (
        run_evaluation(evaluation).values(),
        run_evaluation(_evaluation(prepared / "model", settings)).values(),
    )
    assert [problem.prompt for problem in bigram] == [problem.prompt for problem in qwen3]
    assert bigram != qwen3


def length(completion: str, example: Any) -> float:
    return len(completion)


def test_function_objects_can_be_rewards(prepared: Path) -> None:
    settings = Evaluate(data=str(prepared / "train.parquet"), max_examples=2, max_tokens=3)
    for problem in run_evaluation(_evaluation(prepared / "model", settings, rewards=[length]))["train"]:
        [attempt] = problem.attempts
        assert attempt.result.components == {"length": len(attempt.completion)}


def of_math(completions: list[str], task: list[str], **kwargs: Any) -> list[float | None]:
    return [1.0 if each == "math" else None for each in task]


def of_code(completions: list[str], task: list[str], **kwargs: Any) -> list[float | None]:
    return [0.0 if each == "code" else None for each in task]


def test_a_function_that_gives_none_leaves_the_decision_to_the_next_one(prepared: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "1+1=", "task": task} for task in ("math", "code", "math", "math")]
    settings = Evaluate(data=write(tmp_path / "rows.jsonl", rows), max_tokens=1)
    evaluation = _evaluation(prepared / "model", settings, rewards=[of_math, of_code])
    assert [name.split(":")[-1] for name in evaluation.accuracy_rewards] == ["of_math", "of_code"]
    [problems] = run_evaluation(evaluation).values()
    assert [attempt.is_correct for problem in problems for attempt in problem.attempts] == [True, False, True, True]
    assert dataset_metrics(problems, settings)["accuracy"] == 0.75


def graded(completion: str, example: Any) -> dict[str, float]:
    return {"format": 1.0, "correct": 0.0}


def test_component_that_decides_is_named_once(prepared: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = Evaluate(data=str(prepared / "train.parquet"), max_examples=2, max_tokens=1)
    for _ in range(2):
        results = run_evaluation(_evaluation(prepared / "model", settings, rewards=[graded]))
        assert metrics(results, settings)["eval/accuracy"] == 1
    assert caplog.text.count("the first one, format, decides") == 1
    assert '[correct]"' in caplog.text
    caplog.clear()
    selected = evolve(settings, accuracy_reward="graded[correct]")
    assert (
        metrics(run_evaluation(_evaluation(prepared / "model", selected, rewards=[graded])), selected)["eval/accuracy"]
        == 0
    )
    assert not caplog.text


# --- failures ----------------------------------------------------------------------------------------------------


def test_few_failures_are_logged_and_written(prepared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"prompt": f"{k}+{k}=", "index": k} for k in range(12)]
    settings = Evaluate(data=write(tmp_path / "rows.jsonl", rows), max_tokens=1)
    evaluation = _evaluation(prepared / "model", settings, rewards=[f"{REWARDS}:fails_on_index_3"])
    results = run_evaluation(evaluation)
    assert "1 of 12 completions failed, and are left out" in caplog.text
    assert "ValueError: index 3" in caplog.text
    write_json(tmp_path / "all.json", evaluation, results)
    [attempt] = json.loads((tmp_path / "all.json").read_text())["data"]["rows"]["problems"][3]["attempts"]
    assert "ValueError: index 3" in attempt["traceback"]


def test_failure_rate_is_that_of_all_data_sets_together(prepared: Path, tmp_path: Path) -> None:
    """It fails on all five problems of one data set, and on none of 60 of the other one."""
    failing, other = [{"prompt": "1+1=", "index": 3}] * 5, [{"prompt": "1+1=", "index": 4}] * 60
    data = {"a": write(tmp_path / "a.jsonl", failing), "b": write(tmp_path / "b.jsonl", other)}
    settings = Evaluate(data=data, max_tokens=1)
    results = run_evaluation(_evaluation(prepared / "model", settings, rewards=[f"{REWARDS}:fails_on_index_3"]))
    assert [dataset_metrics(results[name], settings)["failed"] for name in data] == [1.0, 0.0]


def test_many_failures_stop_an_evaluation(prepared: Path) -> None:
    settings = Evaluate(data=str(prepared / "train.parquet"), max_examples=16, max_tokens=1)
    evaluation = _evaluation(prepared / "model", settings, rewards=[FRAGILE])
    with pytest.raises(RewardError, match="(?s)ValueError: odd.*4 of 16 already.*do:   fix the function"):
        run_evaluation(evaluation)


def test_answer_extractor_that_raises_is_logged_once(prepared: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = str(prepared / "train.parquet")
    settings = Evaluate(data=data, answer_extractor=f"{REWARDS}:second_word", **ANSWERED)
    results = run_evaluation(_evaluation(prepared / "model", settings, rewards=[EASY]))
    assert {attempt.answer for problem in results["train"] for attempt in problem.attempts} == {None}
    assert caplog.text.count("second_word raised, and the answer is None") == 1


# --- refused -----------------------------------------------------------------------------------------------------


def test_evaluation_with_missing_or_useless_settings_is_refused(
    prepared: Path, finished: Summary, tmp_path: Path
) -> None:
    data, text = str(prepared / "train.parquet"), write(tmp_path / "text.jsonl", [{"prompt": "1"}])

    def refusal(settings: Evaluate, **kwargs: Any) -> str:
        with pytest.raises(InputError) as caught:
            _evaluation(prepared / "model", settings, **kwargs)
        return str(caught.value)

    def with_extractor(name: str) -> Evaluate:
        return Evaluate(data=data, answer_extractor=f"{REWARDS}:{name}", **ANSWERED)

    greedy = Evaluate(data=data, max_tokens=1)
    assert refusal(Evaluate(max_tokens=1)).startswith("data is missing")
    assert refusal(greedy, gates=[EASY]).startswith("gates has no effect")
    extractor = "evaluate.answer_extractor\n  got:  "
    assert refusal(with_extractor("NOT_CALLABLE")).startswith(f"{extractor}str\n  need: a function (completion)")
    signature = "a function (completion: 'str', example: 'Any')"
    assert refusal(with_extractor("returns_none")).startswith(f"{extractor}{signature}")
    assert refusal(Evaluate(data=text, max_tokens=1), system_prompt="be").startswith("system_prompt has no effect")
    with pytest.raises(ConfigError, match="samples_per_prompt has no effect"):
        evaluation_of_run(finished.directory, {"temperature": 0.0})


def test_directory_without_a_run_or_a_checkpoint_is_refused(finished: Summary, tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="no config.toml"):
        evaluation_of_run(tmp_path, {})
    (tmp_path / "config.toml").write_bytes((finished.directory / "config.toml").read_bytes())
    with pytest.raises(CheckpointError, match="a run without a checkpoint"):
        evaluation_of_run(tmp_path, {})
