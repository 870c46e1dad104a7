"""Validation: the objective of the policy on held-out demonstrations or preference pairs, without sampling.

The held-out examples are always divided in the same way, and nothing is random. The loss of each part is divided by the
counts of all of them, so the losses add up to that of one optimizer step on the whole validation set.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

import torch
from attrs import frozen

from purerl.algos.algebra import Counts, Objective, Weighted, compute_advantages, compute_loss, merge, prepare_step
from purerl.batch import STRUCTURE, with_fields
from purerl.errors import ImageError
from purerl.kernels.masks import count_true
from purerl.loop.draws import Sampler
from purerl.loop.metrics import means
from purerl.loop.state import LoopState
from purerl.loop.step import Learner
from purerl.loop.update import score, scored_fields
from purerl.rollouts.examples import Demonstrations, LabeledCompletions, Preferences
from purerl.rollouts.types import Draw, Trajectory
from purerl.system.phases import phase
from purerl.types import TensorDict, TokenFloat

__all__ = ["Validator"]

_LOG = logging.getLogger(__name__)


@frozen
class Validator:
    """Computes the metrics of the policy on held-out examples.

    learner     the algorithm and its models; none of them changes
    sampler     the held-out examples
    workflow    makes rows of them
    batch_size  number of examples that are scored together
    """

    learner: Learner
    sampler: Sampler
    workflow: Demonstrations | LabeledCompletions | Preferences
    batch_size: int

    def __call__(self, state: LoopState) -> dict[str, float]:
        """The metrics of the policy in `state`, as ``validation/NAME``.

        `loss` is what the policy minimizes, and the others are metrics of its objective, such as `accuracy` and
        `margin` of preference pairs. With demonstrations there are also the `perplexity` of an answer token, and
        `token_accuracy`: the fraction of answer tokens that are the most likely ones.
        """
        objectives = [objective for objective in self.learner.objectives if objective.role == "policy"]
        with phase(f"validating after step {state.step}") as progress:
            batches, parts = list[TensorDict](), self._parts()
            for number, indices in parts:
                batches.append(self._scored(indices, number, objectives, state))
                progress(len(batches), len(parts), "batches")
            metrics = merge(*(self._metrics(objective, batches) for objective in objectives))
        values = means(metrics)
        terms = {name: value for name, value in values.items() if name.startswith("loss/")}
        named = {name: value for name, value in values.items() if len(terms) > 1 or name not in terms}
        loss = {"loss": sum(terms.values())} if terms else {}
        if "nll" in named:
            named["perplexity"] = math.exp(min(named.pop("nll"), _MAX_NLL))
        return {f"validation/{name}": value for name, value in (loss | named).items()}

    def _parts(self) -> list[tuple[int, list[int]]]:
        indices, size = self.sampler.data.indices, self.batch_size
        return [(first, indices[first : first + size]) for first in range(0, len(indices), size)]

    def _scored(
        self, indices: Sequence[int], first: int, objectives: Sequence[Objective], state: LoopState
    ) -> TensorDict:
        """The examples at `indices` with the fields that other models compute, and with advantages."""
        learner, draws = self.learner, self.sampler.examples_at(indices, first)
        batch = learner.collated([row for draw in draws for row in self._rows(draw)], state)
        names = [name for name in scored_fields(objectives, learner.algorithm.reads) if name not in batch.keys()]
        return compute_advantages(learner.algorithm, state.transform, score(learner.trainers, batch, names))[1]

    def _rows(self, draw: Draw) -> list[Trajectory]:
        """The rows of `draw`; none if one of its images is damaged, with a warning."""
        try:
            return self.workflow.rows(draw)
        except ImageError as error:
            _LOG.warning("row %d of the validation set is left out: %s", draw.index, error)
            return []

    def _metrics(self, objective: Objective, batches: Sequence[TensorDict]) -> dict[str, Weighted]:
        steps = [prepare_step(objective, batch) for batch in batches]
        totals = {term.name: _total([counts[term.name] for _, counts in steps]) for term in objective.terms}
        return merge(*(self._metrics_of_part(objective, step, totals) for step, _ in steps))

    def _metrics_of_part(
        self, objective: Objective, step: TensorDict, counts: Mapping[str, Counts]
    ) -> dict[str, Weighted]:
        names, trainer = dict.fromkeys((*objective.outputs, *objective.metric_outputs)), self.learner.trainers["policy"]
        learns_text = isinstance(self.workflow, Demonstrations) and "logp" in names
        is_ranked = learns_text and _TOP in trainer.capabilities.outputs and "teacher_topk_tokens" not in step.keys()
        outputs = trainer.score(step, (*names, *([_TOP] if is_ranked else [])))
        part = with_fields(step.select(*STRUCTURE, *objective.reads), **{name: outputs[name] for name in names})
        _, metrics = compute_loss(objective, part, counts)
        text = {"nll": _mean_over_tokens(-part["logp"], part)} if learns_text else {}
        if is_ranked:
            text["token_accuracy"] = _mean_over_tokens((outputs[_TOP][..., 0] == step["tokens"]).double(), part)
        return {**metrics, **text}


_TOP = "topk_tokens"
_MAX_NLL = math.log(torch.finfo(torch.float64).max)


def _total(counts: Sequence[Counts]) -> Counts:
    return Counts(*(torch.stack([getattr(count, name) for count in counts]).sum(0) for name in ("tokens", "rows")))


def _mean_over_tokens(value: TokenFloat, batch: TensorDict) -> Weighted:
    mask = batch["mask"]
    return Weighted(torch.where(mask, value, 0).sum((-2, -1)), count_true(mask).sum(-1))
