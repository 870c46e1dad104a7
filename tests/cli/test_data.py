"""`purerl data`: what is printed, and the exit codes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import attrs
import pytest
from typer.testing import CliRunner, Result

from purerl.config.schema import Data
from purerl.config.structure import from_dict
from purerl.data.columns import LAYOUTS
from purerl.data.files import read_table
from purerl_cli.main import app
from tests.data.made import CHATML, tokenizer, user, write


def _data(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["data", *map(str, arguments)], env={"COLUMNS": "100"})


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def test_a_file_is_described_with_a_row_as_the_model_sees_it(tmp_path: Path) -> None:
    tokenizer(CHATML).save_pretrained(tmp_path / "model")
    rows = [
        {"data_source": "x", "prompt": [user(text)], "reward_model": {"ground_truth": "2"}} for text in ("1+1", "1+1")
    ]
    path = write(tmp_path / "rows.parquet", rows)
    result = _data(
        "inspect", path, "--model", tmp_path / "model", "--system", "be", "--template", "enable_thinking=false",
        "--max-prompt-tokens", 3, "--rows", 2,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert _lines(result.stdout) == [
        f"{path}: 2 rows",
        "  prompts: prompt (messages), verl's columns",
        "  right answers: reward_model.ground_truth",
        "  column         type                           nothing in",
        " ──────────────────────────────────────────────────────────",
        "  data_source    string                         0",
        "  prompt         messages                       0",
        "  reward_model   struct<ground_truth: string>   0",
        "  prompts     tokens at most",
        " ────────────────────────────",
        "  least       36",
        "  half        36",
        "  9 in 10     36",
        "  99 in 100   36",
        "  all         36",
        "  problem                          rows   which, from 0",
        " ───────────────────────────────────────────────────────",
        "  the prompt of an earlier row     1      1",
        "  a prompt of more than 3 tokens   2      0, 1",
        "--- a row, as the model sees it ---",
        "<|im_start|>system",
        "be<|im_end|>",
        "<|im_start|>user",
        "1+1<|im_end|>",
        "<|im_start|>assistant",
        "<think></think>",
    ]


def test_many_rows_with_one_problem_are_cut_short(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"prompt": "a"}] * 12)
    assert "  the prompt of an earlier row   11     1, 2, 3, 4, 5, 6, 7, 8, ..." in _lines(
        _data("inspect", path).stdout
    )


def test_a_file_without_use_leaves_with_2_and_is_described(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"text": "a"}])
    result = _data("inspect", path)
    assert result.exit_code == 2
    assert _lines(result.stdout)[:6] == [
        f"{path}: 1 rows",
        "  nothing that a run can learn from",
        f"  prompts: data set {path!r} has no column 'prompt'",
        "    got:  text",
        "    need: a column 'prompt' of text or messages, for prompts",
        "    do:   rename the column 'text' if it is what to continue, or split it into 'prompt' and 'completion'",
    ]


def test_mistakes_are_told(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"prompt": "a"}])
    for arguments, message in (
        (["inspect", tmp_path / "none.jsonl"], f"data set '{tmp_path}/none.jsonl'\n  got:  no such file\n"),
        (["inspect", path, "--model", tmp_path / "none"], "no tokenizer can be loaded from the hub's repository"),
        (["inspect", path, "--system", "be"], "system_prompt has no effect\n  need: a tokenizer\n"),
        (["inspect", path, "--template", "a"], "setting 'chat_template_kwargs.a'\n  need: key=value"),
        (["convert", "gsm", path, tmp_path / "t"], "no data set is called 'gsm'\n  do:   did you mean 'gsm8k'?"),
        (["convert", "gsm8k", path, tmp_path], f"target '{tmp_path}'\n  got:  a directory\n"),
        (["convert", "gsm8k", path, tmp_path / "t"], f"{path!r} is not openai/gsm8k: no column 'question'\n"),
    ):
        result = _data(*arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"error: {message}"), result.stderr


def test_a_published_data_set_is_written_and_counted(tmp_path: Path) -> None:
    source = write(tmp_path / "train.jsonl", [{"question": "1+1?", "answer": "1+1 is 2\n#### 2"}])
    result = _data("convert", "gsm8k", source, tmp_path / "t.parquet", "--form", "text")
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path}/t.parquet: 1 rows\n")
    assert read_table(tmp_path / "t.parquet").column("answer").to_pylist() == ["2"]


def test_the_page_shows_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    file = page.partition("```json\n")[2].partition("```")[0]
    command, _, printed = page.partition("```console\n$ ")[2].partition("\n```")[0].partition("\n")
    monkeypatch.chdir(tmp_path)
    Path("talks.jsonl").write_text(file, encoding="utf-8")
    tokenizer(CHATML).save_pretrained("model")
    result = CliRunner().invoke(app, command.split()[1:], env={"COLUMNS": "100"})
    assert _lines(result.stdout) == _lines(printed)


def test_the_page_names_every_layout_and_every_setting() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    table = [line for line in page.splitlines() if line.startswith("|")]
    for layout in LAYOUTS:
        rows = [line for line in table if line.startswith(f"| {layout.purpose} |") and layout.form in line]
        assert any(all(f"`{name}`" in line for name in layout.columns) for line in rows), layout
    settings = tomllib.loads(page.split("```toml\n")[2].partition("```")[0])
    assert from_dict(Data, settings["data"]).validation_fraction == 0.05
    assert settings["data"].keys() == {field.name for field in attrs.fields(Data)}
