"""Conformance suite for environments: `check_environment`.

    def test_environment_conforms() -> None:
        check_environment(Guess, [{"limit": 10}, {"limit": 20}])

The suite plays episodes with a policy that answers at random, and needs no model. Each check is a function of `Case`
that raises AssertionError with a message. `CHECKS` lists them in order:

    repetition     an episode depends on its example, its seed and the turns of the model, and on nothing else
    validity       what the environment returns can be used
    ending         the end of an episode, and `close`

Each has to detect its planted errors: docs/reference/planted_errors.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from purerl.envs.observations import Declared
from purerl.errors import ConfigError
from purerl.testing.environment import ending, repetition, validity
from purerl.testing.environment.case import Case, Policy, random_turn
from purerl.testing.suite import check_exemptions, run_check

__all__ = ["CHECKS", "Case", "check_environment", "random_turn"]

CHECKS = (
    validity.has_all_methods,
    validity.observations_are_valid,
    validity.observations_can_be_sent,
    validity.tools_are_valid,
    ending.environment_closes_at_any_time,
    validity.unusual_turns_are_answered,
    repetition.episode_depends_only_on_its_seed,
    repetition.episodes_do_not_influence_each_other,
    repetition.examples_are_not_changed,
    repetition.global_random_state_does_not_depend_on_what_was_before,
    repetition.labels_are_equal_in_other_process,
    ending.step_after_end_changes_nothing,
    ending.end_by_a_limit_is_answered,
    ending.close_releases_resources,
)
"""All checks, in the order in which they run."""


def check_environment(
    factory: Callable[[], Any],
    examples: Sequence[Mapping[str, Any]],
    *,
    policy: Policy = random_turn,
    has_states: bool = False,
    players: int = 1,
    images: bool = False,
    max_turns: int = 8,
    episodes: int = 4,
    exempt: Collection[str] = (),
) -> None:
    """Test that environments satisfy `purerl.envs.protocol.Environment`.

    factory     creates the environment of an episode; its methods are coroutines or plain functions. States are
                compared with those of another process if it can be pickled, as classes and functions of a module can
    examples    rows of the data set; as many as should be tested
    policy      (observation, tools, random generator) -> what the model writes in its turn: a text, or a text and tool
                calls. A policy that plays well tests more
    has_states  each turn must have a state
    players     number of players
    images      observations may have images
    max_turns   turns after which an episode is not played any longer
    episodes    episodes of each example, with different seeds
    exempt      names of checks that are not run

    Raises: AssertionError with the name of the check, the value and the expected value, and the rule; ConfigError if a
        name in `exempt` is not a check, or if there are no examples.
    """
    check_exemptions(exempt, CHECKS)
    if not examples:
        raise ConfigError("examples", got="none", need="at least one row of the data set")
    case = Case(factory, examples, policy, Declared(has_states, players, images), max_turns, episodes)
    for check in CHECKS:
        if check.__name__ not in exempt:
            run_check(check, case)
