"""purerl's reward `math` and math-verify on answers whose labels purerl did not write.

    python -m benchmarks.answers [--labels FILE ...] [--workers 2] [--repeats 5] [--show] [--output FILE]

FILE is tests/rewards/answer_labels.toml by default, or JSON Lines with the keys `completion`, `ground_truth` and
`right`. *Accepted* counts the right answers that get a reward, and *rejected* the wrong ones that get none. The time is
the CPU time of 1,000 answers, of which the libraries have seen some before, without the import. math-verify must be
installed, as in the session `oracle` of noxfile.py. It gets the ground truth as a formula of LaTeX, `$...$`.

The result is also written to benchmarks/results/answers.json.
"""

from __future__ import annotations

import argparse
import json
import logging
import tomllib
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import math_graders
from benchmarks.math_graders import Results, timed, version_of

ROOT = Path(__file__).parents[1]
LABELS = ROOT / "tests" / "rewards" / "answer_labels.toml"
OUTPUT = ROOT / "benchmarks" / "results" / "answers.json"
GRADERS = ("purerl", "math_verify")
_LIBRARIES = ("purerl", "math-verify", "latex2sympy2_extended", "sympy")


class Label(NamedTuple):
    """A completion, the ground truth, and whether its answer is right."""

    completion: str
    truth: str
    right: bool


def read_labels(path: Path) -> list[Label]:
    """The labels of a file in TOML or JSON Lines."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".toml":
        return [Label(completion, truth, bool(right)) for completion, truth, right in tomllib.loads(text)["labels"]]
    rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    return [Label(row["completion"], row["ground_truth"], bool(row["right"])) for row in rows]


@timed
def math_verify(completion: str, truth: str) -> float:
    """The functions `parse` and `verify` of math-verify, with their defaults."""
    logging.disable()
    library = import_module("math_verify")
    return float(library.verify(library.parse(f"${truth}$"), library.parse(completion)))


purerl = math_graders.purerl


def summary(labels: Sequence[Label], results: Results) -> dict[str, Any]:
    """The counts of a grader, and its CPU seconds for 1,000 answers."""
    agrees = [(label.right, bool(score) == label.right) for label, score in zip(labels, results.scores, strict=True)]
    return {
        "accepted": sum(is_right and agreed for is_right, agreed in agrees),
        "rejected": sum(not is_right and agreed for is_right, agreed in agrees),
        "failed": results.scores.count(None),
        "seconds_for_1000": round(1000 * sum(results.seconds) / len(results.seconds), 3),
    }


def table(counts: dict[str, int], results: dict[str, dict[str, Any]]) -> Iterable[str]:
    """The lines of a table in Markdown."""
    yield "| grader | accepted of what is right | rejected of what is wrong | seconds for 1,000 |"
    yield "|---|---|---|---|"
    for grader, row in results.items():
        parts = (f"{row[key]} of {counts[kind]}" for key, kind in (("accepted", "right"), ("rejected", "wrong")))
        yield f"| {grader} | {' | '.join(parts)} | {row['seconds_for_1000']:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", nargs="+", type=Path, default=[LABELS])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5, help="how often all answers are graded, for the time")
    parser.add_argument("--show", action="store_true", help="list the answers on which a grader differs")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    labels = [label for path in options.labels for label in read_labels(path)]
    counts = {"right": sum(label.right for label in labels), "wrong": sum(not label.right for label in labels)}
    results: dict[str, dict[str, Any]] = {}
    for name in GRADERS:
        address = f"{Path(__file__).resolve()}:{name}"
        graded = math_graders.grade(address, labels * options.repeats, workers=options.workers)
        first = graded._replace(scores=graded.scores[: len(labels)])
        results[name] = summary(labels, first)
        for label, score in zip(labels, first.scores, strict=True) if options.show else ():
            if bool(score) != label.right:
                print(f"{name} {'accepts' if score else 'rejects'}: {label.truth!r} <- {label.completion!r}")
    versions = {library: version_of(library) for library in _LIBRARIES}
    options.output.write_text(json.dumps({"versions": versions, "labels": counts, "graders": results}, indent=2) + "\n")
    print("\n".join(table(counts, results)))


if __name__ == "__main__":
    main()
