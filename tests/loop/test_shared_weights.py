"""Runs whose generator samples with the weights of the trainer, and those in which it has a copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.algos import grpo, ppo
from purerl.algos.modifiers import importance_weight, kl_loss
from purerl.backends.fake import trainer as fake_trainer
from purerl.composition import Composition
from purerl.config.check import check
from purerl.config.generators import copy_reason
from purerl.config.schema import RunConfig
from purerl.errors import ConfigError
from purerl.loop.train import Summary, train
from purerl.placement.settings import Placement
from tests.loop.lora_task import prepare, sevens
from tests.loop.runs import opened, records, train_until, without_times
from tests.loop.small import small_real


def _with_copy(config: RunConfig) -> RunConfig:
    return evolve(config, generator=evolve(config.generator, copy_weights=True))


def _mixed(config: RunConfig) -> RunConfig:
    return evolve(config, trainer=evolve(config.trainer, mixed_precision="bfloat16"))


def _with_critic_and_reference(config: RunConfig) -> RunConfig:
    return evolve(config, algorithm=Composition(ppo.Config(), (kl_loss.Config(coef=0.01),)))


def _final(run: Summary) -> bytes:
    return (run.directory / "final" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("change", [lambda config: config, _mixed, _with_critic_and_reference])
def test_a_run_equals_one_with_a_copy_bit_for_bit(tmp_path: Path, change: Any) -> None:
    """Also if it is interrupted: a part of its steps is sampled after the weights of a checkpoint were loaded."""
    config = change(small_real(3))
    copied = train(_with_copy(config), directory=tmp_path / "copied")
    train_until(2, config, directory=tmp_path / "shared")
    shared = train(config, directory=tmp_path / "shared")
    assert without_times(records(shared)) == without_times(records(copied))
    assert _final(shared) == _final(copied)


def test_a_run_with_an_adapter_equals_one_with_a_merged_copy_within_rounding(tmp_path: Path) -> None:
    shared, copied = (
        train(config, directory=tmp_path / name)
        for name, config in (("shared", sevens(2)), ("copied", _with_copy(sevens(2))))
    )
    assert len(records(shared)) == len(records(copied)) > 1
    for ours, theirs in zip(records(shared), records(copied), strict=True):
        assert ours.get("reward/mean") == theirs.get("reward/mean"), "the same tokens"
        assert ours.get("policy/loss/mean", 0) == pytest.approx(theirs.get("policy/loss/mean", 0), abs=1e-4)


def _shares(config: RunConfig, directory: Path) -> bool:
    """Whether the generator of the run has the parameters of its trainer."""
    run = opened(config, directory)
    policy: Any = run.engines.trainers["policy"]
    generator: Any = run.engines.generator
    own = {parameter.data_ptr() for parameter in policy.parameters.values()}
    found = {parameter.data_ptr() in own for parameter in generator._model.parameters()}
    run.engines.runtime.close()
    assert len(found) == 1, "all parameters or none"
    return found.pop()


def test_whether_an_open_run_has_one_copy(tmp_path: Path) -> None:
    prepare(tmp_path, 0)
    paths = {"model": str(tmp_path / "model"), "data": str(tmp_path / "problems.jsonl")}
    config = evolve(sevens(2), prepare_data=None, **paths)
    with_weights = Composition(grpo.Config(), (importance_weight.Config(),))
    whole = evolve(config, trainer=evolve(config.trainer, lora=None))
    assert _shares(config, tmp_path / "lora")
    assert _shares(whole, tmp_path / "whole")
    assert not _shares(_with_copy(whole), tmp_path / "copy")
    stale = evolve(whole, rollout=evolve(whole.rollout, max_staleness=1), algorithm=with_weights)
    assert not _shares(stale, tmp_path / "stale")


# --- which runs ------------------------------------------------------------------------------------------------------


def _reason(config: RunConfig, ranks: int = 1) -> str | None:
    options = {"model": config.model, "trainer": config.trainer, "rollout": config.rollout}
    return copy_reason(config.generator, **options, placement=config.placement, ranks=ranks)


def test_ranks_actors_staleness_and_other_engines_keep_the_copy() -> None:
    config = sevens(2)
    stale = evolve(config.rollout, max_staleness=2)
    assert _reason(config) is None
    assert _reason(evolve(config, rollout=None)) is None
    assert _reason(config, ranks=2) == "2 ranks"
    assert _reason(evolve(config, placement=Placement(kind="ray"))) == "placement.kind is ray"
    assert _reason(evolve(config, rollout=stale)) == "rollout.max_staleness is 2"
    assert _reason(evolve(config, rollout=evolve(stale, background=True))) == "rollout.max_staleness is 2"
    assert _reason(evolve(config, trainer=fake_trainer.Config(vocab_size=14))) == "the trainer is another engine"
    assert _reason(_with_copy(config)) == "generator.copy_weights is true"


def test_a_copy_that_there_is_anyway_is_not_requested() -> None:
    config = _with_copy(sevens(2))
    check(config)
    reason = "rollout.max_staleness is 1"
    with pytest.raises(ConfigError) as caught:
        check(evolve(config, rollout=evolve(config.rollout, max_staleness=1)))
    assert str(caught.value).splitlines() == [
        "generator.copy_weights has no effect",
        "  got:  True",
        f"  need: a generator that could sample with the weights of the trainer; here it has a copy anyway: {reason}",
        "  do:   leave generator.copy_weights out",
    ]
