"""A workflow as a user writes it, and its mutants: each breaks a rule that `check_rollouts` checks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from attrs import define, evolve

from purerl.backends.fake.model import text_of
from purerl.errors import EngineError
from purerl.protocols import Completion, Request, Sampling
from purerl.rewards.adapters import RewardInput
from purerl.rewards.outcomes import Failure
from purerl.rewards.results import RewardResult
from purerl.rollouts.types import Draw, Generate, Score, Trajectory
from purerl.seeds import derive_seed

SAMPLING = Sampling(temperature=1.0, max_tokens=6, stop_tokens=(1,))


@define
class Answers:
    """Two samples of one turn, written without the parts of purerl; the mutants replace something in it."""

    score: Score
    sampling: Sampling = SAMPLING

    async def __call__(self, draw: Draw, generate: Generate) -> list[Trajectory]:
        completions = await generate([self.request(draw, k) for k in range(2)])
        return [await self.row(draw, k, completion) for k, completion in enumerate(completions)]

    def request(self, draw: Draw, k: int) -> Request:
        return Request(f"{draw.key}/{k}", draw.prompt.tokens, self.sampling, derive_seed(*draw.seeds, k))

    async def row(self, draw: Draw, k: int, completion: Completion) -> Trajectory:
        result = await self.result(draw, completion)
        return Trajectory(self.fields(draw, k, completion, result), self.texts(draw, completion), result)

    async def result(self, draw: Draw, completion: Completion) -> RewardResult:
        if completion.finish == "error":
            return RewardResult(failure=Failure("the generator", "failed", completion.error or ""))
        seed = derive_seed(draw.seeds[0], completion.key)
        [result] = await self.score([RewardInput(completion.key, text_of(completion.tokens), draw.example, seed)])
        return result

    def fields(self, draw: Draw, k: int, completion: Completion, result: RewardResult) -> dict[str, Any]:
        before, after = len(draw.prompt.tokens), len(completion.tokens)
        return {
            "tokens": [*draw.prompt.tokens, *completion.tokens],
            "action": [False] * before + [True] * after,
            "mask": [False] * before + [result.reward is not None] * after,
            "row": 2 * draw.number + k,
            "group": draw.number,
            "example": draw.index,
            "reward": [0.0] * (before + after - 1) + [result.reward or 0.0],
            "rollout_logp": [0.0] * before + [*completion.logp],
            "version": [0] * before + [*completion.version],
            "temperature": self.sampling.temperature,
            "truncated": completion.finish == "length",
        }

    def texts(self, draw: Draw, completion: Completion) -> dict[str, Any]:
        return {"prompt": draw.prompt.text, "completion": text_of(completion.tokens), "finish": completion.finish}


class NoRows(Answers):
    async def __call__(self, draw, generate):
        await Answers.__call__(self, draw, generate)
        return []


class Raises(Answers):
    async def row(self, draw, k, completion):
        raise ZeroDivisionError("no row")


class StopsTheRun(Answers):
    async def row(self, draw, k, completion):
        raise EngineError("no row")


def with_fields(change: Callable[..., dict[str, Any]]) -> type[Answers]:
    """A mutant whose fields are those of `Answers` and of `change`."""

    class Changed(Answers):
        def fields(self, draw, k, completion, result):
            fields = super().fields(draw, k, completion, result)
            return fields | change(draw, k, fields)

    return Changed


WrongLength = with_fields(lambda draw, k, fields: {"version": fields["version"][1:]})
NotFinite = with_fields(lambda draw, k, fields: {"rollout_logp": [float("-inf")] * len(fields["tokens"])})
Greedy = with_fields(lambda draw, k, fields: {"temperature": 0.0})
RowOfSample = with_fields(lambda draw, k, fields: {"row": k})
GroupOfExample = with_fields(lambda draw, k, fields: {"group": draw.index})
EpisodeOfSample = with_fields(lambda draw, k, fields: {"episode": k})
NoReward = with_fields(lambda draw, k, fields: {"reward": [0.0] * len(fields["tokens"])})
ShiftedLogp = with_fields(lambda draw, k, fields: {"rollout_logp": [*fields["rollout_logp"][1:], 0.0]})
OneVersion = with_fields(lambda draw, k, fields: {"version": [3] * len(fields["tokens"])})
OtherToken = with_fields(lambda draw, k, fields: {"tokens": [*fields["tokens"][:-1], (fields["tokens"][-1] + 1) % 16]})
PromptIsAction = with_fields(lambda draw, k, fields: {"action": [False] + [True] * (len(fields["tokens"]) - 1)})
OtherPrompt = with_fields(lambda draw, k, fields: {"tokens": [9, *fields["tokens"][1:]]})
AlwaysCounted = with_fields(lambda draw, k, fields: {"mask": fields["action"]})
RandomPrompt = with_fields(lambda draw, k, fields: {"truncated": random.random() < 0.5})


class NoMask(Answers):
    def fields(self, draw, k, completion, result):
        return {name: value for name, value in super().fields(draw, k, completion, result).items() if name != "mask"}


class NoFinish(Answers):
    def texts(self, draw, completion):
        return {"prompt": draw.prompt.text, "completion": text_of(completion.tokens)}


class MetricIsNan(Answers):
    async def row(self, draw, k, completion):
        return evolve(await super().row(draw, k, completion), metrics={"length": float("nan")})


class KeepsObject(Answers):
    async def row(self, draw, k, completion):
        row = await super().row(draw, k, completion)
        return evolve(row, metrics={"length": BadNumber(1)})


class BadNumber(int):
    def __reduce__(self):
        raise TypeError("a number that is a lock")


class KeyOfNumber(Answers):
    def request(self, draw, k):
        return evolve(super().request(draw, k), key=f"{draw.number}/{k}")


class SameKeyTwice(Answers):
    async def __call__(self, draw, generate):
        completions = [*await generate([self.request(draw, 0)]), *await generate([self.again(draw)])]
        return [await self.row(draw, k, completion) for k, completion in enumerate(completions)]

    def again(self, draw):
        return evolve(self.request(draw, 1), key=f"{draw.key}/0")


class SameSeed(Answers):
    def request(self, draw, k):
        return evolve(super().request(draw, k), seed=derive_seed(*draw.seeds))


class SeedOfNumber(Answers):
    def request(self, draw, k):
        return evolve(super().request(draw, k), seed=derive_seed(draw.number, k))


class RandomSeed(Answers):
    def request(self, draw, k):
        return evolve(super().request(draw, k), seed=random.SystemRandom().getrandbits(60))


class DropsSample(Answers):
    async def __call__(self, draw, generate):
        return (await Answers.__call__(self, draw, generate))[:1]


class NumberInProcess(Answers):
    """The rows depend on how many draws were sampled before."""

    count = 0

    def texts(self, draw, completion):
        NumberInProcess.count += 1
        return super().texts(draw, completion) | {"ground_truth": str(NumberInProcess.count)}


class InOrderOfFinishing(Answers):
    async def __call__(self, draw, generate):
        calls = [generate([self.request(draw, k)]) for k in range(2)]
        completions = [(await call)[0] for call in asyncio.as_completed(calls)]
        return [await self.row(draw, k, completion) for k, completion in enumerate(completions)]


class ChangesExample(Answers):
    async def row(self, draw, k, completion):
        draw.example["answer"] = "9"
        return await super().row(draw, k, completion)


class ErrorHasReward(Answers):
    async def result(self, draw, completion):
        return await super().result(draw, evolve(completion, finish="stop"))


class ErrorIsZero(Answers):
    async def result(self, draw, completion):
        result = await super().result(draw, completion)
        return evolve(result, weighted_components={"check": 0.0}) if result.failure else result


class ErrorOfGroup(Answers):
    async def __call__(self, draw, generate):
        rows = await Answers.__call__(self, draw, generate)
        failed = next((row.result for row in rows if row.result.failure), None)
        return [evolve(row, result=failed, fields={**row.fields, **_masked(row)}) for row in rows] if failed else rows


def _masked(row: Trajectory) -> dict[str, Any]:
    length = len(row.fields["tokens"])
    return {"mask": [False] * length, "reward": [0.0] * length}


class ErrorRaises(Answers):
    async def result(self, draw, completion):
        if completion.finish == "error":
            raise RuntimeError(completion.error)
        return await super().result(draw, completion)


class IgnoresFailedReward(Answers):
    async def result(self, draw, completion):
        result = await super().result(draw, completion)
        return RewardResult({}, {"check": 0.0}) if result.failure and completion.finish != "error" else result


class FailedRewardRaises(Answers):
    async def result(self, draw, completion):
        result = await super().result(draw, completion)
        if result.failure and completion.finish != "error":
            raise RuntimeError("a reward function has failed")
        return result


class NoneIsFailure(Answers):
    async def result(self, draw, completion):
        result = await super().result(draw, completion)
        return result if result.failure or result.reward else RewardResult({}, {"check": 0.0})


class LeavesRequest(Answers):
    async def __call__(self, draw, generate):
        extra = asyncio.ensure_future(generate([self.request(draw, 2)]))
        rows = await Answers.__call__(self, draw, generate)
        del extra
        return rows


class LeavesTask(Answers):
    async def __call__(self, draw, generate):
        self.tasks.append(asyncio.ensure_future(asyncio.sleep(60)))
        return await Answers.__call__(self, draw, generate)

    tasks: Any = []  # noqa: RUF012 -- a reference, so that the tasks are not collected


class IgnoresCancellation(Answers):
    async def __call__(self, draw, generate):
        try:
            return await Answers.__call__(self, draw, generate)
        except asyncio.CancelledError:
            await asyncio.sleep(60)
            raise


class ShieldsReward(Answers):
    async def result(self, draw, completion):
        return await asyncio.shield(super().result(draw, completion))
