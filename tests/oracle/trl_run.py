"""Runs of TRL's trainers on a small model in float64, with plain gradient descent, so that a step is a gradient."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor

from purerl.backends.hf.tiny_models import word_tokenizer

__all__ = [
    "MODEL",
    "TARGET",
    "Run",
    "config",
    "draw_completions",
    "run",
    "scores",
    "size",
    "targets",
    "use_double_precision",
    "value_of",
    "write_model",
]

_FOLDER = TemporaryDirectory()
MODEL = str(Path(_FOLDER.name, "model"))
TARGET = 7
"""The token that is rewarded."""

_LENGTH = 6


class Run(NamedTuple):
    """A trainer after its run.

    parameters      before each optimizer step, and at the end
    micro_batches   what the loss was computed of
    logs            what was logged
    """

    trainer: Any
    parameters: list[list[Tensor]]
    micro_batches: list[dict[str, Any]]
    logs: list[Mapping[str, float]]

    def gradient(self, step: int) -> Tensor:
        """The gradient of an optimizer step with the learning rate 1, of all parameters as one vector."""
        before, after = self.parameters[step], self.parameters[step + 1]
        return torch.cat([(a - b).flatten() for a, b in zip(before, after, strict=True)])


def _tokenizer() -> Any:
    return word_tokenizer([str(number) for number in range(10)])


@cache
def write_model() -> None:
    """Write a GPT-2 of float64. Most other models compute norms in float32, which hides small differences."""
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = _tokenizer()
    special = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    shape = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 300}
    dropout = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **shape, **dropout, **special))
    model.double().save_pretrained(MODEL)
    tokenizer.save_pretrained(MODEL)


def use_double_precision(trainer_class: Any, patch: Any) -> None:
    """Compute rewards and log-probabilities in float64, by `patch`, a MonkeyPatch. TRL itself has float32."""
    calculate = trainer_class._calculate_rewards
    patch.setattr(trainer_class, "_calculate_rewards", lambda *arguments: calculate(*arguments).double())
    patch.setattr(trainer_class, "_get_per_token_logps_and_entropies", _scores_of_trainer)


def _scores_of_trainer(
    trainer: Any, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, **_: Any
) -> tuple[Tensor, Tensor, None]:
    return (*scores(model, input_ids, attention_mask, logits_to_keep), None)


def scores(model: Any, input_ids: Tensor, attention_mask: Tensor, time: int) -> tuple[Tensor, Tensor]:
    """(logp, entropy) of the last `time` tokens, at temperature 1."""
    logits = model(input_ids=input_ids, attention_mask=attention_mask).logits[:, -time - 1 : -1]
    logp = logits.log_softmax(-1)
    taken = logp.gather(-1, input_ids[:, -time:].unsqueeze(-1)).squeeze(-1)
    return taken, -(logp.exp() * logp).sum(-1)


def targets(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """The number of TARGET among the tokens of each completion, times 1/8."""
    return [sum(token == TARGET for token in ids) / 8 for ids in completion_ids]


def size(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """The number of tokens above 5, times 1/4: a reward that can be negative."""
    return [(len(ids) - 5) / 4 for ids in completion_ids]


def draw_completions(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """A `rollout_func`: random completions, and random log-probabilities of the policy that sampled them."""
    draw = torch.Generator().manual_seed(trainer.state.global_step * 10 + trainer.accelerator.process_index)
    sizes = torch.randint(1, _LENGTH + 1, (len(prompts),), generator=draw).tolist()
    tokens = [torch.randint(5, 12, (size,), generator=draw).tolist() for size in sizes]
    # A completion that is not of full length ends with the end token.
    completions = [ids if len(ids) == _LENGTH else [*ids, 1] for ids in tokens]
    noise = [0.2 * torch.randn(len(ids), generator=draw) - 2.4 for ids in completions]
    return {
        "prompt_ids": [trainer.processing_class(prompt)["input_ids"] for prompt in prompts],
        "completion_ids": completions,
        "logprobs": [values.tolist() for values in noise],
    }


def config(**settings: Any) -> Any:
    """A GRPOConfig of steps with 12 completions of 3 prompts, in two micro-batches."""
    defaults = {
        "output_dir": _FOLDER.name,
        "per_device_train_batch_size": 6,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "max_completion_length": _LENGTH,
        "learning_rate": 1.0,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "max_steps": 1,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "gradient_checkpointing": False,
        "bf16": False,
        "disable_tqdm": True,
        "seed": 3,
        "model_init_kwargs": {"dtype": "auto"},
    }
    return import_module("trl").GRPOConfig(**defaults | settings)


def value_of(prompt: list[int]) -> float:
    """The optimal value of a prompt, which a row of the data has as a column."""
    return prompt[-1] / 8


def _rows() -> list[dict[str, Any]]:
    prompts, tokenizer = [f"{number}{number // 2}" for number in range(10)], _tokenizer()
    return [{"prompt": text, "optimal_value": value_of(tokenizer(text)["input_ids"])} for text in prompts]


def run(
    trainer_class: type,
    args: Any,
    *,
    resume: str | None = None,
    rows: Sequence[Mapping[str, Any]] = (),
    **arguments: Any,
) -> Run:
    """Train, and record the parameters and micro-batches. `arguments` are those of the trainer."""
    from transformers import TrainerCallback

    class Recorder(TrainerCallback):
        def on_step_begin(self, *_: Any, model: Any, **__: Any) -> None:
            parameters.append([p.detach().clone() for p in model.parameters()])

    write_model()
    parameters: list[list[Tensor]] = []
    micro_batches: list[dict[str, Any]] = []
    dataset = import_module("datasets").Dataset.from_list([*rows] or _rows())
    reward = {"reward_funcs": targets} | arguments
    with contextlib.redirect_stdout(io.StringIO()):
        trainer: Any = trainer_class(model=MODEL, args=args, train_dataset=dataset, callbacks=[Recorder()], **reward)
        compute_loss = trainer._compute_loss
        trainer._compute_loss = lambda model, inputs: micro_batches.append(inputs) or compute_loss(model, inputs)
        trainer.train(resume_from_checkpoint=resume)
    parameters.append([p.detach().clone() for p in trainer.model.parameters()])
    return Run(trainer, parameters, micro_batches, [*trainer.state.log_history])
