"""Evaluations and validations of the policy of a run: before training, at intervals, and after the last step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from attrs import evolve, frozen

from purerl.config.check import accuracy_rewards_of
from purerl.config.requirements import Requirements
from purerl.config.schema import RunConfig
from purerl.evaluation.attempts import attempt_problems, num_attempts
from purerl.evaluation.problem_results import as_rows, metrics
from purerl.evaluation.settings import Evaluate, Validation
from purerl.loop.draws import Sampler, examples_workflow
from purerl.loop.state import Clock, LoopState
from purerl.loop.step import Learner
from purerl.loop.validation import Validator
from purerl.ranks import Ranks
from purerl.rollouts.opened import Engines, Task
from purerl.rollouts.types import Group
from purerl.store.directory import RunDirectory
from purerl.store.evaluations import write_evaluation
from purerl.store.failures import RunFailures
from purerl.system.phases import phase

__all__ = ["Evaluator", "Measures", "open_measures"]


@frozen
class Measures:
    """The evaluation and the validation of a policy.

    evaluation, validation  their settings; None: there is none
    evaluate                number of a step -> metrics of the weights of the generator
    validate                state of the loop -> metrics of the policy on held-out data
    """

    evaluation: Evaluate | None
    validation: Validation | None
    evaluate: Callable[[int], dict[str, float]] = lambda step: {}
    validate: Callable[[LoopState], dict[str, float]] = lambda state: {}

    def evaluations_due(self, step: int, *, is_last: bool = False) -> list[str]:
        """The evaluations due after `step`: "evaluate", "validate", both, or none. After the last step both are due."""
        sections = {"evaluate": self.evaluation, "validate": self.validation}
        return [name for name, section in sections.items() if section and (is_last or section.is_due(step))]

    def run_evaluations(self, state: LoopState, names: Sequence[str], clock: Clock) -> dict[str, float]:
        """The metrics of those with these `names`."""
        results: dict[str, float] = {}
        for name in names:
            with clock(name):
                results |= self.evaluate(state.step) if name == "evaluate" else self.validate(state)
        return results


@frozen(kw_only=True)
class Evaluator:
    """Evaluates the weights of the generator on the problems of `task`, and stores the attempts.

    accuracy_rewards  the functions that decide which attempts are correct
    max_failure_rate  the share of the attempts that may fail
    """

    settings: Evaluate
    task: Task
    engines: Engines
    accuracy_rewards: Sequence[str]
    max_failure_rate: float
    seed: int
    directory: RunDirectory
    ranks: Ranks

    def __call__(self, step: int) -> dict[str, float]:
        """The metrics after `step`. Raises: RewardError or RolloutError if too many attempts fail."""
        settings, task = self.settings, self.task
        failures = RunFailures(self.directory, settings.samples_per_prompt, self.max_failure_rate)
        failures.start(step)
        failures.expect(num_attempts(task.problems, settings))
        finished, total = count(1), sum(data.num_rows for data in task.problems.values())
        with phase(f"evaluating after step {step}") as progress:

            def on_group(name: str, group: Group) -> None:
                failures.add(group)
                progress(next(finished), total, "problems")

            results = attempt_problems(
                task,
                self.engines,
                settings,
                accuracy_rewards=self.accuracy_rewards,
                seed=self.seed,
                on_group=on_group,
                on_missing=failures.add_missing,
                ranks=self.ranks,
            )
        if self.directory.is_owner:
            write_evaluation(self.directory.evaluations, step, as_rows(results))
        return metrics(results, settings)


def open_measures(
    config: RunConfig,
    needs: Requirements,
    task: Task,
    engines: Engines,
    learner: Learner,
    directory: RunDirectory,
    *,
    ranks: Ranks,
) -> Measures:
    """The evaluation on the problems of `task`, and the validation on its held-out data, as far as there are any."""
    measures, held_out = Measures(config.evaluation, config.validation), task.training.held_out
    if held_out is not None:
        sampler = Sampler(held_out, task.chat, config.seed, needs.teachers, needs.number_columns)
        validator = Validator(learner, sampler, examples_workflow(needs, sampler), config.batch_size)
        measures = evolve(measures, validate=validator)
    if config.evaluation is None or engines.generator is None:
        return measures
    evaluator = Evaluator(
        settings=config.evaluation,
        task=task,
        engines=engines,
        accuracy_rewards=accuracy_rewards_of(config),
        max_failure_rate=config.reward_workers.max_failure_rate,
        seed=config.seed,
        directory=directory,
        ranks=ranks,
    )
    return evolve(measures, evaluate=evaluator)
