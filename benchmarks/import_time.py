"""CPU seconds of short commands, and of importing `purerl.algos` after torch and tensordict.

    python -m benchmarks.import_time [--runs 7] [--model MODEL --data DATA]

Each time is the sum of user and system time of a new process and its child processes, and the minimum of several is
printed. The first time of a command that stores results for the next ones is printed too. With a model and a file of
prompts as JSON Lines, these are measured for the recipe gsm8k:

- a dry run;
- a run up to its first step, and plain transformers loading tokenizer, prompts and model, in turn.
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
}
"""Name -> arguments, environment, and the most CPU seconds that the command should take."""

FIRST_STEP = """
import sys, tempfile, purerl
class Begun(Exception): pass
def begin(): raise Begun
settings = ["model=" + sys.argv[1], "data=" + sys.argv[2], "evaluate=", "max_steps=1"]
settings += ["batch_size=4", "num_minibatches=1"]
with tempfile.TemporaryDirectory() as folder:
    try:
        purerl.train("gsm8k", settings=settings, directory=folder + "/run", should_stop=begin)
    except Begun:
        sys.exit()
sys.exit("the run has not begun")
"""
"""A run that ends before its first step, after everything is loaded and checked."""

PLAIN = """
import json, sys
from transformers import AutoModelForCausalLM, AutoTokenizer
AutoTokenizer.from_pretrained(sys.argv[1])
rows = [json.loads(line) for line in open(sys.argv[2])]
AutoModelForCausalLM.from_pretrained(sys.argv[1])
"""


def cpu_seconds(arguments: Sequence[str], environment: Mapping[str, str], code: str = COMMAND) -> float:
    """User and system time of a process that runs `code`, with its child processes."""
    command, silent = [sys.executable, "-c", code, *arguments], subprocess.DEVNULL
    before = os.times()
    subprocess.run(command, check=False, stdout=silent, stderr=silent, env=os.environ | environment)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def measure(code: str, arguments: Sequence[str], runs: int, folder: str) -> tuple[float, float]:
    """CPU seconds of the first process, and the minimum of those after it, with the cache in `folder`."""
    first, *others = (cpu_seconds(arguments, {"XDG_CACHE_HOME": folder}, code) for _ in range(runs + 1))
    return first, min(others)


def measure_stored(model: str | None, data: str | None, runs: int) -> None:
    """Print the times of commands that store results, with a cache that is empty at the start."""
    with tempfile.TemporaryDirectory() as folder:
        first, next_ = measure(COMMAND, ("doctor",), runs, folder)
        print(f"first doctor          {first:6.2f} s")
        print(f"next doctor           {next_:6.2f} s (bound: 3.0 s)", flush=True)
        if model is None or data is None:
            return
        arguments = ("train", "gsm8k", "--set", f"model={model}", "--set", f"data={data}", "--dry-run")
        first, next_ = measure(COMMAND, arguments, runs, folder)
        print(f"first dry run         {first:6.2f} s")
        print(f"next dry run          {next_:6.2f} s (bound: 4.0 s)", flush=True)
        environment, codes = {"XDG_CACHE_HOME": folder}, (FIRST_STEP, PLAIN)
        pairs = [[cpu_seconds((model, data), environment, code) for code in codes] for _ in range(runs + 1)]
        plain = min(seconds for _, seconds in pairs)
        print(f"plain transformers    {plain:6.2f} s")
        print(f"first run's first step{pairs[0][0]:6.2f} s")
        print(f"next run's first step {min(own for own, _ in pairs[1:]):6.2f} s (bound: {1.5 * plain:.2f} s)")


def main(runs: int, model: str | None, data: str | None) -> None:
    command = [sys.executable, "-c", CODE]
    outputs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(runs)]
    libraries, algos = (min(column) for column in zip(*(map(float, o.split()) for o in outputs), strict=True))
    print(f"torch and tensordict  {libraries:6.2f} s")
    print(f"purerl.algos          {algos:6.2f} s more (bound: 0.15 s)")
    for name, (arguments, environment, bound) in COMMANDS.items():
        seconds = min(cpu_seconds(arguments, environment) for _ in range(runs))
        print(f"{name:<22}{seconds:6.2f} s (bound: {bound} s)", flush=True)
    measure_stored(model, data, runs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7, help="number of processes")
    parser.add_argument("--model", help="a directory with a language model")
    parser.add_argument("--data", help="a file of prompts")
    main(**vars(parser.parse_args()))
