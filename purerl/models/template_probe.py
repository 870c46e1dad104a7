"""The chat template of a model, tried in a process with limits of time and memory.

A template is a program that comes with a model. It has no access to files, but it may never end, or fill the memory.
So it renders short conversations of every kind in a worker process before it is used in this one. A template that has
passed is not tried again, see `purerl.models.cache`.
"""

from __future__ import annotations

import resource
import select
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from purerl.errors import ConfigError
from purerl.models.cache import passed_before
from purerl.system.workers.connection import open_connection, pack_answer, read_request
from purerl.system.workers.processes import Death, Worker

__all__ = ["check_templates", "work"]

_WORK = "purerl.models.template_probe:work"
_SECONDS = 5  # of CPU time, for all conversations
_START_SECONDS = 300.0  # until the process has started and answered, on a busy computer
_MEMORY = 2**30
_MAX_CHARACTERS = 2**20

_CALL = {"type": "function", "id": "call00000", "function": {"name": "add", "arguments": {"a": 1}}}
_PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer", "description": "a number"}}}
_TOOLS = ({"type": "function", "function": {"name": "add", "description": "adds", "parameters": _PARAMETERS}},)
_SYSTEM, _USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "A question?"}
_ANSWER = {"role": "assistant", "content": "An answer.", "reasoning_content": "A thought."}
_TURN_WITH_CALL = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_RESULT = {"role": "tool", "name": "add", "tool_call_id": "call00000", "content": "1"}
_CONVERSATIONS = (
    (_USER,),
    (_SYSTEM, _USER),
    (_USER, _ANSWER),
    (_SYSTEM, _USER, _ANSWER, _USER, _ANSWER, _USER, _ANSWER),
    (_USER, _TURN_WITH_CALL),
    (_USER, _TURN_WITH_CALL, _RESULT, _ANSWER),
    ({"role": "user", "content": [{"type": "text", "text": "A question?"}]},),
)


class _Probe(NamedTuple):
    """Templates, and the special tokens that they can read, by name."""

    templates: tuple[str, ...]
    special_tokens: dict[str, str]


def check_templates(tokenizer: Any, path: str) -> None:
    """Refuse the chat templates of `tokenizer`, which is that of the model `path`, if they do not keep the limits.

    Raises: ConfigError. A template that raises an error is not refused here: it may be right about a conversation.
    """
    given = tokenizer.chat_template
    templates = tuple(given.values()) if isinstance(given, Mapping) else (given,) if given else ()
    wrong = [type(each).__name__ for each in templates if not isinstance(each, str)]
    if wrong:
        raise _refusal(path, f"a value of type {wrong[0]}", "a text")
    if templates:
        special = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
        probe = _Probe(templates, special)
        passed_before(("chat template", probe, _CONVERSATIONS, _TOOLS), lambda: _check(probe, path))


def _check(probe: _Probe, path: str) -> None:
    problem, death = _run(probe)
    if problem is None:
        causes = {-signal.SIGXCPU: f"it did not end within {_SECONDS} s of CPU time", -signal.SIGKILL: "it was killed"}
        problem = causes.get(death.exit_code or 0, f"its process ended with the code {death.exit_code}")
    if problem:
        need = f"one that renders conversations of a few words in {_SECONDS} s and {_MEMORY // 2**20:,} MiB"
        raise _refusal(path, problem, need)


def _refusal(path: str, got: str, need: str) -> ConfigError:
    do = "put a corrected chat_template.jinja next to the tokenizer, or use another model"
    return ConfigError(f"the chat template of {path!r}", got=got, need=need, do=do)


def _run(probe: _Probe) -> tuple[str | None, Death]:
    """The problem that the process has found, empty if there is none, or None if it sent nothing; and its end."""
    worker, answers, end = Worker(_WORK, probe, max_memory=None, answer=str), list[str](), time.monotonic()
    try:
        end += _START_SECONDS
        poller = select.poll()
        for descriptor in (worker.connection.fileno(), worker.sentinel):
            poller.register(descriptor, select.POLLIN)
        while not answers and (seconds := end - time.monotonic()) > 0:
            events = dict(poller.poll(seconds * 1000))
            answers += worker.receive()
            if worker.sentinel in events:
                break
    finally:
        death = worker.end()
    return (answers[0] if answers else None), death


# --- in the worker process -----------------------------------------------------------------------------------------


def work(connection: int, status: int) -> None:
    """Render the conversations with the templates that arrive on `connection`, and send the problem, or nothing."""
    from transformers.utils.chat_template_utils import render_jinja_template

    run = open_connection(connection)
    probe: _Probe = read_request(run)
    _limit()
    run.sendall(pack_answer(_find_problem(probe, render_jinja_template)))


def _limit() -> None:
    """Limit the CPU time and the memory that this process has from now on."""
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    resource.setrlimit(resource.RLIMIT_CPU, (int(used) + 1 + _SECONDS, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError, StopIteration):  # without /proc the memory is not limited
        lines = Path("/proc/self/status").read_text().splitlines()
        size = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
        resource.setrlimit(resource.RLIMIT_DATA, (size + _MEMORY, resource.RLIM_INFINITY))


def _find_problem(probe: _Probe, render: Any) -> str:
    for arguments in _arguments(probe):
        try:
            rendered, _ = render(**arguments, **probe.special_tokens)
        except MemoryError:
            return f"it needs more than {_MEMORY // 2**20:,} MiB of memory"
        except RecursionError:
            return "it is nested too deeply, or calls itself without an end"
        except Exception:  # noqa: BLE001, S112 -- what a template raises depends on its text, and is no matter of limits
            continue
        if (size := sum(map(len, rendered))) > _MAX_CHARACTERS:
            return f"a text of {size:,} characters for a conversation of a few words"
    return ""


def _arguments(probe: _Probe) -> Iterator[dict[str, Any]]:
    """The arguments of every call."""
    tools: Sequence[Any] = (None, [*_TOOLS])
    for template, messages, adds, given in product(probe.templates, _CONVERSATIONS, (False, True), tools):
        yield {
            "conversations": [[*messages]],
            "chat_template": template,
            "tools": given,
            "add_generation_prompt": adds,
        }
