"""Sampling in this process: transformers' `generate`, a plain loop over forward passes, and the embedded generator.

    python benchmarks/generator.py [--repeats 7] [--device cpu]

All three sample at temperature 1 from the whole vocabulary, in one run, in turns, on one thread; the best of `repeats`
counts. On the CPU times are CPU time, on an accelerator until it has finished. A Qwen2 model of a million parameters,
prompts of 16 tokens. Two loads:

    equal     every row gets 64 new tokens; ms per decoding step
    skewed    256 prompts, lengths from an exponential distribution with mean 32, at most 256, 64 rows at once;
              microseconds per token that is wanted. `generate` and the loop decode four batches of 64, each until its
              longest row is done; the generator lets rows leave and waiting ones enter
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from purerl.backends.hf.generator import Config, EmbeddedGenerator
from purerl.backends.hf.stop_strings import Texts
from purerl.protocols import Model, Request, Sampling, generate

PROMPT, NEW, VOCABULARY, ROWS = 16, 64, 512, 64
BATCHES = (1, 16, 64, 256)
Way = Callable[[Tensor, list[int]], None]


def tiny() -> torch.nn.Module:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    shape = dict(hidden_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2)
    return Qwen2ForCausalLM(
        Qwen2Config(**shape, intermediate_size=512, vocab_size=VOCABULARY, tie_word_embeddings=True)
    )


def transformers_generate(model: torch.nn.Module) -> Way:
    def run(prompts: Tensor, lengths: list[int]) -> None:
        new = dict(max_new_tokens=max(lengths), min_new_tokens=max(lengths), pad_token_id=0, eos_token_id=None)
        model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=True, top_k=0, **new)

    return run


def plain_loop(model: torch.nn.Module) -> Way:
    from transformers import DynamicCache

    @torch.inference_mode()
    def run(prompts: Tensor, lengths: list[int]) -> None:
        cache, tokens = DynamicCache(), prompts
        for _ in range(max(lengths)):
            logits = model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
            logp = logits.log_softmax(-1)
            tokens = logp.exp().multinomial(1)
            logp.gather(1, tokens)

    return run


def embedded(model: torch.nn.Module, rows: int) -> Way:
    generator = EmbeddedGenerator(Config(max_num_seqs=rows, device=model.device.type), model, Texts(Model("none")))

    def run(prompts: Tensor, lengths: list[int]) -> None:
        pairs = enumerate(zip(prompts.tolist(), lengths, strict=True))
        generate(generator, [Request(str(k), prompt, Sampling(1.0, new), k) for k, (prompt, new) in pairs])

    return run


def in_batches(way: Way) -> Way:
    def run(prompts: Tensor, lengths: list[int]) -> None:
        for start in range(0, len(prompts), ROWS):
            way(prompts[start : start + ROWS], lengths[start : start + ROWS])

    return run


def best(ways: dict[str, Way], prompts: Tensor, lengths: list[int], repeats: int) -> dict[str, float]:
    """Seconds of each of `ways`, in turns, the best of `repeats`."""
    cpu = prompts.device.type == "cpu"
    found = dict.fromkeys(ways, float("inf"))
    for _ in range(1 + repeats):
        for name, way in ways.items():
            begin = time.process_time() if cpu else time.perf_counter()
            way(prompts, lengths)
            if not cpu:
                torch.accelerator.synchronize()
            found[name] = min(found[name], (time.process_time() if cpu else time.perf_counter()) - begin)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = tiny().eval().to(options.device)
    batched = {"generate": transformers_generate(model), "plain loop": plain_loop(model)}
    print(f"{'':<32}{'generate':>12}{'plain loop':>12}{'embedded':>12}")
    for rows in BATCHES:
        prompts = torch.randint(0, VOCABULARY, (rows, PROMPT), device=options.device)
        ways = batched | {"embedded": embedded(model, rows)}
        seconds = best(ways, prompts, [NEW] * rows, options.repeats).values()
        print(f"{f'equal, {rows} rows, ms a step':<32}" + "".join(f"{1e3 * s / NEW:>12.2f}" for s in seconds))
    prompts = torch.randint(0, VOCABULARY, (4 * ROWS, PROMPT), device=options.device)
    lengths = torch.empty(len(prompts)).exponential_(1 / 32).ceil().clamp(max=256).int().tolist()
    ways = {name: in_batches(way) for name, way in batched.items()} | {"embedded": embedded(model, ROWS)}
    seconds = best(ways, prompts, lengths, max(options.repeats // 2, 1)).values()
    print(f"{'skewed, us a token':<32}" + "".join(f"{1e6 * s / sum(lengths):>12.1f}" for s in seconds))


if __name__ == "__main__":
    main()
