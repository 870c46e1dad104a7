"""The time of importing `purerl.algos`, after torch and tensordict have been imported.

    python benchmarks/import_time.py [--runs 7]

Both times are CPU seconds in one new process. The minimum of several processes is printed for each.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

CODE = """
from time import process_time
start = process_time()
import torch, tensordict
middle = process_time()
import purerl.algos
print(middle - start, process_time() - middle)
"""


def main(runs: int) -> None:
    command = [sys.executable, "-c", CODE]
    outputs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(runs)]
    libraries, algos = (min(column) for column in zip(*(map(float, o.split()) for o in outputs), strict=True))
    print(f"torch and tensordict  {libraries:6.3f} s")
    print(f"purerl.algos          {algos:6.3f} s more (bound: 0.15 s)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7, help="number of processes")
    main(parser.parse_args().runs)
