"""The trainer passes the published suite, and each check of the suite catches the bugs that it is there for."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from purerl.algos.algebra import Counts, Weighted, merge
from purerl.backends.hf import heads
from purerl.backends.hf import trainer as engine
from purerl.backends.hf.trainer import HFTrainer
from purerl.testing import trainer as published
from purerl.testing.trainer import CHECKS, Case, check_trainer
from tests.backends.tiny import VOCABULARY, trainer, write_model

# An eps that is not small beside the gradient, so that AdamW does not hide the gradient's scale.
ADAMW = {"lr": 1e-2, "betas": (0.8, 0.9), "eps": 1e-2, "weight_decay": 0.0}


def conformance(folder: Path, family: str = "qwen3", tolerance: float = 1e-9) -> Case:
    """What `check_trainer` wants to know of a model of `family`."""
    path = write_model(folder, family)
    first = trainer(path, **ADAMW, max_grad_norm=math.inf, max_tokens_per_microbatch=1000)
    small = trainer(path, **ADAMW, max_grad_norm=math.inf, max_tokens_per_microbatch=12)

    def copy_of(made: HFTrainer, prepare: Callable = lambda module: None) -> HFTrainer:
        module = copy.deepcopy(made.module)
        prepare(module)
        return HFTrainer(made.config, module, updates=made.updates)

    def logits(weights, tokens):
        return torch.func.functional_call(first.module.causal, dict(weights), (tokens,), {"use_cache": False}).logits

    variants = (partial(copy_of, small), partial(copy_of, first, heads.recompute_layers))
    return Case(partial(copy_of, first), VOCABULARY, logits, partial(torch.optim.AdamW, **ADAMW), variants, tolerance)


# Gemma's attention and norms are in float32 whatever the weights are in.
@pytest.mark.parametrize(("family", "tolerance"), [("qwen3", 1e-9), ("gpt2", 1e-9), ("gemma2", 1e-5)])
def test_the_trainer_conforms(tmp_path, family, tolerance):
    build, *case = conformance(tmp_path, family, tolerance)
    check_trainer(build, **dict(zip(Case._fields[1:], case, strict=True)))


def test_what_fails_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(HFTrainer, "load", lambda self, path: None)
    build, *case = conformance(tmp_path)
    monkeypatch.setattr(published, "CHECKS", [published.what_is_no_checkpoint_is_refused])
    with pytest.raises(AssertionError, match=r"^what_is_no_checkpoint_is_refused: an empty directory was loaded$"):
        check_trainer(build, **dict(zip(Case._fields[1:], case, strict=True)))


# --- mutants -----------------------------------------------------------------------------------------------------
# Each is a bug that a trainer has had somewhere. `mutant(check, owner, name)` replaces `owner.name` by a function that
# gets the true one first.

MUTANTS: dict[str, tuple[str, object, str, Callable]] = {}


def mutant(check: str, owner: object, name: str):
    def register(function: Callable) -> Callable:
        MUTANTS[function.__name__] = (check, owner, name, function)
        return function

    return register


SCORES, STEPS = "scores_are_those_of_the_plain_forward_pass", "steps_are_those_of_the_plain_trainer"
SKIPS = "a_gradient_that_is_not_finite_changes_nothing"


def _moved(states, offset, backbone, tokens, action, *others):
    """States of the positions `offset` away from the right ones."""
    pairs = functional.pad(action[:, 1:], (0, 1)) if offset < 0 else functional.pad(action, (1, 0))
    return states(backbone, functional.pad(tokens, (0, 1))[:, : pairs.shape[1]], pairs, *others)


@mutant(SCORES, heads, "_states")
def shifted_once_too_often(true, backbone, tokens, action, *others):
    return _moved(true, -1, backbone, tokens, action, *others)


@mutant(SCORES, heads, "_states")
def not_shifted(true, backbone, tokens, action, *others):
    return _moved(true, 1, backbone, tokens, action, *others)


@mutant(SCORES, heads.Policy, "forward")
def temperature_is_ignored(true, self, tokens, action, temperature, group):
    return true(self, tokens, action, torch.ones_like(temperature), group)


@mutant(SCORES, heads.Policy, "forward")
def temperature_0_is_taken_literally(true, self, tokens, action, temperature, group):
    return true(self, tokens, action, temperature.clamp(min=1e-3), group)


@mutant(SCORES, heads, "_spread")
def garbage_outside_action(true, values, action):
    return values.new_ones(action.shape).masked_scatter(action, values)


@mutant(SCORES, HFTrainer, "score")
def scores_carry_a_gradient(true, self, batch, outputs):
    return true(self, batch, outputs).apply(torch.Tensor.requires_grad_)


@mutant(SCORES, HFTrainer, "score")
def scores_are_in_the_model_dtype(true, self, batch, outputs):
    return true(self, batch, outputs).float()


@mutant("padding_is_invisible_to_scores", HFTrainer, "_forward")
def padding_is_seen(true, self, part):
    return {
        name: value + 1e-3 * part["tokens"].sum(-1, keepdim=True) * part["action"]
        for name, value in true(self, part).items()
    }


@mutant("the_order_of_rows_is_invisible_to_scores", HFTrainer, "score")
def rows_come_back_sorted(true, self, batch, outputs):
    return true(self, batch[engine.tokens_needed(batch["action"]).argsort()], outputs)


@mutant("scoring_changes_nothing", HFTrainer, "score")
def scoring_trains(true, self, batch, outputs):
    next(iter(self.trained.values())).data.mul_(1.001)
    return true(self, batch, outputs)


@mutant(STEPS, engine, "compute_loss")
def masked_out_tokens_count(true, objective, part, counts):
    return true(objective, part.set("mask", part["action"]), counts)


@mutant(STEPS, engine, "compute_loss")
def normalized_by_microbatch(true, objective, part, counts):
    own = {term.name: part[term.where] for term in objective.terms}
    return true(objective, part, {n: Counts(2 * where.sum(), 2 * where.any(-1).sum()) for n, where in own.items()})


@mutant(STEPS, HFTrainer, "_optimize")
def averaged_over_microbatches(true, self, metrics, counts):
    for parameter in self.trained.values():
        parameter.grad /= 2 if self.config.max_tokens_per_microbatch == 12 else 1
    return true(self, metrics, counts)


@mutant(STEPS, HFTrainer, "_backward")
def gradients_do_not_add_up(true, self, part, objective, counts):
    engine.clear_gradients(self.trained.values())
    return true(self, part, objective, counts)


@mutant(STEPS, engine, "clear_gradients")
def gradients_are_never_cleared(true, parameters):
    true(parameter for parameter in parameters if parameter.grad is None)


@mutant(STEPS, engine, "merge")
def metrics_are_those_of_the_last_microbatch(true, *metrics):
    return merge(metrics[-1])


@mutant(STEPS, engine, "merge")
def metrics_are_averaged_without_weights(true, *metrics):
    means = {
        name: Weighted(m.total / m.weight.clamp(min=1), torch.ones(())) for part in metrics for name, m in part.items()
    }
    return true(means)


@mutant(STEPS, HFTrainer, "_deal")
def groups_are_cut(true, self, batch, unit):
    return true(self, batch, "row")


@mutant(STEPS, HFTrainer, "_deal")
def a_microbatch_is_lost(true, self, batch, unit):
    return true(self, batch, unit)[-1:]


@mutant(STEPS, HFTrainer, "_backward")
def what_is_watched_is_learned(true, self, part, objective, counts):
    return true(
        self, part, objective._replace(outputs=objective.outputs + objective.metric_outputs, metric_outputs=()), counts
    )


@mutant(STEPS, HFTrainer, "_forward")
def entropy_has_no_gradient(true, self, part):
    found = true(self, part)
    return found | {"entropy": found["entropy"].detach()}


@mutant("the_same_calls_give_the_same_bits", HFTrainer, "_forward")
def dropout_is_on(true, self, part):
    return {name: functional.dropout(value, 0.1) for name, value in true(self, part).items()}


@mutant("nothing_counted_changes_nothing", HFTrainer, "_optimize")
def momentum_moves_on(true, self, metrics, counts):
    return true(self, metrics, {name: Counts(*(x + 1 for x in count)) for name, count in counts.items()})


@mutant(SKIPS, engine.nn.utils, "clip_grad_norm_")
def what_is_not_finite_becomes_0(true, parameters, norm):
    for parameter in (parameters := list(parameters)):
        parameter.grad.nan_to_num_(0, 0, 0)
    return true(parameters, norm)


@mutant(SKIPS, HFTrainer, "_optimize")
def skipped_in_silence(true, self, metrics, counts):
    return true(self, metrics, counts) | {"skipped": Weighted(torch.zeros(()), torch.ones(()))}


@mutant("a_loaded_trainer_goes_on_bit_for_bit", HFTrainer, "load")
def moments_are_not_loaded(true, self, path):
    true(self, path)
    self.optimizer.state.clear()


@mutant("a_loaded_trainer_goes_on_bit_for_bit", HFTrainer, "load")
def weights_are_not_loaded(true, self, path):
    before = copy.deepcopy(self.module.state_dict())
    true(self, path)
    self.module.load_state_dict(before)


@mutant("what_is_no_checkpoint_is_refused", HFTrainer, "load")
def any_directory_is_a_checkpoint(true, self, path):
    return None


@mutant("arguments_are_unchanged", HFTrainer, "step")
def the_batch_is_written_to(true, self, batch, objective, counts):
    return true(self, batch.set("temperature", batch["temperature"] + 1), objective, counts)


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return conformance(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("name", MUTANTS)
def test_the_check_catches(case, monkeypatch, name):
    check, owner, attribute, function = MUTANTS[name]
    true = getattr(owner, attribute)
    monkeypatch.setattr(owner, attribute, lambda *args, **kwargs: function(true, *args, **kwargs))
    with pytest.raises(AssertionError):
        getattr(published, check)(case)


def test_every_check_has_a_mutant():
    assert {check.__name__ for check in CHECKS} == {check for check, *_ in MUTANTS.values()}
