"""The pages of other frameworks: their numbers and examples are true, and importing purerl imports no framework."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from docs.generate.frameworks import COLUMNS, availability, pages
from purerl.adapters.frameworks import prime_rl
from purerl.adapters.frameworks.availability import PRIME_RL, VERL, estimator_refusals, loss_refusals
from purerl.adapters.frameworks.compose import compose
from purerl.adapters.frameworks.skyrl import advantage_estimator
from purerl.adapters.frameworks.slime import reward_post_process
from purerl.adapters.frameworks.tinker import custom_loss
from purerl.adapters.frameworks.trl_settings import REFUSED
from purerl.adapters.frameworks.verl import read_variants
from purerl.composition import build_algorithm
from purerl.config.presets import presets
from purerl.plugins import names
from tests.forks import TORCH

ROOT = Path(__file__).parents[2]
NAMES = names("algorithm")


def _page(name: str) -> str:
    """The page about all frameworks, or that about one of them."""
    file = "frameworks" if name == "frameworks" else f"algorithms_in_{name}"
    return (ROOT / "docs" / "how-to" / f"{file}.md").read_text(encoding="utf-8")


def _blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", _page(page), re.MULTILINE | re.DOTALL)


@cache
def _available() -> dict[str, set[str]]:
    """The algorithms that can run as each of COLUMNS."""
    found = {name: availability(name) for name in NAMES}
    return {column: {name for name in NAMES if not found[name][index]} for index, column in enumerate(COLUMNS)}


def test_the_table_has_every_algorithm_and_the_sums() -> None:
    [(_, text)] = pages()
    rows = dict(
        re.findall(
            r"^\| \[(\w+)\]\(../reference/algorithms/\1\.md\) \| (.*) \|$", text.partition("Why not")[0], re.MULTILINE
        )
    )
    assert rows.keys() == {*NAMES}
    for index, column in enumerate(COLUMNS):
        assert {name for name in NAMES if rows[name].split(" | ")[index] == "yes"} == _available()[column]
    sums = " | ".join(str(len(_available()[column])) for column in COLUMNS)
    assert f"| **sum** | {sums} |" in text


def test_the_numbers_of_algorithms_on_the_pages() -> None:
    estimators, losses, in_trl = (_available()[column] for column in COLUMNS[:3])
    text = f"Of {len(NAMES)} algorithms, {len(losses)} have a loss and {len(estimators)} have an estimator in verl, "
    text += f"and {len(losses & estimators)} have both."
    assert text in " ".join(_page("verl").split())
    assert f"{len(in_trl)} of {len(NAMES)} algorithms run;" in " ".join(_page("trl").split())
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{len(losses)} losses and {len(estimators)} advantage estimators in verl" in readme
    assert f"{len(in_trl)} algorithms in a trainer for TRL" in readme


def test_the_line_that_verl_prints() -> None:
    algorithms = [build_algorithm(compose(name)) for name in (*NAMES, *presets())]
    losses = sum(not [*loss_refusals(algorithm, VERL)] for algorithm in algorithms)
    estimators = sum(not [*estimator_refusals(algorithm, VERL)] for algorithm in algorithms)
    assert f"in verl: {losses} policy losses and {estimators} advantage estimators, named purerl:NAME" in _page("verl")


def test_the_variants_of_the_page_can_be_read(tmp_path: Path) -> None:
    [block] = _blocks("verl", "toml")
    path = tmp_path / "variants.toml"
    path.write_text(block, encoding="utf-8")
    assert [*read_variants(path)] == ["my_gspo", "my_baseline"]


def test_every_refused_setting_of_trl_is_on_its_page() -> None:
    page = _page("trl")
    others = ("sapo_", "vespo_", "entropy_coef_", "use_adaptive_entropy", "entropy_target")
    assert [name for name in REFUSED if not name.startswith(others) and f"`{name}`" not in page] == []
    assert "`sapo_...`, `vespo_...`" in page


def test_the_algorithms_of_the_examples_run() -> None:
    for block in _blocks("frameworks", "python"):
        exec(compile(block, "frameworks.md", "exec"), {})
    assert custom_loss("gspo", ["dual_clip"], rewards=[1.0], groups=[0])
    assert advantage_estimator("gpg")
    assert reward_post_process("gpg")
    [block] = _blocks("frameworks", "toml")
    assert f'import_path = "{prime_rl.loss.__module__}.{prime_rl.loss.__name__}"' in block
    assert 'kwargs = {algorithm = "dapo", modifiers = ["bypass"]}' in block
    assert not [*loss_refusals(build_algorithm(compose("dapo", ["bypass"])), PRIME_RL)]


@pytest.mark.parametrize(
    "module", ["purerl", "purerl.adapters.frameworks.trl", "purerl.adapters.frameworks.verl_plugin"]
)
def test_importing_an_adapter_imports_no_framework(module: str) -> None:
    """The first is a process that is started, the others are forked from one that has imported torch."""
    code = f"import {module}, sys; print(*{{'verl', 'trl', 'tinker', 'skyrl', 'transformers'}} & {{*sys.modules}})"
    forks = subprocess if module == "purerl" else TORCH
    run = forks.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""
