"""KTO, with a trainer of its own."""

from datasets import load_dataset
from trl import KTOConfig, KTOTrainer


class LoudTrainer(KTOTrainer):
    def log(self, logs, *args):
        super().log(logs | {"loud": 1.0}, *args)


args = KTOConfig(
    output_dir="kto-run",
    beta=0.2,
    undesirable_weight=1.5,
    per_device_train_batch_size=16,
    max_steps=500,
    max_length=None,
    lr_scheduler_type="constant_with_warmup",
    warmup_steps=20,
    max_grad_norm=0,
)
trainer = LoudTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    args=args,
    train_dataset=load_dataset("json", data_files="labels.jsonl", split="train"),
)
trainer.train()
