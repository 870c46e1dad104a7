"""Problems with the columns of HumanEval and of programs, and their solutions."""

from __future__ import annotations

from typing import Any

__all__ = ["ADD", "BODY", "PROGRAM", "SUM", "problem"]


def problem(signature: str, test: str, **columns: Any) -> dict[str, Any]:
    """A problem with the columns of HumanEval: ``name(parameters)``, and the statements of ``check(candidate)``."""
    lines = "".join(f"    {line}\n" for line in test.splitlines())
    prompt = f'def {signature}:\n    """Do what the name says."""\n'
    example = {"prompt": prompt, "test": f"def check(candidate):\n{lines}", "entry_point": signature.partition("(")[0]}
    return {**example, **columns}


ADD = problem(
    "add(a, b)", "assert candidate(1, 2) == 3\nassert candidate(-5, 5) == 0\nassert candidate(10**6, 7) == 1000007"
)
BODY = "    return a + b\n"
SUM = {"inputs": ["1 2\n", "-5 5\n", "1000000 7\n"], "outputs": ["3\n", "0\n", "1000007\n"]}
PROGRAM = "print(sum(map(int, input().split())))\n"
