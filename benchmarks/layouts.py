"""The planned memory of layouts for models of 1.5 to 671 billion parameters: the table of docs/explanation/layouts.md.

    python -m benchmarks.layouts

Every row is what `purerl plan` computes for one rank of 80 GB, the one that needs most, from the published sizes of a
model. The run is that of docs/deepseek_v3/run.toml: GRPO with prompts of 1,024 tokens, completions of 3,072 tokens,
8,192 rows in 4 optimizer steps, and micro-batches of 4,096 tokens. Layers are recomputed. No weights are read, and
nothing of Megatron-core is imported.

The generator has devices of its own. Its column is the smallest power of two of devices on each of which the weights in
bfloat16 take at most 60 % of 80 GB, so that the rest is left for keys and values.

Sizes are those of config.json in the repositories of the models on the Hugging Face hub.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import json
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from attrs import evolve

from purerl.backends.hf import trainer as hf
from purerl.backends.hf.memory.simulation import fake_model
from purerl.backends.hf.mesh import Mesh
from purerl.backends.megatron import trainer as megatron
from purerl.backends.megatron.mesh import MegatronMesh
from purerl.config.schema import RunConfig
from purerl.config.structure import read_toml
from purerl.planning.plan import MemoryPlan, plan_memory
from purerl.settings import Model
from purerl.system.memory_use import COPIES, GIB, GRADIENTS, MOMENTS, PARAMETERS

__all__ = ["LAYOUTS", "Layout", "plan_of", "row", "table"]

_DOCS = Path(__file__).parents[1] / "docs"
_MEMORY, _OF_GENERATOR = 80 * 10**9, 0.6
_QWEN = {"rms_norm_eps": 1e-6, "max_position_embeddings": 40960, "head_dim": 128, "vocab_size": 151936}


def _sizes(family: str, hidden: int, ffn: int, layers: int, heads: int, keys: int, **others: Any) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers}
    sizes |= {"num_attention_heads": heads, "num_key_value_heads": keys, "tie_word_embeddings": False}
    return {"model_type": family, **sizes, **(_QWEN if family.startswith("qwen3") else {}), **others}


_EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "norm_topk_prob": True}
MODELS = {
    "Qwen2.5-1.5B": _sizes("qwen2", 1536, 8960, 28, 12, 2, vocab_size=151936, tie_word_embeddings=True),
    "Qwen2.5-7B": _sizes("qwen2", 3584, 18944, 28, 28, 4, vocab_size=152064),
    "Qwen3-8B": _sizes("qwen3", 4096, 12288, 36, 32, 8),
    "Qwen3-14B": _sizes("qwen3", 5120, 17408, 40, 40, 8),
    "Qwen3-32B": _sizes("qwen3", 5120, 25600, 64, 64, 8),
    "Qwen3-30B-A3B": _sizes("qwen3_moe", 2048, 6144, 48, 32, 4, moe_intermediate_size=768, **_EXPERTS),
    "Llama-3.3-70B": _sizes("llama", 8192, 28672, 80, 64, 8, vocab_size=128256),
    "Qwen2.5-72B": _sizes("qwen2", 8192, 29568, 80, 64, 8, vocab_size=152064),
    "Qwen3-235B-A22B": _sizes("qwen3_moe", 4096, 12288, 94, 64, 4, moe_intermediate_size=1536, **_EXPERTS),
    "DeepSeek-V3": json.loads((_DOCS / "deepseek_v3" / "config.json").read_text(encoding="utf-8")),
}


class Layout(NamedTuple):
    """A model, the mesh of its trainer, and the number of devices of the trainer."""

    model: str
    mesh: Mesh | MegatronMesh
    devices: int


def _megatron(model: str, devices: int, **sizes: int) -> Layout:
    return Layout(model, MegatronMesh(**sizes, sequence_parallel=sizes.get("tensor", 1) > 1), devices)


LAYOUTS = (
    Layout("Qwen2.5-1.5B", Mesh(), 1),
    Layout("Qwen2.5-7B", Mesh(shard=4), 4),
    Layout("Qwen3-8B", Mesh(shard=4), 4),
    Layout("Qwen3-14B", Mesh(shard=8), 8),
    Layout("Qwen3-32B", Mesh(shard=16), 16),
    _megatron("Qwen3-14B", 8, tensor=4),
    _megatron("Qwen3-32B", 16, tensor=8),
    _megatron("Qwen3-30B-A3B", 16, tensor=2, expert=8),
    _megatron("Llama-3.3-70B", 32, tensor=8, pipeline=2),
    _megatron("Qwen2.5-72B", 32, tensor=8, pipeline=2),
    _megatron("Qwen3-235B-A22B", 128, tensor=4, pipeline=2, expert=32),
    _megatron("DeepSeek-V3", 256, tensor=8, pipeline=8, expert=32),
)


def plan_of(layout: Layout, folder: Path) -> MemoryPlan:
    """The plan of `layout`; the configuration of its model is written into `folder`."""
    path = folder / layout.model
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(MODELS[layout.model]))
    settings: dict[str, Any] = {"mesh": layout.mesh, "recompute": "layers", "max_tokens_per_microbatch": 4096}
    if isinstance(layout.mesh, Mesh):
        trainer, dtype = hf.Config(mixed_precision="bfloat16", **settings), "float32"
    else:
        trainer, dtype = megatron.Config(distributed_optimizer=True, **settings), "bfloat16"
    config = evolve(_run(), model=Model(str(path), dtype=dtype), trainer=trainer)
    return plan_memory(config, ranks=layout.devices, memory=_MEMORY)


@cache
def _run() -> RunConfig:
    return read_toml(str(_DOCS / "deepseek_v3" / "run.toml"), RunConfig)


def table(folder: Path) -> Iterator[str]:
    """The lines of the table, in Markdown. Sizes are in GiB; "trained": whether the trainer accepts the model."""
    head = ["model", "parameters", "trainer", "mesh", "devices", "parameters", "gradients", "optimizer", "others"]
    yield f"| {' | '.join([*head, 'peak', 'fits', 'trained', 'generator'])} |"
    yield "|" + "---|" * (len(head) + 4)
    for layout in LAYOUTS:
        yield row(layout, folder)


def row(layout: Layout, folder: Path) -> str:
    """The line of `layout`."""
    plan = plan_of(layout, folder)
    phase = plan.peak_phase
    sizes = {name.removeprefix("policy: "): of_phases.get(phase, 0) for name, of_phases in plan.device.items()}
    weights, gradients = sizes.pop(PARAMETERS), sizes.pop(GRADIENTS)
    optimizer = sizes.pop(MOMENTS) + sizes.pop(COPIES, 0)
    count = sum(parameter.numel() for parameter in fake_model(Model(str(folder / layout.model))).parameters())
    parts = [weights, gradients, optimizer, sum(sizes.values()), plan.peak]
    is_hf = isinstance(layout.mesh, Mesh)
    cells = [layout.model, f"{count / 1e9:,.1f} billion", "hf" if is_hf else "megatron", _mesh(layout.mesh)]
    cells += [
        str(layout.devices),
        *(f"{size / GIB:.1f}" for size in parts),
        "yes" if plan.fits else "no",
        "no" if plan.refused else "yes",
    ]
    return f"| {' | '.join([*cells, _generator(2 * count)])} |"


def _mesh(mesh: Mesh | MegatronMesh) -> str:
    names = ("shard",) if isinstance(mesh, Mesh) else ("tensor", "pipeline", "expert")
    return ", ".join(f"{name} {size}" for name in names if (size := getattr(mesh, name)) > 1) or "one rank"


def _generator(weights: int) -> str:
    """How the generator is placed, whose weights take this number of bytes."""
    devices = 1
    while weights / devices > _OF_GENERATOR * _MEMORY:
        devices *= 2
    return f"{devices} x {weights / devices / GIB:.1f}"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for line in table(Path(folder)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
