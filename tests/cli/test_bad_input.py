"""Invalid input as a user meets it: the exit status, and the four parts of each message.

The models in the first half have a tokenizer and no weights, so that a test fails if a model is loaded before the input
is checked.
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
from tests.forks import PROGRAMS
from tests.recipes.made import write_model

ROWS = [{"prompt": [user(f"{k}+1?")], "answer": f"{k + 1}"} for k in range(40)]


def _train(recipe: str, *settings: str, directory: Path) -> Result:
    options = [part for setting in settings for part in ("--set", setting)]
    return CliRunner().invoke(app, ["train", recipe, "--directory", str(directory), *options])


def _without_phases(stderr: str) -> str:
    """`stderr` without the lines about what takes long, which a busy computer has."""
    return "".join(line for line in stderr.splitlines(keepends=True) if not line.startswith("purerl: "))


def _check_error(result: Result, status: int, *, got: str, need: str, do: str, what: str = "") -> None:
    """Check that `result` is an error message whose parts contain these strings, and nothing else."""
    assert (result.exit_code, result.stdout) == (status, ""), result.output
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("error: "), result.stderr
    first_line, other_lines = result.stderr.partition("\n")[::2]
    assert what in first_line
    parts = {key.strip(): text for key, _, text in (line.partition(":") for line in other_lines.splitlines())}
    # If the input is a name, it is part of the first line instead of `got`.
    expected = {"got": got, "need": need, "do": do}
    assert all(text in parts.get(key, first_line).strip() for key, text in expected.items()), result.stderr


# --- data --------------------------------------------------------------------------------------------------------


def _parquet(path: Path, **columns: pa.Array) -> str:
    parquet.write_table(pa.table(columns), path)
    return str(path)


def _file(name: str, text: str) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        (folder / name).write_text(text)
        return str(folder / name)

    return make


def _different_shards(folder: Path) -> str:
    _parquet(folder / "rows-0.parquet", prompt=pa.array(["a"]), answer=pa.array(["2"]))
    _parquet(folder / "rows-1.parquet", prompt=pa.array(["a"]), answer=pa.array([2]))
    return f"{folder}/rows-*.parquet"


DATA = {
    "misspelled column": (
        lambda folder: write(folder / "rows.jsonl", [{"promt": "a", "answer": "2"}]),
        {"what": "has no column 'prompt'", "got": "promt, answer", "need": "a column 'prompt'", "do": "'promt'"},
    ),
    "column with another name": (
        lambda folder: write(folder / "rows.jsonl", [{"text": "a", "answer": "2"}]),
        {"got": "text, answer", "need": "a column 'prompt' of text or messages", "do": "rename the column 'text'"},
    ),
    "no ground truth": (
        lambda folder: write(folder / "rows.jsonl", [{"prompt": "a", "level": 1}] * 40),
        {"what": "'purerl.rewards.math:gsm8k' reads", "got": "prompt, level", "need": "answer or reward", "do": "re"},
    ),
    "Parquet file without rows": (
        lambda folder: _parquet(folder / "rows.parquet", prompt=pa.array([], pa.string())),
        {"what": "rows.parquet", "got": "no rows", "need": "at least one", "do": "use a file that has rows"},
    ),
    "empty file": (
        _file("rows.jsonl", ""),
        {"what": "rows.jsonl", "got": "no rows", "need": "at least one", "do": "use a file that has rows"},
    ),
    "file that does not exist": (
        lambda folder: write(folder / "rows.jsonl", ROWS).replace("rows", "row"),
        {"what": "row.jsonl", "got": "no such file", "need": "a .parquet or .jsonl file", "do": "'rows.jsonl'"},
    ),
    "shards with different schemas": (
        _different_shards,
        {"got": "'answer' is string in the first, int64 in the second", "need": "the same columns", "do": "list them"},
    ),
    "column with mixed types": (
        _file("rows.jsonl", '{"prompt": "a"}\n{"prompt": ["b"]}\n'),
        {"got": "values of several types: str in row 0, list in row 1", "need": "text, or messages", "do": ""},
    ),
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory with a configuration, a tokenizer and a chat template, and no weights."""
    return _write_model_without_weights(tmp_path / "model", CHATML)


def _write_model_without_weights(folder: Path, chat_template: str | None) -> Path:
    from transformers import Qwen3Config

    Qwen3Config(vocab_size=len(tokenizer())).save_pretrained(folder)
    tokenizer(chat_template).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", DATA)
