"""The packages that purerl uses, and the command that adds an extra to this installation of purerl.

purerl is on no package index, so the command names the source that pip has recorded in direct_url.json (PEP 610).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from shlex import quote
from typing import Any
from urllib.parse import unquote, urlsplit

__all__ = ["EXTRAS", "REQUIRED", "command_from", "install_command"]

REQUIRED = {
    "attrs": "settings",
    "cattrs": "reading and writing settings",
    "httpx": "connections to the hub and to remote environments",
    "huggingface-hub": "uploading models",
    "jinja2": "chat templates",
    "mpmath": "values of formulas in rewards for mathematics",
    "numpy": "arrays between libraries",
    "pyarrow": "data and rollouts as Parquet",
    "pyyaml": "configurations of TRL and verl",
    "rich": "the console",
    "safetensors": "weights on disk",
    "tensordict": "batches",
    "tokenizers": "tokenizers",
    "tomli-w": "configurations as TOML",
    "torch": "tensors, gradients, devices",
    "transformers": "models",
    "typer": "the command line",
}
"""Required package -> what purerl uses it for."""
EXTRAS = {
    "docs": ("sphinx", "builds the documentation"),
    "images": ("pillow", "decodes images in prompts"),
    "json": ("jsonschema", "checks answers against JSON Schemas"),
    "lora": ("peft", "trains adapters"),
    "mcp": ("mcp", "calls tools of MCP servers"),
    "megatron": ("megatron-core", "trains models that are divided by tensors, layers and experts"),
    "gymnasium": ("gymnasium", "environments that are registered with it"),
    "ray": ("ray", "engines in actors, on one host or many"),
    "reasoning-gym": ("reasoning-gym", "data sets and their scores"),
    "textarena": ("textarena", "games"),
    "trl": ("trl", "algorithms in TRL"),
    "verifiers": ("verifiers", "environments with agents"),
    "mlflow": ("mlflow-skinny", "logs runs to an MLflow server; pip install mlflow for a local database"),
    "renderers": ("renderers", "exact tokens of conversations for known model families"),
    "serving": ("aiohttp", "talks to servers of vLLM and SGLang"),
    "swanlab": ("swanlab", "logs runs to SwanLab"),
    "tensorboard": ("tensorboard", "logs runs to TensorBoard"),
    "testing": ("hypothesis", "laws of algorithms, conformance tests of engines"),
    "trackio": ("trackio", "logs runs to Trackio"),
    "wandb": ("wandb", "logs runs to Weights & Biases"),
}
"""Extra -> its package, and what purerl uses it for."""


@cache
def install_command(extra: str) -> str:
    """The command that installs `extra` of purerl from the source of this installation.

    Without a record of the source it is the clone that purerl is imported from, or else the packages of the extra.
    """
    try:
        installed: Distribution | None = distribution("purerl")
    except PackageNotFoundError:
        installed = None
    source = json.loads((installed and installed.read_text("direct_url.json")) or "{}")
    if source:
        return command_from(source, extra)
    clone = Path(__file__).resolve().parents[2]
    if (clone / "pyproject.toml").is_file():
        return command_from({"url": clone.as_uri(), "dir_info": {"editable": True}}, extra)
    packages = _packages(installed.requires or () if installed else (), extra)
    return " ".join(["pip install", *map(quote, packages or [f"purerl[{extra}]"])])


def command_from(source: Mapping[str, Any], extra: str) -> str:
    """The command that installs `extra` from `source`, the contents of direct_url.json.

    >>> command_from({"url": "file:///home/me/purerl", "dir_info": {"editable": True}}, "lora")
    "pip install -e '/home/me/purerl[lora]'"
    >>> command_from({"url": "https://host/purerl", "vcs_info": {"vcs": "git", "commit_id": "4f2a"}}, "lora")
    "pip install 'purerl[lora] @ git+https://host/purerl@4f2a'"
    """
    url = source["url"]
    if "dir_info" in source:
        path = quote(f"{unquote(urlsplit(url).path)}[{extra}]")
        return f"pip install -e {path}" if source["dir_info"].get("editable") else f"pip install {path}"
    if "vcs_info" in source:
        info = source["vcs_info"]
        url = f"{info['vcs']}+{url}@{info['commit_id']}"
    folder = source.get("subdirectory")
    return "pip install " + quote(f"purerl[{extra}] @ {url}" + (f"#subdirectory={folder}" if folder else ""))


def _packages(requirements: Iterable[str], extra: str) -> list[str]:
    """The requirements of `extra` among those of the distribution.

    >>> _packages(["torch>=2.6", "peft>=0.17 ; extra == 'lora'", 'ray ; extra == "ray"'], "lora")
    ['peft>=0.17']
    """
    marked = (requirement.partition(";") for requirement in requirements)
    return [
        name.strip() for name, _, marker in marked if re.search(rf"""extra == ["']{re.escape(extra)}["']""", marker)
    ]
