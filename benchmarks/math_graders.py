r"""The scores of graders of mathematics on tests/rewards/math_answers.toml, and their speed.

    python benchmarks/math_graders.py [--graders purerl math_verify ...] [--workers 2] [--show]

Each answer is the content of a ``\boxed{...}`` at the end of a short completion. `accepted` counts the answers of the
table that are equal to the ground truth and get a reward, and `rejected` those that are not and get none. A grader that
takes more than thirty seconds for an answer is stopped: this counts as no reward, and as `hung`. `failed` counts
exceptions. The other libraries must be installed: math-verify, TRL, and verl 0.9.1 and mathruler without their
dependencies, as in the session `oracle` of noxfile.py.
"""

from __future__ import annotations

import argparse
import logging
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Protocol

TABLE = Path(__file__).parents[1] / "tests" / "rewards" / "math_answers.toml"
_TIMEOUT = 30.0  # seconds, which also covers the import of a library
LIBRARIES = ("math-verify", "verl", "trl", "mathruler", "sympy")


class Pair(NamedTuple):
    """A ground truth, the content of a box, and whether the answer is correct."""

    kind: str
    truth: str
    answer: str
    correct: bool

    @property
    def completion(self) -> str:
        """A completion with the answer in a box."""
        return rf"Therefore the answer is $\boxed{{{self.answer}}}$."


def read_pairs(path: Path = TABLE) -> list[Pair]:
    """The pairs of the table for the reward `math` without a tolerance."""
    kinds = tomllib.loads(path.read_text(encoding="utf-8"))["kinds"]
    return [
        Pair(kind["name"], row["truth"], answer, correct)
        for kind in kinds
        if not {"reward", "settings"} & {*kind}
        for row in kind["rows"]
        for key, correct in (("accepted", True), ("rejected", False))
        for answer in row[key]
    ]


# --- graders -----------------------------------------------------------------------------------------------------

Grader = Callable[[str, Mapping[str, Any]], Mapping[str, float]]


def timed(grade: Callable[[str, str], float | None]) -> Grader:
    """A reward function that returns the score, 0 or 1, and the CPU time of `grade` in seconds."""

    def reward(completion: str, example: Mapping[str, Any]) -> dict[str, float]:
        start = time.process_time()
        score = grade(completion, example["answer"])
        return {"score": float((score or 0.0) > 0.5), "seconds": time.process_time() - start}

    return reward


@timed
def purerl(completion: str, truth: str) -> float | None:
    """The reward `math` of purerl."""
    return import_module("purerl.rewards.math").math(completion, {"answer": truth})


@timed
def math_verify(completion: str, truth: str) -> float:
    """The functions `parse` and `verify` of math-verify, with their defaults."""
    logging.disable()
    library = import_module("math_verify")
    return float(library.verify(library.parse(rf"$\boxed{{{truth}}}$"), library.parse(completion)))


@timed
def trl(completion: str, truth: str) -> float | None:
    """The reward function of TRL, which calls math-verify."""
    logging.disable()
    reward = import_module("trl.rewards").accuracy_reward
    return reward([[{"content": completion}]], [rf"$\boxed{{{truth}}}$"])[0]


@timed
def verl_math_reward(completion: str, truth: str) -> float:
    """The reward of verl for MATH, which compares normalized strings."""
    return import_module("verl.utils.reward_score.math_reward").compute_score(completion, truth)


@timed
def verl_math_dapo(completion: str, truth: str) -> float:
    """The reward of verl for DAPO, which compares normalized strings after "Answer:"."""
    module = import_module("verl.utils.reward_score.math_dapo")
    box = module.last_boxed_only_string(completion)
    answer = module.remove_boxed(box) if box else ""
    return module.compute_score(f"Answer: {answer}", truth)["score"]


@timed
def verl_prime_math(completion: str, truth: str) -> float:
    """The reward of verl for PRIME, which compares with sympy."""
    return float(import_module("verl.utils.reward_score.prime_math").compute_score(completion, truth)[0])


