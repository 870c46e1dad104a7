"""The table of docs/how-to/servers.md: with which models an engine uses the weights that it is sent.

    python -m benchmarks.engine_models --engine vllm=engines/vllm/bin/python [--models tied,untied]

For each kind of model, a small random one is written, a server of the engine is started on the CPU, and the check that
a run makes before its first step changes all weights (`purerl.opening.weight_check`). The table says `verified`, with
the mean difference of log-probabilities of trainer and engine before and after, or why the engine is refused.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.serving import ENVIRONMENT, VOCABULARY, write_tokenizer
from purerl.backends.hf.lora import Lora
from purerl.backends.serving.settings import ServerSettings
from purerl.errors import PurerlError
from purerl.models.tokenizer import load_tokenizer, ordinary_tokens
from purerl.opening import weight_check
from purerl.plugins import find
from purerl.ranks import ONE_RANK
from purerl.settings import Model
from tests.backends.vision import write_vision_model

_SIZES = dict(vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2)
_SIZES |= dict(head_dim=32, intermediate_size=128, max_position_embeddings=512, initializer_range=0.3)
_SIZES |= dict(bos_token_id=None, eos_token_id=1, pad_token_id=0)
_EXPERTS = dict(num_experts=4, num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=64)
_LINEAR = dict(linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=128, linear_value_head_dim=128)

_DTYPES = {"hybrid": "bfloat16"}  # which the kernels of vLLM for linear attention on a CPU need

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "tied": ("qwen3", dict(tie_word_embeddings=True)),
    "untied": ("qwen3", dict(tie_word_embeddings=False)),
    "biases": ("qwen2", dict(tie_word_embeddings=True)),
    "experts": ("qwen3_moe", _EXPERTS),
    "GPT-OSS": ("gpt_oss", _EXPERTS | dict(intermediate_size=64, sliding_window=16)),
    "hybrid": ("qwen3_next", _EXPERTS | _LINEAR | dict(layer_types=["linear_attention", "full_attention"])),
    "vision": ("qwen2_vl", {}),
    "adapter": ("qwen3", dict(tie_word_embeddings=True)),
}
"""The kinds of models, each with a family of transformers and settings of its own."""

_LORA_RANK = 8


def write_model(kind: str, folder: Path) -> Model:
    """A random model of this kind with a tokenizer, in `folder`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    family, own = MODELS[kind]
    if kind == "vision":
        return Model(write_vision_model(folder, family, dtype="float32", wide=True))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **(_SIZES | own)))
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return Model(str(folder), attention="eager" if family == "gpt_oss" else "sdpa")


def result_of(engine: str, kind: str, folder: Path) -> str:
    """The result of the check of a server of `engine`, kind=PYTHON, with a model of this kind."""
    name, _, python = engine.partition("=")
    model = write_model(kind, folder / "model")
    trainers, generators = find("trainer", "hf"), find("generator", name)
    is_adapter = kind == "adapter"
    lora = Lora(rank=_LORA_RANK) if is_adapter else None
    policy = trainers.build(
        trainers.Config(lora=lora), model=model, role="policy", outputs=("logp",), updates=1, seed=0
    )
    options: dict[str, Any] = dict(python=python or None, environment=ENVIRONMENT, logs=str(folder), device="cpu")
    server = ServerSettings(**options, dtype=_DTYPES.get(kind))
    ranks = {"max_lora_rank": _LORA_RANK} if is_adapter and name == "vllm" else {}
    config = generators.Config(server=server, max_num_seqs=16, **ranks)
    tokens = ordinary_tokens(load_tokenizer(model))
    try:
        generator = generators.build(config, model=model, seed=0)
        try:
            level = weight_check.check_updates(policy, generator, tokens, ranks=ONE_RANK, seed=0)
        finally:
            generator.close()
    except PurerlError as error:
        return f"refused: {' '.join(line.strip() for line in str(error).splitlines()[:3])[:300]}"
    return f"verified ({level:.1g} nats)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True, help="kind=PYTHON, such as vllm=engines/vllm/bin/python")
    parser.add_argument("--models", default=",".join(MODELS), help="kinds of models, divided by commas")
    options = parser.parse_args()
    engine = options.engine.partition("=")[0]
    for kind in options.models.split(","):
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            result = result_of(options.engine, kind, Path(folder))
        seconds = time.monotonic() - start
        today = datetime.now(tz=UTC).date()
        print(f"| {engine} | {kind} ({MODELS[kind][0]}) | {result} | {today} | {seconds:.0f} s |", flush=True)


if __name__ == "__main__":
    main()
