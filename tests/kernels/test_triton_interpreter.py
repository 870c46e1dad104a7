"""The tests of Triton kernels in Triton's interpreter, and their compilation for GPUs, which needs none."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import torch

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.slow


def test_kernels_equal_the_reference_in_the_interpreter(tmp_path):
    """In a process of its own, because the variable must be set before the kernels are imported."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not gpu", "-p", "no:cacheprovider"]
    command += ["tests/kernels/test_triton.py"]
    environment = os.environ | {"TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-6000:]
    assert re.search(r"^\d+ passed, \d+ deselected", done.stdout.splitlines()[-1]), done.stdout[-1000:]


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_kernels_compile(capability, dtype, tmp_path, monkeypatch):
    """The interpreter accepts code that the compiler refuses. Products must use the tensor cores."""
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from purerl.kernels.logp import triton_kernels as logp_kernels
    from purerl.kernels.logp.fused import default_blocks
    from purerl.kernels.recurrence import triton_kernels as recurrence_kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    blocks = default_blocks(dtype)
    integers = {"n", "v", "d", "k", "split_columns", "hidden_stride", "weight_stride", "time", "first", "step", "shift"}
    name, factor = ("bf16", tl.bfloat16) if dtype == torch.bfloat16 else ("fp32", tl.float32)
    types = dict.fromkeys(("hidden", "weight", "bias", "grad"), f"*{name}") | {"ids": "*i64"}
    flags = dict(BIAS=True, SOFTCAP=True, ENTROPY=True, SQUARES=True, DTYPE=factor, ACC=tl.float32)
    flags |= dict(
        PRECISION="tf32x3", BLOCK_N=blocks.tokens, BLOCK_V=blocks.vocabulary, BLOCK_D=blocks.hidden, BLOCK=2048
    )
    for function in (logp_kernels.statistics, logp_kernels.logit_gradients, recurrence_kernels.recurrence):
        constants = {name: flags[name] for name in function.arg_names if name.isupper()}
        signature = {
            name: "constexpr" if name.isupper() else "i32" if name in integers else types.get(name, "*fp32")
            for name in function.arg_names
        }
        source = ASTSource(fn=function, signature=signature, constexprs=constants)
        options = {"num_warps": blocks.num_warps, "num_stages": blocks.num_stages}
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        assert compiled.asm["cubin"]
        if "DTYPE" in constants:
            assert "wgmma" in compiled.asm["ptx"] if capability == 90 else "mma.sync" in compiled.asm["ptx"]