@timed
def verl_math_verify(completion: str, truth: str) -> float:
    """The reward of verl that calls math-verify. Without its process, which is the worker here."""
    logging.disable()
    module = import_module("verl.utils.reward_score.math_verify")
    return module._verify_in_subprocess(rf"\boxed{{{truth}}}", completion)  # noqa: SLF001


@timed
def mathruler(completion: str, truth: str) -> float:
    """The grader of mathruler."""
    grader = import_module("mathruler.grader")
    return float(grader.grade_answer(grader.extract_boxed_content(completion), truth))


GRADERS = (
    "purerl",
    "math_verify",
    "trl",
    "verl_math_verify",
    "verl_prime_math",
    "verl_math_reward",
    "verl_math_dapo",
    "mathruler",
)


# --- measurement -------------------------------------------------------------------------------------------------


class Results(NamedTuple):
    """The results of a grader: the score of each pair, or None if it failed, the failures, and CPU seconds."""

    scores: list[float | None]
    failures: list[str]
    seconds: list[float]


class Graded(Protocol):
    """A completion to grade, and its ground truth."""

    @property
    def completion(self) -> str: ...

    @property
    def truth(self) -> str: ...


def grade(grader: str, pairs: Sequence[Graded], *, workers: int) -> Results:
    """Call `grader`, of this file or as file:function, on all pairs, in worker processes."""
    from purerl.rewards.adapters import RewardInput
    from purerl.rewards.runner import RewardRunner

    inputs = [RewardInput(str(k), pair.completion, {"answer": pair.truth}) for k, pair in enumerate(pairs)]
    name = grader if ":" in grader else f"{Path(__file__).resolve()}:{grader}"
    with RewardRunner({name: 1.0}, functions={}, timeout=_TIMEOUT, num_workers=workers) as runner:
        runner.run(inputs[: 8 * workers])  # the workers have started, and the libraries are loaded
        results = runner.run(inputs)
    scores = [result.components.get("score") for result in results]
    failures = [result.failure.kind for result in results if result.failure is not None]
    return Results(scores, failures, [result.components.get("seconds", _TIMEOUT) for result in results])


def line(grader: str, pairs: list[Pair], results: Results) -> str:
    """A row of the table."""
    right = [(pair.correct, bool(score) == pair.correct) for pair, score in zip(pairs, results.scores, strict=True)]
    counts = [[is_right for correct, is_right in right if correct == kind] for kind in (True, False)]
    parts = [f"{sum(part):>5} of {len(part)} ({sum(part) / max(1, len(part)):.1%})" for part in counts]
    hung = results.failures.count("timed out")
    times = f"{1e3 * median(results.seconds):.2f} | {len(pairs) / sum(results.seconds):,.0f}"
    return f"| {grader} | {' | '.join(parts)} | {hung} | {len(results.failures) - hung} | {times} |"


def errors(pairs: list[Pair], results: Results) -> Iterator[str]:
    """A line for each incorrect score."""
    for pair, score in zip(pairs, results.scores, strict=True):
        if bool(score) != pair.correct:
            what = "failed on" if score is None else "accepted" if score else "rejected"
            yield f"{what}: {pair.truth!r} <- {pair.answer!r}  ({pair.kind})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graders", nargs="+", default=GRADERS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="list the incorrect scores")
    options = parser.parse_args()
    pairs = read_pairs()
    print(", ".join(f"{library} {version_of(library)}" for library in LIBRARIES), flush=True)
    print("| grader | accepted | rejected | hung | failed | ms, median | answers per second and core |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for grader in options.graders:
        results = grade(grader, pairs, workers=options.workers)
        print(line(grader, pairs, results), flush=True)
        if options.show:
            print("\n".join(errors(pairs, results)), flush=True)


def version_of(library: str) -> str:
    """The version of a library, if it is installed."""
    try:
        return version(library)
    except ImportError:
        return "is not installed"


if __name__ == "__main__":
    main()
