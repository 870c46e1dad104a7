"""Names by which bytes of others may become code, and the modules that may use them, with the reason of each.

Everything else that processes, files and servers send is data: `purerl.system.messages`, JSON, Arrow and safetensors.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tests.library.sources import nodes

__all__ = ["PERMITTED", "Permission", "names_in"]


class Permission(NamedTuple):
    """Names that a module may use, and why."""

    names: frozenset[str]
    reason: str


def _may(*names: str, because: str) -> Permission:
    return Permission(frozenset(names), because)


PERMITTED: Mapping[str, Permission] = {
    # --- processes
    "purerl/system/workers/connection.py": _may(
        *("pickle.dumps", "pickle.loads"),
        because="Requests of a run to a worker process, its child, over a pair of sockets that no other process has. "
        "They have settings of any class and rows with values of any type. What a worker sends back is data.",
    ),
    "purerl/system/signed_pickles.py": _may(
        *("pickle.dumps", "pickle.loads"),
        because="Collectives of objects in libraries, such as Megatron-core: each pickle is signed with the secret of "
        "the run, and is read only after its signature was checked.",
    ),
    "purerl/system/stores.py": _may(
        "TCPStore",
        because="The store of the ranks of several hosts: torch has no other one without a shared folder. What it "
        "holds is bytes, and ranks of the run sign what they put into it.",
    ),
    "purerl/placement/meeting.py": _may(
        "TCPStore", because="The client of the store of torchrun, which purerl does not start. It holds bytes."
    ),
    "purerl/backends/transfer/engine/purerl_messages.py": _may(
        "TCPStore", because="The client of a store of the trainer, in an engine. It holds bytes of JSON and tensors."
    ),
    "purerl/backends/transfer/engine/purerl_server.py": _may(
        "TCPStore", because="It makes the stores of an engine listen on loopback only."
    ),
    # --- files
    "purerl/backends/hf/weights/shard_files.py": _may(
        "pickle.Unpickler",
        because="The metadata of torch.distributed.checkpoint are a pickle. Its reader accepts only the classes of "
        "metadata, by a list of their names, and no function.",
    ),
    # --- programs that are run because a user or a model has written them
    "purerl/rewards/code/functions.py": _may(
        *("marshal.dumps", "marshal.loads", "exec"),
        because="Checkers of code rewards, which are compiled here and executed inside of a sandbox.",
    ),
    "purerl/rewards/code/inside/candidate.py": _may(
        *("eval", "exec"), because="The program of a model, inside of a sandbox: the file is executed only there."
    ),
    "purerl/rewards/code/inside/checks.py": _may(
        "exec", because="Tests of a data set, inside of a sandbox: the file is executed only there."
    ),
    "purerl/sandbox/supervisor/interpreter.py": _may(
        *("eval", "exec"), because="The program that a sandbox is for, inside of it."
    ),
    "purerl/envs/python_cell.py": _may(
        *("eval", "exec"), because="The program of the tool python, inside of a sandbox: a process that does only this."
    ),
    "purerl/recipes/code.py": _may("eval", because="Expressions that the module itself contains."),
    # --- tests of plugins, and benchmarks: a process reads what the same program has written
    "purerl/testing/laws/purity.py": _may(
        *("pickle.dumps", "pickle.loads"), because="Its own pickle of an algorithm: that it has one is what is tested."
    ),
    "purerl/testing/other_process.py": _may(
        "pickle.loads", because="A process of a test reads algorithms that its parent has pickled, from its own input."
    ),
    "purerl/testing/environment/repetition.py": _may(
        *("pickle.dumps", "pickle.loads"),
        because="A process of a test reads an environment of the user that its parent has pickled, from its own input.",
    ),
    "benchmarks/actors.py": _may(
        *("multiprocessing.Connection", "multiprocessing.Pipe", "TCPStore"),
        because="Two processes of a benchmark on one host, which exchange tensors and sizes.",
    ),
    "benchmarks/transfer.py": _may(
        *("multiprocessing.Connection", "multiprocessing.Pipe"),
        because="Two processes of a benchmark on one host, which exchange times.",
    ),
}
"""The names that each module uses, by its path."""

_MODULES = ("pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "pickletools", "jsonpickle")
_HARMLESS = ("PickleError", "PicklingError", "UnpicklingError", "HIGHEST_PROTOCOL", "DEFAULT_PROTOCOL")
_NAMES = (
    *("all_gather_object", "gather_object", "scatter_object_list", "broadcast_object_list"),
    *("send_object_list", "recv_object_list", "ForkingPickler", "TCPStore", "recv_pyobj", "send_pyobj", "read_pickle"),
)
"""Functions and classes that read pickles, whatever they belong to."""
_OF_MULTIPROCESSING = ("Client", "Connection", "JoinableQueue", "Listener", "Manager", "Pipe", "Queue", "SimpleQueue")
_OF_CONTEXTS = ("JoinableQueue", "Listener", "Manager", "Pipe", "Queue", "SimpleQueue")  # of an object, not of a module
_OF_YAML = (
    "load",
    "load_all",
    "full_load",
    "full_load_all",
    "unsafe_load",
    "unsafe_load_all",
    "UnsafeLoader",
    "Loader",
)
_BUILTINS = ("eval", "exec")
_IN_TEXT = re.compile(rf"\b({'|'.join(_MODULES)})\.(\w+)|\b({'|'.join(_BUILTINS)})\(")
_IMPORT = re.compile(r"^\s*(import|from) \w", re.MULTILINE)


def names_in(code: str) -> set[str]:
    """The names in `code` that need a permission. Programs in its texts count, if they import something."""
    tree = nodes(code)
    aliases = _aliases(tree)
    unnamed = {id(node.value) for node in tree if isinstance(node, ast.Attribute)}
    unnamed |= {id(node.func) for node in tree if isinstance(node, ast.Call) and _loads_weights_only(node)}
    found = {name for node in tree for name in _names_of_statement(node)}
    for node in tree:
        if isinstance(node, ast.Attribute | ast.Name) and id(node) not in unnamed:
            found |= {*_flagged(_dotted(node, aliases))}
    return found


def _aliases(tree: Sequence[ast.AST]) -> dict[str, str]:
    """The full name of each imported name."""
    aliases: dict[str, str] = {}
    for node in tree:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.split(".")[0]
                aliases[alias.asname or name] = name
        if isinstance(node, ast.ImportFrom):
            aliases |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return aliases


def _dotted(node: ast.Attribute | ast.Name, aliases: Mapping[str, str]) -> str:
    """The name of `node` with its module; one that is not of an import begins with a dot."""
    parts: list[str] = []
    inner: ast.AST = node
    while isinstance(inner, ast.Attribute):
        parts.insert(0, inner.attr)
        inner = inner.value
    root = inner.id if isinstance(inner, ast.Name) else "?"
    if root in _BUILTINS and root not in aliases:
        return f"builtins.{root}"
    return ".".join([aliases.get(root, f".{root}"), *parts])


def _flagged(name: str) -> Iterator[str]:
    """The names under which a permission for `name` is listed."""
    module, _, last = name.rpartition(".")
    first, *rest = name.split(".")
    if first in _MODULES and not (rest and rest[0] in _HARMLESS):
        yield ".".join([first, *rest[:1]])
    yield from (part for part in name.split(".") if part in _NAMES)
    if "multiprocessing" in module.split(".") and last in _OF_MULTIPROCESSING:
        yield f"multiprocessing.{last}"
    if not first and module.strip(".") and last in _OF_CONTEXTS:
        yield f"multiprocessing.{last}"
    if first == "yaml" and last in _OF_YAML:
        yield f"yaml.{last}"
    if name in ("torch.load", "torch.serialization.load"):
        yield "torch.load"
    if module == "builtins" and last in _BUILTINS:
        yield last


def _loads_weights_only(call: ast.Call) -> bool:
    return any(each.arg == "weights_only" and ast.unparse(each.value) == "True" for each in call.keywords)


def _names_of_statement(node: ast.AST) -> Iterator[str]:
    """Names in imports, in arguments, and in texts that are programs."""
    if isinstance(node, ast.Import):
        imported = [alias.name for alias in node.names if alias.name not in _MODULES]  # these are flagged where used
        yield from (name for each in imported for name in _flagged(each))
    if isinstance(node, ast.ImportFrom):
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (name for each in names if each != "torch.load" for name in _flagged(each))
    if isinstance(node, ast.Call):
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        first = node.args[0] if node.args else None
        if called in ("import_module", "__import__") and isinstance(first, ast.Constant) and first.value in _MODULES:
            yield str(first.value)
        if any(each.arg == "allow_pickle" and ast.unparse(each.value) != "False" for each in node.keywords):
            yield "allow_pickle"
    text = _text(node)
    if _IMPORT.search(text):
        for module, name, builtin in _IN_TEXT.findall(text):
            yield builtin or f"{module}.{name}"


def _text(node: ast.AST) -> str:
    """The text that `node` is, with _ in place of what is inserted into it."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "_" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
