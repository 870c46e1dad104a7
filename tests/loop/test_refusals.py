"""Configurations that are refused before anything is read or written."""

from __future__ import annotations

import pytest
from attrs import evolve

from purerl.algos import gvpo, opd, rloo, sft
from purerl.config.check import check
from purerl.config.schema import Role, RunConfig, StopWhen
from purerl.errors import ConfigError
from purerl.loop.train import train
from purerl.runs import run_config
from purerl.settings import Model

from .small import fake


def _refusal(**changes: object) -> str:
    with pytest.raises(ConfigError) as caught:
        train(fake(**changes), directory="/nonexistent/never/created")
    return str(caught.value)


def test_settings_without_effect_are_refused() -> None:
    base: RunConfig = fake()
    without_sampling = {"rollout": None, "evaluate": None}
    assert "roles.critic has no effect" in _refusal(roles={"critic": Role(trainer=base.trainer)})
    assert "rollout has no effect" in _refusal(algorithm=sft.Config())
    assert "generator has no effect" in _refusal(algorithm=sft.Config(), **without_sampling)
    assert "rewards has no effect" in _refusal(algorithm=sft.Config(), generator=None, **without_sampling)
    assert "rollout.max_resample_rounds has no effect" in _refusal(rollout=evolve(base.rollout, max_resample_rounds=2))
    assert "stop_when has no effect" in _refusal(stop_when=StopWhen(metric="eval/accuracy", at_least=1), evaluate=None)
    first = Model("{run}/initial_run/final")
    initial = evolve(base, prepare_data=base.prepare_data)
    assert "initial_run.prepare_data has no effect" in _refusal(initial_run=initial, model=first)
    initial = evolve(base, prepare_data=None, initial_run=base)
    assert "initial_run.initial_run has no effect" in _refusal(initial_run=initial, model=first)
    initial = evolve(base, prepare_data=None)
    assert "initial_run has no effect" in _refusal(initial_run=initial), "the model is another one"


def test_a_device_that_torch_does_not_have_is_refused_before_the_initial_run() -> None:
    for key in ("trainer.device", "initial_run.generator.device"):
        with pytest.raises(ConfigError, match=f"^{key}\n  got:  nothing"):
            train(run_config("addition", [f"{key}=nothing"]), directory="/nonexistent/never/created")


def test_missing_settings_are_refused() -> None:
    base: RunConfig = fake()
    assert "rollout is missing" in _refusal(rollout=None)
    teacher = {"teacher": Role(model="/other")}
    assert "opd reads old_logp" in _refusal(algorithm=opd.Config(), roles=teacher, rollout=None)
    assert "generator is missing" in _refusal(generator=None)
    assert "rewards is missing" in _refusal(rewards=())
    assert "need: at least 2: grpo compares" in _refusal(rollout=evolve(base.rollout, samples_per_prompt=1))
    assert "at most 16, the rows of a step" in _refusal(num_minibatches=17)
    assert "at most 4, the groups of a step" in _refusal(num_minibatches=5, algorithm=gvpo.Config())
    assert "nowhere" in _refusal(rewards=("nowhere:reward",))


def test_problems_of_an_evaluation_come_from_exactly_one_setting() -> None:
    base = fake()
    without_data, fraction = evolve(base.evaluate, data={}), evolve(base.data, validation_fraction=0.1)
    assert _refusal(evaluate=without_data) == (
        "evaluate.data is missing\n  need: problems for the evaluation\n  do:   set it, or data.validation_fraction"
        "; an empty value, evaluate=, turns it off"
    )
    assert _refusal(data=fraction) == (
        "data.validation_fraction has no effect\n"
        "  got:  0.1\n"
        "  need: an evaluation without evaluate.data\n"
        "  do:   leave data.validation_fraction or evaluate.data out"
    )
    check(evolve(base, evaluate=without_data, data=fraction))


def test_a_run_that_would_be_biased_is_refused() -> None:
    assert _refusal(algorithm=rloo.Config()).startswith("num_minibatches\n  got:  2 optimizer steps with the rows")
    stale = evolve(fake().rollout, max_staleness=1)
    assert "rollout.max_staleness\n" in _refusal(algorithm=rloo.Config(), num_minibatches=1, rollout=stale)
