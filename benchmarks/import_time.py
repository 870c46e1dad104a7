"""What importing `purerl.algos` adds to importing torch and tensordict.

    python benchmarks/import_time.py

CPU seconds, both in one fresh process; the least of several processes counts, for noise only ever adds.
"""

from __future__ import annotations

import subprocess
import sys

RUNS = 7
CODE = """
from time import process_time
begin = process_time()
import torch, tensordict
middle = process_time()
import purerl.algos
print(middle - begin, process_time() - middle)
"""


def main() -> None:
    """Print both sides."""
    runs = [
        subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True) for _ in range(RUNS)
    ]
    others, ours = zip(*(map(float, run.stdout.split()) for run in runs), strict=True)
    print(f"torch and tensordict  {min(others):6.3f} s")
    print(f"purerl.algos adds     {min(ours):6.3f} s (bound: 0.15 s)")


if __name__ == "__main__":
    main()
