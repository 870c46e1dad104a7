"""Runs that train an adapter: they learn, resume, export, and need no second copy of the model as a reference."""

from __future__ import annotations

import pytest
from attrs import evolve

from purerl.backends.hf.training.adapter import BaseTrainer
from purerl.config.check import check
from purerl.config.schema import Role
from purerl.errors import ConfigError
from purerl.loop.train import train
from tests.backends.saved import saved_tensors
from tests.loop.lora_task import prepare, sevens
from tests.loop.runs import opened, records, train_until, without_times


@pytest.mark.slow
def test_a_run_learns_and_resumes_exactly(tmp_path):
    whole = train(sevens(8), directory=tmp_path / "whole")
    rewards = [record["reward/mean"] for record in records(whole) if "reward/mean" in record]
    assert rewards[-1] > rewards[0] + 0.3
    assert max(record.get("mismatch/logp_abs_diff", 0) for record in records(whole)) < 1e-4
    train_until(5, sevens(8), directory=tmp_path / "killed")  # without a checkpoint of this step
    killed = train(sevens(8), directory=tmp_path / "killed")
    assert without_times(records(killed)) == without_times(records(whole))
    files = [directory / "final" / "model.safetensors" for directory in (whole.directory, killed.directory)]
    assert files[0].read_bytes() == files[1].read_bytes()
    weights = saved_tensors(whole.directory / "checkpoints" / "000008" / "policy", "weights.")
    assert all(".lora_" in name for name in weights), "only the adapter is saved"


def test_the_reference_is_the_policy_without_its_adapter(tmp_path):
    prepare(tmp_path, 0)
    paths = {"model": str(tmp_path / "model"), "data": str(tmp_path / "problems.jsonl")}
    run = opened(evolve(sevens(2), prepare_data=None, **paths), tmp_path / "run")
    assert isinstance(run.engines.trainers["reference"], BaseTrainer)
    run.engines.runtime.close()


def test_the_adapter_alone_is_exported(tmp_path):
    run = train(sevens(1, export="adapter"), directory=tmp_path / "run")
    names = {path.name for path in (run.directory / "final").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= names
    assert not names & {"model.safetensors", "config.json"}


def test_a_reference_that_follows_the_policy_is_refused():
    with pytest.raises(ConfigError, match=r"roles\.reference\.update_every\n  got:  2\n  need: .* trains an adapter"):
        check(evolve(sevens(2), roles={"reference": Role(update_every=2)}))
