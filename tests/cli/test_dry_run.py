"""`purerl train --dry-run`: it refuses what the run would refuse, and imports no function that a TOML file names."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from purerl.config.structure import dumps
from purerl.errors import PurerlError
from purerl.loop.train import train
from purerl.recipes import resolve
from purerl_cli.main import app
from tests.data.made import user, write
from tests.loop.small import fake
from tests.recipes.made import write_model

ROWS = [{"prompt": [user(f"{k}+1?")], "answer": f"{k + 1}"} for k in range(40)]
CODE = """
from pathlib import Path

Path(__file__).with_name("was-imported").touch()


def correct(completion, example):
    return 1.0


def wrong(completion):
    return 1.0


def of_trl(prompts, completions, solution, **columns):
    return [1.0] * len(prompts)


def first_word(completion):
    return completion.split()[0]


def fill(folder, seed):
    pass


made = lambda completion, example: 1.0
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a model, its data, and a file with functions."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    write_model(tmp_path / "model")
    write(tmp_path / "rows.jsonl", ROWS)
    name = f"functions_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(CODE)
    return tmp_path


def _functions(folder: Path) -> str:
    return f"functions_{folder.name.replace('-', '_')}.py"


def _dry_run(recipe: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["train", recipe, "--dry-run", *arguments])


def _set(*settings: str) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


GOOD = ("model=model", "data=rows.jsonl", "trainer.mixed_precision=off", "data.validation_fraction=0.2")