def test_invalid_data_is_refused(name: str, model: Path, tmp_path: Path) -> None:
    make, message = DATA[name]
    path = make(tmp_path)
    _check_error(_train("gsm8k", f"model={model}", f"data={path}", directory=tmp_path / "run"), 2, **message)


def test_files_with_text_and_with_messages_cannot_be_mixed(model: Path, tmp_path: Path) -> None:
    files = [write(tmp_path / "a.jsonl", [{"prompt": "a"}]), write(tmp_path / "b.jsonl", ROWS)]
    result = _train("gsm8k", f"model={model}", f"data.files={json.dumps(files)}", directory=tmp_path / "run")
    message = {
        "got": "prompts: prompt (text) in",
        "need": "the same columns in the same format",
        "do": "rename columns",
    }
    _check_error(result, 2, what="the files of one run have different formats", **message)


def test_after_refused_data_the_same_command_accepts_other_data(model: Path, tmp_path: Path) -> None:
    good = write(tmp_path / "rows.jsonl", ROWS)
    for data, got in ((f"{good}x", "got:  no such file"), (good, "no file named model.safetensors")):
        result = _train("gsm8k", f"model={model}", f"data={data}", directory=tmp_path / "run")
        assert (result.exit_code, "another configuration" in result.stderr) == (2, False)
        assert got in result.stderr, "the second time only the weights are missing"


# --- settings, functions, models ---------------------------------------------------------------------------------

