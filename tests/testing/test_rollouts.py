"""`check_rollouts` accepts good workflows, and each of its checks finds workflows that break its rule."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from attrs import define, evolve

from purerl.backends.fake.model import text_of
from purerl.data.chat import Prompt
from purerl.envs.protocol import Observation
from purerl.errors import ConfigError, EngineError
from purerl.protocols import Completion, Request, Sampling
from purerl.rewards.adapters import RewardInput
from purerl.rewards.outcomes import Failure
from purerl.rewards.runner import RewardResult
from purerl.rollouts.baseline import WithGreedyBaseline
from purerl.rollouts.environment import EnvironmentWorkflow
from purerl.rollouts.single_turn import SingleTurn
from purerl.rollouts.types import Draw, Generate, Score, Trajectory
from purerl.seeds import derive_seed
from purerl.testing import check_rollouts
from purerl.testing.rollouts import CHECKS
from tests.rollouts.episodes import Opened, PlainText, Scripted, tokens_of, user

EXAMPLES = [{"prompt": "cc", "answer": "7"}, {"prompt": "d", "answer": "8"}]
SAMPLING = Sampling(temperature=1.0, max_tokens=6, stop_tokens=(1,))


def prompt(example: Mapping[str, Any]) -> Prompt:
    return Prompt(example["prompt"], tokens_of(example["prompt"]))


def check(build: Callable[[Score], Any], **options: Any) -> None:
    check_rollouts(build, EXAMPLES, **{"prompt": prompt, "vocabulary": 16, "timeout": 5.0, **options})


# --- the workflows of purerl -------------------------------------------------------------------------------------


class Tokenizer:
    def batch_decode(self, rows: Sequence[Sequence[int]], skip_special_tokens: bool) -> list[str]:
        return [text_of(row) for row in rows]


def single_turn(score: Score, samples: int = 3, temperature: float = 1.0) -> SingleTurn:
    return SingleTurn(
        tokenizer=Tokenizer(),  # pyright: ignore[reportArgumentType]
        sampling=evolve(SAMPLING, temperature=temperature),
        samples=samples,
        score=score,
        row_fields=lambda draw: {"group": draw.number, "example": draw.index},
    )


def with_greedy_baseline(score: Score) -> WithGreedyBaseline:
    return WithGreedyBaseline(single_turn(score), single_turn(score, 1, 0.0), lambda length: 0.25 * length)


def test_workflows_of_one_turn_conform() -> None:
    check(single_turn)
    check(with_greedy_baseline)


SCRIPT = [Observation(messages=[user("f")]), Observation(messages=[user("g")], reward=0.5), Observation(done=True)]


def episodes(**changes: Any) -> Callable[[Score], EnvironmentWorkflow]:
    """A builder of the workflow of an environment with three turns at most."""

    def build(score: Score) -> EnvironmentWorkflow:
        settings: dict[str, Any] = dict(samples_per_prompt=2, max_turns=4, sampling=SAMPLING, score=score)
        return EnvironmentWorkflow(
            open_environment=Opened(lambda sample: Scripted(changes.get("script", SCRIPT), delays=sample)),
            renderer=PlainText(),
            messages=lambda draw: [user(draw.example["prompt"])],
            fields=lambda draw: {},
            **{**settings, **{name: value for name, value in changes.items() if name != "script"}},
        )

    return build


def test_workflow_of_environments_conforms() -> None:
    check(episodes())
    check(episodes(history="rerender"))
    turns = [Observation(player=0), Observation(player=1, reward={0: 1.0, 1: -1.0}), Observation(done=True)]
    check(episodes(script=turns, players=2))
    check(episodes(script=[*SCRIPT[:2], Observation(done=True, reward=1.0)], score=None))


# --- a workflow of a user, and its mutants -----------------------------------------------------------------------


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


def test_workflow_of_a_user_is_good() -> None:
    check(Answers)


@pytest.mark.parametrize(
    ("mutant", "name", "words"),
    [
        (NoRows, "every_draw_gives_rows", "got no rows"),
        (Raises, "every_draw_gives_rows", "ZeroDivisionError: no row"),
        (StopsTheRun, "every_draw_gives_rows", "the run stopped: got EngineError"),
        (WrongLength, "rows_follow_the_schema", "field 'version'"),
        (NotFinite, "rows_follow_the_schema", "expected finite numbers"),
        (Greedy, "rows_follow_the_schema", "'temperature': got 0"),
        (NoMask, "rows_follow_the_schema", "'mask': got none"),
        (RowOfSample, "labels_are_those_of_the_draw", "derive it from draw.number"),
        (GroupOfExample, "labels_are_those_of_the_draw", "field 'group'"),
        (EpisodeOfSample, "labels_are_those_of_the_draw", "got 0 in the draws 1 and 10"),
        (NoReward, "rewards_are_those_of_the_result", "the sum of the field 'reward'"),
        (NoFinish, "texts_and_metrics_can_be_logged", "text 'finish': got None"),
        (MetricIsNan, "texts_and_metrics_can_be_logged", "metric 'length': got nan"),
        (KeepsObject, "groups_can_be_stored", "cannot be pickled: got TypeError: a number that is a lock"),
        (KeyOfNumber, "keys_begin_with_that_of_the_draw", "expected one that begins with 'check 1/'"),
        (SameKeyTwice, "keys_begin_with_that_of_the_draw", "got 2 requests, expected 1"),
        (SameSeed, "seeds_come_from_the_draw", "use derive_seed"),
        (SeedOfNumber, "seeds_come_from_the_draw", "runs with different seeds"),
        (RandomSeed, "seeds_come_from_the_draw", "draw 1, repeated"),
        (ShiftedLogp, "sampled_tokens_are_unchanged", "field 'rollout_logp': got"),
        (OneVersion, "sampled_tokens_are_unchanged", "field 'version': got"),
        (OtherToken, "sampled_tokens_are_unchanged", "field 'tokens': got"),
        (PromptIsAction, "sampled_tokens_are_unchanged", "action token at position 1"),
        (OtherPrompt, "sampled_tokens_are_unchanged", "no request with the tokens before it"),
        (DropsSample, "every_sampled_token_is_in_a_row", "request 'check 1/1': got its tokens in no row"),
        (RandomPrompt, "draw_determines_its_rows", "truncated: got"),
        (NumberInProcess, "other_draws_and_order_change_nothing", "ground_truth: got"),
        (InOrderOfFinishing, "other_draws_and_order_change_nothing", "in another order, row 0"),
        (ChangesExample, "examples_are_not_changed", "the example of a draw: got"),
        (ErrorHasReward, "failed_request_is_a_missing_sample", "no row with a failure"),
        (ErrorIsZero, "failed_request_is_a_missing_sample", "got the reward 0.0, expected none"),
        (ErrorOfGroup, "failed_request_is_a_missing_sample", "got a failure in row 3 too"),
        (ErrorRaises, "failed_request_is_a_missing_sample", "got a failure in row 3 too"),
        (IgnoresFailedReward, "failed_reward_is_a_missing_sample", "no row with a failure"),
        (FailedRewardRaises, "failed_reward_is_a_missing_sample", "got a failure in all rows"),
        (AlwaysCounted, "failed_reward_is_a_missing_sample", "counted tokens, expected a mask that is false"),
        (NoneIsFailure, "missing_reward_is_not_counted", "counted tokens in all rows"),
        (LeavesRequest, "finished_draw_leaves_nothing", "got \\['check 1/2'\\]"),
        (LeavesTask, "finished_draw_leaves_nothing", "tasks after the end of a draw"),
        (IgnoresCancellation, "cancelled_draw_leaves_nothing", "when a draw was cancelled: got"),
        (ShieldsReward, "cancelled_reward_leaves_nothing", "waited for its reward: got"),
    ],
)
def test_check_finds_workflow_that_breaks_its_rule(mutant: type[Answers], name: str, words: str) -> None:
    others = [other.__name__ for other in CHECKS if other.__name__ != name]
    with pytest.raises(AssertionError, match=words) as caught:
        check(mutant, exempt=others, timeout=0.3)
    assert str(caught.value).startswith(f"{name}: ")


def test_every_check_has_a_mutant() -> None:
    [mark] = test_check_finds_workflow_that_breaks_its_rule.pytestmark
    assert {name for _, name, _ in mark.args[1]} == {check.__name__ for check in CHECKS}


def test_completions_are_those_of_the_given_function() -> None:
    seen = []

    def respond(request: Request, rng: random.Random) -> list[int]:
        seen.append(request.key)
        return [5, 1, 5]

    class Echo(Answers):
        async def row(self, draw, k, completion):
            assert [*completion.tokens] == [5, 1], "what follows the stop token is cut"
            return await super().row(draw, k, completion)

    check(Echo, respond=respond, exempt=["failed_request_is_a_missing_sample", "cancelled_draw_leaves_nothing"])
    assert seen


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'every_draw_gives_rows'"):
        check(Answers, exempt=["every_draw_gives_row"])
    with pytest.raises(ConfigError, match="at least one row"):
        check_rollouts(Answers, [], prompt=prompt, vocabulary=16)
