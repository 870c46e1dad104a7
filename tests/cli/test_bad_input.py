"""Everything that people get wrong, as they meet it: exit codes, and what we got, what we need, what to do.

The models here have a tokenizer and no weights: what is refused is refused before a model is loaded.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner, Result

from purerl_cli.main import app
from tests.data.made import CHATML, assistant, tokenizer, user, write
from tests.recipes.made import write_model

ROWS = [{"prompt": [user(f"{k}+1?")], "answer": f"{k + 1}"} for k in range(40)]


def _train(recipe: str, *settings: str, directory: Path) -> Result:
    options = [part for setting in settings for part in ("--set", setting)]
    return CliRunner().invoke(app, ["train", recipe, "--directory", str(directory), *options])


def _check_told(result: Result, code: int, *, got: str, need: str, do: str, about: str = "") -> None:
    """`result` is an error of these parts and nothing else."""
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("error: "), result.stderr
    what, lines = result.stderr.partition("\n")[::2]
    assert about in what
    said = dict(zip(("got", "need", "do"), (got, need, do), strict=True))
    found = {key.strip(): text for key, _, text in (line.partition(":") for line in lines.splitlines())}
    # What was given is part of the first line where it is a name.
    assert all(part in found.get(key, what).strip() for key, part in said.items()), result.stderr


# --- files, settings, functions, models: nothing is loaded, and nothing is in the way of another try ----------------


def _parquet(path: Path, **columns: pa.Array) -> str:
    parquet.write_table(pa.table(columns), path)
    return str(path)


def _file(name: str, text: str) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        (folder / name).write_text(text)
        return str(folder / name)

    return make


def _shards(folder: Path) -> str:
    _parquet(folder / "rows-0.parquet", prompt=pa.array(["a"]), answer=pa.array(["2"]))
    _parquet(folder / "rows-1.parquet", prompt=pa.array(["a"]), answer=pa.array([2]))
    return f"{folder}/rows-*.parquet"


DATA = {
    "a missing column": (
        lambda folder: write(folder / "rows.jsonl", [{"promt": "a", "answer": "2"}]),
        {"about": "has no column 'prompt'", "got": "promt, answer", "need": "a column 'prompt'", "do": "'promt'"},
    ),
    "a missing column, and none that is near": (
        lambda folder: write(folder / "rows.jsonl", [{"text": "a", "answer": "2"}]),
        {"got": "text, answer", "need": "a column 'prompt' of text or messages", "do": "rename the column 'text'"},
    ),
    "no right answers": (
        lambda folder: write(folder / "rows.jsonl", [{"prompt": "a", "level": 1}] * 40),
        {"about": "'purerl.rewards.math:gsm8k' reads", "got": "prompt, level", "need": "answer or reward", "do": "re"},
    ),
    "no rows in a file of columns": (
        lambda folder: _parquet(folder / "rows.parquet", prompt=pa.array([], pa.string())),
        {"about": "rows.parquet", "got": "no rows", "need": "at least one", "do": "use a file that has rows"},
    ),
    "nothing in a file": (
        _file("rows.jsonl", ""),
        {"about": "rows.jsonl", "got": "no rows", "need": "at least one", "do": "use a file that has rows"},
    ),
    "no file": (
        lambda folder: write(folder / "rows.jsonl", ROWS).replace("rows", "row"),
        {"about": "row.jsonl", "got": "no such file", "need": "a .parquet or .jsonl file", "do": "'rows.jsonl'"},
    ),
    "shards of several schemas": (
        _shards,
        {"got": "'answer' is string in the first, int64 in the second", "need": "the same columns", "do": "list them"},
    ),
    "rows of several types": (
        _file("rows.jsonl", '{"prompt": "a"}\n{"prompt": ["b"]}\n'),
        {"got": "mixed types: str in row 0, list in row 1", "need": "one type in every row", "do": "strings"},
    ),
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory with a configuration, a tokenizer and a chat template, and no weights."""
    return _without_weights(tmp_path / "model", CHATML)


def _without_weights(folder: Path, template: str | None) -> Path:
    from transformers import Qwen3Config

    Qwen3Config(vocab_size=len(tokenizer())).save_pretrained(folder)
    tokenizer(template).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", DATA)
