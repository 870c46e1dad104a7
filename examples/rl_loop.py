"""A reinforcement learning loop on one page: GRPO with a trainer and a generator of purerl, without `purerl.train`.

    python examples/rl_loop.py

A small transformer with random weights learns to write a number backwards: ``47=`` is completed by ``74``. Nobody shows
it an answer. It samples completions, and the reward of a completion is the fraction of its digits that are correct.

A step of the loop, in the order of this file:

    sample      the generator completes each prompt several times; these completions are a group
    reward      a function scores each completion
    collate     prompts and completions become a batch, in which every value belongs to a token or to a row
    score       the trainer computes the log-probabilities under the policy before the update
    advantages  each completion is compared with the others of its group
    update      the trainer takes optimizer steps on parts of the batch
    sync        the generator gets the new weights

`purerl.train` takes the same steps. It adds asynchronous sampling, several ranks, checkpoints, trackers and checks.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import torch
from tensordict import TensorDict
from transformers import PreTrainedTokenizerFast

from purerl.algos import grpo
from purerl.algos.algebra import Objective, State, compute_advantages, outputs_of, prepare_step
from purerl.backends.hf import generator as hf_generator
from purerl.backends.hf import trainer as hf_trainer
from purerl.backends.hf.tiny_models import word_tokenizer, write_small_model
from purerl.batch import FIELDS, check_batch, collate, with_fields
from purerl.protocols import Completion, Generator, Request, Sampling, Trainer, generate
from purerl.seeds import derive_seed
from purerl.settings import Model

SEED = 0
NUM_STEPS, EVALUATE_EVERY = 100, 10
NUM_PROMPTS, SAMPLES_PER_PROMPT = 32, 8  # of a step
NUM_MINIBATCHES = 2  # optimizer steps of a step
ALGORITHM = grpo.algorithm(grpo.Config(clip_high=0.28))
NUM_DIGITS = 2
SHAPE = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 16, "intermediate_size": 64,
    "initializer_range": 0.1,
}  # fmt: skip


# --- data and reward ---------------------------------------------------------------------------------------------


def read_prompts() -> tuple[list[str], list[str]]:
    """The prompts ``00=`` to ``99=``, shuffled: (training, held out)."""
    prompts = [f"{number:0{NUM_DIGITS}d}=" for number in range(10**NUM_DIGITS)]
    random.Random(SEED).shuffle(prompts)
    return prompts[20:], prompts[:20]


def correct_digits(prompt: str, completion: str) -> float:
    """The fraction of the digits of `prompt` that are at their places in `completion`, backwards."""
    answer = prompt[:NUM_DIGITS][::-1]
    return sum(a == b for a, b in zip(answer, completion, strict=False)) / NUM_DIGITS


# --- rollouts ----------------------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """A completion of a prompt, with its reward. `group` is the number of the prompt."""

    group: int
    prompt_tokens: Sequence[int]
    completion: Completion
    reward: float


def sample(
    generator: Generator,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    samples_per_prompt: int,
    *,
    temperature: float,
    seed: int,
) -> list[Sample]:
    """Complete each prompt `samples_per_prompt` times, and score the completions."""
    sampling = Sampling(temperature=temperature, max_tokens=NUM_DIGITS)
    tokens = [tokenizer(prompt)["input_ids"] for prompt in prompts for _ in range(samples_per_prompt)]
    requests = [Request(str(k), prompt, sampling, derive_seed(seed, k)) for k, prompt in enumerate(tokens)]
    completions = generate(generator, requests)
    texts = tokenizer.batch_decode([[*completion.tokens] for completion in completions])
    groups = [k // samples_per_prompt for k in range(len(completions))]
    rewards = [correct_digits(prompts[group], text) for group, text in zip(groups, texts, strict=True)]
    return [Sample(*columns) for columns in zip(groups, tokens, completions, rewards, strict=True)]


def to_batch(samples: Sequence[Sample]) -> TensorDict:
    """One row for each sample: the prompt and the completion, padded on the right.

    The policy's own tokens are `action`. The reward is at the last of them, and 0 at all others.
    """
    rows = []
    for row, (group, prompt, completion, reward) in enumerate(samples):
        before, after = len(prompt), len(completion.tokens)
        rows.append({
            "row": row,
            "group": group,
            "tokens": [*prompt, *completion.tokens],
            "action": [False] * before + [True] * after,
            "reward": [0.0] * (before + after - 1) + [reward],
            "temperature": 1.0,
        })  # fmt: skip
    return check_batch(collate(rows), ALGORITHM.reads)


# --- training ----------------------------------------------------------------------------------------------------


def train_step(trainer: Trainer, batch: TensorDict, state: State, *, seed: int) -> State:
    """Score the batch, compute advantages, and take an optimizer step on each mini-batch.

    The state of the algorithm is passed on from step to step; that of GRPO is empty.
    """
    scores = trainer.score(batch, ["logp"])
    batch = with_fields(batch, old_logp=scores["logp"])
    state, batch = compute_advantages(ALGORITHM, state, batch)
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(seed))
    for rows in order.chunk(NUM_MINIBATCHES):
        for objective in ALGORITHM.objectives:
            optimizer_step(trainer, objective, batch[rows])
    return state


def optimizer_step(trainer: Trainer, objective: Objective, batch: TensorDict) -> None:
    """Minimize `objective` on `batch`.

    The counts, by which losses are divided, are those of the whole optimizer step. So the trainer can split the rows
    into micro-batches of any size, and over any number of ranks, and the gradient stays the same.
    """
    batch, counts = prepare_step(objective, batch)
    trainer.step(batch, objective, counts)


# --- the loop ----------------------------------------------------------------------------------------------------


def evaluate(generator: Generator, tokenizer: PreTrainedTokenizerFast, prompts: Sequence[str]) -> float:
    """The accuracy of greedy decoding: the fraction of prompts with the right answer."""
    samples = sample(generator, tokenizer, prompts, 1, temperature=0.0, seed=SEED)
    return sum(each.reward == 1 for each in samples) / len(samples)


def open_engines(folder: Path, num_steps: int) -> tuple[PreTrainedTokenizerFast, Trainer, Generator]:
    """Write a model with random weights into `folder`, and load it into a trainer and a generator."""
    tokenizer = word_tokenizer("0123456789=")
    write_small_model(folder, tokenizer, seed=SEED, max_length=8, **SHAPE)
    model = Model(str(folder))
    trainer = hf_trainer.build(
        hf_trainer.Config(lr=5e-3, betas=(0.9, 0.99)),
        model=model,
        role="policy",
        outputs=outputs_of(ALGORITHM, "policy", FIELDS),
        updates=num_steps * NUM_MINIBATCHES,
        seed=SEED,
    )
    return tokenizer, trainer, hf_generator.build(hf_generator.Config(), model=model, seed=SEED)


def learn(folder: Path, num_steps: int = NUM_STEPS) -> list[float]:
    """Train for `num_steps` steps, and return the accuracy on held-out prompts at each evaluation."""
    training, held_out = read_prompts()
    tokenizer, trainer, generator = open_engines(folder, num_steps)
    with closing(trainer), closing(generator):
        rng, state = random.Random(SEED), ALGORITHM.advantage.init()
        accuracies = [evaluate(generator, tokenizer, held_out)]
        print(f"step   0  accuracy {accuracies[0]:.2f}")
        for step in range(1, num_steps + 1):
            seed, prompts = derive_seed(SEED, step), rng.sample(training, NUM_PROMPTS)
            samples = sample(generator, tokenizer, prompts, SAMPLES_PER_PROMPT, temperature=1.0, seed=seed)
            state = train_step(trainer, to_batch(samples), state, seed=seed)
            generator.load_weights(trainer.weights(), version=step)
            if step % EVALUATE_EVERY == 0:
                accuracies.append(evaluate(generator, tokenizer, held_out))
                reward = sum(each.reward for each in samples) / len(samples)
                print(f"step {step:3}  accuracy {accuracies[-1]:.2f}  mean reward {reward:.2f}")
    return accuracies


if __name__ == "__main__":
    torch.set_num_threads(1)  # a model this small is faster on one core
    with tempfile.TemporaryDirectory() as directory:
        learn(Path(directory))
