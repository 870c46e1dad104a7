"""`purerl algo list`, `purerl algo show`, `purerl algo diff` and `purerl algo presets`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from purerl import plugins
from purerl.loop.train import train
from purerl_cli.main import app
from tests.loop.small import fake


def _purerl(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["algo", *arguments], env={"COLUMNS": "400"})


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
    assert [name for name, cells in rows.items() if cells[1:] == ["environment"]] == ["rae", "gigpo", "turn_credit"]
    words = {name: row[0] for name, row in rows.items() if name in plugins.names("algorithm")}
    assert [name for name, text in words.items() if text.lower().replace("-", "_") == name] == []


def test_algorithm_is_shown_with_its_parts_needs_and_settings() -> None:
    text = _purerl("show", "grpo", "--set", "kl_loss=0.02").stdout
    assert text.startswith("GRPO, group relative policy optimization: ")
    assert "A_i  = (s_i - mean_g) / (std_g + 1e-6)" in text
    assert "sequence_mean_of_token_mean of 0.02 * k3(logp, ref_logp)" in text
    assert "a reference" in text
    assert "kl_loss.coef" in text


def test_definition_of_an_algorithm_is_shown() -> None:
    lines = _purerl("show", "luspo", "--set", "kl_loss=0.02").stdout.splitlines()
    assert "luspo + kl_loss(coef=0.02)" in lines
    assert "luspo = gspo(clip_low=0.002, clip_high=0.0025) + reduction(by=sequence_mean_of_token_sum)" in lines


def test_papers_and_components_that_the_list_leaves_out_are_shown() -> None:
    text = _purerl("show", "ppo").stdout
    for part in ("PPO, proximal policy optimization", "1707.06347", "gae_advantage", "clipped_value_loss", "a critic"):
        assert part in text


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


def test_differences_fit_the_width_of_a_pipe() -> None:
    for width in (60, 80, 120):
        variables = {"COLUMNS": str(width)}
        output = CliRunner().invoke(app, ["algo", "diff", "grpo@trl", "grpo@verl"], env=variables).stdout
        assert max(map(len, output.splitlines())) <= width
        assert "all of them" in output


def test_difference_on_a_batch_in_a_file(tmp_path: Path) -> None:
    run = train(fake(max_steps=1, num_minibatches=2), directory=tmp_path / "run").directory
    on_file = _purerl("diff", "grpo", "dapo", "--batch", str(run / "rollouts" / "000001.parquet"))
    assert on_file.exit_code == 0
    assert "all of them" in on_file.stdout
    assert on_file.stdout == _purerl("diff", "grpo", "dapo", "--run", str(run), "--step", "1").stdout
    assert on_file.stdout != _purerl("diff", "grpo", "dapo").stdout
    refused = _purerl("diff", "grpo", "dpo", "--batch", str(run / "rollouts" / "000001.parquet"))
    assert refused.exit_code == 2
    assert "000001.parquet'\n  got:  no column ref_logp, chosen\n  need: ref_logp: under the ref" in refused.stderr
    assert "\n  do:   use the rollouts of a run that has these fields, or a generated batch" in refused.stderr


def test_number_that_is_not_defined_is_a_dash() -> None:
    lines = _purerl("diff", "dpo", "grpo").stdout.splitlines()
    [row] = [line.split() for line in lines if line.startswith("  all of them")]
    assert row[3] == "-"
    assert "nan" not in " ".join(lines)


def test_presets_are_listed() -> None:
    text = _purerl("presets").stdout
    assert "grpo@verl" in text
    assert "TRL 1.16.0" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "grppo"), "error: algorithm.kind: unknown algorithm 'grppo'\n  do:   did you mean 'grpo'?"),
        (("show", "sft", "--set", "dual_clip=3"), "error: dual_clip has no effect\n  got:  the loss nll"),
        (
            ("diff", "grpo", "dapo", "--run", "a", "--batch", "b.parquet"),
            "error: a batch\n  got:  --run and --batch\n  need: one of them\n  do:   leave out the other one",
        ),
        (
            ("diff", "grpo", "dapo", "--step", "3"),
            "error: --step\n  got:  step 3 without --run\n  need: --run, the",
        ),
        (
            ("diff", "grpo", "dapo", "--batch", "none.parquet"),
            "error: data set 'none.parquet'\n  got:  no such file\n  need: a .parquet or .jsonl file",
        ),
        (("diff", "grpo", "grpo@verll"), "error: algorithm.kind: unknown preset 'grpo@verll'"),
    ],
)
def test_mistakes_are_refused(arguments: tuple[str, ...], message: str) -> None:
    result = _purerl(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