def test_data_that_are_refused(name: str, model: Path, tmp_path: Path) -> None:
    make, told = DATA[name]
    path = make(tmp_path)
    _check_told(_train("gsm8k", f"model={model}", f"data={path}", directory=tmp_path / "run"), 2, **told)


def test_files_of_two_forms_are_no_mixture(model: Path, tmp_path: Path) -> None:
    files = [write(tmp_path / "a.jsonl", [{"prompt": "a"}]), write(tmp_path / "b.jsonl", ROWS)]
    result = _train("gsm8k", f"model={model}", f"data.files={json.dumps(files)}", directory=tmp_path / "run")
    told = {"got": "prompts: prompt (text) in", "need": "the same columns in the same format", "do": "rename columns"}
    _check_told(result, 2, about="the files of one run have different formats", **told)


def test_what_was_refused_is_mended_by_the_same_command_with_other_data(model: Path, tmp_path: Path) -> None:
    good = write(tmp_path / "rows.jsonl", ROWS)
    for data, got in ((f"{good}x", "got:  no such file"), (good, "no file named model.safetensors")):
        result = _train("gsm8k", f"model={model}", f"data={data}", directory=tmp_path / "run")
        assert (result.exit_code, "another configuration" in result.stderr) == (2, False)
        assert got in result.stderr, "the second time it is only the weights that are missing"


