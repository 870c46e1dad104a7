"""The files of the user's code in a run: which settings name them, and which imports are followed."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.config.overrides import apply
from purerl.config.schema import RunConfig
from purerl.config.user_code import code_digests
from purerl.envs.settings import EnvironmentSettings
from purerl.rewards.exact import exact_match
from purerl.rollouts.settings import WorkflowSettings
from purerl.system.static_inspect import imported_files
from tests.loop.small import fake

CONFIG = "\n\nfrom attrs import frozen\n\n\n@frozen(kw_only=True)\nclass Config({}):\n    pass\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory, with the modules that are imported from it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = {*sys.modules}
    yield tmp_path
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def _write(folder: Path, **texts: str) -> None:
    """Files with the `texts`."""
    for name, text in texts.items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text(text)


def _plain(**changes: Any) -> RunConfig:
    """A configuration whose code is that of purerl."""
    return fake(**{"prepare_data": None, "rewards": ("purerl.rewards.exact:exact_match",)} | changes)


def _names(config: RunConfig, **functions: Any) -> list[str]:
    return sorted(code_digests(config, functions))


def test_code_of_purerl_and_of_packages_is_none_of_the_user() -> None:
    assert _names(_plain(rewards=("math:sqrt", "attrs:asdict", "json:dumps")), exact_match=exact_match) == []


def test_every_function_that_a_setting_names_counts(folder: Path) -> None:
    _write(folder, scores="", extract="", flow="", game="", tool="", files="", server="")
    evaluate = evolve(fake().evaluate, samples_per_prompt=2, temperature=1.0, answer_extractor="extract:last")
    config = _plain(rewards=("scores.py:one", "scores.py:two"), evaluate=evaluate, prepare_data="files:write")
    rollout = evolve(config.rollout, workflow=WorkflowSettings("flow.py:run"))
    assert _names(evolve(config, rollout=rollout)) == ["extract.py", "files.py", "flow.py", "scores.py"]
    environment = EnvironmentSettings(tools=("tool.py:add",), mcp=("python server.py --fast",))
    assert _names(_plain(environment=environment)) == ["server.py", "tool.py"]
    assert _names(_plain(environment=EnvironmentSettings(factory="game:Game"))) == ["game.py"]


def test_plugins_count_except_trackers(folder: Path) -> None:
    algorithm = "from purerl.algos import grpo\n\nalgorithm = grpo.algorithm\n"
    modifier = "from purerl.algos.modifiers import kl_loss\n\nmodify = kl_loss.modify\n"
    _write(folder, mine=algorithm + CONFIG.format("grpo.Config"))
    _write(folder / "own", __init__="", changes=modifier + CONFIG.format("kl_loss.Config"))
    _write(folder, short="def build(config):\n    return len\n" + CONFIG.format("object"))
    _write(folder, log="def build(config, *, run_info):\n    pass\n" + CONFIG.format("object"))
    settings = [
        "algorithm=mine.py",
        'algorithm."own.changes"=0.1',
        'trackers=["log.py"]',
        'rewards=[{kind="short.py"}]',
    ]
    assert _names(apply(_plain(), settings)) == ["mine.py", "own/__init__.py", "own/changes.py", "short.py"]


def test_objects_count_with_their_file_or_with_their_source(folder: Path) -> None:
    _write(folder, scores="class Scorer:\n    def __call__(self, completion, example):\n        return 1.0\n")
    from scores import Scorer  # pyright: ignore[reportMissingImports]

    cell = "def in_a_cell(completion):\n    return 1.0\n"
    linecache.cache["<cell 1>"] = (len(cell), None, cell.splitlines(keepends=True), "<cell 1>")
    scope: dict[str, Any] = {"__name__": "cell"}
    exec(compile(cell, "<cell 1>", "exec"), scope)
    exec("def unknown(completion): return 1.0", scope)
    functions = {"a": Scorer(), "b": partial(Scorer), "in_a_cell": scope["in_a_cell"], "c": scope["unknown"], "d": len}
    before = code_digests(_plain(), functions)
    assert sorted(before) == ["scores.py", "the function in_a_cell"]
    linecache.cache["<cell 1>"] = (len(cell), None, [f"{cell} # changed"], "<cell 1>")
    assert code_digests(_plain(), functions)["the function in_a_cell"] != before["the function in_a_cell"]


def test_a_function_that_is_passed_as_an_object_does_not_name_a_module(folder: Path) -> None:
    _write(folder, digits="raise SystemExit")
    assert _names(_plain(rewards=("digits",)), digits=exact_match) == []


# --- the files that a file imports -------------------------------------------------------------------------------


def _imports(path: Path) -> list[str]:
    return [*imported_files(path)]


def test_imports_below_the_folder_of_a_file_are_followed(folder: Path) -> None:
    user = folder / "user"
    _write(folder, above="")
    _write(user, scores="import texts, above\nimport parts.words as words\n\n\ndef f():\n    from late import x\n")
    _write(user, texts="import scores", late="import json, attrs", unused="")
    _write(user / "parts", __init__="", words="from . import letters", letters="")
    names = ["late.py", "parts/__init__.py", "parts/letters.py", "parts/words.py", "scores.py", "texts.py"]
    assert _imports(user / "scores.py") == names


def test_files_of_one_package_belong_together(folder: Path) -> None:
    mine = folder / "mine"
    _write(folder, outside="")
    _write(mine, __init__="")
    _write(mine / "rewards", __init__="", math="from mine.tools import parse")
    _write(mine / "tools", __init__="from .texts import parse", texts="import outside", unused="")
    names = ["mine/__init__.py", "mine/rewards/__init__.py", "mine/rewards/math.py", "mine/tools/__init__.py"]
    assert _imports(mine / "rewards" / "math.py") == [*names, "mine/tools/texts.py"]


def test_folder_without_an_init_file_is_a_package_too(folder: Path) -> None:
    _write(folder, above="")
    _write(folder / "rewards", math="from rewards.texts import parse\nimport above", texts="")
    assert _imports(folder / "rewards" / "math.py") == ["math.py", "texts.py"]


def test_file_that_is_no_python_has_no_imports(folder: Path) -> None:
    _write(folder, broken="import other\ndef", other="")
    assert _imports(folder / "broken.py") == ["broken.py"]
