"""Planted errors of trainers: the fake trainer with one function replaced. Most are bugs of real trainers."""

from __future__ import annotations

import math

import torch

from purerl.algos.algebra import Counts, Weighted, merge
from purerl.backends.fake import trainer as fake
from purerl.backends.fake.model import BIGRAM
from purerl.backends.fake.trainer import FakeTrainer
from purerl.batch import with_fields
from purerl.testing.trainer import CHECKS, checks
from tests.testing.planted.errors import PlantedErrors

ERRORS = PlantedErrors()
CHECK = {check.__name__: check for check in CHECKS}


def planted(check, owner, name, words=""):
    return ERRORS.register(CHECK[check], owner, name, words)


# --- scores ------------------------------------------------------------------------------------------------------

SCORES = "scores_equal_the_reference"


@planted(SCORES, fake, "compute_outputs")
def temperature_is_ignored(original, weights, batch, names, *, top_k):
    one = with_fields(batch, temperature=torch.ones_like(batch["temperature"]))
    return original(weights, one, names, top_k=top_k)


@planted(SCORES, fake, "compute_outputs")
def temperature_0_divides(original, weights, batch, names, *, top_k):
    low = with_fields(batch, temperature=batch["temperature"].clamp(min=1e-3))
    return original(weights, low, names, top_k=top_k)


@planted(SCORES, FakeTrainer, "score")
def log_probabilities_are_those_of_the_token_before(original, self, batch, outputs):
    return original(self, batch, outputs).apply(lambda value: value.roll(1, 1))


@planted(SCORES, FakeTrainer, "score")
def tokens_without_action_have_scores(original, self, batch, outputs):
    return original(self, batch, outputs).apply(lambda value: value.where(value != 0, 1))


@planted(SCORES, FakeTrainer, "score", "has a gradient")
def scores_have_a_gradient(original, self, batch, outputs):
    return original(self, batch, outputs).apply(torch.Tensor.requires_grad_)


@planted(SCORES, FakeTrainer, "score", "float32")
def scores_have_another_dtype(original, self, batch, outputs):
    return original(self, batch, outputs).float()


@planted(SCORES, FakeTrainer, "score", "NaN, which is not a number")
def a_score_is_not_a_number(original, self, batch, outputs):
    scores = original(self, batch, outputs)
    for value in scores.values():
        value[..., -3] *= math.nan
    return scores


@planted(SCORES, FakeTrainer, "score", "got KeyError: 'logp'")
def an_output_without_the_others_raises_an_exception(original, self, batch, outputs):
    if "logp" not in outputs and "entropy" in outputs:
        raise KeyError("logp")
    return original(self, batch, outputs)


@planted("other_declared_outputs_equal_the_reference", FakeTrainer, "score")
def probabilities_are_not_squared(original, self, batch, outputs):
    scores = original(self, batch, outputs)
    return scores.apply(torch.sqrt) if "sum_pi_squared" in outputs else scores


@planted("other_declared_outputs_equal_the_reference", FakeTrainer, "score")
def given_tokens_are_ignored(original, self, batch, outputs):
    return original(self, batch.exclude("teacher_topk_tokens"), outputs)


@planted("undeclared_outputs_are_refused", FakeTrainer, "score", "expected InputError")
def unknown_outputs_are_zero(original, self, batch, outputs):
    scores = original(self, batch, [name for name in outputs if name in self.capabilities.outputs])
    zeros = torch.zeros(batch["action"].shape, dtype=torch.float64)
    return scores.update({name: zeros for name in outputs if name not in self.capabilities.outputs})


@planted("scores_ignore_padding", FakeTrainer, "score")
def rows_without_tokens_have_scores(original, self, batch, outputs):
    is_empty = ~batch["attention_mask"].any(-1, keepdim=True)
    return original(self, batch, outputs).apply(lambda value: value.where(~is_empty, 1) if value.ndim == 2 else value)


