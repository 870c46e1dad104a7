"""What importing costs: in libraries, and in seconds."""

from __future__ import annotations

import subprocess
import sys

ENGINES = {"transformers", "tokenizers", "vllm", "sglang", "megatron", "ray", "wandb", "pyarrow", "peft", "triton"}


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _loaded_by(code: str) -> set[str]:
    return set(_run(f"import sys\n{code}\nprint(*{{name.partition('.')[0] for name in sys.modules}})").split())


def test_importing_purerl_loads_nothing() -> None:
    loaded = _loaded_by("import purerl; purerl.__version__")
    assert loaded & (ENGINES | {"torch", "tensordict", "numpy", "attrs", "cattrs", "typer", "rich"}) == set()


def test_importing_the_command_line_loads_no_torch() -> None:
    assert _loaded_by("import purerl_cli.main") & (ENGINES | {"torch", "tensordict", "numpy"}) == set()


def test_importing_every_plugin_the_loop_and_the_recipes_loads_no_engine() -> None:
    code = """
import sys, torch, tensordict, numpy
known = set(sys.modules)  # torch itself loads some of them where they are installed
import purerl.loop.train
from purerl import plugins, recipes
for group in plugins.GROUPS:
    for name in plugins.names(group):
        plugins.find(group, name)
for name in recipes.names():
    recipes.resolve(name, recipes.arguments(name))
print(*{name.partition(".")[0] for name in set(sys.modules) - known})
"""
    loaded = set(_run(code).split())
    assert "purerl" in loaded
    assert loaded & ENGINES == set()


def test_importing_the_algorithms_adds_little_to_torch() -> None:
    """A ratio of CPU times in one process, so that the speed of the machine does not matter."""
    code = """
import time
begin = time.process_time()
import torch, tensordict
middle = time.process_time()
import purerl.algos
from purerl import plugins
plugins.find("algorithm", "grpo")
print((time.process_time() - middle) / (middle - begin))
"""
    assert any(float(_run(code)) < 0.1 for _ in range(5))
