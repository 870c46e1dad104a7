"""The page "Modifiers": its blocks run, and the table and the pages of all modifiers are complete."""

from __future__ import annotations

import inspect
import io
import re
import shlex
import tomllib
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import attrs
import pytest
from typer.testing import CliRunner

import purerl
from docs.generate import modifiers
from docs.generate.formulas import typeset
from docs.generate.markdown import default
from docs.generate.metrics import metrics
from purerl.algos import grpo
from purerl.algos.algebra import Algorithm
from purerl.algos.modifiers import entropy_bonus, kl_loss, kl_reward, reduction, reward_normalization
from purerl.composition import with_modifiers
from purerl.config.check import check
from purerl.config.schema import RunConfig
from purerl.config.structure import from_dict, to_dict
from purerl.explain.catalog import catalog, sources
from purerl.explain.description import parts
from purerl.monitoring.metric_meanings import meanings
from purerl.plugins import find, names
from purerl.recipes.addition import addition
from purerl.testing import other_process
from purerl_cli.main import app

from .test_quickstart import FENCE, ROOT, Block

PAGE = (ROOT / "docs" / "how-to" / "modifiers.md").read_text(encoding="utf-8")
BLOCKS = [Block(*match) for match in FENCE.findall(PAGE)]
NAMES = names("modifier")


# --- the page ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_blocks_run_in_order_and_print_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    other_process._process.cache_clear()  # a process that is already running has another sys.path
    runs: list[RunConfig] = []
    namespace: dict[str, Any] = {"__name__": "__main__"}
    output = ""
    for language, file, code in BLOCKS:
        if file:
            Path(file).parent.mkdir(exist_ok=True)
            Path(file).write_text(code, encoding="utf-8")
        elif language == "python":
            with redirect_stdout(io.StringIO()) as stdout, monkeypatch.context() as patch:
                patch.setattr(purerl, "train", lambda config, **_: runs.append(config), raising=False)
                exec(compile(code, "modifiers.md", "exec"), namespace)
            output = stdout.getvalue()
        elif language == "sh":
            output = "".join(map(_run, code.splitlines()))
        elif language == "text":
            assert output == code
    assert [str(run.algorithm) for run in runs] == ["grpo + kl_loss + dual_clip"]
    check(runs[0])


def _run(line: str) -> str:
    """The output of a command: its configuration, or its error."""
    command, *arguments = shlex.split(line)
    assert command == "purerl"
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == (0 if "--dry-run" in arguments else 2), result.output
    return result.stdout or result.stderr


def test_every_block_is_checked() -> None:
    languages = [language for language, *_ in BLOCKS]
    assert {*languages} == {"sh", "python", "text", "toml"}
    assert len(BLOCKS) == PAGE.count("```") / 2 - 1, "all but the inclusion of the table"


def test_both_forms_in_toml_are_the_same_configuration() -> None:
    tables = [tomllib.loads(code) for language, _, code in BLOCKS if language == "toml"]
    first, second = (from_dict(RunConfig, to_dict(addition()) | table) for table in tables)
    assert first == second
    assert str(first.algorithm) == "grpo + kl_loss + entropy_bonus + dual_clip"


@pytest.mark.parametrize("term", [kl_loss, entropy_bonus])
def test_both_orders_of_the_example_are_the_same_algorithm(term: Any) -> None:
    pair = (term.Config(), reduction.Config(by="token_mean"))
    first, second = (with_modifiers(grpo.algorithm(), *modifiers) for modifiers in (pair, pair[::-1]))
    assert first == second
    assert [each.reduce.__name__ for each in first.objectives[0].terms] == ["token_mean", "token_mean"]


def test_the_second_of_two_modifiers_of_rewards_runs_first() -> None:
    changed = with_modifiers(grpo.algorithm(), kl_reward.Config(), reward_normalization.Config())
    [first, second, *_] = [text for kind, text in parts(changed) if kind == "on the whole batch"]
    assert first.startswith("normalize_by_batch(")
    assert second == "reward = kl_reward(reward, old_logp, ref_logp, estimate=k1, kl_reward_coef=0.001)"


