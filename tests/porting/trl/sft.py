"""SFT on conversations, with the training at the top of the script."""

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

path = "HuggingFaceTB/SmolLM2-135M"
model = AutoModelForCausalLM.from_pretrained(path, dtype="bfloat16", attn_implementation="sdpa")
tokenizer = AutoTokenizer.from_pretrained(path)
options = dict(max_length=2048, packing=True, assistant_only_loss=True)
splits = load_dataset("parquet", data_files={"train": "chats.parquet", "test": "held_out.parquet"})

trainer = SFTTrainer(
    model,
    SFTConfig(
        "out/chat",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=8,
        num_train_epochs=2,
        eval_strategy="steps",
        eval_steps=100,
        save_total_limit=3,
        neftune_noise_alpha=5,
        **options,
    ),
    train_dataset=splits["train"],
    eval_dataset=splits["test"],
    processing_class=tokenizer,
)
trainer.train()
