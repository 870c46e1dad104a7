"""The workflow of `rollout.workflow`: calling the function that makes it, and closing it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from attrs import frozen

from purerl.data.chat import Chat, Messages
from purerl.errors import PurerlError, RolloutError
from purerl.plugins import locate
from purerl.protocols import Sampling
from purerl.rewards.outcomes import failure_of_exception
from purerl.rewards.runner import RewardRunner
from purerl.rollouts.custom import CheckedWorkflow, requested_arguments, requires_score
from purerl.rollouts.row_images import RowImages
from purerl.rollouts.runtime import Runtime
from purerl.rollouts.settings import WorkflowSettings
from purerl.rollouts.single_turn import RowFields
from purerl.rollouts.types import Draw, Workflow

__all__ = ["WorkflowFunction", "close_workflow"]


@frozen
class WorkflowFunction:
    """Makes the workflows of a run with the function that `settings` name.

    seed                 of the run
    max_sequence_length  tokens of the longest row; None: no limit
    """

    settings: WorkflowSettings
    runtime: Runtime
    seed: int
    max_sequence_length: int | None = None

    def __call__(
        self,
        chat: Chat,
        messages: Callable[[Draw], Messages],
        *,
        sampling: Sampling,
        samples: int,
        rewards: RewardRunner,
        row_fields: RowFields,
    ) -> Workflow:
        """A workflow that makes `samples` samples of each draw. The runtime closes it, unless `close_workflow` does.

        Raises: what the function raises, as RolloutError if it is no error of purerl.
        """
        name, function = self.settings.function, locate(self.settings.function)
        values: dict[str, Any] = dict(
            chat=chat, messages=messages, sampling=sampling, samples=samples, row_fields=row_fields, seed=self.seed
        )
        values["max_sequence_length"] = self.max_sequence_length
        try:
            signature = inspect.signature(function)
            values |= {"score": rewards.score} if rewards.names or requires_score(signature) else {}
            made = function(**requested_arguments(signature, values), **self.settings.kwargs)
        except PurerlError:
            raise
        except Exception as error:
            got = failure_of_exception(name, error).traceback.rstrip()
            raise RolloutError(f"rollout.workflow {name} failed", got=got) from error
        if not callable(made):
            need = "a workflow: an async function of a draw and generate, or an object that is called like one"
            raise RolloutError(f"rollout.workflow {name}", got=f"returned {made!r:.200}", need=need)
        image = () if chat.processor is None else ("image",)
        workflow = CheckedWorkflow(name, made, (*self.settings.fields, *image), RowImages(chat))
        self.runtime.add_cleanup(workflow.close)
        return workflow


def close_workflow(workflow: Workflow, runtime: Runtime) -> None:
    """Close a workflow that has nothing in flight, if it is one of a user."""
    if isinstance(workflow, CheckedWorkflow):
        runtime.clean_up(workflow.close)
