"""The cost of importing purerl: the libraries that are loaded, and the calls that are made."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

from tests.calls import COMMAND, calls
from tests.forks import TORCH, Forks

HEAVY_LIBRARIES = {
    "transformers", "tokenizers", "vllm", "sglang", "megatron", "ray", "wandb", "pyarrow", "peft", "triton",
}  # fmt: skip


def _run(code: str, *, forks: Forks | ModuleType = subprocess) -> str:
    """The output of a process that runs `code`. It is started, or forked from one that has imported torch."""
    process = forks.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return process.stdout.strip()


def _loaded_by(code: str) -> set[str]:
    return set(_run(f"import sys\n{code}\nprint(*{{name.partition('.')[0] for name in sys.modules}})").split())


def test_importing_purerl_loads_no_other_library() -> None:
    loaded = _loaded_by("import purerl; purerl.__version__")
    assert loaded & (HEAVY_LIBRARIES | {"torch", "tensordict", "numpy", "attrs", "cattrs", "typer", "rich"}) == set()


def test_importing_the_command_line_does_not_load_torch() -> None:
    assert _loaded_by("import purerl_cli.main") & (HEAVY_LIBRARIES | {"torch", "tensordict", "numpy"}) == set()


@pytest.mark.slow
def test_importing_all_plugins_the_loop_and_the_recipes_loads_no_heavy_library() -> None:
    code = """
import sys, torch, tensordict, numpy
preloaded = set(sys.modules)  # torch loads some of the libraries if they are installed
import purerl.loop.train
from purerl import plugins, recipes
for group in plugins.GROUPS:
    for name in plugins.names(group):
        plugins.find(group, name)
for name in recipes.names():
    recipes.resolve(name, recipes.required_settings(name))
print(*{name.partition(".")[0] for name in set(sys.modules) - preloaded})
"""
    loaded = set(_run(code).split())
    assert "purerl" in loaded
    assert loaded & HEAVY_LIBRARIES == set()


@pytest.mark.slow
def test_importing_the_algorithms_takes_less_than_a_tenth_of_the_time_of_torch() -> None:
    """Calls are counted, and not seconds."""
    code = "import purerl.algos\nfrom purerl import plugins\nplugins.find('algorithm', 'grpo')"
    libraries = calls("import torch, tensordict")
    assert calls(f"import torch, tensordict\n{code}") < 1.1 * libraries


@pytest.mark.slow
def test_comparing_two_algorithms_takes_about_as_long_as_to_import_torch_and_tensordict() -> None:
    """Calls are counted, and not seconds; tests/cli/test_garbage.py is about the garbage collector."""
    assert calls(COMMAND, "algo", "diff", "grpo", "dapo") < 1.2 * calls("import torch, tensordict")


@pytest.mark.slow
def test_comparing_two_algorithms_loads_no_heavy_library() -> None:
    code = """
import sys, torch, tensordict
preloaded = set(sys.modules)
from typer.testing import CliRunner
from purerl_cli.main import app
assert CliRunner().invoke(app, ["algo", "diff", "grpo", "dapo"]).exit_code == 0
print(*{name.partition(".")[0] for name in set(sys.modules) - preloaded})
"""
    loaded = set(_run(code, forks=TORCH).split())
    assert "purerl" in loaded
    assert loaded & (HEAVY_LIBRARIES | {"datasets", "hypothesis", "scipy", "sklearn", "pandas"}) == set()
