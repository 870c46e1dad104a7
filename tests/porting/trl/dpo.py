"""DPO with two losses and a reference of its own."""

import argparse

from datasets import load_from_disk
from trl import DPOConfig, DPOTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=5e-7)


def run(options):
    pairs = load_from_disk("pairs")
    config = DPOConfig(
        output_dir="dpo",
        learning_rate=options.lr,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2 * 4,
        loss_type=["sigmoid", "sft"],
        loss_weights=[1.0, 0.5],
        beta=0.05,
        optim="paged_adamw_8bit",
        adam_beta2=0.95,
        precompute_ref_log_probs=True,
    )
    trainer = DPOTrainer(model="my-model", ref_model="my-reference", args=config, train_dataset=pairs["train"])
    trainer.train()


if __name__ == "__main__":
    run(parser.parse_args())