def test_good_configuration_is_accepted_and_nothing_is_written(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    result = _dry_run("gsm8k", *_set(*GOOD, "rollout.max_tokens=16", "evaluate.max_tokens=16", "max_steps=2"))
    assert result.exit_code == 0, result.output
    assert "not checked" not in result.stdout
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["data=none.jsonl"], "data set 'none.jsonl'\n  got:  no such file\n"),
        (["data=columns.jsonl"], "'columns.jsonl' has no column 'prompt'"),
        (["test=none.jsonl", "data.validation_fraction=0.0"], "data set 'none.jsonl'\n"),
        (["model=empty"], "no tokenizer can be loaded from the directory 'empty'"),
        (["model=no_weights"], "no model can be loaded from the directory 'no_weights'\n  got:  no file named model."),
        (["model=no_tokenizer"], "no tokenizer can be loaded from the directory 'no_tokenizer'"),
        (
            ["model=wrong"],
            "no tokenizer can be loaded from the directory 'wrong'\n  got:  `num_hidden_layers` (3) ",
        ),
        (["trainer.device=cuda:77"], "device\n  got:  cuda:77"),
        (["rollout.max_tokens=5000"], "row 0 of 'rows.jsonl'\n  got:  a prompt of "),
        (['rewards=["{functions}:of_trl"]'], "reward '{functions}:of_trl' reads columns that the data set does not"),
        (['rewards=["{functions}:wrong"]'], "reward '{functions}:wrong'\n  got:  a function (completion)"),
        (['rewards=["{functions}:missing"]'], "cannot find '{functions}:missing'"),
    ],
)
def test_dry_run_refuses_what_the_run_refuses(settings: list[str], message: str, folder: Path) -> None:
    for name, removed in (("empty", "*"), ("no_weights", "*.safetensors"), ("no_tokenizer", "tokenizer*")):
        write_model(folder / name)
        for path in (folder / name).glob(removed):
            path.unlink()
    write_model(folder / "wrong")
    config = json.loads((folder / "wrong/config.json").read_text())
    (folder / "wrong/config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    write(folder / "columns.jsonl", [{"promt": "a", "answer": "2"}])
    settings = [*GOOD, *(setting.replace("{functions}", _functions(folder)) for setting in settings)]
    result = _dry_run("gsm8k", *_set(*settings))
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert message.replace("{functions}", _functions(folder)) in result.stderr
    with pytest.raises(PurerlError) as error:
        train(resolve("gsm8k", settings), directory=folder / "run")
    assert str(error.value).partition("\n")[0] == result.stderr.removeprefix("error: ").partition("\n")[0]


def test_run_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    train(fake(max_steps=1), directory=tmp_path / "run")
    recipe, one = "tests.loop.small:fake", _set("max_steps=1")
    directory = ("--directory", str(tmp_path / "run"))
    finished = _dry_run(recipe, *one, *directory)
    assert finished.exit_code == 0
    assert f"# contains a finished run: {tmp_path}/run\n" in finished.stdout
    (tmp_path / "run" / "summary.json").unlink()
    assert _dry_run(recipe, *one, *directory).exit_code == 0
    other = _dry_run(recipe, *one, "--set", "seed=3", *directory)
    assert (other.exit_code, "contains a run with another configuration" in other.stderr) == (1, True)
    assert _dry_run(recipe, *one, "--set", "seed=3", "--fresh", *directory).exit_code == 0
    (tmp_path / "file").touch()
    assert _dry_run(recipe, "--directory", str(tmp_path / "file")).exit_code == 1
    assert _dry_run(recipe, "--directory", str(tmp_path / "file" / "run")).exit_code == 1


def test_changed_inputs_of_a_started_run_are_refused(tmp_path: Path) -> None:
    run, recipe, length = tmp_path / "run", "tests.loop.small:fake", _set("max_steps=1")
    train(fake(max_steps=1), directory=run)
    for name in ("prepared/held_out.parquet", "prepared/model/config.json"):
        before = (run / name).read_bytes()
        (run / name).write_bytes(before.replace(b"}", b" }") if name.endswith("json") else before + b" ")
        assert _dry_run(recipe, *length, "--directory", str(run)).exit_code == 0, "a finished run reads nothing"
        refused = _dry_run(recipe, *_set("max_steps=2"), "--directory", str(run))
        assert (refused.exit_code, "changed since" in refused.stderr) == (1, True), refused.output
        (run / name).write_bytes(before)
    assert _dry_run(recipe, *_set("max_steps=2"), "--directory", str(run)).exit_code == 0


# --- trust -------------------------------------------------------------------------------------------------------


def _toml(folder: Path, *settings: str) -> str:
    more = ("rollout.max_tokens=16", "evaluate.max_tokens=16", "max_steps=2")
    (folder / "theirs.toml").write_text(dumps(resolve("gsm8k", [*GOOD, *more, *settings])))
    return "theirs.toml"


def test_functions_that_a_file_names_are_not_imported_but_listed(folder: Path) -> None:
    module = _functions(folder)
    recipe = _toml(
        folder,
        f'rewards=[{{function="{module}:correct", weight=2.0}}, "{module}:made"]',
        f'gates=["{module.removesuffix(".py")}:correct"]',
        f"prepare_data={module}:fill",
        f"evaluate.answer_extractor={module}:first_word",
        "evaluate.samples_per_prompt=2",
        "evaluate.temperature=1.0",
        "reward_workers.num_workers=1",
    )
    result = _dry_run(recipe)
    assert result.exit_code == 0, result.output
    listed = next(line for line in result.stdout.splitlines() if "not checked without running code" in line)
    assert all(f"{module}:{name}" in listed for name in ("correct", "made", "fill", "first_word"))
    assert not (folder / "was-imported").exists()
    imported = _dry_run(recipe, "--check-code")
    assert imported.exit_code == 0, imported.output
    assert "not checked" not in imported.stdout
    assert (folder / "was-imported").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (['rewards=["{functions}:of_trl"]'], "reads columns that the data set does not have"),
        (['rewards=["{functions}:wrong"]'], "got:  a function (completion)"),
        (['rewards=["{functions}:missing"]'], "cannot find '{functions}:missing'\n  got:  module {functions} without"),
        (['rewards=["no.such.module:f"]'], "cannot find 'no.such.module:f'"),
        (['gates=["no-such-file.py:f"]'], "cannot find 'no-such-file.py:f'"),
        (["prepare_data=purerl.recipes.addition:nothing"], "cannot find 'purerl.recipes.addition:nothing'"),
    ],
)
def test_functions_that_are_not_imported_are_checked_by_their_source(
    settings: list[str], message: str, folder: Path
) -> None:
    result = _dry_run(_toml(folder, *(setting.replace("{functions}", _functions(folder)) for setting in settings)))
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert message.replace("{functions}", _functions(folder)) in result.stderr
    assert not (folder / "was-imported").exists()


def test_code_of_a_model_is_not_run(folder: Path) -> None:
    result = _dry_run(_toml(folder, "model.trust_remote_code=true"))
    assert "\n# not checked without running code of the model: model\n" in result.stdout, result.output


def test_plugins_that_are_imported_are_listed(folder: Path) -> None:
    algorithm = "from attrs import frozen\nfrom purerl.algos import grpo\n\n@frozen\nclass Config:\n    pass\n\n"
    file = f"algorithm_{_functions(folder)}"
    (folder / file).write_text(f"{algorithm}def algorithm(config):\n    return grpo.algorithm()\n")
    result = _dry_run(_toml(folder, f"algorithm={file}"))
    assert f"\n# imported to read the settings: {file}\n" in result.stdout, result.output


def test_check_code_needs_a_dry_run() -> None:
    result = CliRunner().invoke(app, ["train", "addition", "--check-code"])
    assert (result.exit_code, result.stderr.startswith("error: --check-code has no effect\n")) == (2, True)
