"""The tests in an example of a data set, in the formats that are in use.

    test, entry_point                                  HumanEval, HumanEval+: `test` defines ``check(candidate)``
    test_list, test_setup_code, test_imports           MBPP: statements that assert
    inputs, outputs, fn_name                           lists; of strings, or of lists of arguments
    test_cases, tests                                  lists of mappings with input, output, and perhaps fn_name
    public_test_cases, private_test_cases              likewise, as LiveCodeBench has them
    public_tests, private_tests, generated_tests       CodeContests: mappings of lists, input and output

They are columns, or fields of ``reward_model.ground_truth`` (verl), `input_output` (APPS, TACO), `verification_info`
(open-r1) or `metadata` (LiveCodeBench: func_name), all of which may be JSON. With the name of a function, tests call
it. Otherwise inputs and outputs are those of a program.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from purerl.errors import InputError
from purerl.rewards.code.completions import blocks, open_block
from purerl.rewards.code.functions import FunctionTests
from purerl.rewards.code.languages import LANGUAGES, find_language
from purerl.rewards.code.stdin import StdinTests

__all__ = [
    "FUNCTION_COLUMNS",
    "STDIN_COLUMNS",
    "Header",
    "header_of",
    "language_of",
    "read_function_tests",
    "read_stdin_tests",
]

_NESTED = ("metadata", "verification_info", "input_output")
_CASES = ("test_cases", "tests", "public_test_cases", "private_test_cases")
_BATCHES = ("public_tests", "private_tests", "generated_tests")

STDIN_COLUMNS = ("inputs", "input_output", "verification_info", "reward_model", *_CASES, *_BATCHES)
"""The columns of which tests of programs need one."""
FUNCTION_COLUMNS = ("test", "test_list", *STDIN_COLUMNS)
"""The columns of which tests of functions need one."""

Fields = Mapping[str, Any]


class Header(NamedTuple):
    """The source in a prompt, which completions may continue; `is_open` if the prompt ends in a block of code."""

    text: str
    is_open: bool


def header_of(example: Fields) -> Header:
    r"""The source in the prompt of `example`: the last block of code, or else the whole prompt, which may be no source.

    >>> header_of({"prompt": [{"role": "user", "content": "Complete:\n```python\ndef f(x):\n```"}]}).text
    'def f(x):\n'
    """
    prompt = example.get("prompt") or ""
    messages = [{"content": prompt}] if isinstance(prompt, str) else prompt
    texts = [message["content"] for message in messages if isinstance(message.get("content"), str)] or [""]
    block = open_block(texts[-1])
    if block is not None:
        return Header(block.content, is_open=True)
    found = [block.content for text in texts for block in blocks(text) if find_language(block.label or "python")]
    return Header(found[-1] if found else texts[-1], is_open=False)


def language_of(example: Fields) -> str | None:
    """The language of the programs, if `example` names it. Raises: InputError if it is unknown."""
    name = _fields(example).get("language")
    if not name:
        return None
    language = find_language(str(name))
    if language is None:
        raise InputError("language of an example", got=repr(name), need=f"one of {', '.join(LANGUAGES)}")
    return language


def read_function_tests(example: Fields) -> FunctionTests:
    """The tests of a function. Raises: InputError if there are none, or if they cannot be read."""
    fields, header = _fields(example), header_of(example).text
    entry_point = str(fields.get("entry_point") or fields.get("fn_name") or fields.get("func_name") or "")
    if isinstance(fields.get("test"), str):
        if not entry_point:
            raise _unreadable("test without entry_point", "the name of the function")
        return FunctionTests(kind="check", entry_point=entry_point, header=header, test=fields["test"])
    if fields.get("test_list"):
        imports = _list(fields.get("test_imports") or [], "test_imports: a list of statements")
        setup = "\n".join([*map(str, imports), str(fields.get("test_setup_code") or "")])
        tests = [*map(str, _list(fields["test_list"], "test_list: a list of statements"))]
        return FunctionTests(kind="asserts", entry_point=entry_point, header=header, tests=tests, setup=setup)
    cases = _read_cases(fields)
    names = {name for case in cases if (name := case.function or entry_point)}
    if len(names) != 1:
        got = f"the names {', '.join(sorted(names))}" if names else "no name of a function"
        raise _unreadable(got, "fn_name, test_list, or test with entry_point")
    inputs, outputs = [_arguments(case.input) for case in cases], [_result(case.output) for case in cases]
    return FunctionTests(kind="calls", entry_point=names.pop(), header=header, inputs=inputs, outputs=outputs)


def read_stdin_tests(example: Fields) -> StdinTests | FunctionTests:
    """The tests of a program; those of a function, if the example names one.

    Raises: InputError if there are none, or if they cannot be read.
    """
    fields = _fields(example)
    cases = _read_cases(fields)
    if fields.get("fn_name") or fields.get("func_name") or any(case.function for case in cases):
        return read_function_tests({**example, "test": None, "test_list": None})
    return StdinTests(inputs=[_lines(case.input) for case in cases], outputs=[_lines(case.output) for case in cases])


def _unreadable(got: object, need: str) -> InputError:
    return InputError("the tests of an example cannot be read", got=got, need=need)


def _fields(example: Fields) -> Fields:
    """The columns of `example`, and below them the fields of the nested ones."""
    reward_model = example.get("reward_model")
    truth = reward_model.get("ground_truth") if isinstance(reward_model, Mapping) else None
    nested: dict[str, Any] = {}
    for value in (truth, *(example.get(name) for name in _NESTED)):
        fields = _parse(value) if isinstance(value, str) and value.lstrip().startswith("{") else value
        nested |= fields if isinstance(fields, Mapping) else {}
    return {**nested, **{name: value for name, value in example.items() if value is not None}}


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable(f"{text[:80]!r}: {error}", "JSON; other encodings, such as pickles, are not read") from error


class _Case(NamedTuple):
    """A test: input and output, and the name of a function if it has one of its own."""

    input: Any
    output: Any
    function: str | None = None


def _read_cases(fields: Fields) -> list[_Case]:
    try:
        cases = list(_cases(fields))
    except (KeyError, TypeError, AttributeError) as error:
        raise _unreadable(f"{type(error).__name__}: {error}", "inputs and outputs") from error
    if not cases:
        raise _unreadable("no test", "one of the columns " + ", ".join(FUNCTION_COLUMNS))
    return cases


def _cases(fields: Fields) -> Iterator[_Case]:
    if fields.get("inputs") is not None:
        yield from _pair(fields["inputs"], fields["outputs"])
    for name in _CASES:
        value = fields.get(name) or ()
        for case in _parse(value) if isinstance(value, str) else value:
            yield _Case(case["input"], case["output"], case.get("fn_name"))
    for name in _BATCHES:
        if fields.get(name):
            yield from _pair(fields[name]["input"], fields[name]["output"])


def _pair(inputs: Any, outputs: Any) -> Iterator[_Case]:
    if len(inputs) != len(outputs):
        raise _unreadable(f"{len(inputs)} inputs and {len(outputs)} outputs", "as many outputs as inputs")
    return map(_Case, inputs, outputs)


def _lines(value: Any) -> str:
    """Text that a program reads or writes. Some data sets have a list of lines."""
    if isinstance(value, str):
        return value
    return "\n".join(map(str, _list(value, "text, or a list of lines, for each input and output")))


def _list(value: Any, need: str) -> Sequence[Any]:
    found = _parse(value) if isinstance(value, str) else value
    if not isinstance(found, list | tuple):
        raise _unreadable(f"{found!r:.80}", need)
    return found


def _arguments(value: Any) -> list[Any]:
    need = "a list of arguments for each input, or text with a line of JSON for each argument"
    return [_parse(line) for line in value.strip("\n").split("\n")] if isinstance(value, str) else [*_list(value, need)]


def _result(value: Any) -> Any:
    """The result of a call: JSON; or what it is itself, then APPS has a list of one."""
    if isinstance(value, str):
        return _parse(value)
    return value[0] if isinstance(value, list) and len(value) == 1 else value
