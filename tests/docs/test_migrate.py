"""The pages that move a script of TRL and a command of verl: their files are imported, and their commands run."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from benchmarks import migration
from purerl.config.check import check_settings
from purerl.config.schema import RunConfig
from purerl.config.structure import from_dict
from purerl.config.tables import flat
from tests.data.made import user, write
from tests.forks import PROGRAMS
from tests.loop.runs import records
from tests.recipes.made import PROBLEMS, write_model

from .test_quickstart import FENCE, ROOT

MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
PAGES = {
    name: (ROOT / "docs/how-to" / f"migrate_from_{name}.md").read_text(encoding="utf-8") for name in ("trl", "verl")
}
SOURCES = {"trl": ["rewards.py", "train.py"], "verl": ["run.sh"]}
SMALL = (
    "max_steps=2 batch_size=2 rollout.samples_per_prompt=2 rollout.max_tokens=8 trainer.mixed_precision=off "
    "reward_workers.num_workers=1"
)
SMALL_OF = {
    "trl": "trainer.warmup_steps=0 trainer.lr=1e-3",
    "verl": "minibatch_size=2 evaluate.max_tokens=8 trainer.packing=false",
}


def _blocks(name: str, *languages: str) -> list[str]:
    return [code for language, _, code in FENCE.findall(PAGES[name]) if language in languages]


def files_of(name: str) -> dict[str, str]:
    """The files of the user on the page, which come before all commands, by their names."""
    return dict(zip(SOURCES[name], _blocks(name, "python", "sh"), strict=False))


def _commands(name: str) -> list[str]:
    return [line for code in _blocks(name, "sh") for line in code.splitlines() if line.startswith("purerl ")]


def _run(command: str, folder: Path) -> str:
    """The output of a command of the page, in a process of its own."""
    arguments = [sys.executable, "-m", "purerl_cli", *shlex.split(command)[1:]]
    done = PROGRAMS.run(arguments, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("name", PAGES)
def test_the_page_shows_what_the_import_writes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "rewards", raising=False)
    for file, text in files_of(name).items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    [command] = [command for command in _commands(name) if " import " in command]
    _run(command, tmp_path)
    written = (tmp_path / "run.toml").read_text(encoding="utf-8")
    [shown] = _blocks(name, "toml")
    assert written.partition("\n# --- Translated ---")[0].rstrip() == shown.rstrip()
    assert "--- Not there ---\n#\n# (none)" in written
    check_settings(from_dict(RunConfig, tomllib.loads(shown)))


@pytest.mark.parametrize(("name", "pattern"), [("trl", r"(\w+)=[^=]"), ("verl", r"^    ([\w.]+)=")])
def test_the_table_has_every_line_of_the_script_and_settings_of_the_file(name: str, pattern: str) -> None:
    table = PAGES[name].partition("## Line by line")[2].partition("\n\nI")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| ")]
    named = {text for row in rows for text in re.findall(r"`([\w.]+)`", row[0])}
    given = re.findall(pattern, _blocks(name, "python", "sh")[len(SOURCES[name]) - 1], re.MULTILINE)
    objects = {"split", "args", "train_dataset", "peft_config"}
    assert {text.removeprefix("actor_rollout_ref.") for text in given} - objects - named == set()
    settings = {text for row in rows[1:] for text in re.findall(r"`([\w.]+)`", row[1])}
    [shown] = _blocks(name, "toml")
    keys = flat(tomllib.loads(shown)).keys()
    assert len(settings) > 15
    assert settings - keys == set()


MEASURED = json.loads(migration.RESULTS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", MEASURED)
def test_the_page_has_the_measured_numbers_of_its_files(name: str) -> None:
    """`python -m benchmarks.migration` has run the files of the page in small."""
    page, results = PAGES[name], MEASURED[name]
    assert migration.tables(MEASURED)[name] in page
    assert len(results["purerl"]["reward"]) == migration.STEPS[name]
    named = {setting for new in migration.SMALL[name].values() for setting in re.split(r",?\s+", new)}
    shown = page.partition("## Both runs")[2].partition("## After the run")[0]
    assert {setting for setting in named if f"`{setting.rpartition('.')[2]}`" not in shown} == set()
    for runs in (part for part in results.values() if "cpu" in part):
        assert f"{runs['cpu']:.0f} s" in shown


@pytest.mark.parametrize("name", PAGES)
def test_the_benchmark_runs_the_files_of_the_page_in_small(name: str, tmp_path: Path) -> None:
    files = migration.page_files(name)
    assert files.keys() == files_of(name).keys()
    assert files != files_of(name)
    migration.write_files(name, "a_model", tmp_path)
    assert all(MODEL not in (tmp_path / file).read_text(encoding="utf-8") for file in files)
    [command] = [command for command in _commands(name) if " import " in command]
    _run(command, tmp_path)
    config = tomllib.loads((tmp_path / "run.toml").read_text(encoding="utf-8"))
    assert (config["model"]["path"], config["max_steps"]) == ("a_model", migration.STEPS[name])
    assert all((tmp_path / file).is_file() for file in config["data"]["files"])


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_the_commands_of_the_page_run(name: str, tmp_path: Path) -> None:
    """With a tiny model in place of the one of the page, two steps, and no vLLM."""
    write_model(tmp_path / "tiny")
    _write_data(name, tmp_path)
    for file, text in files_of(name).items():
        (tmp_path / file).write_text(text.replace(MODEL, "tiny"), encoding="utf-8")
    small = [f"--set {setting}" for setting in f"{SMALL} {SMALL_OF[name]}".split()]
    for command in _commands(name):
        is_run = command == "purerl train run.toml"
        extra = small if is_run else ["--max-tokens 8"] if command.startswith("purerl eval") else []
        _run(" ".join([command, *extra]), tmp_path)
        if " import verl " in command:
            _without_vllm(tmp_path / "run.toml")
    assert [record["step"] for record in records(tmp_path / "runs" / "gsm8k")][-1] == 2
    assert (tmp_path / "report.html").is_file()


def _write_data(name: str, folder: Path) -> None:
    if name == "trl":
        [row] = _blocks(name, "json")
        assert json.loads(row)["prompt"] == [user(PROBLEMS[0]["question"])]
        answers = [problem["answer"].rpartition("#### ")[2] for problem in PROBLEMS]
        rows = [{"prompt": [user(p["question"])], "answer": a} for p, a in zip(PROBLEMS, answers, strict=True)]
        for file in ("problems", "held_out"):
            write(folder / f"{file}.jsonl", rows)
        return
    (folder / "SOURCE").mkdir()
    for split in ("train", "test"):
        write(folder / "SOURCE" / f"{split}.jsonl", PROBLEMS)


def _without_vllm(file: Path) -> None:
    """Replace the section of the engine as the page says."""
    text = file.read_text(encoding="utf-8")
    section = re.search(r"\[generator\]\n.*?(?=\[rollout\])", text, re.DOTALL)
    assert section
    file.write_text(text.replace(section[0], '[generator]\nkind = "hf"\n\n'), encoding="utf-8")