@planted("scores_follow_the_order_of_rows", FakeTrainer, "score")
def rows_are_returned_sorted(original, self, batch, outputs):
    """By their labels, which are in order in other batches."""
    return original(self, batch[batch["row"].argsort()], outputs)


@planted("scoring_has_no_side_effects", FakeTrainer, "score")
def scoring_trains(original, self, batch, outputs):
    self._weights = {name: 1.001 * value for name, value in self._weights.items()}
    return original(self, batch, outputs)


@planted("arguments_are_not_modified", FakeTrainer, "score")
def scores_are_written_into_the_batch(original, self, batch, outputs):
    batch["temperature"] += 1
    return original(self, batch, outputs)


# --- steps -------------------------------------------------------------------------------------------------------

STEPS, SIZE = "steps_equal_the_reference", "gradients_are_divided_by_the_counts"


def scaled(original, self, factor, *arguments):
    gradients, metrics = original(self, *arguments)
    return {name: value * factor for name, value in gradients.items()}, metrics


@planted(SIZE, FakeTrainer, "_gradients", "times the expected one")
def gradients_are_not_divided(original, self, call, batch, objective, counts):
    """They are the sum over the tokens."""
    tokens = next(iter(counts.values())).tokens
    return scaled(original, self, float(tokens), call, batch, objective, counts)


@planted(SIZE, FakeTrainer, "_gradients", "the update is 2 times the expected one")
def gradients_are_divided_by_the_tokens_of_the_batch(original, self, call, batch, objective, counts):
    """The counts of a step on several hosts are twice as large."""
    own = {name: Counts(count.tokens / 2, count.rows / 2) for name, count in counts.items()}
    return original(self, call, batch, objective, own)


@planted(SIZE, FakeTrainer, "_gradients", "the update is 0.25 times the expected one")
def gradients_are_averaged_over_4_microbatches(original, self, *arguments):
    return scaled(original, self, 0.25, *arguments)


@planted(SIZE, FakeTrainer, "step", "no weight has changed")
def steps_change_nothing(original, self, batch, objective, counts):
    before = self._weights
    report = original(self, batch, objective, counts)
    self._weights = before
    return report


@planted(SIZE, FakeTrainer, "_gradients", "as one whose gradient is NaN")
def gradients_are_not_numbers(original, self, *arguments):
    return scaled(original, self, math.nan, *arguments)


@planted(SIZE, FakeTrainer, "step", "got NaN, which is not a number")
def weights_are_not_numbers_after_a_step(original, self, *arguments):
    report = original(self, *arguments)
    self._weights[BIGRAM][0, 0] = math.nan
    return report


@planted(STEPS, FakeTrainer, "_gradients")
def gradients_have_the_wrong_sign(original, self, *arguments):
    return scaled(original, self, -1.0, *arguments)


@planted(STEPS, fake, "compute_loss")
def masked_out_tokens_are_counted(original, objective, part, counts):
    return original(objective, part.set("mask", part["action"]), counts)


@planted(STEPS, FakeTrainer, "_gradients")
def the_last_row_is_lost(original, self, call, batch, objective, counts):
    return original(self, call, batch[:-1] if len(batch) > 1 else batch, objective, counts)


@planted(STEPS, FakeTrainer, "_gradients")
def watched_outputs_are_learned(original, self, call, batch, objective, counts):
    names = objective.outputs + objective.metric_outputs
    return original(self, call, batch, objective._replace(outputs=names, metric_outputs=()), counts)


@planted(STEPS, FakeTrainer, "_gradients")
def the_entropy_has_no_gradient(original, self, call, batch, objective, counts):
    names = tuple(name for name in objective.outputs if name != "entropy")
    watched = (*objective.metric_outputs, *(name for name in objective.outputs if name == "entropy"))
    return original(self, call, batch, objective._replace(outputs=names, metric_outputs=watched), counts)


