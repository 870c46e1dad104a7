"""Conversations by SFT: a model learns to answer as the assistant in them does, in every turn.

    purerl train chat --set model=Qwen/Qwen2.5-0.5B --set data=chats.jsonl

The data have a column `messages`: whole conversations of any number of turns. Each goes through the tokenizer's chat
template, and the loss is on what the assistant says, with the token that ends its turn: never on the user's words, the
system prompt, or the template's headers. Columns `prompt` and `completion` do too: then only the answer is learned.

Why it is set so:

    64 conversations a step         every token that the assistant says in them weighs the same
    learning rate 1e-5              forgets little of what an instruct model can do; a base model bears twice that
    warm-up, then a cosine          over a twentieth of the steps, then to a tenth: ends near a minimum, while the last
                                    data are still learned from
    500 steps                       one pass over 32,000 conversations: set `max_steps` to yours / 64, or twice that
    float32, bfloat16 autocast      small updates vanish in bfloat16 weights; the arithmetic does not need more
    gradient checkpointing          conversations are long, and a vocabulary of 150,000 leaves little room beside them
"""

from __future__ import annotations

from purerl.algos import sft
from purerl.backends.hf import trainer
from purerl.config.schema import Checkpoint, Data, RunConfig
from purerl.protocols import Model

__all__ = ["chat"]


def chat(model: str | Model, data: str | Data, max_steps: int = 500) -> RunConfig:
    """SFT on conversations: the loss is on the assistant's turns."""
    return RunConfig(
        name="chat",
        model=model,
        data=data,
        algorithm=sft.Config(),
        max_steps=max_steps,
        batch_size=64,
        trainer=trainer.Config(
            lr=1e-5,
            warmup_steps=max(max_steps, 0) // 20,
            lr_scheduler="cosine",
            min_lr_ratio=0.1,
            mixed_precision="bfloat16",
            gradient_checkpointing=True,
            max_tokens_per_microbatch=16384,
        ),
        checkpoint=Checkpoint(every=100),
    )
