"""A whole step of GRPO, against TRL's GRPOTrainer: CPU time and peak memory, one thread.

    python3 -m venv .venv-trl
    .venv-trl/bin/pip install -c constraints/default.txt . trl==1.16.0
    .venv-trl/bin/python benchmarks/trl_step.py [--rounds 3] [--steps 6]

16 prompts of 16 tokens x 8 completions, on a Qwen2 model with hidden size 128, 4 layers, MLP 512 and 64 tokens, from
the same files, with the same loss (row mean, clip .2 and .28, no divergence, one optimizer step). The sides take turns
in processes of their own; the best round of each counts. Loads:

    equal     no completion ends before 32 tokens: both sides work on as many tokens, and the same prompts
    skewed    each token ends its completion with a chance of 1/32, 128 tokens at most: a quarter of that on average
    bfloat16  as equal, the forward pass in bfloat16

The bound is what cannot be left out: the model's own forward and backward on the tokens without padding, and the
embedded generator.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import logging
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

PROMPTS, SAMPLES, PROMPT, WARM_UP = 16, 8, 16, 2


class Load(NamedTuple):
    """At most so many new tokens; the logit of the end token is raised by so much; autocast."""

    tokens: int
    end: float
    bfloat16: bool


LOADS = {
    "equal": Load(tokens=32, end=-30.0, bfloat16=False),
    "skewed": Load(tokens=128, end=0.71, bfloat16=False),
    "bfloat16": Load(tokens=32, end=-30.0, bfloat16=True),
}


def reward(completion: str, example: dict[str, Any]) -> float:
    """Something that differs from row to row."""
    return completion.count("0") / 32


def _write(folder: Path, end: float) -> None:
    """A model whose end token's logit is raised by `end` at every place, its tokenizer, and prompts."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    tokens = Tokenizer(models.WordLevel({t: k for k, t in enumerate(["<pad>", "<eos>", *letters])}, unk_token="<pad>"))
    tokens.pre_tokenizer, tokens.decoder = pre_tokenizers.Split(Regex("."), "isolated"), decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="<pad>", eos_token="<eos>").save_pretrained(folder)
    torch.manual_seed(0)
    shape = dict(hidden_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4)
    ends = dict(eos_token_id=1, pad_token_id=0, bos_token_id=None)
    model = Qwen2ForCausalLM(
        Qwen2Config(**shape, **ends, vocab_size=64, intermediate_size=512, tie_word_embeddings=False)
    )
    with torch.no_grad():
        # All hidden states share a direction that only the end token's logit knows: RMSNorm gives it this length.
        model.model.embed_tokens.weight += 1.0
        model.lm_head.weight -= model.lm_head.weight.mean(-1, keepdim=True)
        model.lm_head.weight[1] += end / 128
    model.save_pretrained(folder)
    rows = [{"prompt": f"{k:0{PROMPT}d}"} for k in range(PROMPTS)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


# --- the sides ---------------------------------------------------------------------------------------------------


def ours(folder: Path, load: Load, steps: int) -> list[dict[str, float]]:
    """A run of purerl, as `purerl train` does it; CPU milliseconds of each step, and tokens."""
    import torch

    from purerl.algos import grpo
    from purerl.backends.hf import generator, trainer
    from purerl.config.schema import Checkpoint, Rollout, RunConfig
    from purerl.loop import train as loop
    from purerl.loop.run import State
    from purerl.protocols import Model
    from purerl.tracking.trackers import Trackers

    config = RunConfig(
        name="step",
        model=Model(str(folder)),
        data=str(folder / "prompts.jsonl"),
        algorithm=grpo.Config(clip_high=0.28),
        max_steps=steps,
        batch_size=PROMPTS,
        rollout=Rollout(samples_per_prompt=SAMPLES, max_tokens=load.tokens),
        generator=generator.Config(max_num_seqs=PROMPTS * SAMPLES),
        trainer=trainer.Config(mixed_precision="bfloat16" if load.bfloat16 else "off", max_tokens_per_microbatch=8192),
        rewards=("benchmarks.trl_step:reward",),
        checkpoint=Checkpoint(every=1000),
    )
    torch.set_num_threads(1)
    place = loop.claim(folder / f"run{os.getpid()}", config, fresh=True)
    run = loop.open_run(config, place, {config.rewards[0].function: reward})
    state, found = State(transform=run.algorithm.advantage.init()), []
    for _ in range(steps):
        begin = time.process_time()
        state, record = loop.advance(run, state, place, Trackers())
        found.append(
            {"step": 1000 * (time.process_time() - begin), "tokens": record["rollout/length"] * PROMPTS * SAMPLES}
        )
    place.release()
    return found


def bound(folder: Path, load: Load, steps: int) -> list[dict[str, float]]:
    """The embedded generator, and forward and backward of the bare model on what it sampled, without padding."""
    import torch

    from purerl.backends.hf.generator import Config, build
    from purerl.backends.hf.model import load_model
    from purerl.protocols import Model, Request, Sampling, generate

    torch.set_num_threads(1)
    sampler = build(Config(max_num_seqs=PROMPTS * SAMPLES), model=Model(str(folder)), seed=0)
    model, sampling = load_model(Model(str(folder))), Sampling(1.0, load.tokens, (1,))
    prompt, found = list(range(2, 2 + PROMPT)), []
    for step in range(steps):
        begin = time.process_time()
        requests = [Request(f"{step}/{k}", prompt, sampling, seed=k) for k in range(PROMPTS * SAMPLES)]
        completions = generate(sampler, requests)
        sampled = time.process_time()
        _learn(model, [prompt + list(c.tokens) for c in completions], load)
        found.append(
            {
                "step": 1000 * (time.process_time() - begin),
                "generate": 1000 * (sampled - begin),
                "tokens": sum(len(c.tokens) for c in completions),
            }
        )
    return found


def _learn(model: Any, rows: list[list[int]], load: Load) -> None:
    """Rows of one length at a time, a thousand tokens at most: nothing is padded."""
    import torch

    by_length: dict[int, list[list[int]]] = {}
    for row in rows:
        by_length.setdefault(len(row), []).append(row)
    for length, group in by_length.items():
        for part in torch.tensor(group).split(max(1, 1024 // length)):
            with torch.autocast("cpu", torch.bfloat16, enabled=load.bfloat16):
                logits = model(input_ids=part, use_cache=False).logits
            logp = logits[:, :-1].float().log_softmax(-1).gather(-1, part[:, 1:, None])
            (-logp.mean()).backward()


def trl(folder: Path, load: Load, steps: int) -> list[dict[str, float]]:
    """TRL's trainer, without what only costs it time: gradient checkpointing, reporting, saving, dropout."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(1)
    found: list[dict[str, float]] = []

    class Watch(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            self.last = time.process_time()

        def on_log(self, *args: Any, logs: dict[str, float], **kwargs: Any) -> None:
            if "completions/mean_length" in logs:
                tokens = logs["completions/mean_length"] * PROMPTS * SAMPLES
                found.append({"step": 1000 * (time.process_time() - self.last), "tokens": tokens})
                self.last = time.process_time()

    settings = GRPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=PROMPTS * SAMPLES,
        num_generations=SAMPLES,
        max_completion_length=load.tokens,
        max_steps=steps,
        epsilon_high=0.28,
        loss_type="grpo",
        gradient_checkpointing=False,
        bf16=load.bfloat16,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(folder),
        reward_funcs=lambda completions, **_: [reward(text, {}) for text in completions],
        args=settings,
        train_dataset=Dataset.from_json(str(folder / "prompts.jsonl")),
        callbacks=[Watch()],
    )
    logging.disable(logging.WARNING)
    trainer.train()
    return found


# --- side by side ------------------------------------------------------------------------------------------------

SIDES: dict[str, Callable[[Path, Load, int], list[dict[str, float]]]] = {"purerl": ours, "TRL": trl, "bound": bound}


def _child(side: str, load: str, folder: str, steps: int) -> None:
    """One side of one load; the last line that it prints is what it found."""
    found = SIDES[side](Path(folder), LOADS[load], steps + WARM_UP)[WARM_UP:]
    medians = {name: median(step[name] for step in found) for name in found[0]}
    print(json.dumps(medians | {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}))


def _measure(side: str, load: str, folder: Path, steps: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", side, load, str(folder), "--steps", str(steps)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Print a table; or, as a child, one measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="measured steps of a round")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--child", nargs=3, metavar=("SIDE", "LOAD", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        _child(*arguments.child, arguments.steps)
        return
    print(f"{'load':<10}{'side':<8}{'ms a step':>10}{'us a token':>12}{'tokens':>8}{'peak GiB':>10}")
    for load in arguments.loads:
        with tempfile.TemporaryDirectory() as name:
            _write(Path(name), LOADS[load].end)
            rounds = [
                {s: _measure(s, load, Path(name), arguments.steps) for s in SIDES} for _ in range(arguments.rounds)
            ]
        best = {side: min((r[side] for r in rounds), key=lambda m: m["step"] / m["tokens"]) for side in SIDES}
        per_token = {side: 1000 * m["step"] / m["tokens"] for side, m in best.items()}
        for side, m in best.items():
            print(f"{load:<10}{side:<8}{m['step']:10.0f}{per_token[side]:12.1f}{m['tokens']:8.0f}{m['peak']:10.2f}")
        faster, over = per_token["TRL"] / per_token["purerl"], per_token["purerl"] / per_token["bound"]
        print(f"{load:<10}{faster:.2f} times as fast as TRL, {over:.2f} times the bound", flush=True)


if __name__ == "__main__":
    main()