@planted(STEPS, FakeTrainer, "step")
def gradients_of_earlier_steps_are_added(original, self, *arguments):
    """They are never cleared, so the second step is the first wrong one."""
    before = self._weights
    report = original(self, *arguments)
    update = {name: value - before[name] for name, value in self._weights.items()}
    earlier = self.__dict__.get("earlier", {name: torch.zeros_like(value) for name, value in update.items()})
    self._weights = {name: value + earlier[name] for name, value in self._weights.items()}
    self.earlier = {name: earlier[name] + value for name, value in update.items()}
    return report


@planted(STEPS, fake, "sum_metrics", "metrics (total, weight)")
def metrics_are_means(original, metrics, ranks):
    means = {name: Weighted(m.total / m.weight.clamp(min=1), torch.ones(())) for name, m in metrics.items()}
    return original(merge(means), ranks)


@planted(STEPS, fake, "sum_metrics", "got NaN, which is not a number")
def a_metric_is_not_a_number(original, metrics, ranks):
    return original(metrics, ranks) | {"entropy": Weighted(torch.tensor(math.nan), torch.ones(()))}


@planted("a_unit_may_exceed_the_token_budget", FakeTrainer, "_gradients")
def large_groups_are_split(original, self, call, batch, objective, counts):
    """A group of 7 rows or more loses the others."""
    is_large = objective.unit == "group" and len(batch["group"].unique()) == 1
    return original(self, call, batch[:6] if is_large else batch, objective, counts)


@planted("fewer_rows_than_ranks", FakeTrainer, "_gradients")
def a_single_row_is_lost(original, self, call, batch, objective, counts):
    return original(self, call, batch if len(batch) != 1 else batch[:0], objective, counts)


@planted("prefixes_shared_on_one_rank", FakeTrainer, "score")
def rows_with_long_prompts_are_truncated(original, self, batch, outputs):
    """The last of 16 tokens."""
    scores = original(self, batch, outputs)
    return scores.apply(lambda value: torch.cat([value[:, :15], 0 * value[:, 15:]], 1))


@planted("equal_calls_give_equal_bits", FakeTrainer, "_gradients")
def gradients_are_noisy(original, self, *arguments):
    return scaled(original, self, 1 + 1e-12 * float(torch.rand(())), *arguments)


class OtherRank:
    """Ranks of which another one has another answer."""

    def gather(self, value):
        return [value, "the answer of another rank"]


@planted("all_ranks_give_the_same_answers", checks, "current_ranks")
def another_rank_answers_differently(original):
    return OtherRank()


@planted("an_empty_step_changes_nothing", FakeTrainer, "step")
def weights_decay_in_empty_steps(original, self, batch, objective, counts):
    if not batch["mask"].any():
        self._weights = {name: 0.999 * value for name, value in self._weights.items()}
    return original(self, batch, objective, counts)


@planted("an_empty_step_changes_nothing", FakeTrainer, "step", "is not reported as skipped")
def empty_steps_are_not_reported(original, self, batch, objective, counts):
    report = original(self, batch, objective, counts)
    return report if batch["mask"].any() else report | {"skipped": Weighted(torch.zeros(()), torch.ones(()))}


@planted("a_nonfinite_gradient_is_skipped", FakeTrainer, "_gradients")
def not_a_number_becomes_0(original, self, *arguments):
    gradients, metrics = original(self, *arguments)
    return {name: value.nan_to_num(0, 0, 0) for name, value in gradients.items()}, metrics


@planted("a_nonfinite_gradient_is_skipped", fake, "skip_reason")
def infinite_gradients_are_applied(original, norm, counts, *, skip_zero_gradients):
    return original(norm if math.isfinite(norm) else 1.0, counts, skip_zero_gradients=skip_zero_gradients)


@planted("a_zero_gradient_is_skipped_by_all_ranks_or_none", FakeTrainer, "step")
def weights_decay_in_skipped_steps(original, self, batch, objective, counts):
    report = original(self, batch, objective, counts)
    if batch["mask"].any() and not batch["advantage"].any():
        self._weights = {name: 0.999 * value for name, value in self._weights.items()}
    return report