def test_algorithms_with_a_setting_named_like_a_modifier_are_listed() -> None:
    hidden = {(name, field) for name in names("algorithm") for field in _fields("algorithm", name) if field in NAMES}
    listed = {(algorithm, field) for field, algorithm in re.findall(r"`(\w+)` of\s+`(\w+)`", PAGE)}
    assert listed == hidden


def _fields(group: str, name: str) -> list[str]:
    return [field.name for field in attrs.fields(find(group, name).Config)]


# --- what is generated -------------------------------------------------------------------------------------------


def test_every_modifier_has_a_page_and_a_row() -> None:
    assert {name for name, _ in modifiers.pages()} == {"table", *NAMES}
    rows = [line for line in modifiers.overview().splitlines() if line.startswith("| [")]
    assert [re.findall(r"^\| \[(\w+)\]\(../reference/modifiers/(\w+)\.md\) \| .+\. \|", row)[0] for row in rows] == [
        (name, name) for name in NAMES
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_row_has_title_settings_and_source(name: str) -> None:
    module = find("modifier", name)
    [row] = [line for line in modifiers.overview().splitlines() if line.startswith(f"| [{name}](")]
    first = re.split(r"(?<=\.)\s", inspect.getdoc(module) or "", maxsplit=1)[0]
    assert f"| {first} |" in row
    for field in attrs.fields(module.Config):
        assert f"`{field.name}`, {default(field.default)}: {field.metadata['help']}" in row
    assert re.sub(r"\[([\d.]+)\]\(\S+?\)", r"\1", row).rstrip("| ").endswith(sources(module).rstrip())


@pytest.mark.parametrize("name", NAMES)
def test_a_page_contains_docstring_settings_and_code(name: str) -> None:
    module, page = find("modifier", name), modifiers.page(name)
    assert page.startswith(f"# {name}\n")
    blocks = re.split(r"\n\n+", inspect.getdoc(module) or "")
    for block in (block for block in blocks if block.startswith("    ")):
        assert block in page or f"```{{math}}\n{typeset(block)}\n```" in page
    for field in attrs.fields(module.Config):
        assert f"\n| `{field.name}` | {default(field.default)} |" in page
    assert inspect.getsource(module.modify) in page


def test_page_of_kl_loss() -> None:
    page = modifiers.page("kl_loss")
    for line in (
        "`--set algorithm.kl_loss=VALUE` adds the modifier with this value of `coef`. `--set algorithm.kl_loss.NAME=",
        "What it changes in [grpo](../algorithms/grpo.md):",
        "| loss of the policy | `sequence_mean_of_token_mean of 0.001 * k3(logp, ref_logp)` |",
        "It reads these fields in addition: `ref_logp`.",
    ):
        assert f"\n{line}" in page


def test_a_page_lists_the_algorithms_that_refuse_the_modifier() -> None:
    page = modifiers.page("kl_reward")
    [row] = [line for line in page.splitlines() if "[sft](../algorithms/sft.md)" in line]
    assert row.endswith("does not read 'reward'; needs an algorithm that computes advantages from rewards |")
    total = len(catalog())
    refused = len(re.findall(r"\]\(\.\./algorithms/", page.partition("## Algorithms")[2]))
    assert f"{total - refused} of the {total} algorithms accept it" in page


def test_modifiers_that_change_an_algorithm() -> None:
    assert {"kl_loss", "kl_reward", "entropy_bonus", "reduction", "dual_clip"} < {*modifiers.accepted("grpo")}
    assert {"kl_reward", "dual_clip"} & {*modifiers.accepted("sft")} == set()
    assert "kl_loss" not in modifiers.accepted("deepseek_v3_2"), "it is a setting of its own"


@pytest.mark.parametrize("name", NAMES)
def test_every_metric_that_a_modifier_adds_is_explained(name: str) -> None:
    algorithm = next(a for a in names("algorithm") if isinstance(modifiers._modified(name, a), Algorithm))
    changed = metrics(modifiers._modified(name, algorithm))
    explained = meanings(changed)
    assert [metric for metric in changed if not explained.get(metric, ("", ""))[1]] == []
