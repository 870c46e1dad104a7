"""One step of GRPO with purerl and with TRL's GRPOTrainer: CPU time with one thread, and peak memory of the process.

    python3 -m venv .venv-trl
    .venv-trl/bin/pip install -c constraints/default.txt . trl==1.16.0
    .venv-trl/bin/python benchmarks/trl_step.py [--rounds 3] [--steps 6] [--device cpu]

On an accelerator (`--device cuda`) it is wall time.

A step has 16 prompts of 16 tokens with 8 completions each. The model is a Qwen2 model with hidden size 128, 4 layers,
MLP size 512 and 64 tokens. Both libraries read the same files and have the same loss: the mean over rows, clipping at
0.2 and 0.28, no KL penalty, one optimizer step. They are measured alternately, each in new processes, and the best
round of each is printed. The loads are:

    equal     every completion has 32 tokens, so both libraries compute the same number of tokens for the same prompts
    skewed    each token ends its completion with probability 1/32, at most 128 tokens; a quarter of that on average
    bfloat16  as equal, with the forward pass in bfloat16

The load `equal` with one thread of an AMD EPYC: on different days TRL's step took 1.1 to 1.5 times as long as purerl's.
The times of both vary by a fifth there. purerl multiplies matrices with 36 GFLOP in a step and TRL with 51, because it
reads each prompt once per completion; that alone would give 1.4. On an H200, one round: 552 and 257 ms, 2.15.

For comparison, `bare` is the time of sampling with purerl's HFGenerator, and of forward and backward passes of the
model on prompts and completions without padding. It has no loss, no metrics and no optimizer. Unlike purerl's trainer,
it computes each prompt once per completion.
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
    """A workload.

    tokens      maximum number of new tokens
    stop_logit  is added to the logit of the stop token
    bfloat16    whether the forward pass is in bfloat16
    """

    tokens: int
    stop_logit: float
    bfloat16: bool


LOADS = {
    "equal": Load(tokens=32, stop_logit=-30.0, bfloat16=False),
    "skewed": Load(tokens=128, stop_logit=0.71, bfloat16=False),
    "bfloat16": Load(tokens=32, stop_logit=-30.0, bfloat16=True),
}


def seconds(device: str) -> float:
    """CPU time of this process, or wall time when `device` has done its work."""
    import torch

    if device == "cpu":
        return time.process_time()
    torch.accelerator.synchronize()
    return time.perf_counter()


def reward(completion: str, example: dict[str, Any]) -> float:
    """A reward that differs between rows."""
    return completion.count("0") / 32


def _write(folder: Path, stop_logit: float) -> None:
    """Write a model, its tokenizer, and prompts. `stop_logit` is added to the logit of the stop token everywhere."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    tokens = Tokenizer(models.WordLevel({t: k for k, t in enumerate(["<pad>", "<eos>", *letters])}, unk_token="<pad>"))
    tokens.pre_tokenizer, tokens.decoder = pre_tokenizers.Split(Regex("."), "isolated"), decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="<pad>", eos_token="<eos>").save_pretrained(folder)
    torch.manual_seed(0)
    shape = dict(hidden_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4)
    special = dict(eos_token_id=1, pad_token_id=0, bos_token_id=None)
    model = Qwen2ForCausalLM(
        Qwen2Config(**shape, **special, vocab_size=64, intermediate_size=512, tie_word_embeddings=False)
    )
    with torch.no_grad():
        # All hidden states have a component in one direction, of a length that RMSNorm determines. Only the logit of
        # the stop token depends on this component.
        model.model.embed_tokens.weight += 1.0
        model.lm_head.weight -= model.lm_head.weight.mean(-1, keepdim=True)
        model.lm_head.weight[1] += stop_logit / 128
    model.save_pretrained(folder)
    rows = [{"prompt": f"{k:0{PROMPT}d}"} for k in range(PROMPTS)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


# --- measured functions ------------------------------------------------------------------------------------------


def run_purerl(folder: Path, load: Load, steps: int, device: str) -> list[dict[str, float]]:
    """CPU milliseconds and tokens of each step of a run, as in `purerl train`."""
    import torch

    from benchmarks.steps import opened_steps
    from purerl.algos import grpo
    from purerl.backends.hf import generator, trainer
    from purerl.config.schema import RunConfig
    from purerl.rollouts.settings import Rollout
    from purerl.settings import Model
    from purerl.store.settings import Checkpoint

    config = RunConfig(
        name="step",
        model=Model(str(folder)),
        data=str(folder / "prompts.jsonl"),
        algorithm=grpo.Config(clip_high=0.28),
        max_steps=steps,
        batch_size=PROMPTS,
        rollout=Rollout(samples_per_prompt=SAMPLES, max_tokens=load.tokens),
        generator=generator.Config(max_num_seqs=PROMPTS * SAMPLES, device=device),
        trainer=trainer.Config(
            mixed_precision="bfloat16" if load.bfloat16 else "off", max_tokens_per_microbatch=8192, device=device
        ),
        rewards=("benchmarks.trl_step:reward",),
        checkpoint=Checkpoint(every=1000),
    )
    torch.set_num_threads(1)
    measured = []
    with opened_steps(config, folder / f"run{os.getpid()}", {config.rewards[0].function: reward}) as opened:
        for _ in range(steps):
            start = seconds(device)
            record = opened.step()
            duration, tokens = seconds(device) - start, record["rollout/length"] * PROMPTS * SAMPLES
            measured.append({"step": 1000 * duration, "tokens": tokens})
    return measured


def run_bare(folder: Path, load: Load, steps: int, device: str) -> list[dict[str, float]]:
    """HFGenerator, and forward and backward passes of the model on its completions, without padding."""
    import torch

    from purerl.backends.hf.decoder.loading import load_model
    from purerl.backends.hf.generator import Config, build
    from purerl.protocols import Request, Sampling, generate
    from purerl.settings import Model

    torch.set_num_threads(1)
    generator = build(Config(max_num_seqs=PROMPTS * SAMPLES, device=device), model=Model(str(folder)), seed=0)
    model, sampling = load_model(Model(str(folder))).to(device), Sampling(1.0, load.tokens, (1,))
    prompt, measured = list(range(2, 2 + PROMPT)), []
    for step in range(steps):
        start = seconds(device)
        requests = [Request(f"{step}/{k}", prompt, sampling, seed=k) for k in range(PROMPTS * SAMPLES)]
        completions = generate(generator, requests)
        sampled = seconds(device)
        _forward_backward(model, [prompt + list(c.tokens) for c in completions], load, device)
        measured.append(
            {
                "step": 1000 * (seconds(device) - start),
                "generate": 1000 * (sampled - start),
                "tokens": sum(len(c.tokens) for c in completions),
            }
        )
    return measured


def _forward_backward(model: Any, rows: list[list[int]], load: Load, device: str) -> None:
    """Micro-batches have rows of one length, so there is no padding, and about a thousand tokens."""
    import torch

    by_length: dict[int, list[list[int]]] = {}
    for row in rows:
        by_length.setdefault(len(row), []).append(row)
    for length, group in by_length.items():
        for part in torch.tensor(group, device=device).split(max(1, 1024 // length)):
            with torch.autocast(device, torch.bfloat16, enabled=load.bfloat16):
                logits = model(input_ids=part, use_cache=False).logits
            logp = logits[:, :-1].float().log_softmax(-1).gather(-1, part[:, 1:, None])
            (-logp.mean()).backward()


def run_trl(folder: Path, load: Load, steps: int, device: str) -> list[dict[str, float]]:
    """CPU milliseconds and tokens of each step of TRL's trainer, without gradient checkpointing, reports and saving."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(1)
    measured: list[dict[str, float]] = []

    class Timer(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            self.last = seconds(device)

        def on_log(self, *args: Any, logs: dict[str, float], **kwargs: Any) -> None:
            if "completions/mean_length" in logs:
                tokens = logs["completions/mean_length"] * PROMPTS * SAMPLES
                measured.append({"step": 1000 * (seconds(device) - self.last), "tokens": tokens})
                self.last = seconds(device)

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
        use_cpu=device == "cpu",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(folder),
        reward_funcs=lambda completions, **_: [reward(text, {}) for text in completions],
        args=settings,
        train_dataset=Dataset.from_json(str(folder / "prompts.jsonl")),
        callbacks=[Timer()],
    )
    logging.disable(logging.WARNING)
    trainer.train()
    return measured


# --- comparison --------------------------------------------------------------------------------------------------

FUNCTIONS: dict[str, Callable[[Path, Load, int, str], list[dict[str, float]]]] = {
    "purerl": run_purerl,
    "TRL": run_trl,
    "bare": run_bare,
}


def _measure(name: str, load: str, folder: str, steps: int, device: str) -> None:
    """Call one function for one load, and print the medians over its steps as JSON."""
    measured = FUNCTIONS[name](Path(folder), LOADS[load], steps + WARM_UP, device)[WARM_UP:]
    medians = {key: median(step[key] for step in measured) for key in measured[0]}
    print(json.dumps(medians | {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}))


def _measure_in_process(name: str, load: str, folder: Path, steps: int, device: str) -> dict[str, float]:
    """The result of `_measure` in a new process."""
    command = [sys.executable, __file__, "--measure", name, load, str(folder), "--steps", str(steps)]
    command += ["--device", device]
    paths = (str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH"))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "HF_HUB_OFFLINE": "1"}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if process.returncode:
        sys.exit(process.stderr)
    return json.loads(process.stdout.splitlines()[-1])


def main() -> None:
    """Print a table, or with `--measure` the result of one function."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="measured steps per round")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", nargs="+", choices=FUNCTIONS, default=list(FUNCTIONS), help="what is measured")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--measure", nargs=3, metavar=("NAME", "LOAD", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        _measure(*arguments.measure, arguments.steps, arguments.device)
        return
    print(f"{'load':<10}{'':<8}{'ms/step':>10}{'us/token':>12}{'tokens':>8}{'peak GiB':>10}")
    for load in arguments.loads:
        with tempfile.TemporaryDirectory() as folder:
            _write(Path(folder), LOADS[load].stop_logit)
            rounds = [
                {
                    name: _measure_in_process(name, load, Path(folder), arguments.steps, arguments.device)
                    for name in arguments.only
                }
                for _ in range(arguments.rounds)
            ]
        best = {name: min((r[name] for r in rounds), key=lambda m: m["step"] / m["tokens"]) for name in arguments.only}
        per_token = {name: 1000 * m["step"] / m["tokens"] for name, m in best.items()}
        for name, m in best.items():
            print(f"{load:<10}{name:<8}{m['step']:10.0f}{per_token[name]:12.1f}{m['tokens']:8.0f}{m['peak']:10.2f}")
        for name, time_per_token in per_token.items():
            if name != "purerl" and "purerl" in per_token:
                ratio = time_per_token / per_token["purerl"]
                print(f"{load:<10}time of {name} / time of purerl: {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
