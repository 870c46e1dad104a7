"""A reward model with LoRA, in which only the learning rate is set."""

from datasets import load_dataset
from peft import LoraConfig
from trl import RewardConfig, RewardTrainer

trainer = RewardTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    args=RewardConfig(output_dir="reward", center_rewards_coefficient=0.01, num_train_epochs=1),
    train_dataset=load_dataset("trl-lib/ultrafeedback_binarized", split="train"),
    peft_config=LoraConfig(task_type="SEQ_CLS"),
)
trainer.train()
