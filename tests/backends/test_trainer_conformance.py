"""The HF trainer passes the published suite, and each check of the suite catches the bugs that it is there for."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from attrs import evolve
from safetensors.torch import load_file, save_file
from torch.nn import functional

from purerl.algos.algebra import Counts, Weighted, merge
from purerl.backends.fake import trainer as fake
from purerl.backends.hf.model import token_model
from purerl.backends.hf.training import engine, layout
from purerl.backends.hf.training.engine import HFTrainer
from purerl.kernels.partition import tokens_needed
from purerl.testing import trainer as suite
from purerl.testing.trainer import CHECKS, check_trainer, checks
from purerl.testing.trainer.reference import Case
from tests.backends.hf_conformance import SMALL, conformance
from tests.backends.tiny import make_trainer


# Gemma computes attention and norms in float32, whatever the dtype of its weights.
@pytest.mark.slow
@pytest.mark.parametrize(("family", "tolerance"), [("qwen3", 1e-7), ("gpt2", 1e-9), ("gemma2", 1e-5)])
def test_the_trainer_conforms(tmp_path: Path, family: str, tolerance: float):
    arguments = conformance(tmp_path, family, tolerance)
    assert check_trainer(arguments.pop("build"), **arguments) == len(CHECKS)


BY_NAME = {check.__name__: check for check in CHECKS}


def test_a_failure_names_the_check(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(HFTrainer, "load", lambda self, path: None)
    monkeypatch.setattr(suite, "CHECKS", [BY_NAME["an_invalid_checkpoint_is_refused"]])
    arguments = conformance(tmp_path)
    with pytest.raises(
        AssertionError,
        match=r"^an_invalid_checkpoint_is_refused: an empty directory was loaded\n  rule: An empty directory ",
    ):
        check_trainer(arguments.pop("build"), **arguments)


@pytest.mark.parametrize("fails", [False, True])
def test_every_trainer_is_closed_once_also_if_a_check_fails(monkeypatch, fails):
    arguments = fake.conformance(Path())
    built, closed = [], []

    def recorded(make: Callable[..., fake.FakeTrainer]) -> Callable[..., fake.FakeTrainer]:
        def make_and_record(*path: Path) -> fake.FakeTrainer:
            built.append(make(*path))
            return built[-1]

        return make_and_record

    build, load = recorded(arguments.pop("build")), recorded(arguments.pop("load"))

    def close(self: fake.FakeTrainer) -> None:
        closed.append(self)

    def fail(*arguments: object) -> None:
        raise AssertionError("on purpose")

    monkeypatch.setattr(fake.FakeTrainer, "close", close)
    if fails:
        monkeypatch.setattr(checks, "assert_close", fail)
    with pytest.raises(AssertionError, match="on purpose\n  rule: ") if fails else nullcontext():
        check_trainer(build, variants=[build], load=load, **arguments)
    assert built
    assert sorted(map(id, closed)) == sorted(map(id, built))


# --- mutants -----------------------------------------------------------------------------------------------------
# Each is a bug that some trainer has had. `mutant(check, owner, name)` replaces `owner.name` by a function whose first
# argument is the original.

MUTANTS: dict[str, tuple[str, object, str, Callable]] = {}


def mutant(check: str, owner: object, name: str):
    def register(function: Callable) -> Callable:
        MUTANTS[function.__name__] = (check, owner, name, function)
        return function

    return register


SCORES, STEPS = "scores_equal_the_reference", "steps_equal_the_reference"
SKIPS = "a_nonfinite_gradient_is_skipped"


@mutant(SCORES, token_model.TokenModel, "_read")
def states_of_other_tokens(true, self, *args, router):
    action, hidden, routers = true(self, *args, router=router)
    return action, hidden.roll(1, 0), routers


@mutant(SCORES, token_model.TokenModel, "forward")
def temperature_is_ignored(true, self, tokens, action, temperature, outputs, **others):
    return true(self, tokens, action, torch.ones_like(temperature), outputs, **others)


@mutant(SCORES, token_model.TokenModel, "forward")
def temperature_0_divides(true, self, tokens, action, temperature, outputs, **others):
    return true(self, tokens, action, temperature.clamp(min=1e-3), outputs, **others)


@mutant(SCORES, token_model, "at_action")
def values_outside_action(true, values, action):
    return values.new_ones(action.shape).masked_scatter(action, values)


@mutant(SCORES, HFTrainer, "score")
def scores_have_a_gradient(true, self, batch, outputs):
    return true(self, batch, outputs).apply(torch.Tensor.requires_grad_)


@mutant(SCORES, HFTrainer, "score")
def scores_have_another_dtype(true, self, batch, outputs):
    return true(self, batch, outputs).float()


@mutant("other_declared_outputs_equal_the_reference", token_model, "token_outputs")
def given_tokens_are_ignored(true, *tensors, choices, k, **others):
    return true(*tensors, choices=None, k=k if choices is None else choices.shape[-1], **others)


@mutant("other_declared_outputs_equal_the_reference", token_model, "token_outputs")
def probabilities_are_not_squared(true, *tensors, **others):
    results = true(*tensors, **others)
    return results | {name: value.sqrt() for name, value in results.items() if name == "sum_pi_squared"}


@mutant("undeclared_outputs_are_refused", HFTrainer, "score")
def unknown_outputs_are_zero(true, self, batch, outputs):
    known = [name for name in outputs if name in self.capabilities.outputs]
    return true(self, batch, known).update({name: torch.zeros(batch["action"].shape) for name in outputs})


@mutant("scores_ignore_padding", HFTrainer, "_forward")
def padding_is_read(true, self, rows, *arguments):
    extra = 1e-3 * rows["tokens"].sum(-1, keepdim=True) * rows["action"]
    return {name: value + extra for name, value in true(self, rows, *arguments).items()}


@mutant("scores_follow_the_order_of_rows", HFTrainer, "score")
def rows_are_returned_sorted(true, self, batch, outputs):
    return true(self, batch[tokens_needed(batch["action"]).argsort()], outputs)


@mutant("scoring_has_no_side_effects", HFTrainer, "score")
def scoring_trains(true, self, batch, outputs):
    next(iter(self.trained.values())).data.mul_(1.001)
    return true(self, batch, outputs)


@mutant(STEPS, engine, "compute_loss")
def masked_out_tokens_are_counted(true, objective, part, counts):
    return true(objective, part.set("mask", part["action"]), counts)


@mutant(STEPS, engine, "compute_loss")
def normalized_by_microbatch(true, objective, part, counts):
    own = {term.name: part[term.where] for term in objective.terms}
    return true(objective, part, {n: Counts(2 * where.sum(), 2 * where.any(-1).sum()) for n, where in own.items()})


@mutant(STEPS, engine, "select_fields")
def episode_tokens_are_dropped(true, batch, names):
    return true(batch, names).exclude("episode_tokens")


@mutant(STEPS, HFTrainer, "_optimize")
def averaged_over_microbatches(true, self, metrics, counts):
    for parameter in self.trained.values():
        parameter.grad /= 2 if self.config.max_tokens_per_microbatch == SMALL else 1
    return true(self, metrics, counts)


@mutant(STEPS, HFTrainer, "_backward")
def gradients_do_not_add_up(true, self, *args):
    engine.clear_gradients(self.trained.values())
    return true(self, *args)


@mutant(STEPS, engine, "clear_gradients")
def gradients_are_never_cleared(true, parameters):
    true(parameters := list(parameters))
    for parameter in parameters:
        parameter.grad = parameter.left = getattr(parameter, "left", parameter.grad)


@mutant(STEPS, engine, "merge")
def metrics_are_those_of_the_last_microbatch(true, *metrics):
    return merge(metrics[-1])


@mutant(STEPS, engine, "merge")
def metrics_are_averaged_without_weights(true, *metrics):
    means = {
        name: Weighted(m.total / m.weight.clamp(min=1), torch.ones(())) for part in metrics for name, m in part.items()
    }
    return true(means)


@mutant(STEPS, HFTrainer, "_arrange")
def groups_are_split(true, self, batch, reads, unit):
    return true(self, batch, reads, "row")


@mutant(STEPS, HFTrainer, "_arrange")
def a_microbatch_is_lost(true, self, batch, reads, unit):
    return true(self, batch, reads, unit)[-1:]


@mutant(STEPS, HFTrainer, "_backward")
def watched_outputs_are_learned(true, self, batch, part, objective, *args):
    changed = objective._replace(outputs=objective.outputs + objective.metric_outputs, metric_outputs=())
    return true(self, batch, part, changed, *args)


@mutant(STEPS, HFTrainer, "_forward")
def entropy_has_no_gradient(true, self, rows, *arguments):
    results = true(self, rows, *arguments)
    return results | {"entropy": results["entropy"].detach()}


@mutant("a_unit_may_exceed_the_token_budget", layout, "rank_microbatches")
def large_units_are_split(true, *arguments, **options):
    parts = true(*arguments, **options)
    return [[piece for part in of_rank for piece in part.split(4)] for of_rank in parts]


@mutant("fewer_rows_than_ranks", HFTrainer, "_arrange")
def a_single_row_is_lost(true, self, batch, reads, unit):
    parts = true(self, batch, reads, unit)
    return parts if len(batch) > 1 else [part._replace(rows=part.rows[:0]) for part in parts]


@mutant("prefixes_shared_on_one_rank", layout, "plan")
def rows_have_the_wrong_prefix(true, tokens, action, group):
    plan = true(tokens, action, group)
    return plan and plan._replace(member=plan.member.roll(1))


@mutant("equal_calls_give_equal_bits", HFTrainer, "_forward")
def dropout_is_on(true, self, rows, *arguments):
    return {name: functional.dropout(value, 0.1) for name, value in true(self, rows, *arguments).items()}


class _OtherRank:
    def gather(self, value):
        return [value, "the answer of another rank"]


@mutant("all_ranks_give_the_same_answers", checks, "current_ranks")
def another_rank_answers_differently(true):
    return _OtherRank()


@mutant("an_empty_step_changes_nothing", HFTrainer, "_optimize")
def momentum_continues(true, self, metrics, counts):
    self.config = evolve(self.config, skip_zero_gradients=False)
    return true(self, metrics, {name: Counts(count.tokens + 1, count.rows + 1) for name, count in counts.items()})


@mutant("an_empty_step_changes_nothing", HFTrainer, "_optimize")
def an_empty_step_is_not_reported(true, self, metrics, counts):
    counted = sum(float(count.tokens) for count in counts.values())
    report = true(self, metrics, counts)
    return report if counted else report | {"skipped": Weighted(torch.zeros(()), torch.ones(()))}


@mutant(SKIPS, engine, "clip_gradients")
def nan_becomes_0(true, parameters, norm):
    for parameter in (parameters := list(parameters)):
        parameter.grad.nan_to_num_(0, 0, 0)
    return true(parameters, norm)


@mutant(SKIPS, HFTrainer, "_optimize")
def skipping_is_not_reported(true, self, metrics, counts):
    return true(self, metrics, counts) | {"skipped": Weighted(torch.zeros(()), torch.ones(()))}


@mutant("a_zero_gradient_is_skipped_by_all_ranks_or_none", HFTrainer, "_optimize")
def momentum_continues_in_a_skipped_step(true, self, metrics, counts):
    self.config = evolve(self.config, skip_zero_gradients=False)
    report = true(self, metrics, counts)
    return report | {"skipped": report["zero_gradient_fraction"]}


@mutant("arguments_are_not_modified", HFTrainer, "step")
def the_batch_is_modified(true, self, batch, objective, counts):
    return true(self, batch.set("temperature", batch["temperature"] + 1), objective, counts)


@mutant("weights_are_replaced_and_mixed", HFTrainer, "load_weights")
def mixing_is_ignored(true, self, weights, *, mix=1.0):
    true(self, weights)


@mutant("weights_of_an_adapter_are_refused", engine, "check_adapter")
def adapters_are_loaded_as_weights(true, weights, capabilities):
    return None


@mutant("a_loaded_trainer_resumes_exactly", HFTrainer, "load")
def moments_are_not_loaded(true, self, path):
    true(self, path)
    self.optimizer.state.clear()


@mutant("a_loaded_trainer_resumes_exactly", HFTrainer, "load")
def weights_are_not_loaded(true, self, path):
    before = copy.deepcopy(self.module.state_dict())
    true(self, path)
    self.module.load_state_dict(before)


@mutant("staged_state_is_that_of_its_moment", HFTrainer, "stage")
def staged_tensors_are_not_copied(true, self, **_):
    return true(self, copy=False)


@mutant("scores_follow_the_weights", HFTrainer, "score")
def the_first_score_is_repeated(true, self, batch, outputs):
    if not hasattr(self, "first_score"):
        self.first_score = true(self, batch, outputs)
    return self.first_score


@mutant("an_exported_trainer_can_be_closed", HFTrainer, "export")
def nothing_is_exported(true, self, path):
    return None


@mutant("exported_model_is_trained", HFTrainer, "export")
def initial_weights_are_exported(true, self, path):
    true(make_trainer(self.model.path), path)


@mutant("exported_model_is_trained", HFTrainer, "export")
def the_head_is_not_exported(true, self, path):
    true(self, path)
    file = path / "model.safetensors"
    weights = load_file(file)
    save_file({name: weight for name, weight in weights.items() if name != "lm_head.weight"}, file, {"format": "pt"})


@mutant("an_exported_trainer_can_be_closed", HFTrainer, "close")
def closing_fails(true, self):
    raise AssertionError("the trainer cannot be closed")


@mutant("an_invalid_checkpoint_is_refused", HFTrainer, "load")
def any_directory_is_a_checkpoint(true, self, path):
    return None


@mutant("reported_digests_are_those_of_the_files", HFTrainer, "save")
def digests_are_of_other_content(true, self, path):
    return dict.fromkeys(true(self, path), f"sha256:{0:064d}")


@mutant("reported_digests_are_those_of_the_files", HFTrainer, "save")
def digests_are_of_other_files(true, self, path):
    return {f"policy/{name}": digest for name, digest in true(self, path).items()}


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return Case(**conformance(tmp_path_factory.mktemp("models")))


@pytest.mark.parametrize("name", MUTANTS)
def test_the_check_catches(case, monkeypatch, name):
    check, owner, attribute, function = MUTANTS[name]
    true = getattr(owner, attribute)
    monkeypatch.setattr(owner, attribute, lambda *args, **kwargs: function(true, *args, **kwargs))
    with pytest.raises(AssertionError):
        BY_NAME[check](case)
