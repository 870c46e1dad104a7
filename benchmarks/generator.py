"""Sampling in one process: transformers' `generate`, a plain loop over forward passes, and purerl's HFGenerator.

    python benchmarks/generator.py [--repeats 7] [--device cpu]

All three sample at temperature 1 from the whole vocabulary, alternately, in one process, with one thread. Times are the
minimum of `--repeats`: CPU times on a CPU, wall times after synchronization on an accelerator. The model is a Qwen2
model with a million parameters, and prompts have 16 tokens. There are two loads:

    equal     every row gets 64 new tokens; milliseconds per decoding step
    skewed    256 prompts, at most 64 rows together; the numbers of new tokens have an exponential distribution with
              mean 32, and are at most 256; microseconds per requested token. `generate` and the plain loop decode four
              batches of 64 rows, each until its longest row is finished. HFGenerator replaces finished rows by waiting
              ones
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from purerl.backends.hf.generator import Config
from purerl.backends.hf.model.past_cache import cache_argument
from purerl.backends.hf.sampling.engine import HFGenerator
from purerl.protocols import Request, Sampling, generate
from purerl.settings import Model

PROMPT, NEW, VOCABULARY, ROWS = 16, 64, 512, 64
BATCHES = (1, 16, 64, 256)
Sampler = Callable[[Tensor, list[int]], None]
"""Samples completions of prompts [rows, time] with these numbers of new tokens."""


def tiny_model() -> torch.nn.Module:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    shape = dict(hidden_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2)
    return Qwen2ForCausalLM(
        Qwen2Config(**shape, intermediate_size=512, vocab_size=VOCABULARY, tie_word_embeddings=True)
    )


def transformers_generate(model: torch.nn.Module) -> Sampler:
    def run(prompts: Tensor, lengths: list[int]) -> None:
        new = dict(max_new_tokens=max(lengths), min_new_tokens=max(lengths), pad_token_id=0, eos_token_id=None)
        model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=True, top_k=0, **new)

    return run


def plain_loop(model: torch.nn.Module) -> Sampler:
    from transformers import DynamicCache

    @torch.inference_mode()
    def run(prompts: Tensor, lengths: list[int]) -> None:
        cache, tokens = DynamicCache(), prompts
        for _ in range(max(lengths)):
            logits = model(input_ids=tokens, **cache_argument(model, cache), use_cache=True, logits_to_keep=1).logits[
                :, -1
            ]
            logp = logits.log_softmax(-1)
            tokens = logp.exp().multinomial(1)
            logp.gather(1, tokens)

    return run


def hf_generator(model: torch.nn.Module, rows: int) -> Sampler:
    config = Config(max_num_seqs=rows, device=model.device.type)
    generator = HFGenerator(config, model, Model("none"))

    def run(prompts: Tensor, lengths: list[int]) -> None:
        pairs = enumerate(zip(prompts.tolist(), lengths, strict=True))
        generate(generator, [Request(str(k), prompt, Sampling(1.0, new), k) for k, (prompt, new) in pairs])

    return run


def in_batches(sampler: Sampler) -> Sampler:
    def run(prompts: Tensor, lengths: list[int]) -> None:
        for start in range(0, len(prompts), ROWS):
            sampler(prompts[start : start + ROWS], lengths[start : start + ROWS])

    return run


def min_seconds(samplers: dict[str, Sampler], prompts: Tensor, lengths: list[int], repeats: int) -> dict[str, float]:
    """The minimum time of each of `samplers`, which are called alternately. The first calls are not counted."""
    clock = time.process_time if prompts.device.type == "cpu" else time.perf_counter
    seconds = dict.fromkeys(samplers, float("inf"))
    for repeat in range(1 + repeats):
        for name, sampler in samplers.items():
            start = clock()
            sampler(prompts, lengths)
            if prompts.device.type != "cpu":
                torch.accelerator.synchronize()
            if repeat:
                seconds[name] = min(seconds[name], clock() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = tiny_model().eval().to(options.device)
    batched = {"generate": transformers_generate(model), "plain loop": plain_loop(model)}
    print(f"{'':<32}{'generate':>12}{'plain loop':>12}{'HFGenerator':>12}")
    for rows in BATCHES:
        prompts = torch.randint(0, VOCABULARY, (rows, PROMPT), device=options.device)
        samplers = batched | {"HFGenerator": hf_generator(model, rows)}
        seconds = min_seconds(samplers, prompts, [NEW] * rows, options.repeats).values()
        print(f"{f'equal, {rows} rows, ms per step':<32}" + "".join(f"{1e3 * s / NEW:>12.2f}" for s in seconds))
    prompts = torch.randint(0, VOCABULARY, (4 * ROWS, PROMPT), device=options.device)
    lengths = torch.empty(len(prompts)).exponential_(1 / 32).ceil().clamp(max=256).int().tolist()
    samplers = {name: in_batches(sampler) for name, sampler in batched.items()} | {
        "HFGenerator": hf_generator(model, ROWS)
    }
    seconds = min_seconds(samplers, prompts, lengths, max(options.repeats // 2, 1)).values()
    print(f"{'skewed, us per token':<32}" + "".join(f"{1e6 * s / sum(lengths):>12.1f}" for s in seconds))


if __name__ == "__main__":
    main()
