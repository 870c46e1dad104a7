"""Every test that is marked `gpu`, and the benchmarks, on a GPU. The results are written into a JSON file.

    python -m benchmarks.gpu                                # benchmarks/results/gpu-<name of the device>.json
    python -m benchmarks.gpu --output results.json

It takes less than ten minutes, and exits with status 1 if a test fails or a benchmark does not finish in time. The
tests include compiled Triton kernels against their references, in value and gradient, both engines of this process
against the results of a CPU, a run that learns, and weights that processes read from the memory of the GPU, or get from
another GPU. The benchmarks are

- `benchmarks/logp.py` at 2,048 tokens, hidden 896 and vocabulary 151,936, in float32 and bfloat16: the logits path,
  chunked.py and the Triton kernels;
- the reverse recurrence at three sizes, forward and backward: chunked.py and the Triton kernel;
- `whole_run.py`: steps of GRPO with a model of half a billion parameters.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from purerl.kernels.recurrence import chunked, fused

ROOT = Path(__file__).parents[2]
TESTS_SECONDS, BENCHMARK_SECONDS = 240, 100
SHAPES = ((64, 1024), (512, 4096), (256, 16384))


def run_tests() -> dict[str, Any]:
    """The tests marked `gpu`: pytest's exit status, its summary, and which tests failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "8", "-m", "gpu", "tests"]
    status, output = run(command, TESTS_SECONDS)
    summary = re.findall(r"^=*\s*(.*\bin [\d.]+s\b.*?)\s*=*$", output, re.MULTILINE)[-1:] or ["no summary"]
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    # Status 5 is that no test was collected. Tests that are skipped beside a GPU check nothing.
    is_complete = status == 0 and re.search(r"\b\d+ passed", summary[0])
    return {"status": 0 if is_complete else status or 1, "summary": summary[0], "failed": failed}


def run_logp(dtype: str) -> dict[str, Any]:
    """The results of `benchmarks/logp.py` in `dtype`."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "logp.json"
        command = [sys.executable, "benchmarks/logp.py", "--device", "cuda", "--dtype", dtype, "--repeats", "5"]
        return results_of([*command, "--only", "logp, entropy"], file)


def run_steps() -> dict[str, Any]:
    """The results of `whole_run.py`."""
    with tempfile.TemporaryDirectory() as directory:
        return results_of([sys.executable, "-m", "benchmarks.gpu.whole_run"], Path(directory) / "steps.json")


def results_of(command: list[str], file: Path) -> dict[str, Any]:
    """The exit status of a benchmark, and the results that it has written; without these, the end of its output."""
    status, output = run([*command, "--json", str(file)], BENCHMARK_SECONDS)
    return {"status": status, **(json.loads(file.read_text()) if file.exists() else {"output": output[-4000:]})}


def run(command: list[str], seconds: float) -> tuple[int, str]:
    """Exit status and output of a command in the root of the repository; status 124 if it takes longer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, cwd=ROOT)
    except subprocess.TimeoutExpired as error:
        output = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        return 124, f"{output}\nnot finished after {seconds:.0f} s"
    return done.returncode, done.stdout + done.stderr


def run_recurrence() -> dict[str, Any]:
    """Wall times of forward and backward pass in ms, the minimum of 20 calls."""
    functions = {"chunked": chunked.reverse_recurrence, "triton": fused.reverse_recurrence}
    results = []
    for shape in SHAPES:
        x, decay = torch.randn(shape, device="cuda"), torch.rand(shape, device="cuda")
        for path, function in functions.items():
            forward, backward = measure(function, x, decay)
            results.append({"shape": shape, "path": path, "forward_ms": forward, "backward_ms": backward})
    return {"status": 0, "results": results}


def measure(function: Callable[[Tensor, Tensor], Tensor], x: Tensor, decay: Tensor) -> tuple[float, float]:
    leaves, times = [x.requires_grad_(), decay.requires_grad_()], []
    for _ in range(21):
        start = synchronized_time()
        y = function(*leaves)
        middle = synchronized_time()
        torch.autograd.grad(y.sum(), leaves)
        times.append((middle - start, synchronized_time() - middle))
    forward, backward = zip(*times[1:], strict=True)
    return 1e3 * min(forward), 1e3 * min(backward)


def synchronized_time() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "tests": run_tests,
    "recurrence": run_recurrence,
    "whole_run": run_steps,
    "logp_float32": partial(run_logp, "float32"),
    "logp_bfloat16": partial(run_logp, "bfloat16"),
}
"""The measurements by name, in this order. Each result has a `status`, which is 0 if it is complete."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="the JSON file")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks.gpu needs a GPU, and torch finds none (torch.cuda.is_available() is False)", file=sys.stderr)
        return 2
    import triton

    device = torch.cuda.get_device_properties(0)
    start = time.perf_counter()
    result = {
        "device": device.name,
        "capability": f"{device.major}.{device.minor}",
        "memory_gib": round(device.total_memory / 2**30, 1),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda, "triton": triton.__version__},
    }
    file_name = f"gpu-{re.sub(r'[^a-z0-9]+', '-', device.name.lower()).strip('-')}.json"
    output = options.output or ROOT / "benchmarks" / "results" / file_name
    for name, measure_part in PARTS.items():
        result[name] = measure_part()
        result["seconds"] = round(time.perf_counter() - start, 1)
        output.write_text(json.dumps(result, indent=2) + "\n")
    print(f"{result['tests']['summary']}\nwritten: {output}")
    return int(any(result[name]["status"] for name in PARTS))


if __name__ == "__main__":
    sys.exit(main())
