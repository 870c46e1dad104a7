"""Conformance suite for workflows: `check_rollouts`.

    def test_workflow_conforms() -> None:
        check_rollouts(build, [{"prompt": "1+1="}], prompt=prompt, vocabulary=32)

The suite runs the workflow on a generator that samples random tokens, and needs no model. The generator is seeded. It
finishes requests in any order, fails on some, and keeps others waiting. Each check is a function of `Case` that raises
AssertionError with a message. `CHECKS` lists them in order:

    validity       rows can be trained, stored and logged
    requests       keys and seeds
    tokens         rows have the tokens that were sampled, and no others are trained
    repetition     rows depend on the draw, and not on what runs beside it, or on the order in which requests finish
    failures       a sample that fails is a missing sample
    ending         the end of a draw, and its cancellation
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from purerl.data.chat import Prompt
from purerl.errors import ConfigError, nearest
from purerl.rollouts.types import Score, Workflow
from purerl.testing.rollouts import ending, failures, repetition, requests, tokens, validity
from purerl.testing.rollouts.case import Case
from purerl.testing.rollouts.generator import Respond, random_tokens

__all__ = ["CHECKS", "Case", "check_rollouts", "random_tokens"]

CHECKS = (
    validity.every_draw_gives_rows,
    validity.rows_follow_the_schema,
    validity.labels_are_those_of_the_draw,
    validity.rewards_are_those_of_the_result,
    validity.texts_and_metrics_can_be_logged,
    validity.groups_can_be_stored,
    requests.keys_begin_with_that_of_the_draw,
    requests.seeds_come_from_the_draw,
    tokens.sampled_tokens_are_unchanged,
    tokens.every_sampled_token_is_in_a_row,
    repetition.draw_determines_its_rows,
    repetition.other_draws_and_order_change_nothing,
    repetition.examples_are_not_changed,
    failures.failed_request_is_a_missing_sample,
    failures.failed_reward_is_a_missing_sample,
    failures.missing_reward_is_not_counted,
    ending.finished_draw_leaves_nothing,
    ending.cancelled_draw_leaves_nothing,
    ending.cancelled_reward_leaves_nothing,
)
"""All checks, in the order in which they run."""


def check_rollouts(
    build: Callable[[Score], Workflow],
    examples: Sequence[Mapping[str, Any]],
    *,
    prompt: Callable[[Mapping[str, Any]], Prompt],
    vocabulary: int,
    respond: Respond | None = None,
    timeout: float = 10.0,
    exempt: Collection[str] = (),
) -> None:
    """Test that a workflow satisfies what the training loop expects, see `purerl.rollouts.types.Workflow`.

    build       (score) -> the workflow, which scores its samples with `score`, the reward functions. It is called for
                each run. A workflow with other rewards need not use them
    examples    rows of the data set; as many as should be tested
    prompt      (example) -> the text and the tokens of its prompt
    vocabulary  token ids are below it
    respond     (request, random generator) -> the tokens of a completion; by default up to eight random tokens. Tokens
                after a stop token or beyond the limit are cut. A function that plays well tests more
    timeout     seconds in which tasks must end after a cancellation, and in which something must happen
    exempt      names of checks that are not run

    Raises: AssertionError with the name of the check, the value and the expected value; ConfigError if a name in
        `exempt` is not a check, or if there are no examples.
    """
    known = [check.__name__ for check in CHECKS]
    for name in exempt:
        if name not in known:
            raise ConfigError("an exemption", got=repr(name), need="the name of a check", do=nearest(name, known))
    if not examples:
        raise ConfigError("examples", got="none", need="at least one row of the data set")
    case = Case(build, examples, prompt, vocabulary, respond or random_tokens(vocabulary), timeout)
    for check in CHECKS:
        if check.__name__ in exempt:
            continue
        try:
            check(case)
        except AssertionError as error:
            raise AssertionError(f"{check.__name__}: {error}") from error
