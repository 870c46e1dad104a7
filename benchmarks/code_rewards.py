"""Rewards for programs on HumanEval: graded answers per second, and a comparison with running the tests plainly.

    python -m benchmarks.code_rewards HumanEval.jsonl [--completions 8] [--workers 2]

For each problem there are some completions: the solution itself, the same in a block of code, and mutants of it, in
which one operator, constant or condition is changed.

solutions  every solution must have the reward 1
mutants    the reward must be 1 for those that pass the tests in one process (prompt, solution, tests and the call of
           `check` in one file), and 0 for all others
speed      all completions through worker processes, as in a run: answers per second
programs   a program that adds two numbers, with ten tests

82 problems of HumanEval with 8 completions each are 656 answers. On two idle cores they took 24.3 s, 27 answers per
second, and 153 s at a load of 20, with the same rewards. The programs with ten tests took 5.3 s for 64 answers.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from purerl.rewards.adapters import RewardInput
from purerl.rewards.kinds.code import Code, Config, build
from purerl.rewards.runner import RewardRunner
from purerl.rewards.settings import Reward
from purerl.sandbox import Limits, Pool

Problem = Mapping[str, str]

_OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.And: ast.Or, ast.Or: ast.And, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


class _Mutation(ast.NodeTransformer):
    """Changes the node with the number `target`, among those that can be changed."""

    def __init__(self, target: int):
        self.number, self._target = 0, target

    def _is_target(self) -> bool:
        self.number += 1
        return self.number - 1 == self._target

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if type(node) in _OPERATORS and self._is_target():
            return _OPERATORS[type(node)]()
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, bool) and self._is_target():
            return ast.Constant(not node.value)
        if isinstance(node.value, int | float) and not isinstance(node.value, bool) and self._is_target():
            return ast.Constant(node.value + 1)
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        return ast.Return(None) if self._is_target() else self.generic_visit(node)


def mutants(problem: Problem) -> Iterator[str]:
    """Modules in which one thing of the solution is changed, in a random order."""
    source = problem["prompt"] + problem["canonical_solution"]
    counter = _Mutation(-1)
    original = ast.unparse(counter.visit(ast.parse(source)))
    targets = list(range(counter.number))
    random.Random(problem["task_id"]).shuffle(targets)
    for target in targets:
        mutant = ast.unparse(ast.fix_missing_locations(_Mutation(target).visit(ast.parse(source))))
        if mutant != original:
            yield mutant


def completions(problem: Problem, number: int) -> list[str]:
    """The solution in two forms, and mutants; the solution again if there are too few."""
    solution = problem["canonical_solution"]
    block = f"The function:\n```python\n{problem['prompt']}{solution}```\n"
    changed = [mutant for mutant, _ in zip(mutants(problem), range(number - 2), strict=False)]
    return [solution, block, *changed, *[solution] * number][:number]


def compare(problems: Sequence[Problem], code: Code) -> None:
    """Print how many solutions have the reward 1, and compare all mutants with running the tests plainly."""
    right = [code.grade(problem["canonical_solution"], problem).score for problem in problems]
    print(f"solutions: {sum(right):.0f} of {len(problems)} have the reward 1")
    pairs = [(problem, mutant) for problem in problems for mutant in mutants(problem)]
    with Pool(limits=Limits(timeout=4)) as pool, ThreadPoolExecutor(2) as executor:

        def grade(pair: tuple[Problem, str]) -> tuple[float, bool]:
            problem, mutant = pair
            plain = f"{mutant}\n{problem['test']}\ncheck({problem['entry_point']})\n"
            return code.grade(mutant, problem).score, pool.run_python(plain).status == "ok"

        grades = list(executor.map(grade, pairs))
    for (problem, mutant), (score, passes) in zip(pairs, grades, strict=True):
        if score != passes:
            print(f"{problem['task_id']}: reward {score}, passes plainly: {passes}\n{mutant}")
    failing = [score for score, passes in grades if not passes]
    passing = [score for score, passes in grades if passes]
    print(f"mutants that fail plainly: {len(failing)}, of which {failing.count(0.0)} have the reward 0")
    print(f"mutants that pass plainly: {len(passing)}, of which {passing.count(1.0)} have the reward 1")


def measure(problems: Sequence[Problem], number: int, workers: int) -> None:
    """Print answers per second of all completions in worker processes."""
    inputs = [
        RewardInput(f"{k}/{j}", completion, problem)
        for k, problem in enumerate(problems)
        for j, completion in enumerate(completions(problem, number))
    ]
    _rate("functions", Reward("purerl.rewards.code:function_tests"), inputs, workers)


def measure_programs(workers: int, number: int = 64) -> None:
    example = {"inputs": [f"{k} {k}\n" for k in range(10)], "outputs": [f"{2 * k}\n" for k in range(10)]}
    inputs = [RewardInput(str(k), f"print(sum(map(int, input().split())))  # {k}\n", example) for k in range(number)]
    _rate("programs", Reward("purerl.rewards.code:stdin_tests"), inputs, workers)


def _rate(name: str, reward: Reward, inputs: Sequence[RewardInput], workers: int) -> None:
    with RewardRunner([reward], functions={}, timeout=10.0, num_workers=workers) as runner:
        runner.run([inputs[0]] * workers)  # the workers have started
        start = time.perf_counter()
        results = runner.run(inputs)
        seconds = time.perf_counter() - start
    rewards = [result.reward for result in results]
    counts = f"reward 1: {rewards.count(1.0)}, reward 0: {rewards.count(0.0)}, failed: {rewards.count(None)}"
    print(f"{name}: {len(inputs)} answers in {seconds:.1f} s, {len(inputs) / seconds:.0f} per second; {counts}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--completions", type=int, default=8)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--without-mutants", action="store_true", help="measure the speed only")
    options = parser.parse_args()
    problems = [json.loads(line) for line in options.path.read_text().splitlines() if line.strip()]
    if not options.without_mutants:
        with closing(build(Config())) as code:
            compare(problems, code)
    measure(problems, options.completions, options.workers)
    measure_programs(options.workers)


if __name__ == "__main__":
    main()
