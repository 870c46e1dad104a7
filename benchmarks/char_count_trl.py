"""The RL phase of the recipe `char_count` in TRL: the same model after SFT, problems, reward and optimizer steps.

    python3 -m venv .venv-trl
    .venv-trl/bin/pip install -c constraints/default.txt . trl==1.16.0 peft
    .venv-trl/bin/python benchmarks/char_count_trl.py /tmp/char_count/seed-0 /tmp/char_count/trl-0

The first directory is a finished run of purerl, the second is new. One thread, float32. The settings are those of the
recipe: LoRA of rank 32 on all linear layers, 16 prompts with 8 completions of at most 20 tokens, two optimizer steps
for them, clipping at 0.2 and 0.28, the mean over tokens, no KL penalty, a constant learning rate. TRL drops no groups
without variance. Their advantage is 0, and the loss is divided by the tokens of all groups.

It writes the model with its adapter merged, and trl.json: the mean reward of the completions of each step, the accuracy
on the held-out problems before and after, CPU seconds, and the peak of the memory. A copy of it is
benchmarks/results/char_count_trl.json, which `python -m benchmarks.board page` draws.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import resource
import time
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

MICRO_BATCH = 16


def main(run: Path, output: Path) -> None:
    """Train from the model after SFT in the run directory `run`, and write the results into `output`."""
    import torch
    from datasets import load_dataset  # pyright: ignore[reportMissingImports]
    from transformers import AutoTokenizer
    from trl import GRPOTrainer  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    config = tomllib.loads((run / "config.toml").read_text())
    model = str(run / "initial_run" / "final")
    tokenizer = AutoTokenizer.from_pretrained(model)
    data = load_dataset("parquet", data_files=str(run / "prepared" / "train.parquet"), split="train")
    data = data.remove_columns("completion")
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=_arguments(config, output),
        train_dataset=data,
        processing_class=tokenizer,
        peft_config=_adapter(config),
    )
    begun = time.process_time()
    trainer.train()
    seconds = time.process_time() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    merged = trainer.model.merge_and_unload()
    merged.save_pretrained(output / "final")
    tokenizer.save_pretrained(output / "final")
    result = {
        "rewards": rewards,
        "eval/accuracy": _accuracies(run, config, output / "final"),
        "cpu_seconds": seconds,
        "peak_gib": peak,
        "versions": {name: version(name) for name in ("trl", "peft", "transformers", "torch")},
    }
    (output / "trl.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result))


def _accuracies(run: Path, config: dict[str, Any], model: Path) -> list[tuple[int, float]]:
    """The step and the accuracy on held-out problems: before training, as `run` measured it, and of `model`."""
    from purerl.backends.hf import generator
    from purerl.evaluation.problem_results import metrics
    from purerl.evaluation.settings import Evaluate
    from purerl.runs.evaluation import evaluation_of_model, run_evaluation
    from purerl.settings import Model

    first = json.loads((run / "metrics.jsonl").read_text().partition("\n")[0])
    settings = Evaluate(
        data=str(run / "prepared" / "held_out.parquet"), max_tokens=config["rollout"]["max_tokens"], temperature=1.0
    )
    evaluation = evaluation_of_model(
        Model(str(model)), settings, generator=generator.Config(), rewards=["purerl.rewards.math:boxed"]
    )
    after = metrics(run_evaluation(evaluation), settings)["eval/accuracy"]
    return [(0, first["eval/accuracy"]), (config["max_steps"], after)]


def reward(completions: list[list[dict[str, str]]], answer: list[str], **_: Any) -> list[float]:
    """1 if the box has the correct number, and 0 if not."""
    from purerl.rewards.math import boxed

    texts = [completion[0]["content"] for completion in completions]
    return [boxed(text, {"answer": each}) for text, each in zip(texts, answer, strict=True)]


def _arguments(config: dict[str, Any], output: Path) -> Any:
    from trl import GRPOConfig  # pyright: ignore[reportMissingImports]

    rollout, trainer = config["rollout"], config["trainer"]
    rows = config["batch_size"] * rollout["samples_per_prompt"]
    updates = config["num_minibatches"]
    return GRPOConfig(
        output_dir=str(output / "trl"),
        max_steps=config["max_steps"] * updates,
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=rows // updates // MICRO_BATCH,
        steps_per_generation=rows // MICRO_BATCH,
        num_generations=rollout["samples_per_prompt"],
        max_completion_length=rollout["max_tokens"],
        temperature=rollout["temperature"],
        top_p=1.0,
        top_k=0,
        learning_rate=trainer["lr"],
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=trainer["max_grad_norm"],
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.28,
        loss_type="dapo",
        scale_rewards="group",
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        seed=config["seed"],
    )


def _adapter(config: dict[str, Any]) -> Any:
    from peft import LoraConfig

    lora = config["trainer"]["lora"]
    return LoraConfig(r=lora["rank"], lora_alpha=lora["alpha"], target_modules="all-linear", task_type="CAUSAL_LM")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a finished run directory of char_count")
    parser.add_argument("output", type=Path, help="a new directory")
    options = parser.parse_args()
    options.output.mkdir(parents=True)
    main(options.run, options.output)