TRL_REWARD = "def reward(prompts, completions, solution, **columns):\n    return [1.0] * len(prompts)\n"
IMPORTS = "import no_such_library\n\n\ndef reward(completion, example):\n    return 1.0\n"
SETTINGS = [
    ("gsmk", [], {"about": "'gsmk'", "got": "gsmk", "need": "one of ours, module:function", "do": "'gsm8k'?"}),
    ("gsm8k", ["trainer.lrr=1"], {"about": "trainer.lrr", "got": "no such", "need": "lists", "do": "'lr'?"}),
    ("gsm8k", ["trainr.lr=1"], {"about": "trainr", "got": "no such", "need": "lists", "do": "'trainer'?"}),
    ("gsm8k", ["max_steps=many"], {"about": "steps", "got": '"many"', "need": "a whole number", "do": "digits alone"}),
    ("gsm8k", ["max_steps=1.5"], {"about": "steps", "got": "1.5", "need": "a whole number", "do": "digits alone"}),
    ("gsm8k", ["trainer.lr=fast"], {"about": "trainer.lr", "got": '"fast"', "need": "a number", "do": "1e-3"}),
    (
        "gsm8k",
        ["trainer.gradient_checkpointing=1"],
        {"about": "trainer.gradient_checkpointing", "got": "1", "need": "true or false", "do": "without quotes"},
    ),
    ("gsm8k", ["name=3"], {"about": "name", "got": "3", "need": "a text", "do": "put it in quotes"}),
    (
        "gsm8k",
        ['rewards=["no_such_package.rewards:f"]'],
        {"about": "nothing is found at", "got": "No module named 'no_such_package'", "need": "module:name", "do": "s"},
    ),
    (
        "gsm8k",
        ['rewards=["purerl.rewards.math:gsm9k"]'],
        {"got": "module purerl.rewards.math without gsm9k", "need": "package.module:name", "do": "check its spelling"},
    ),
    (
        "gsm8k",
        ['rewards=["{folder}/imports.py:reward"]'],
        {"about": "imports.py:reward' cannot be imported", "got": "No module named 'no_such_library'", "need": "a mod",
         "do": "python -c 'import imports'"},
    ),
    (
        "gsm8k",
        ['rewards=["{folder}/trl.py:reward"]'],
        {"about": "the data set does not have", "got": "prompt, answer", "need": "solution", "do": "rename"},
    ),
    (
        "gsm8k",
        ['rewards=["{folder}/none.py:reward"]'],
        {"about": "none.py", "got": "no such file", "need": "a Python file", "do": "check its path"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("recipe", "settings", "told"), SETTINGS)
def test_settings_and_functions_that_are_refused(
    recipe: str, settings: list[str], told: dict[str, str], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "imports.py").write_text(IMPORTS)
    (tmp_path / "trl.py").write_text(TRL_REWARD)
    made = [one.replace("{folder}", str(tmp_path)) for one in settings]
    data = write(tmp_path / "rows.jsonl", ROWS)
    result = _train(recipe, f"model={model}", f"data={data}", *made, directory=tmp_path / "run")
    _check_told(result, 2, **told)
    assert not (tmp_path / "run" / "data.json").exists()


def test_a_model_without_a_tokenizer(model: Path, tmp_path: Path) -> None:
    for path in model.glob("*token*"):
        path.unlink()
    result = _train("gsm8k", f"model={model}", f"data={write(tmp_path / 'd.jsonl', ROWS)}", directory=tmp_path / "run")
    told = {"got": "tokenizer.json is missing", "need": "files as transformers'", "do": "check model.path"}
    _check_told(result, 2, about=f"no tokenizer can be loaded from the directory '{model}'", **told)


@pytest.mark.parametrize("recipe", ["gsm8k", "chat"])
def test_a_model_without_a_chat_template(recipe: str, tmp_path: Path) -> None:
    model = _without_weights(tmp_path / "plain", template=None)
    rows = ROWS if recipe == "gsm8k" else [{"messages": [user("a"), assistant("b")]}] * 3
    data = write(tmp_path / "d.jsonl", rows)
    told = {"got": "chat messages", "need": "a chat template that renders them", "do": "put chat_template.jinja next"}
    result = _train(recipe, f"model={model}", f"data={data}", directory=tmp_path / "run")
    _check_told(result, 2, about=f"the tokenizer of '{model}' has no chat template", **told)
    texts = write(tmp_path / "t.jsonl", [{"prompt": f"{k}", "completion": "a", "answer": "1"} for k in range(40)])
    result = _train(recipe, f"model={model}", f"data={texts}", directory=tmp_path / "other")
    assert "model.safetensors" in result.stderr, "texts need none: it is only the weights that are missing"


# --- checkpoints, and the disk that they are on ----------------------------------------------------------------------

SMALL = ("batch_size=2", "trainer.warmup_steps=0", "trainer.mixed_precision=off", "num_threads=1", "checkpoint.every=1")


def _talks(folder: Path) -> str:
    return write(folder / "talks.jsonl", [{"messages": [user(f"{k}?"), assistant(f"{k}")]} for k in range(8)])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its data, and in `run` a run of four steps that was not yet finished when it ended."""
    folder = tmp_path_factory.mktemp("whole")
    model, data = write_model(folder / "model"), _talks(folder)
    result = _train("chat", f"model={model}", f"data={data}", "max_steps=4", *SMALL, directory=folder / "run")
    assert result.exit_code == 0, result.output
    (folder / "run" / "summary.json").unlink()
    return folder


def test_a_run_of_another_model_is_not_gone_on_with(whole: Path, tmp_path: Path) -> None:
    settings = [f"model={write_model(tmp_path / 'other')}", f"data={whole}/talks.jsonl", "max_steps=4", *SMALL]
    result = _train("chat", *settings, directory=whole / "run")
    got = f"model.path: '{whole}/model' there, '{tmp_path}/other' now"
    told = {"got": got, "need": "the same settings", "do": "name another directory"}
    _check_told(result, 1, about="holds a run of another configuration", **told)


def test_a_checkpoint_of_a_model_of_another_shape(whole: Path, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    shutil.copytree(whole / "run", tmp_path / "run")
    shutil.copytree(whole / "model", tmp_path / "model")
    config = AutoConfig.from_pretrained(tmp_path / "model", intermediate_size=96)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    kept = (tmp_path / "run" / "config.toml").read_text().replace(str(whole), str(tmp_path))
    (tmp_path / "run" / "config.toml").write_text(kept)
    settings = [f"model={tmp_path}/model", f"data={_talks(tmp_path)}", "max_steps=4", *SMALL]
    result = _train("chat", *settings, directory=tmp_path / "run")
    told = {"got": "is float32 [64, 128] there, float32 [64, 96] here", "need": "shapes", "do": "the model that it is"}
    _check_told(result, 1, about="checkpoints/000004/policy' is a checkpoint of another model", **told)
    assert (tmp_path / "run" / "checkpoints" / "000004" / "manifest.json").exists()


def _shell(script: str, *, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """What a shell makes of `script`, in which $PURERL is the command."""
    environment = os.environ | {"PURERL": f"{sys.executable} -m purerl_cli", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([*before, "sh", "-c", script], capture_output=True, text=True, check=False, env=environment)


_MOUNTS = ("unshare", "--map-root-user", "--mount")


def _can_mount(folder: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    return _shell(f"mount -t tmpfs -o size=1m none {folder}", before=_MOUNTS).returncode == 0


def test_a_full_disk_keeps_the_checkpoint_before_and_the_run_goes_on_once_there_is_room(
    whole: Path, tmp_path: Path
) -> None:
    if not _can_mount(tmp_path):
        pytest.skip("a small file system cannot be mounted here")
    (disk := tmp_path / "disk").mkdir()
    settings = [f"model={whole}/model", f"data={whole}/talks.jsonl", "max_steps=4", *SMALL]
    command = " ".join(["$PURERL train chat --directory", str(disk / "run"), *(f"--set {one}" for one in settings)])
    ran = _shell(
        f"mount -t tmpfs -o size=3m none {disk}\n"
        f"{command} >{tmp_path}/full.out 2>{tmp_path}/full.err; echo $?\n"
        f"ls {disk}/run/checkpoints\n"
        f"mount -o remount,size=32m {disk}\n"
        f"{command} >{tmp_path}/room.out 2>{tmp_path}/room.err; echo $?\n"
        f"cp -r {disk}/run {tmp_path}/run",
        before=_MOUNTS,
    )
    error = (tmp_path / "full.err").read_text()
    assert ran.stdout.split() == ["1", "000001", "000002", "0"], error + (tmp_path / "room.err").read_text()
    assert error.startswith(f"error: checkpoint '{disk}/run/checkpoints/000003' cannot be written\n"), error
    assert "No space left on device" in error
    assert "need: room on the disk" in error
    assert f"do:   make room or mend the permissions; the same command goes on from '{disk}/run/checkpoints/00" in error
    assert "Traceback" not in error
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    alone = [json.loads(line) for line in (whole / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [_timeless(step) for step in steps] == [_timeless(step) for step in alone], "as if there had been room"


def _timeless(step: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in step.items() if not name.startswith("time/")}


@pytest.mark.parametrize("where", ["a directory that others own", "below a file"])
def test_no_permission_to_write(where: str, whole: Path, tmp_path: Path) -> None:
    before: tuple[str, ...] = ()
    if where == "below a file":
        (tmp_path / "closed").write_text("")
        reason = "Not a directory"
    else:
        (tmp_path / "closed").mkdir(mode=0o555)
        reason = "Permission denied"
        if os.geteuid() == 0:
            if shutil.which("setpriv") is None:
                pytest.skip("root may write anywhere, and cannot be made not to here")
            before = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")
    run, settings = tmp_path / "closed" / "run", [f"model={whole}/model", f"data={whole}/talks.jsonl", *SMALL]
    command = " ".join([f"$PURERL train chat --directory {run}", *(f"--set {one}" for one in settings)])
    ran = _shell(command, before=before)
    assert (ran.returncode, ran.stdout) == (1, ""), ran.stderr
    assert ran.stderr.startswith(f"error: run directory '{run}' cannot be written\n  got:  "), ran.stderr
    assert reason in ran.stderr
    assert "\n  need: a directory with room in it, and permission to write there\n  do:   make room, mend" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_other_commands_tell_what_the_disk_refuses_too(tmp_path: Path) -> None:
    source = write(tmp_path / "train.jsonl", [{"question": "1+1?", "answer": "1+1 is 2\n#### 2"}])
    (tmp_path / "closed").write_text("")
    result = CliRunner().invoke(app, ["data", "convert", "gsm8k", source, f"{tmp_path}/closed/gsm8k/train.parquet"])
    _check_told(result, 1, got="Not a directory", need="permission", do="name another file", about="a file is refused")


@pytest.mark.parametrize("command", ["recipes", "config", "config --toml"])
def test_a_full_disk_behind_the_output_is_told(command: str) -> None:
    ran = _shell(f"$PURERL {command} >/dev/full")
    assert ran.returncode == 1
    assert ran.stderr.startswith("error: a file is refused\n  got:  [Errno 28] No space left on device\n")
    assert len(ran.stderr.splitlines()) == 4, ran.stderr