TRL_REWARD = "def reward(prompts, completions, solution, **columns):\n    return [1.0] * len(prompts)\n"
FAILING_IMPORT = "import no_such_library\n\n\ndef reward(completion, example):\n    return 1.0\n"
SETTINGS = [
    ("gsmk", [], {"what": "'gsmk'", "got": "gsmk", "need": "a recipe of purerl, module:function", "do": "'gsm8k'?"}),
    ("gsm8k", ["trainer.lrr=1"], {"what": "trainer.lrr", "got": "no such", "need": "lists", "do": "'lr'?"}),
    ("gsm8k", ["trainr.lr=1"], {"what": "trainr", "got": "no such", "need": "lists", "do": "'trainer'?"}),
    ("gsm8k", ["max_steps=all"], {"what": "max_steps", "got": '"all"', "need": "an integer", "do": "only its digits"}),
    ("gsm8k", ["max_steps=1.5"], {"what": "max_steps", "got": "1.5", "need": "an integer", "do": "only its digits"}),
    ("gsm8k", ["trainer.lr=fast"], {"what": "trainer.lr", "got": '"fast"', "need": "a number", "do": "1e-3"}),
    (
        "gsm8k",
        ["trainer.share_prefixes=1"],
        {"what": "trainer.share_prefixes", "got": "1", "need": "true or false", "do": "without quotes"},
    ),
    ("gsm8k", ["name=3"], {"what": "name", "got": "3", "need": "a string", "do": "put it in quotes"}),
    (
        "gsm8k",
        ['rewards=["no_such_package.rewards:f"]'],
        {"what": "cannot find", "got": "No module named 'no_such_package'", "need": "module:name", "do": "spelling"},
    ),
    (
        "gsm8k",
        ['rewards=["purerl.rewards.math:gsm9k"]'],
        {"got": "math without gsm9k", "need": "package.module:name", "do": "purerl.rewards.math:gsm8k"},
    ),
    (
        "gsm8k",
        ['rewards=["{folder}/imports.py:reward"]'],
        {"what": "imports.py:reward' cannot be imported", "got": "No module named 'no_such_library'", "need": "a mod",
         "do": "python -c 'import imports'"},
    ),
    (
        "gsm8k",
        ['rewards=["{folder}/trl_reward.py:reward"]'],
        {"what": "the data set does not have", "got": "prompt, answer", "need": "solution", "do": "rename"},
    ),
    (
        "gsm8k",
        ['rewards=["{folder}/none.py:reward"]'],
        {"what": "none.py", "got": "no such file", "need": "a Python file", "do": "check the path"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("recipe", "settings", "message"), SETTINGS)
def test_invalid_setting_or_function_is_refused(
    recipe: str,
    settings: list[str],
    message: dict[str, str],
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "imports.py").write_text(FAILING_IMPORT)
    (tmp_path / "trl_reward.py").write_text(TRL_REWARD)
    settings = [setting.replace("{folder}", str(tmp_path)) for setting in settings]
    data = write(tmp_path / "rows.jsonl", ROWS)
    result = _train(recipe, f"model={model}", f"data={data}", *settings, directory=tmp_path / "run")
    _check_error(result, 2, **message)
    assert not (tmp_path / "run" / "data.json").exists()


def test_model_without_a_tokenizer_is_refused(model: Path, tmp_path: Path) -> None:
    for path in model.glob("*token*"):
        path.unlink()
    result = _train("gsm8k", f"model={model}", f"data={write(tmp_path / 'd.jsonl', ROWS)}", directory=tmp_path / "run")
    message = {"got": "tokenizer.json is missing", "need": "save_pretrained", "do": "check model.path"}
    _check_error(result, 2, what=f"no tokenizer can be loaded from the directory '{model}'", **message)


@pytest.mark.parametrize("recipe", ["gsm8k", "chat"])
def test_model_without_a_chat_template_is_refused_for_messages_only(recipe: str, tmp_path: Path) -> None:
    model = _write_model_without_weights(tmp_path / "plain", chat_template=None)
    rows = ROWS if recipe == "gsm8k" else [{"messages": [user("a"), assistant("b")]}] * 3
    data = write(tmp_path / "d.jsonl", rows)
    message = {
        "got": "chat messages",
        "need": "a chat template that renders them",
        "do": "put chat_template.jinja next",
    }
    result = _train(recipe, f"model={model}", f"data={data}", directory=tmp_path / "run")
    _check_error(result, 2, what=f"the tokenizer of '{model}' has no chat template", **message)
    text = write(tmp_path / "t.jsonl", [{"prompt": f"{k}", "completion": "a", "answer": "1"} for k in range(40)])
    result = _train(recipe, f"model={model}", f"data={text}", directory=tmp_path / "text-run")
    assert "model.safetensors" in result.stderr, "text needs no chat template: only the weights are missing"


# --- run directories and the disk --------------------------------------------------------------------------------

SMALL = ("batch_size=2", "trainer.warmup_steps=0", "trainer.mixed_precision=off", "num_threads=1", "checkpoint.every=1")


def _write_chats(folder: Path) -> str:
    rows = [{"messages": [user(f"{k}?"), assistant(f"{k}")]} for k in range(8)]
    return write(folder / "chats.jsonl", rows)


def _without_times(record: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in record.items() if not name.startswith("time/")}


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its data, and in `run` a run with all four steps but without its summary, so that it can be resumed."""
    folder = tmp_path_factory.mktemp("unfinished")
    model, data = write_model(folder / "model"), _write_chats(folder)
    result = _train("chat", f"model={model}", f"data={data}", "max_steps=4", *SMALL, directory=folder / "run")
    assert result.exit_code == 0, result.output
    (folder / "run" / "summary.json").unlink()
    return folder


def test_run_with_another_model_is_not_resumed(unfinished: Path, tmp_path: Path) -> None:
    settings = [f"model={write_model(tmp_path / 'other')}", f"data={unfinished}/chats.jsonl", "max_steps=4", *SMALL]
    result = _train("chat", *settings, directory=unfinished / "run")
    got = f'model.path: "{unfinished}/model" there, "{tmp_path}/other" now'
    message = {
        "got": got,
        "need": "the same settings",
        "do": f"for a new run add --directory {unfinished}/run-2; to use",
    }
    _check_error(result, 1, what="contains a run with another configuration", **message)


def test_model_that_has_changed_since_the_run_started_is_refused(unfinished: Path, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    shutil.copytree(unfinished / "run", tmp_path / "run")
    shutil.copytree(unfinished / "model", tmp_path / "model")
    config = AutoConfig.from_pretrained(tmp_path / "model", intermediate_size=96)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    stored = (tmp_path / "run" / "config.toml").read_text().replace(str(unfinished), str(tmp_path))
    (tmp_path / "run" / "config.toml").write_text(stored)
    settings = [f"model={tmp_path}/model", f"data={_write_chats(tmp_path)}", "max_steps=4", *SMALL]
    result = _train("chat", *settings, directory=tmp_path / "run")
    message = {"got": "config.json, model.safetensors", "need": "the same model", "do": "restore it"}
    _check_error(result, 1, what="has changed since the run", **message)
    assert (tmp_path / "run" / "checkpoints" / "000004" / "manifest.json").exists()


def _shell(script: str) -> subprocess.CompletedProcess[str]:
    """Run `script` in a shell with mounts of its own, in which $PURERL is the command."""
    environment = os.environ | {"PURERL": f"{sys.executable} -m purerl_cli", "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def _can_mount(folder: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    return _shell(f"mount -t tmpfs -o size=1m none {folder}").returncode == 0


@pytest.mark.slow
def test_run_resumes_after_the_disk_was_full(unfinished: Path, tmp_path: Path) -> None:
    """The last checkpoint is kept. With more space the same command gives the metrics of an uninterrupted run."""
    if not _can_mount(tmp_path):
        pytest.skip("mounting a small file system is not allowed here")
    (disk := tmp_path / "disk").mkdir()
    settings = [f"model={unfinished}/model", f"data={unfinished}/chats.jsonl", "max_steps=4", *SMALL]
    command = " ".join(["$PURERL train chat --directory", str(disk / "run"), *(f"--set {s}" for s in settings)])
    process = _shell(
        f"mount -t tmpfs -o size=3m none {disk}\n"
        f"{command} >{tmp_path}/full.out 2>{tmp_path}/full.err; echo $?\n"
        f"ls {disk}/run/checkpoints\n"
        f"mount -o remount,size=32m {disk}\n"
        f"{command} >{tmp_path}/resumed.out 2>{tmp_path}/resumed.err; echo $?\n"
        f"cp -r {disk}/run {tmp_path}/run"
    )
    error = _without_phases((tmp_path / "full.err").read_text())
    assert process.stdout.split() == ["1", "000001", "000002", "0"], error + (tmp_path / "resumed.err").read_text()
    assert error.startswith(f"error: checkpoint '{disk}/run/checkpoints/000003' cannot be written\n"), error
    assert "No space left on device" in error
    assert "need: space on the disk" in error
    assert f"the same command resumes from '{disk}/run/checkpoints/00" in error
    assert "Traceback" not in error
    resumed = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    reference = [json.loads(line) for line in (unfinished / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [_without_times(record) for record in resumed] == [_without_times(record) for record in reference]


# Root may write to any directory. This takes the capabilities from a process that give root the right to do so.
_AS_OTHERS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert libc.capget(header, sets) == 0
sets[0] &= ~(1 << 1 | 1 << 2)  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, of those in effect
assert libc.capset(header, sets) == 0
from purerl_cli.main import main
main()
"""


@pytest.mark.parametrize("case", ["directory without permission", "path below a file"])
def test_directory_that_cannot_be_written_is_reported(case: str, unfinished: Path, tmp_path: Path) -> None:
    if case == "path below a file":
        (tmp_path / "closed").write_text("")
        reason = "Not a directory"
    else:
        (tmp_path / "closed").mkdir(mode=0o555)
        reason = "Permission denied"
    run, settings = tmp_path / "closed" / "run", (f"model={unfinished}/model", f"data={unfinished}/chats.jsonl", *SMALL)
    arguments = ["train", "chat", "--directory", str(run), *(part for s in settings for part in ("--set", s))]
    program = ["-c", _AS_OTHERS] if sys.platform == "linux" else ["-m", "purerl_cli"]
    process = PROGRAMS.run([sys.executable, *program, *arguments], capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (1, ""), process.stderr
    errors = _without_phases(process.stderr)
    assert errors.startswith(f"error: run directory '{run}' cannot be written\n  got:  "), process.stderr
    assert reason in process.stderr
    assert "\n  need: a directory with free space, and permission to write there\n  do:   free space" in process.stderr
    assert "Traceback" not in process.stderr


def test_file_that_cannot_be_written_is_reported_by_other_commands(tmp_path: Path) -> None:
    source = write(tmp_path / "train.jsonl", [{"question": "1+1?", "answer": "1+1 is 2\n#### 2"}])
    (tmp_path / "closed").write_text("")
    result = CliRunner().invoke(app, ["data", "convert", "gsm8k", source, f"{tmp_path}/closed/gsm8k/train.parquet"])
    message = {"got": "Not a directory", "need": "permission", "do": "name another file"}
    _check_error(result, 1, what="a file cannot be read or written", **message)


@pytest.mark.parametrize("command", ["recipes", "config", "config --toml"])
def test_full_disk_behind_stdout_is_reported(command: str) -> None:
    """The first is a process that is started: Python writes to stdout when it ends, too."""
    run = subprocess.run if command == "recipes" else PROGRAMS.run
    with Path("/dev/full").open("wb") as full:
        arguments = [sys.executable, "-m", "purerl_cli", *command.split()]
        process = run(arguments, stdout=full, stderr=subprocess.PIPE, text=True)
    assert process.returncode == 1
    expected = "error: a file cannot be read or written\n  got:  [Errno 28] No space left on device\n"
    errors = _without_phases(process.stderr)
    assert errors.startswith(expected)
    assert len(errors.splitlines()) == 4, process.stderr
