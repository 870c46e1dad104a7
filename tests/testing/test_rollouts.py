"""`check_rollouts` accepts good workflows, and each of its checks finds workflows that break its rule."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from attrs import evolve

from purerl.backends.fake.model import text_of
from purerl.data.chat import Prompt
from purerl.envs.protocol import Observation
from purerl.errors import ConfigError
from purerl.protocols import Request
from purerl.rollouts.baseline import WithGreedyBaseline
from purerl.rollouts.environment import EnvironmentWorkflow
from purerl.rollouts.single_turn import SingleTurn
from purerl.rollouts.types import Score
from purerl.testing import check_rollouts
from purerl.testing.rollouts import CHECKS
from tests.rollouts.episodes import Opened, PlainText, Scripted, tokens_of, user
from tests.testing import workflows
from tests.testing.workflows import SAMPLING, Answers

EXAMPLES = [{"prompt": "cc", "answer": "7"}, {"prompt": "d", "answer": "8"}]


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


def test_workflow_of_a_user_is_good() -> None:
    check(Answers)


@pytest.mark.parametrize(
    ("mutant", "name", "words"),
    [
        (workflows.NoRows, "every_draw_gives_rows", "got no rows"),
        (workflows.Raises, "every_draw_gives_rows", "ZeroDivisionError: no row"),
        (workflows.StopsTheRun, "every_draw_gives_rows", "the run stopped: got EngineError"),
        (workflows.WrongLength, "rows_follow_the_schema", "field 'version'"),
        (workflows.NotFinite, "rows_follow_the_schema", "expected finite numbers"),
        (workflows.Greedy, "rows_follow_the_schema", "'temperature': got 0"),
        (workflows.NoMask, "rows_follow_the_schema", "'mask': got none"),
        (workflows.RowOfSample, "labels_are_those_of_the_draw", "derive it from draw.number"),
        (workflows.GroupOfExample, "labels_are_those_of_the_draw", "field 'group'"),
        (workflows.EpisodeOfSample, "labels_are_those_of_the_draw", "got 0 in the draws 1 and 10"),
        (workflows.NoReward, "rewards_are_those_of_the_result", "the sum of the field 'reward'"),
        (workflows.NoFinish, "texts_and_metrics_can_be_logged", "text 'finish': got None"),
        (workflows.MetricIsNan, "texts_and_metrics_can_be_logged", "metric 'length': got nan"),
        (
            workflows.KeepsObject,
            "groups_can_be_stored",
            "an object of type tests.testing.workflows.BadNumber",
        ),
        (workflows.KeyOfNumber, "keys_begin_with_that_of_the_draw", "expected one that begins with 'check 1/'"),
        (workflows.SameKeyTwice, "keys_begin_with_that_of_the_draw", "got 2 requests, expected 1"),
        (workflows.SameSeed, "seeds_come_from_the_draw", "use derive_seed"),
        (workflows.SeedOfNumber, "seeds_come_from_the_draw", "runs with different seeds"),
        (workflows.RandomSeed, "seeds_come_from_the_draw", "draw 1, repeated"),
        (workflows.ShiftedLogp, "sampled_tokens_are_unchanged", "field 'rollout_logp': got"),
        (workflows.OneVersion, "sampled_tokens_are_unchanged", "field 'version': got"),
        (workflows.OtherToken, "sampled_tokens_are_unchanged", "field 'tokens': got"),
        (workflows.PromptIsAction, "sampled_tokens_are_unchanged", "action token at position 1"),
        (workflows.OtherPrompt, "sampled_tokens_are_unchanged", "no request with the tokens before it"),
        (workflows.DropsSample, "every_sampled_token_is_in_a_row", "request 'check 1/1': got its tokens in no row"),
        (workflows.RandomPrompt, "draw_determines_its_rows", "truncated: got"),
        (workflows.NumberInProcess, "other_draws_and_order_change_nothing", "ground_truth: got"),
        (workflows.InOrderOfFinishing, "other_draws_and_order_change_nothing", "in another order, row 0"),
        (workflows.ChangesExample, "examples_are_not_changed", "the example of a draw: got"),
        (workflows.ErrorHasReward, "failed_request_is_a_missing_sample", "no row with a failure"),
        (workflows.ErrorIsZero, "failed_request_is_a_missing_sample", "got the reward 0.0, expected none"),
        (workflows.ErrorOfGroup, "failed_request_is_a_missing_sample", "got a failure in row 3 too"),
        (workflows.ErrorRaises, "failed_request_is_a_missing_sample", "got a failure in row 3 too"),
        (workflows.IgnoresFailedReward, "failed_reward_is_a_missing_sample", "no row with a failure"),
        (workflows.FailedRewardRaises, "failed_reward_is_a_missing_sample", "got a failure in all rows"),
        (workflows.AlwaysCounted, "failed_reward_is_a_missing_sample", "counted tokens, expected a mask that is false"),
        (workflows.NoneIsFailure, "missing_reward_is_not_counted", "counted tokens in all rows"),
        (workflows.LeavesRequest, "finished_draw_leaves_nothing", "got \\['check 1/2'\\]"),
        (workflows.LeavesTask, "finished_draw_leaves_nothing", "tasks after the end of a draw"),
        (workflows.IgnoresCancellation, "cancelled_draw_leaves_nothing", "when a draw was cancelled: got"),
        (workflows.ShieldsReward, "cancelled_reward_leaves_nothing", "waited for its reward: got"),
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
