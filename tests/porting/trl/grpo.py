"""GRPO on grade-school mathematics, as a user of TRL writes it."""

import re

from datasets import load_dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import think_format_reward

MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
GROUP = 8
PER_DEVICE = 2 * GROUP


def correct_answer(completions, answer, **kwargs):
    found = [re.findall(r"-?\d+", completion[0]["content"])[-1:] for completion in completions]
    return [float(numbers == [right]) for numbers, right in zip(found, answer, strict=True)]


def to_conversation(row):
    question = {"role": "user", "content": row["question"]}
    return {"prompt": [question], "answer": row["answer"].split("#### ")[1]}


def main():
    dataset = load_dataset("openai/gsm8k", "main", split="train")
    dataset = dataset.map(to_conversation)
    args = GRPOConfig(
        output_dir="runs/gsm8k-grpo",
        learning_rate=5e-6,
        lr_scheduler_type="cosine",
        warmup_steps=0.1,
        per_device_train_batch_size=PER_DEVICE,
        gradient_accumulation_steps=4,
        steps_per_generation=8,
        num_generations=GROUP,
        max_completion_length=1024,
        max_steps=200,
        beta=0.04,
        epsilon_high=0.28,
        scale_rewards="none",
        bf16=True,
        save_steps=50,
        logging_steps=1,
        report_to=["wandb"],
        reward_weights=[1.0, 0.2],
        top_p=0.95,
    )
    args.seed = 7
    trainer = GRPOTrainer(
        model=MODEL,
        args=args,
        reward_funcs=[correct_answer, think_format_reward],
        train_dataset=dataset,
        peft_config=LoraConfig(r=16, lora_alpha=2 * 16, target_modules=["q_proj", "v_proj"], lora_dropout=0.05),
    )
    trainer.train()


if __name__ == "__main__":
    main()
