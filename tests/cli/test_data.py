"""`purerl data`: printed output and exit statuses, and the examples in docs/how-to/data.md."""

from __future__ import annotations

import tomllib
from pathlib import Path

import attrs
import pytest
from typer.testing import CliRunner, Result

from purerl.config.structure import from_dict
from purerl.data.columns import EXAMPLE_FORMATS
from purerl.data.files import read_table
from purerl.data.settings import Data
from purerl.errors import ConfigError
from purerl_cli.main import app
from tests.data.made import CHATML, tokenizer, user, write
from tests.data.test_continuation import OPENED
from tests.envs import families


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["data", *map(str, arguments)], env={"COLUMNS": "100"})


def _nonempty_lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def test_inspect_prints_columns_lengths_problems_and_a_rendered_row(tmp_path: Path) -> None:
    tokenizer(CHATML).save_pretrained(tmp_path / "model")
    rows = [
        {"data_source": "x", "prompt": [user(text)], "reward_model": {"ground_truth": "2"}} for text in ("1+1", "1+1")
    ]
    path = write(tmp_path / "rows.parquet", rows)
    result = _run(
        "inspect", path, "--model", tmp_path / "model", "--system-prompt", "be",
        "--chat-template-kwargs", "enable_thinking=false", "--max-prompt-tokens", 3, "--rows", 2, "--stop-string", "1+",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert _nonempty_lines(result.stdout) == [
        f"{path}: 2 rows",
        "  prompts: prompt (messages), verl's columns",
        "  ground truth: reward_model.ground_truth",
        "  column         type                           nulls",
        " ─────────────────────────────────────────────────────",
        "  data_source    string                         0",
        "  prompt         messages                       0",
        "  reward_model   struct<ground_truth: string>   0",
        "  prompt length   tokens",
        " ────────────────────────",
        "  min             36",
        "  median          36",
        "  p90             36",
        "  p99             36",
        "  max             36",
        "  problem                          rows   row indices",
        " ─────────────────────────────────────────────────────",
        "  duplicate of an earlier prompt   1      1",
        "  a prompt of more than 3 tokens   2      0, 1",
        "--- rendered row ---",
        "<|im_start|>system",
        "be<|im_end|>",
        "<|im_start|>user",
        "1+1<|im_end|>",
        "<|im_start|>assistant",
        "<think></think>",
        "--- its 36 tokens, after which is sampled ---",
        r"template  3:'<|im_start|>' 94:'s' 100:'y' 94:'s' 95:'t' 80:'e' 88:'m' 10:'\n'",
        "system    77:'b' 80:'e'",
        r"template  4:'<|im_end|>' 10:'\n' 3:'<|im_start|>' 96:'u' 94:'s' 80:'e' 93:'r' 10:'\n'",
        "user      28:'1' 22:'+' 28:'1'",
        (
            r"template  4:'<|im_end|>' 10:'\n' 3:'<|im_start|>' 76:'a' 94:'s' 94:'s' 84:'i' 94:'s' 95:'t' 76:'a' "
            r"89:'n' 95:'t' 10:'\n' 8:'<think>' 9:'</think>'"
        ),
        "--- a completion ends with ---",
        "stop token   4:'<|im_end|>'",
        "stop token   1:'<eos>'",
        "stop string  '1+', alone 28:'1' 22:'+'",
    ]


def test_a_note_says_which_message_the_template_does_not_show(tmp_path: Path) -> None:
    without = "{%- set messages = messages | selectattr('role', 'ne', 'system') | list -%}" + CHATML
    tokenizer(without).save_pretrained(tmp_path / "model")
    path = write(tmp_path / "rows.jsonl", [{"prompt": [user("a")]}])
    result = _run("inspect", path, "--model", tmp_path / "model", "--system-prompt", "be\x1b[31m")
    assert "note: the chat template does not show the text of message 0 (system) as it is" in result.stdout
    assert "\x1b" not in result.stdout


def test_the_middle_of_a_long_run_of_tokens_is_left_out(tmp_path: Path) -> None:
    tokenizer().save_pretrained(tmp_path / "model")
    result = _run("inspect", write(tmp_path / "rows.jsonl", [{"prompt": "a" * 200}]), "--model", tmp_path / "model")
    [line] = [line for line in result.stdout.splitlines() if line.startswith("user")]
    assert line.count("76:'a'") == 128
    assert "... 72 tokens ..." in line


def test_inspect_lists_rows_without_a_ground_truth(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "answer": 2.0, "solution": None}, {"prompt": "b", "answer": None, "solution": "3"}]
    lines = _nonempty_lines(_run("inspect", write(tmp_path / "rows.parquet", rows)).stdout)
    assert "  ground truth: answer" in lines
    assert "  no ground truth in 'answer'   1      1" in lines


def test_long_list_of_row_indices_is_truncated(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"prompt": "a"}] * 12)
    assert "  duplicate of an earlier prompt   11     1, 2, 3, 4, 5, 6, 7, 8, ..." in _nonempty_lines(
        _run("inspect", path).stdout
    )


