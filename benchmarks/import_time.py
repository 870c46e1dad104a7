"""CPU seconds of short commands, and of importing `purerl.algos` after torch and tensordict.

    python -m benchmarks.import_time [--runs 7] [--model MODEL --data DATA]

Each time is the sum of user and system time of a new process, and the minimum of several is printed. With a model and a
file of prompts, a dry run of the recipe gsm8k is measured too: the first one of a model, and the next ones.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

CODE = """
from time import process_time
start = process_time()
import torch, tensordict
middle = process_time()
import purerl.algos
print(middle - start, process_time() - middle)
"""

COMMAND = "import sys; sys.argv[0] = 'purerl'; from purerl_cli.main import main; main()"
WORDS = "purerl train gsm8k --set trainer.l"
COMPLETION = {"COMP_WORDS": WORDS, "COMP_CWORD": "4", "_PURERL_COMPLETE": "complete_bash"}

COMMANDS: Mapping[str, tuple[Sequence[str], Mapping[str, str], float]] = {
    "a wrong value": (("train", "addition", "--set", "trainer.lr=fast"), {}, 1.0),
    "algo list": (("algo", "list"), {}, 1.0),
    "completion of --set": ((), COMPLETION, 0.5),
    "doctor": (("doctor",), {}, 3.0),
}
"""Name -> arguments, environment, and the most CPU seconds that the command should take."""


def cpu_seconds(arguments: Sequence[str], environment: Mapping[str, str]) -> float:
    """User and system time of a command, with its child processes."""
    command, silent = [sys.executable, "-c", COMMAND, *arguments], subprocess.DEVNULL
    before = os.times()
    subprocess.run(command, check=False, stdout=silent, stderr=silent, env=os.environ | environment)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def measure_dry_run(model: str, data: str, runs: int) -> tuple[float, float]:
    """CPU seconds of the first dry run with an empty cache, and the minimum of those after it."""
    arguments = ("train", "gsm8k", "--set", f"model={model}", "--set", f"data={data}", "--dry-run")
    with tempfile.TemporaryDirectory() as folder:
        first, *others = (cpu_seconds(arguments, {"XDG_CACHE_HOME": folder}) for _ in range(runs + 1))
    return first, min(others)


def main(runs: int, model: str | None, data: str | None) -> None:
    command = [sys.executable, "-c", CODE]
    outputs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(runs)]
    libraries, algos = (min(column) for column in zip(*(map(float, o.split()) for o in outputs), strict=True))
    print(f"torch and tensordict  {libraries:6.2f} s")
    print(f"purerl.algos          {algos:6.2f} s more (bound: 0.15 s)")
    for name, (arguments, environment, bound) in COMMANDS.items():
        seconds = min(cpu_seconds(arguments, environment) for _ in range(runs))
        print(f"{name:<22}{seconds:6.2f} s (bound: {bound} s)", flush=True)
    if model is not None and data is not None:
        first, next_ = measure_dry_run(model, data, runs)
        print(f"first dry run         {first:6.2f} s")
        print(f"next dry run          {next_:6.2f} s (bound: 4.0 s)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7, help="number of processes")
    parser.add_argument("--model", help="a directory with a language model")
    parser.add_argument("--data", help="a file of prompts")
    main(**vars(parser.parse_args()))
