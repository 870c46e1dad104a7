"""Where the rows of a step come from: the policy itself, demonstrations, or preference pairs.

A source is a function (run, state, clock) -> (state, samples, facts): it draws examples, moves `state.drawn` on, and
makes rows of them; `facts` are metrics that only it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from attrs import evolve, frozen

from purerl.algos.algebra import select_rows
from purerl.algos.parts.shaping import overlong_penalty
from purerl.batch import collate
from purerl.config.schema import Rollout
from purerl.data.chat import Prompt, TokenizedExample
from purerl.data.examples import Example, indices_of_draws, prompts_at, rows_at, tokenized_at
from purerl.loop.complete import complete
from purerl.loop.judging import judged
from purerl.loop.metrics import reward_metrics
from purerl.loop.run import Clock, Run, Sample, State, seed_of
from purerl.protocols import Completion, Request, Sampling
from purerl.rewards.adapters import RewardInput
from purerl.rewards.runner import RewardResult

__all__ = ["Draw", "demonstrations", "draw", "preferences", "rollouts"]


@frozen
class Draw:
    """An example, its prompt as the model sees it, the number of its draw, and its index in the data set."""

    number: int
    index: int
    example: Example
    prompt: Prompt


def draw(run: Run, state: State, count: int) -> tuple[State, list[Draw]]:
    """The next `count` examples."""
    indices = indices_of_draws(run.data.examples, run.config.seed, state.drawn, count)
    numbers, examples = range(state.drawn, state.drawn + count), rows_at(run.data.examples, indices)
    found = map(Draw, numbers, indices, examples, prompts_at(run.data.chat, run.data.examples, indices, examples))
    return evolve(state, drawn=state.drawn + count), list(found)


# --- the policy itself -------------------------------------------------------------------------------------------


def rollouts(run: Run, state: State, clock: Clock) -> tuple[State, list[Sample], dict[str, float]]:
    """Sample completions, judge them, and keep what the algorithm selects.

    Groups that it does not keep are replaced by those of further draws, `refills` times at most.
    """
    wanted = run.config.batch_size
    kept: list[Sample] = []
    sampled: list[Sample] = []
    greedy: dict[int, float | None] = {}
    for _ in range(1 + run.config.rollout.max_resample_rounds):
        state, indices_of_draws = draw(run, state, wanted - _groups(kept))
        with clock("generate"):
            requests = _requests(run, indices_of_draws)
            completions = complete(run.generator, run.tokenizer, requests)
        with clock("reward"):
            samples = _judged(run, state, indices_of_draws, requests, completions)
        if "greedy_score" in run.reads:
            with clock("generate"):
                greedy |= _greedy_scores(run, state, indices_of_draws)
        sampled += samples
        kept += _selected(run, samples)
        if _groups(kept) == wanted:
            break
    lengths = [sum(sample.fields["action"]) for sample in sampled]
    facts = {
        "rollout/sampled": len(sampled),
        "rollout/tokens": sum(lengths),
        "rollout/kept_fraction": len(kept) / len(sampled),
    }
    facts |= reward_metrics([sample.verdict for sample in sampled])
    if run.config.rollout.overlong:
        penalties = _penalties(run.config.rollout, lengths)
        facts["reward/overlong"] = sum(penalties) / len(penalties)
    return state, _extended(run, kept, greedy), facts


def _groups(samples: Sequence[Sample]) -> int:
    return len({sample.fields["group"] for sample in samples})


def _selected(run: Run, samples: list[Sample]) -> list[Sample]:
    keep = select_rows(run.algorithm, collate([sample.fields for sample in samples])).tolist()
    return [sample for sample, kept in zip(samples, keep, strict=True) if kept]


def _requests(run: Run, indices_of_draws: Sequence[Draw]) -> list[Request]:
    rollout = run.config.rollout
    sampling = Sampling(rollout.temperature, rollout.max_tokens, run.stop_tokens, rollout.stop_strings)
    return [
        Request(f"{one.number}/{k}", one.prompt.tokens, sampling, seed_of(run.config.seed, one.number, k))
        for one in indices_of_draws
        for k in range(rollout.samples_per_prompt)
    ]


def _judged(
    run: Run,
    state: State,
    indices_of_draws: Sequence[Draw],
    requests: Sequence[Request],
    completions: Sequence[tuple[Completion, str]],
) -> list[Sample]:
    samples = run.config.rollout.samples_per_prompt
    origins = [one for one in indices_of_draws for _ in range(samples)]
    cases = [
        RewardInput(completion.key, text, one.example, seed_of(run.config.seed, "reward", completion.key))
        for one, (completion, text) in zip(origins, completions, strict=True)
    ]
    verdicts = judged(run, cases, step=state.step + 1)
    rows = enumerate(
        zip(origins, requests, completions, verdicts, strict=True), start=indices_of_draws[0].number * samples
    )
    return [_rollout(row, one, request, *completed, verdict) for row, (one, request, completed, verdict) in rows]


def _rollout(row: int, one: Draw, request: Request, completion: Completion, text: str, verdict: RewardResult) -> Sample:
    before, after = len(request.tokens), len(completion.tokens)
    fields = {
        "tokens": [*request.tokens, *completion.tokens],
        "action": [False] * before + [True] * after,
        # A row whose reward cannot be told, and one without tokens, stays in its group but counts nowhere.
        "mask": [False] * before + [verdict.reward is not None] * after,
        "reward": [0.0] * (before + after - 1) + [verdict.reward or 0.0],
        "rollout_logp": [0.0] * before + [*completion.logp],
        "version": [0] * before + [*completion.version],
        "row": row,
        "group": one.number,
        "example": one.index,
        "temperature": request.sampling.temperature,
        "truncated": completion.finish == "length",
    }
    texts = {"prompt": one.prompt.text, "completion": text, "finish": completion.finish}
    return Sample(fields, texts, verdict)


def _greedy_scores(run: Run, state: State, indices_of_draws: Sequence[Draw]) -> dict[int, float | None]:
    """What the greedy completion of each prompt scores, by the number of the draw; None where it cannot be told.

    The penalty for length is part of it, as it is of what the samples score.
    """
    first = [request for request in _requests(run, indices_of_draws) if request.key.endswith("/0")]
    greedy = [evolve(request, sampling=evolve(request.sampling, temperature=0.0)) for request in first]
    completions = complete(run.generator, run.tokenizer, greedy)
    cases = [
        RewardInput(key := f"{one.number}/greedy", text, one.example, seed_of(run.config.seed, "reward", key))
        for one, (_, text) in zip(indices_of_draws, completions, strict=True)
    ]
    verdicts = judged(run, cases, step=state.step + 1)
    penalties = _penalties(run.config.rollout, [len(completion.tokens) for completion, _ in completions])
    return {
        one.number: None if verdict.reward is None else verdict.reward + penalty
        for one, verdict, penalty in zip(indices_of_draws, verdicts, penalties, strict=True)
    }


def _penalties(rollout: Rollout, lengths: Sequence[int]) -> list[float]:
    """What completions of these lengths lose by being long."""
    if rollout.overlong is None:
        return [0.0] * len(lengths)
    buffer, factor = rollout.overlong.buffer, rollout.overlong.factor
    length = torch.tensor(lengths, dtype=torch.float64)
    return overlong_penalty(length, max_length=rollout.max_tokens, buffer=buffer, factor=factor).tolist()


def _extended(run: Run, samples: Sequence[Sample], greedy: Mapping[int, float | None]) -> list[Sample]:
    """`samples` with the fields that only some algorithms read, if this one does."""
    names = dict.fromkeys(name for sample in samples for name in sample.verdict.weighted_components)
    makers: dict[str, Callable[[Sample], object]] = {
        "score": lambda sample: sample.verdict.reward or 0.0,
        "components": lambda sample: [sample.verdict.weighted_components.get(name, 0.0) for name in names],
        "greedy_score": lambda sample: greedy[sample.fields["group"]] or 0.0,
        # Without its baseline a row counts nowhere.
        "mask": lambda sample: [m and greedy[sample.fields["group"]] is not None for m in sample.fields["mask"]],
    }
    wanted = {name: make for name, make in makers.items() if name in run.reads or (name == "mask" and greedy)}
    return [
        evolve(sample, fields={**sample.fields, **{name: make(sample) for name, make in wanted.items()}})
        for sample in samples
    ]


# --- demonstrations and preferences ------------------------------------------------------------------------------


def demonstrations(run: Run, state: State, clock: Clock) -> tuple[State, list[Sample], dict[str, float]]:
    """A row for each demonstration."""
    state, found = draw(run, state, run.config.batch_size)
    return state, [Sample(_given(one, answer, row=one.number)) for one in found for answer in _answers(run, one)], {}


def preferences(run: Run, state: State, clock: Clock) -> tuple[State, list[Sample], dict[str, float]]:
    """Two rows for each pair: the prompt with what is chosen, and with what is rejected."""
    state, found = draw(run, state, run.config.batch_size)
    rows = [
        Sample(_given(one, answer, row=2 * one.number + k) | {"chosen": k == 0})
        for one in found
        for k, answer in enumerate(_answers(run, one))
    ]
    return state, rows, {}


def _answers(run: Run, one: Draw) -> list[TokenizedExample]:
    return tokenized_at(run.data.chat, run.data.examples, one.index, one.example)


def _given(one: Draw, answer: TokenizedExample, *, row: int) -> dict[str, object]:
    return {
        "tokens": answer.tokens,
        "action": answer.action,
        "row": row,
        "group": one.number,
        "example": one.index,
        "temperature": 1.0,
    }
