"""Steps of GRPO with a model of the shape of Qwen2.5-0.5B, on one GPU: speed by phase, and memory beside its plan.

    python -m benchmarks.gpu.whole_run [--json results.json]

The weights are random. A step has 32 prompts of 64 tokens with 8 completions of 128 tokens each. They are sampled by
the generator in this process, and trained on in packed rows, with the forward pass in bfloat16 and weights, gradients
and AdamW's moments in float32. The predicted memory is that of `purerl plan` for the same configuration; the measured
one is the peak that torch's allocator has counted.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

import purerl
from benchmarks.plan import write_data
from purerl.algos import grpo
from purerl.backends.hf import generator, trainer
from purerl.config.schema import RunConfig
from purerl.data.settings import Data
from purerl.planning import plan_memory
from purerl.recipes.addition import character_tokenizer
from purerl.rollouts.settings import Rollout
from purerl.store.settings import Checkpoint

PROMPT = 64  # that of `write_data`


class Size(NamedTuple):
    """Sizes of the model and of a step."""

    hidden: int
    layers: int
    heads: int
    mlp: int
    vocabulary: int
    prompts: int
    tokens: int


SIZES = {
    "0.5B": Size(hidden=896, layers=24, heads=14, mlp=4864, vocabulary=151936, prompts=32, tokens=128),
    "tiny": Size(hidden=64, layers=2, heads=2, mlp=128, vocabulary=512, prompts=4, tokens=16),
}


def reward(completion: str, example: Mapping[str, Any]) -> float:
    """A reward that differs between rows."""
    return float(len(completion))


def write_model(folder: Path, size: Size) -> Path:
    """Write a Qwen2 model. The tokenizer has a text for a few of its tokens."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = {"hidden_size": size.hidden, "num_hidden_layers": size.layers, "intermediate_size": size.mlp}
    special = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0, "tie_word_embeddings": True}
    heads = {"num_attention_heads": size.heads, "num_key_value_heads": 2, "vocab_size": size.vocabulary}
    torch.manual_seed(0)
    Qwen2ForCausalLM(Qwen2Config(**shape, **heads, **special)).save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return folder


def configuration(folder: Path, size: Size, *, steps: int) -> RunConfig:
    return RunConfig(
        name="gpu",
        model=str(write_model(folder / "model", size)),
        data=Data(files=(str(write_data(folder / "data.jsonl")),), max_prompt_tokens=PROMPT),
        algorithm=grpo.Config(),
        max_steps=steps,
        batch_size=size.prompts,
        rollout=Rollout(samples_per_prompt=8, max_tokens=size.tokens),
        rewards=("benchmarks.gpu.whole_run:reward",),
        generator=generator.Config(max_num_seqs=8 * size.prompts),
        trainer=trainer.Config(
            lr=1e-6, mixed_precision="bfloat16", packing=True, max_tokens_per_microbatch=32 * (PROMPT + size.tokens)
        ),
        checkpoint=Checkpoint(every=1000),
    )


def measure(size: Size, *, steps: int) -> dict[str, Any]:
    """Times and rates of the last step, rates of all steps, of which the first one compiles kernels; and bytes."""
    with tempfile.TemporaryDirectory() as folder:
        config, records = configuration(Path(folder), size, steps=steps), list[Mapping[str, Any]]()
        plan = plan_memory(config)
        summary = purerl.train(config, directory=Path(folder) / "run", on_step=lambda record, _: records.append(record))
        last = {name: value for name, value in records[-1].items() if name.startswith("time/")}
        plans = {"predicted_bytes": plan.peak, "predicted_phase": plan.peak_phase, "predicted": plan.phases}
        return {"steps": steps, "last_step": last, **summary.measured, **plans}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="0.5B")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--json", type=Path, help="a file for the results")
    options = parser.parse_args()
    result = measure(SIZES[options.size], steps=options.steps)
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
