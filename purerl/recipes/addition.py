"""Two-digit addition, learned on a laptop's CPU: the run that `purerl train` does when nothing else is asked of it.

A problem is ``27+58=``; its answer is written lowest digit first, ``580``, and either right or wrong. A small Qwen3
model that has never seen a number is shown demonstrations until it solves a fifth of its problems (the `start` run).
From there on it gets nothing but that one bit for each completion.

One problem in ten is held out, and with it the same sum the other way round: neither phase trains on it.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from purerl.algos import dapo, sft
from purerl.backends.hf import generator, trainer
from purerl.backends.hf.model import no_progress_bars
from purerl.config.schema import Checkpoint, Evaluate, Rollout, RunConfig, StopWhen
from purerl.protocols import Model

__all__ = ["addition", "character_tokenizer", "prepare"]

_EXACT = "purerl.rewards.exact:exact_match"
_BETAS = (0.9, 0.99)
_ANSWER_TOKENS = 4  # three digits and the end


def addition(max_steps: int = 240) -> RunConfig:
    """DAPO on two-digit addition, after a short supervised start.

    Groups whose completions are all right or all wrong teach nothing; they are dropped, and no others are drawn. The
    learning rate rises during the first sixteenth of the optimizer steps and then falls to 0.
    """
    minibatches = 4
    return RunConfig(
        name="addition",
        prepare_data="purerl.recipes.addition:prepare",
        initial_run=_demonstrations(),
        model=Model("{run}/initial_run/final"),
        data="{run}/prepared/train.parquet",
        algorithm=dapo.Config(),
        rewards=(_EXACT,),
        max_steps=max_steps,
        batch_size=64,
        num_minibatches=minibatches,
        rollout=Rollout(samples_per_prompt=16, max_tokens=_ANSWER_TOKENS),
        generator=generator.Config(max_num_seqs=1024),
        trainer=trainer.Config(
            lr=7e-4,
            betas=_BETAS,
            lr_scheduler="cosine",
            warmup_steps=max(max_steps, 0) * minibatches // 16,
            max_grad_norm=0.3,
            max_tokens_per_microbatch=1024,
        ),
        evaluate=Evaluate(data="{run}/prepared/held_out.parquet", every=20, max_tokens=_ANSWER_TOKENS),
        checkpoint=Checkpoint(every=20),
        num_threads=1,
    )


def _demonstrations() -> RunConfig:
    """Supervised learning until a fifth of 256 training problems are solved."""
    return RunConfig(
        name="addition, start",
        model=Model("{run}/prepared/model"),
        data="{run}/prepared/train.parquet",
        algorithm=sft.Config(),
        max_steps=600,
        batch_size=128,
        trainer=trainer.Config(lr=1e-3, betas=_BETAS, max_tokens_per_microbatch=1024),
        rewards=(_EXACT,),
        generator=generator.Config(max_num_seqs=1024),
        evaluate=Evaluate(data="{run}/prepared/train.parquet", every=5, max_examples=256, max_tokens=_ANSWER_TOKENS),
        stop_when=StopWhen(metric="eval/accuracy", at_least=0.2),
        checkpoint=Checkpoint(every=100, keep=1),
        num_threads=1,
    )


def prepare(folder: Path, seed: int) -> None:
    """Write the problems, and a model that knows nothing, into `folder`."""
    train, held_out = _problems(random.Random(seed))
    _write_parquet(folder / "train.parquet", train)
    _write_parquet(folder / "held_out.parquet", held_out)
    _write_model(folder / "model", seed)


def _problems(rng: random.Random) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """All sums of two numbers below 100, shuffled; those of a tenth of the unordered pairs are held out."""
    pairs = [(a, b) for a in range(100) for b in range(a, 100)]
    held_out = set(rng.sample(pairs, len(pairs) // 10))
    both: tuple[list[dict[str, str]], list[dict[str, str]]] = ([], [])
    for a in range(100):
        for b in range(100):
            answer = f"{a + b:03d}"[::-1]
            problem = {"prompt": f"{a:02d}+{b:02d}=", "completion": answer, "answer": answer}
            both[(min(a, b), max(a, b)) in held_out].append(problem)
    for problems in both:
        rng.shuffle(problems)
    return both


def _write_parquet(path: Path, rows: list[dict[str, str]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)


def _write_model(folder: Path, seed: int) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = character_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        intermediate_size=256,
        max_position_embeddings=32,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        with no_progress_bars():
            Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def character_tokenizer() -> Any:
    """One token for each character."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate(["<pad>", "<eos>", *"0123456789+="])}
    characters = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    characters.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=characters, pad_token="<pad>", eos_token="<eos>")
