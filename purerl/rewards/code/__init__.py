"""Rewards for programs, which run in sandboxes: docs/how-to/code_rewards.md.

The functions have the default settings of the kind `code` (`purerl.rewards.kinds.code`):

    function_tests   1 if the function in the completion passes the tests of the example, 0 if not
    stdin_tests      the fraction of inputs for which the program in the completion writes the expected output
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from purerl.rewards.adapters import needs_one_of, takes_up_to
from purerl.rewards.code.examples import FUNCTION_COLUMNS, STDIN_COLUMNS

if TYPE_CHECKING:
    from purerl.rewards.kinds.code import Code

__all__ = ["function_tests", "stdin_tests"]

_SECONDS = 9.5  # until a program has reached its own limits


@needs_one_of(*FUNCTION_COLUMNS)
@takes_up_to(_SECONDS)
def function_tests(completion: str, example: Mapping[str, Any]) -> float:
    """1 if the function in `completion` passes the tests of `example`, 0 if not.

    The columns are those of HumanEval: the prompt, `test`, which defines ``check(candidate)``, and `entry_point`.
    `purerl.rewards.code.examples` lists further ones. The completion is the body of the function, or a module with the
    function, which may be in a code fence.

    Raises: InputError if the tests cannot be used; SandboxError. Both are failures, not a reward of 0.
    """
    return _reward("function", os.getpid())(completion, example)


@needs_one_of(*STDIN_COLUMNS)
@takes_up_to(_SECONDS)
def stdin_tests(completion: str, example: Mapping[str, Any]) -> float:
    """The fraction of the inputs in `example` for which the program in `completion` writes the expected output.

    The columns are `inputs` and `outputs`, or one of those in `purerl.rewards.code.examples`. The label of the code
    fence names the language, or else the column `language`; without them it is Python.

    Raises: InputError if the tests cannot be used; SandboxError. Both are failures, not a reward of 0.
    """
    return _reward("stdin", os.getpid())(completion, example)


@cache
def _reward(tests: Literal["function", "stdin"], process: int) -> Code:
    """The reward with default settings. A fork of this process has one of its own."""
    from purerl.rewards.kinds.code import Config, build

    return build(Config(tests=tests))