def test_inspect_of_unsupported_columns_exits_with_status_2(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"words": "a"}])
    result = _run("inspect", path)
    assert result.exit_code == 2
    assert _nonempty_lines(result.stdout)[:6] == [
        f"{path}: 1 rows",
        "  no supported columns",
        f"  prompts: data set {path!r} has no column 'prompt'",
        "    got:  words",
        "    need: a column 'prompt' of text or messages, to use the file as prompts",
        "    do:   rename the column with this content to 'prompt'",
    ]


def test_invalid_input_exits_with_status_2_and_a_message(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"prompt": "a"}])
    for arguments, message in (
        (["inspect", tmp_path / "none.jsonl"], f"data set '{tmp_path}/none.jsonl'\n  got:  no such file\n"),
        (["inspect", path, "--model", tmp_path / "none"], f"the model {str(tmp_path / 'none')!r} is missing\n"),
        (
            ["inspect", path, "--system-prompt", "be"],
            "system_prompt has no effect without a tokenizer\n  need: a tokenizer\n",
        ),
        (["inspect", path, "--stop-string", "a"], "stop_strings has no effect without a tokenizer\n"),
        (["inspect", path, "--stop-string", ""], "--stop-string\n  got:  an empty string\n"),
        (["inspect", path, "--chat-template-kwargs", "a"], "setting 'chat_template_kwargs.a'\n  need: key=value"),
        (["convert", "gsm", path, tmp_path / "t"], "unknown data set 'gsm'\n  do:   did you mean 'gsm8k'?"),
        (["convert", "gsm8k", path, tmp_path], f"target '{tmp_path}'\n  got:  a directory\n"),
        (["convert", "gsm8k", path, tmp_path / "t"], f"{path!r} is not openai/gsm8k: it has no column 'question'\n"),
        (["values", path, tmp_path / "e.json", path], f"target {path!r}\n  got:  the source file\n"),
        (["values", path, path, tmp_path / "t", "--beta", "0"], "beta\n  got:  0.0\n  need: a finite number above 0"),
    ):
        result = _run(*arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"error: {message}"), result.stderr


def test_convert_prints_the_number_of_rows(tmp_path: Path) -> None:
    source = write(tmp_path / "train.jsonl", [{"question": "1+1?", "answer": "1+1 is 2\n#### 2"}])
    result = _run("convert", "gsm8k", source, tmp_path / "t.parquet", "--prompt-format", "text")
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path}/t.parquet: 1 rows\n")
    assert read_table(tmp_path / "t.parquet").column("answer").to_pylist() == ["2"]


def test_output_in_the_documentation_is_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "data.md").read_text(encoding="utf-8")
    rows = page.partition("```json\n")[2].partition("```")[0]
    command, _, output = page.partition("```console\n$ ")[2].partition("\n```")[0].partition("\n")
    monkeypatch.chdir(tmp_path)
    Path("chats.jsonl").write_text(rows, encoding="utf-8")
    tokenizer(CHATML).save_pretrained("model")
    arguments = command.replace("$'Q:\\n'", "Q:").split()[1:-1]
    result = CliRunner().invoke(app, [*arguments, "Q:\n"], env={"COLUMNS": "100"})
    assert _nonempty_lines(result.stdout) == _nonempty_lines(output)


def test_documentation_lists_every_format_and_setting() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "data.md").read_text(encoding="utf-8")
    table = [line for line in page.splitlines() if line.startswith("|")]
    for example_format in EXAMPLE_FORMATS:
        start = f"| {example_format.example_type} |"
        rows = [line for line in table if line.startswith(start) and example_format.prompt_format in line]
        assert any(all(f"`{name}`" in line for name in example_format.columns) for line in rows), example_format
    settings = tomllib.loads(page.split("```toml\n")[2].partition("```")[0])
    assert from_dict(Data, settings["data"]).validation_fraction == 0.05
    assert settings["data"].keys() == {field.name for field in attrs.fields(Data)} - {"curriculum"}
    with pytest.raises(ConfigError, match=r"^weights\n"):
        from_dict(Data, {**settings["data"], "curriculum": {}})


def test_inspect_tries_chat_templates_of_a_directory_and_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "plain.jinja").write_text(families.CHATML)
    (tmp_path / "thinking.jinja").write_text(OPENED)
    result = _run("inspect", "--templates", tmp_path)
    assert result.exit_code == 0, result.output
    head, _, plain, thinking, *messages = _nonempty_lines(result.stdout)
    assert head.split()[:3] == ["template", "one", "answer"]
    assert plain.split()[:4] == ["plain", "yes", "yes", "yes"]
    assert thinking.split()[0:3] == ["thinking", "refused", "5"]
    assert "5: an answer does not continue the generation prompt of the chat template" in messages
    result = _run("inspect", "--templates", tmp_path / "thinking.jinja")
    assert "The messages of thinking:" in result.stdout
    assert "  do:   write the thoughts of each answer into its content, between <think> and </think>" in result.stdout


@pytest.mark.parametrize("option", [["rows.jsonl"], ["--rows", "3"], ["--special-tokens", "escape"]])
def test_templates_are_tried_without_a_file(option: list[str], tmp_path: Path) -> None:
    result = _run("inspect", "--templates", tmp_path, *option)
    assert (result.exit_code, result.stderr) == (
        2,
        "error: --templates\n  got:  FILE or an option beside it\n  need: --templates PATH, or with --model DIR\n",
    )
    assert _run("inspect").stderr == "error: FILE is missing\n  need: a data file, or --templates PATH\n"
