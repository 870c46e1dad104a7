"""Remedies in error messages: each setting that one names exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import attrs
import pytest

from purerl.config.keys import section_in
from purerl.config.schema import RunConfig
from purerl.plugins import GROUPS, find, names
from tests.library.sources import nodes

ROOT = Path(__file__).parents[2]
OTHER_LIBRARIES = ROOT / "purerl/adapters"  # whose settings its remedies name
FILES = [
    path
    for folder in ("purerl", "cli")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not path.is_relative_to(OTHER_LIBRARIES)
]

_KEY = re.compile(r"(?<![\w./:'\"(-])[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)+(?![\w/(:'\"-]|\.\w|\.\{)")
_SET = re.compile(r"\b(?:set|lower|raise) ([a-z]+_[a-z0-9_]+)(?= to\b|=|[,;]|$)")
_NO_SETTING = re.compile(r"(?:purerl|torch|dist|tests)\.|.*\.(?:py|md|toml|json|jsonl|jinja|txt|log|com|org|io|co)$")
_ATTRIBUTES = {"draw.key", "package.module", "shard.rows"}  # of objects of Python
_ITEM = re.compile(r"^initial_run\.|(?<=^roles\.)\w+\.|(?<=^data\.columns)\.\w+$")
"""Parts that the keys of `settings` lack: a section of the class of the configuration, and names of items."""


def remedies(path: Path) -> Iterator[str]:
    """The texts in a file that are a keyword `do`, or that a variable `do` gets; {} for what is inserted."""
    for node in nodes(path.read_text(encoding="utf-8")):
        if isinstance(node, ast.keyword) and node.arg == "do":
            yield from texts(node.value)
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from texts_of_target(target, node.value)
        if isinstance(node, ast.Dict):
            keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
            for key, value in zip(keys, node.values, strict=True):
                yield from texts(value) if key == "do" else ()


def texts_of_target(target: ast.AST, value: ast.AST) -> Iterator[str]:
    if isinstance(target, ast.Name) and target.id == "do":
        yield from texts(value)
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for name, part in zip(target.elts, value.elts, strict=False):
            yield from texts_of_target(name, part)


def texts(value: ast.AST) -> Iterator[str]:
    """The texts that an expression may have."""
    if isinstance(value, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in value.values)
        for part in value.values:
            yield from () if isinstance(part, ast.Constant) else texts(part)
    elif isinstance(value, ast.Constant):
        yield from [value.value] if isinstance(value.value, str) else []
    else:
        for child in ast.iter_child_nodes(value):
            yield from texts(child)


@cache
def settings() -> frozenset[str]:
    """The dotted keys of all settings of a run, of all plugins; of items of a table without the names of the items."""
    return frozenset(_settings_of(RunConfig, ()))


def _settings_of(cls: type, above: tuple[type, ...]) -> Iterator[str]:
    for name, field in attrs.fields_dict(attrs.resolve_types(cls)).items():
        yield name
        group = field.metadata.get("plugin")
        sections = [find(group, kind).Config for kind in names(group)] if group in GROUPS else _sections(field.type)
        yield from [f"{name}.kind"] if group else []
        for section in sections:
            if section not in (cls, *above):
                yield from (f"{name}.{key}" for key in _settings_of(section, (cls, *above)))


def _sections(kind: object) -> list[type]:
    """The sections that a setting of this type has: one, a list of them, or a table."""
    own = section_in(kind)
    inner = [section for part in getattr(kind, "__args__", ()) for section in _sections(part)]
    return [own] if own is not None else inner


def unknown_settings(text: str) -> list[str]:
    """Names in `text` that look like settings, and are none."""
    known = settings()
    dotted = [key for key in _KEY.findall(text) if key not in _ATTRIBUTES and not _NO_SETTING.match(key)]
    named = {key: _ITEM.sub("", key) for key in (*dotted, *_SET.findall(text))}
    endings = {key: f".{short}" for key, short in named.items() if short not in known}
    return [key for key, ending in endings.items() if not any(each.endswith(ending) for each in known)]


@pytest.mark.slow
def test_every_setting_that_a_remedy_names_exists() -> None:
    unknown = [
        f"{path.relative_to(ROOT)}: {key!r} in {text!r}"
        for path in FILES
        for text in remedies(path)
        for key in unknown_settings(text)
    ]
    assert not unknown, "\n".join(unknown)


@pytest.mark.slow
def test_remedies_are_found() -> None:
    assert sum(len([*remedies(path)]) for path in FILES) > 300


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("set trainer.kind to hf", []),
        ("set server.weight_transfer=directory, or lower rollout.max_tokens", []),
        ("see docs/how-to/servers.md, or purerl.testing.check_generator", []),
        ("set trainer.devise to cpu", ["trainer.devise"]),
        ("lower generator.max_num_sqs; set max_lora_rnk", ["generator.max_num_sqs", "max_lora_rnk"]),
        ("leave model.attention out, which is then sdpa", []),
        ("set roles.teacher.trainer, initial_run.model or data.columns.other", []),
        ("set roles.teacher.trainr", ["roles.teacher.trainr"]),
    ],
)
def test_names_of_settings_are_recognized(text: str, unknown: list[str]) -> None:
    assert unknown_settings(text) == unknown
