"""Every test that is marked `gpu`, and the benchmarks of kernels, on a GPU. The results are written into a JSON file.

    python -m benchmarks.gpu                                # benchmarks/results/gpu-<name of the device>.json
    python -m benchmarks.gpu --output results.json

It takes less than ten minutes, and exits with status 1 if a test fails or a benchmark does not finish in time. The
tests include compiled Triton kernels against their references, in value and gradient, and weights that processes read
from the memory of the GPU, or get from another GPU. The benchmarks are

- `benchmarks/logp.py` at 2,048 tokens, hidden 896 and vocabulary 151,936, in float32 and bfloat16: the logits path,
  chunked.py and the Triton kernels;
- the reverse recurrence at three sizes, forward and backward: chunked.py and the Triton kernel.
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
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from purerl.kernels.recurrence import chunked, fused

ROOT = Path(__file__).parents[2]
TESTS_SECONDS, BENCHMARK_SECONDS = 240, 120
SHAPES = ((64, 1024), (512, 4096), (256, 16384))


def run_tests() -> dict[str, Any]:
    """The tests marked `gpu`: pytest's exit status, its last line, and the end of its output if a test failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests"]
    status, output = run(command, TESTS_SECONDS)
    lines = output.strip().splitlines() or [""]
    result: dict[str, Any] = {"status": status, "summary": lines[-1]}
    # Status 5 is that no test was collected. Tests that are skipped beside a GPU check nothing.
    if status or not re.search(r"\b\d+ passed", lines[-1]):
        result |= {"status": status or 1, "output": output[-4000:]}
    return result


def run_logp(dtype: str) -> dict[str, Any]:
    """The results of `benchmarks/logp.py`."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "logp.json"
        command = [sys.executable, "benchmarks/logp.py", "--device", "cuda", "--dtype", dtype, "--repeats", "5"]
        status, output = run([*command, "--only", "logp, entropy", "choices", "--json", str(file)], BENCHMARK_SECONDS)
        return {"status": status, **(json.loads(file.read_text()) if file.exists() else {"output": output[-4000:]})}


def run(command: list[str], seconds: float) -> tuple[int, str]:
    """Exit status and output of a command in the root of the repository; status 124 if it takes longer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, cwd=ROOT)
    except subprocess.TimeoutExpired as error:
        output = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        return 124, f"{output}\nnot finished after {seconds:.0f} s"
    return done.returncode, done.stdout + done.stderr


def run_recurrence(device: str) -> list[dict[str, Any]]:
    """Wall times of forward and backward pass in ms, the minimum of 20 calls."""
    functions = {"chunked": chunked.reverse_recurrence, "triton": fused.reverse_recurrence}
    results = []
    for shape in SHAPES:
        x, decay = torch.randn(shape, device=device), torch.rand(shape, device=device)
        for path, function in functions.items():
            forward, backward = measure(function, x, decay)
            results.append({"shape": shape, "path": path, "forward_ms": forward, "backward_ms": backward})
    return results


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
        "tests": run_tests(),
        "logp": [run_logp(dtype) for dtype in ("float32", "bfloat16")],
        "recurrence": run_recurrence("cuda"),
    }
    result["seconds"] = round(time.perf_counter() - start, 1)
    file_name = f"gpu-{re.sub(r'[^a-z0-9]+', '-', device.name.lower()).strip('-')}.json"
    output = options.output or ROOT / "benchmarks" / "results" / file_name
    output.write_text(json.dumps(result, indent=2) + "\n")
    print(f"{result['tests']['summary']}\nwritten: {output}")
    return int(any(part["status"] for part in (result["tests"], *result["logp"])))


if __name__ == "__main__":
    sys.exit(main())
