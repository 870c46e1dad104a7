"""SFT on conversations: the model is trained on every turn of the assistant.

    purerl train chat --set model=Qwen/Qwen2.5-0.5B --set data=chats.jsonl

The data set has a column `messages` with whole conversations of any number of turns. The tokenizer's chat template
renders them. The loss covers the tokens of the assistant's turns and the token that ends each turn, but not the user's
turns, the system prompt, or the headers of the template. With columns `prompt` and `completion` the loss covers only
the completion.

`data.validation_fraction=0.05` holds out a twentieth of the prompts, and `validation.data` names a file instead. Then
`validation/loss`, `perplexity` and `token_accuracy` are measured every 50 steps.

Reasons for the settings:

    64 conversations per step     every assistant token of a step has the same weight in the loss
    learning rate 1e-5            preserves most abilities of an instruct model; for a base model it can be twice that
    warm-up, cosine schedule      5 % warm-up; the final learning rate is a tenth, so the last examples still count
    1 epoch                       a second epoch may improve small data sets: `num_epochs=2`
    float32, bfloat16 autocast    all digits of the weights; bfloat16 is enough for the forward pass
    gradient checkpointing        conversations are long, and the logits of a vocabulary of 150,000 need much memory
"""

from __future__ import annotations

from purerl.algos import sft
from purerl.backends.hf import trainer
from purerl.config.schema import RunConfig
from purerl.data.settings import Data, to_data
from purerl.evaluation.settings import Validation
from purerl.settings import Model
from purerl.store.settings import Checkpoint

__all__ = ["chat"]


def chat(
    model: str | Model, data: str | Data, max_steps: int | None = None, num_epochs: float | None = None
) -> RunConfig:
    """SFT on conversations, one epoch by default. The loss covers the assistant's turns."""
    return RunConfig(
        name="chat",
        model=model,
        data=data,
        algorithm=sft.Config(),
        max_steps=max_steps,
        num_epochs=1.0 if max_steps is None and num_epochs is None else num_epochs,
        batch_size=64,
        trainer=trainer.Config(
            lr=1e-5,
            warmup_ratio=0.05,
            lr_scheduler="cosine",
            min_lr_ratio=0.1,
            mixed_precision="bfloat16",
            recompute="layers",
            max_tokens_per_microbatch=16384,
        ),
        validation=Validation(every=50) if to_data(data).validation_fraction else None,
        checkpoint=Checkpoint(every=100),
    )
