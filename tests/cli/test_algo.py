"""`purerl algo list`, `purerl algo show`, `purerl algo diff` and `purerl algo presets`."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner, Result

from purerl import plugins
from purerl_cli.main import app


def _purerl(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["algo", *arguments], env={"COLUMNS": "160"})


def _listed(width: int) -> list[str]:
    """The lines of `purerl algo list` in a terminal with `width` columns."""
    variables = {"COLUMNS": str(width), "FORCE_COLOR": "1"}
    output = CliRunner().invoke(app, ["algo", "list"], env=variables).stdout
    return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in output.splitlines()]


def test_list_of_algorithms_fits_on_one_screen() -> None:
    lines, names = _listed(100), plugins.names("algorithm")
    assert max(map(len, lines)) <= 100
    assert len(lines) <= len(names) + 20
    assert sorted(line.split()[0] for line in lines[1:] if re.match("  [a-z]", line)) == names
    assert max(map(len, _listed(80))) <= 80


def test_list_says_what_an_algorithm_is_and_what_it_needs_in_words() -> None:
    rows = {line.split()[0]: re.split(" {2,}", line.strip())[1:] for line in _purerl("list").stdout.splitlines()}
    assert rows["grpo"] == ["group relative policy optimization"]
    assert rows["ppo"] == ["proximal policy optimization, with a critic", "critic"]
    assert rows["dpo"] == ["direct preference optimization", "reference, pairs"]
    assert rows["prime"][1] == "reward model, reference"
    assert rows["opd"][1] == "teacher"
    assert [name for name, cells in rows.items() if cells[1:] == ["environment"]] == ["rae", "gigpo"]
    words = {name: row[0] for name, row in rows.items() if name in plugins.names("algorithm")}
    assert [name for name, text in words.items() if text.lower().replace("-", "_") == name] == []


def test_algorithm_is_shown_with_its_parts_needs_and_settings() -> None:
    text = _purerl("show", "grpo", "--set", "kl_loss=0.02").stdout
    assert text.startswith("GRPO, group relative policy optimization: ")
    assert "A_i  = (s_i - mean_g) / (std_g + 1e-6)" in text
    assert "0.02 * sequence_mean_of_token_mean of k3(logp, ref_logp)" in text
    assert "a reference" in text
    assert "kl_loss.coef" in text


def test_algorithm_is_printed_as_json_and_its_papers_as_addresses() -> None:
    found = json.loads(_purerl("show", "dapo@verl", "--json").stdout)
    assert found["name"] == "dapo@verl"
    assert ["dual_clip.ratio", "10.0"] in [row[:2] for row in found["settings"]]
    assert _purerl("show", "gspo", "--cite").stdout == "https://arxiv.org/abs/2507.18071\n"


def test_difference_of_two_algorithms() -> None:
    lines = _purerl("diff", "grpo@trl", "grpo@verl").stdout.splitlines()
    assert [line.split("   ")[0].strip() for line in lines if line.startswith(("  adv", "  loss"))] == [
        "advantage",
        "loss: policy",
    ]
    effects = {line.strip().split("   ")[0]: line.split() for line in lines if line.startswith(("  only", "  all"))}
    assert set(effects) == {"only advantage", "only loss: policy", "all of them"}
    assert effects["all of them"][-1] == "1.0000"
    assert _purerl("diff", "grpo", "grpo").stdout == "grpo and grpo are the same algorithm.\n"


def test_presets_are_listed() -> None:
    text = _purerl("presets").stdout
    assert "grpo@verl" in text
    assert "TRL 1.16.0" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "grppo"), "error: algorithm.kind: unknown algorithm 'grppo'\n  do:   did you mean 'grpo'?"),
        (("show", "sft", "--set", "dual_clip=3"), "error: dual_clip has no effect\n  got:  the loss nll"),
        (("diff", "grpo", "grpo@verll"), "error: algorithm.kind: unknown preset 'grpo@verll'"),
    ],
)
def test_mistakes_are_refused(arguments: tuple[str, ...], message: str) -> None:
    result = _purerl(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
