"""The board: a result is made from a run directory alone, and the page is what the results make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.board.curve import CURVE, curve, lines_of, read_trl
from benchmarks.board.figure import FIGURE, figure
from benchmarks.board.page import PAGE, group_results, page, read_published
from benchmarks.board.readme import README, with_results
from benchmarks.board.result import find_recipe, read_results, result_of, store
from purerl.errors import RunDirectoryError
from purerl.loop.train import Summary, train
from purerl.recipes import resolve
from purerl.store.lines import read_lines
from purerl.store.processes import read_processes

SETTINGS = [
    "max_steps=2", "batch_size=4", "num_minibatches=1", "rollout.samples_per_prompt=2", "evaluate.max_examples=4",
    "evaluate.every=1", "initial_run.max_steps=1", "initial_run.evaluate.max_examples=4",
    "reward_workers.num_workers=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    config = resolve("addition", ["seed=3", *SETTINGS])
    return train(config, directory=tmp_path_factory.mktemp("board") / "run")


@pytest.fixture(scope="module")
def result(run: Summary) -> dict[str, Any]:
    return result_of(run.directory)


def test_page_is_what_the_results_make() -> None:
    results = read_results()
    how = "python -m benchmarks.board page"
    assert PAGE.read_text(encoding="utf-8") == page(results, read_published()), how
    assert FIGURE.read_text(encoding="utf-8") == figure(group_results(results)), how
    text, trl = README.read_text(encoding="utf-8"), read_trl()
    assert text == with_results(text, group_results(results), trl), how
    if lines := lines_of(group_results(results), trl):
        assert CURVE.read_text(encoding="utf-8") == curve(lines, read_published()), how


def test_result_has_what_the_run_has_stored(run: Summary, result: dict[str, Any]) -> None:
    assert (result["task"], result["seed"], result["steps"], result["initial_steps"]) == ("addition", 3, 2, 1)
    assert (result["before"], result["after"]) == (dict(run.before), dict(run.after))
    records = read_lines(run.directory / "metrics.jsonl")
    assert [value for _, value in result["curve"]["eval/accuracy"]] == [record["eval/accuracy"] for record in records]
    assert [step for step, _ in result["curve"]["eval/accuracy"]] == [0, 1, 2]
    data = json.loads((run.directory / "data.json").read_text())
    assert sorted(result["digests"]["data"].values()) == sorted(data["files"].values())
    assert result["processes"] == read_processes(run.directory)
    of_steps = sum(record.get("time/cpu", 0) for record in records)
    assert result["cpu_seconds"] == pytest.approx(of_steps + result["processes"][0]["cpu_seconds"], abs=0.06)


def test_model_is_described_by_its_files(run: Summary, result: dict[str, Any]) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(run.model)
    count = sum(weights.numel() for weights in model.state_dict().values())
    assert result["model"] == f"Qwen3ForCausalLM, {count:,} parameters"


def test_command_gives_the_configuration_of_the_run(run: Summary, result: dict[str, Any]) -> None:
    program, name, recipe, *settings = result["command"].split(" ")
    assert (program, name, recipe) == ("purerl", "train", "addition")
    assert sorted(settings) == sorted(["seed=3", *SETTINGS])
    stored = (run.directory / "config.toml").read_text()
    assert f"# {result['digests']['config']}\n" in stored


def test_command_of_a_recipe_has_its_arguments_and_the_modifiers_of_another_algorithm() -> None:
    arguments = ["model=tiny", "data=problems.parquet"]
    kind = ["algorithm.kind=tests.recipes.shuffled", 'algorithm.modifiers=["kl_loss"]', "algorithm.kl_loss.coef=0.01"]
    config = resolve("gsm8k", [*arguments, "batch_size=16", *kind])
    recipe, settings = find_recipe(config)
    assert recipe == "gsm8k"
    assert resolve("gsm8k", settings) == config
    assert {"model=tiny", "batch_size=16", 'algorithm.kind="tests.recipes.shuffled"', kind[1]} <= {*settings}


def test_run_that_no_command_gives_is_refused(run: Summary, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    for file in run.directory.iterdir():
        if file.is_file():
            text = file.read_text(encoding="utf-8")
            (directory / file.name).write_text(text.replace('name = "addition"', 'name = "mine"', 1))
    with pytest.raises(RunDirectoryError, match=r"no command for the board\n  got:  name = 'mine'"):
        result_of(directory)


def test_run_that_is_not_finished_is_refused(run: Summary, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text((run.directory / "config.toml").read_text())
    with pytest.raises(RunDirectoryError, match="a run that is not finished"):
        result_of(tmp_path)


def _made(
    task: str, seed: int, accuracy: float, seconds: float, commit: str, started: str, *more: str
) -> dict[str, Any]:
    machine = {"system": "Linux", "processor": "Some CPU", "cores": 2}
    settings = [f"seed={seed}", *more] if seed else [*more]
    return {
        "task": task, "seed": seed, "settings": settings, "command": " ".join(["purerl train", task, *settings]),
        "model": "Tiny", "before": {"eval/accuracy": 0.25}, "after": {"eval/accuracy": accuracy},
        "curve": {"reward/mean": [[1, 0.25], [2, 0.5]], "eval/accuracy": [[0, 0.25], [2, accuracy]]}, "steps": 2,
        "cpu_seconds": seconds, "step_seconds": seconds / 2,
        "processes": [{"started": started, "commit": commit, "machine": machine}],
    }  # fmt: skip


RESULTS = [
    _made("char_count", 0, 0.5, 100.0, "a" * 40, "2026-01-01T00:00:00+00:00"),
    _made("char_count", 0, 0.7, 60.0, "b" * 40, "2026-01-02T00:00:00+00:00"),
    _made("char_count", 1, 0.8, 80.0, "b" * 40, "2026-01-03T00:00:00+00:00"),
    _made("char_count", 1, 0.2, 80.0, "b" * 40 + "-dirty", "2026-01-04T00:00:00+00:00", "algorithm.kind=other"),
]


def test_a_row_has_the_seeds_of_the_newest_commit() -> None:
    lines = page(RESULTS, read_published()).splitlines()
    [row] = [line for line in lines if "| Tiny |" in line and "kind=other" not in line]
    assert "| 0.250 (0.250 to 0.250) → 0.750 (0.700 to 0.800) |" in row
    assert "| 2: 0, 1 | 70 (60 to 80) | Some CPU, 2 cores | `purerl train char_count seed=SEED` |" in row
    assert row.endswith("| `bbbbbbbbbb` | 2026-01-03 |")
    assert "0.435" not in row, "it is for another setting"


def test_other_settings_are_a_row_of_their_own_and_changes_are_marked() -> None:
    [row] = [line for line in page(RESULTS, []).splitlines() if "kind=other" in line]
    assert "`purerl train char_count seed=1 algorithm.kind=other` | `bbbbbbbbbb` * |" in row


def test_speed_has_every_commit_in_the_order_of_their_dates() -> None:
    speed = page(RESULTS, []).partition("## CPU seconds by commit")[2]
    rows = [line for line in speed.splitlines() if line.startswith("| `char_count`")]
    assert [row.split(" | ")[1:5:3] for row in rows] == [["`aaaaaaaaaa`", "100"], ["`bbbbbbbbbb`", "70 (60 to 80)"]]
    drawn = figure(group_results(RESULTS))
    assert drawn.count("<polyline") == 1
    assert drawn.count('r="4"') == 2, "a point for each commit"
    assert drawn.count('r="2"') == 3, "a dot for each seed"


def test_published_number_is_beside_the_result_of_its_settings_and_not_open_any_more() -> None:
    published, started = read_published(), "2026-01-05T00:00:00+00:00"
    number, of_verl = "0.435 → 0.600 ([verl](", _made("char_count", 0, 0.6, 9.0, "c" * 40, started, "size=verl")
    assert "| `char_count` | SmolLM2" in page(RESULTS, published)
    text = page([*RESULTS, of_verl], published)
    assert "| `char_count` | SmolLM2" not in text
    [row] = [line for line in text.splitlines() if number in line]
    assert "`purerl train char_count size=verl`" in row


def test_result_of_the_same_command_and_commit_is_replaced(tmp_path: Path) -> None:
    first, second, third = (store(result, tmp_path) for result in (RESULTS[0], RESULTS[0], RESULTS[1]))
    assert first == second != third
    assert read_results(tmp_path) == sorted(RESULTS[:2], key=lambda result: store(result, tmp_path).name)


def test_sentence_of_the_readme_has_the_range_of_all_seeds() -> None:
    results = [
        _made("addition", 0, 0.961, 50.0, "a" * 40, "2026-01-01T00:00:00+00:00"),
        _made("addition", 1, 0.984, 61.0, "a" * 40, "2026-01-01T00:01:00+00:00"),
        _made("addition", 0, 0.1, 9.0, "a" * 40, "2026-01-03T00:00:00+00:00", "max_steps=1"),
        _made("char_count", 0, 0.5, 100.0, "a" * 40, "2026-01-02T00:00:00+00:00"),
    ]
    text = "Before\n<!-- results of addition -->\nold\n<!-- end of results -->\nAfter\n"
    written = " ".join(with_results(text, group_results(results), None).split())
    assert "old" not in written
    assert "raised the accuracy from 0.25 to between 0.96 and 0.98 on 2 seeds. A run took 56 CPU seconds" in written
    assert written.startswith("Before <!-- results of addition --> On held-out")
    assert written.endswith("<!-- end of results --> After")


SHUFFLED = 'algorithm.kind="tests.recipes.shuffled"'
TRL = {"rewards": [0.3, 0.4], "eval/accuracy": [[0, 0.25], [2, 0.65]], "cpu_seconds": 90.0}


def test_curve_has_each_line_of_the_newest_commit_and_the_published_number() -> None:
    started = "2026-01-05T00:00:00+00:00"
    results = [*RESULTS[:3], _made("char_count", 0, 0.3, 9.0, "b" * 40, started, SHUFFLED)]
    lines = lines_of(group_results(results), TRL)
    assert [line.name for line in lines] == ["purerl", "TRL", "purerl, shuffled rewards"]
    assert [line.after for line in lines] == [[0.7, 0.8], [0.65], [0.3]]
    drawn = curve(lines, read_published())
    assert [drawn.count(text) for text in ("<polyline", "<circle", "verl after SFT: 0.435")] == [3, 8, 1]


def test_readme_has_the_results_of_the_real_model() -> None:
    results = [*RESULTS[:3], _made("char_count", 0, 0.3, 9.0, "b" * 40, "2026-01-05T00:00:00+00:00", SHUFFLED)]
    text = "Before\n<!-- results of char_count -->\n<!-- end of results -->\nAfter\n"
    written = " ".join(with_results(text, group_results(results), TRL).split())
    assert (
        "from 0.25 of held-out problems after SFT to between 0.70 and 0.80 after 2 steps of RL, on 2 seeds" in written
    )
    assert "TRL, from the same model, ends at 0.65; its RL phase takes 2 CPU minutes" in written
    assert "With rewards shuffled within each group it ends at 0.30." in written
