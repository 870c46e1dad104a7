"""Runs with the real engine: they learn, and survive the death of any of its processes."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from attrs import evolve

from purerl.algos import grpo
from purerl.backends.hf.lora import Lora
from purerl.backends.weights import TensorWeights
from purerl.config.schema import RunConfig
from purerl.loop.train import train
from purerl.protocols import Request, Sampling
from purerl.recipes.addition import addition
from purerl.settings import Model
from tests.backends.generators import weights_in_files
from tests.engines.conftest import KIND, PYTHON, build, processes, settings
from tests.loop.runs import records
from tests.placement.worlds import run_world
from tests.recipes import made


def _short() -> RunConfig:
    """The default recipe with few steps, and a learning rate with which the accuracy rises from the first step on."""
    config = addition(max_steps=30)
    return evolve(config, trainer=evolve(config.trainer, lr=4e-4))


@pytest.mark.parametrize(
    ("config", "rise", "end"),
    [(_short(), 0.05, 0.0), pytest.param(addition(), 0.25, 0.9, marks=pytest.mark.soak)],
    ids=["short", "whole"],
)
def test_run_learns_and_trainer_and_engine_agree(tmp_path: Path, config: RunConfig, rise: float, end: float) -> None:
    """The default recipe begins with an accuracy of about a half, and ends above .9."""
    evaluate = evolve(config.evaluate, every=config.max_steps)
    config = evolve(config, generator=settings(tmp_path, max_num_seqs=512), evaluate=evaluate)
    summary = train(config, directory=tmp_path / "run")
    assert summary.after["eval/accuracy"] > max(summary.before["eval/accuracy"] + rise, end)
    largest = [record["mismatch/logp_abs_diff_max"] for record in records(tmp_path / "run")[1:]]
    assert max(largest) < 1e-3
    assert processes(tmp_path) == []


def test_run_uses_a_server_that_runs_already(tmp_path: Path) -> None:
    """GRPO trains on all rows, also of a model that solves nothing."""
    config = evolve(addition(max_steps=2), algorithm=grpo.Config())
    config = evolve(config, evaluate=None, initial_run=evolve(config.initial_run, max_steps=5))
    made = train(config, directory=tmp_path / "made").directory
    model = Model(str(made / "initial_run/final"))
    server = build(model, tmp_path / "servers")
    settings_of_run = settings(tmp_path, urls=(server.servers[0].url,))
    data = str(made / "prepared/train.parquet")
    config = evolve(config, model=model, data=data, generator=settings_of_run, initial_run=None, prepare_data=None)
    try:
        summary = train(config, directory=tmp_path / "run")
        assert processes(tmp_path / "servers"), "the run has not stopped it"
    finally:
        server.close()
    steps = records(summary.directory)[1:]
    assert [step["rollout/failed"] for step in steps] == [0, 0]
    assert max(step["mismatch/logp_abs_diff_max"] for step in steps) < 1e-3


@pytest.mark.soak
def test_ranks_share_a_server(tmp_path: Path) -> None:
    """Two ranks train with one server, and agree with it in every step."""
    config = evolve(addition(max_steps=3), evaluate=None, generator=settings(tmp_path / "servers"))
    assert [rank.status for rank in run_world(config, tmp_path / "run")] == [0, 0]
    largest = [record["mismatch/logp_abs_diff_max"] for record in records(tmp_path / "run")[1:]]
    assert len(largest) == 3
    assert max(largest) < 1e-3
    assert len(list((tmp_path / "servers").glob("*.log"))) == 1
    assert processes(tmp_path / "servers") == []


@pytest.mark.soak
@pytest.mark.skipif(KIND != "vllm", reason="SGLang has no seeds, so its runs cannot be repeated")
def test_ranks_with_a_server_resume_bit_for_bit(tmp_path: Path) -> None:
    config = evolve(addition(max_steps=4), evaluate=None, generator=settings(tmp_path / "servers"))
    trainer = evolve(config.trainer, lr_scheduler="constant", warmup_ratio=None, warmup_steps=None)
    config = evolve(config, trainer=trainer, checkpoint=evolve(config.checkpoint, every=2))
    for directory, steps in (("whole", 4), ("resumed", 2), ("resumed", 4)):
        ranks = run_world(evolve(config, max_steps=steps), tmp_path / directory)
        assert [rank.status for rank in ranks] == [0, 0]
    whole, resumed = (
        {path.name: path.read_bytes() for path in (tmp_path / name / "final").glob("*.safetensors")}
        for name in ("whole", "resumed")
    )
    assert whole
    assert whole == resumed


@pytest.mark.soak
@pytest.mark.skipif(KIND != "vllm", reason="only vLLM loads adapters")
def test_a_run_trains_an_adapter_that_the_engine_loads(tmp_path: Path) -> None:
    config = evolve(addition(max_steps=4), evaluate=None, generator=settings(tmp_path / "servers", max_lora_rank=8))
    config = evolve(config, trainer=evolve(config.trainer, lora=Lora(rank=4)))
    steps = records(train(config, directory=tmp_path / "run"))[1:]
    assert len(steps) == 4
    assert all(step["mismatch/logp_abs_diff_max"] < 1e-3 and step["policy/grad_norm"] > 0 for step in steps)


@pytest.mark.skipif(KIND != "vllm", reason="the recipe uses vLLM")
def test_gsm8k_vllm_trains_a_tiny_model(tmp_path: Path) -> None:
    """Two steps of the recipe on the CPU, where engines cannot sleep."""
    data, model = made.write_problems(tmp_path), made.write_model(tmp_path / "model", head_dim=32)
    server = settings(tmp_path).server
    changes = {f"generator.server.{name}": json.dumps(getattr(server, name)) for name in ("device", "logs")}
    changes |= {f"generator.server.environment.{name}": json.dumps(value) for name, value in server.environment.items()}
    changes |= {"generator.server.sleep_level": 0, "generator.server.gpu_memory_utilization": ""}
    summary = made.train(
        "gsm8k_vllm", tmp_path / "run", f"model={model}", f"data={data}", f"test={data}",
        f"python={PYTHON}", "max_steps=2", "batch_size=4", "rollout.samples_per_prompt=4", "rollout.max_tokens=12",
        "evaluate.max_tokens=12", "trainer.warmup_ratio=0", "trainer.mixed_precision=off", "num_threads=1",
        *(f"{name}={value}" for name, value in changes.items()),
    )  # fmt: skip
    steps = records(summary.directory)[1:]
    assert len(steps) == 2
    assert all(0 < step["mismatch/logp_abs_diff"] < 0.05 for step in steps), "vLLM samples in bfloat16"
    assert all(step["rollout/failed"] == 0 for step in steps)


@pytest.mark.parametrize("kills", [2, pytest.param(None, marks=pytest.mark.soak)], ids=["2", "many"])
def test_engine_that_is_killed_in_a_batch_answers_every_request_once(
    models: tuple[Model, Model], tmp_path: Path, pytestconfig: pytest.Config, kills: int | None
) -> None:
    """SIGKILL of a random process of the engine, and SIGSTOP of another, which hangs. By default --kills times."""
    kills = pytestconfig.getoption("--kills") if kills is None else kills
    rng = random.Random(0)
    generator = build(models[0], tmp_path, stall_timeout=20.0, max_restarts=5)
    generator.load_weights(TensorWeights(weights_in_files(models[1])), version=7)
    for attempt in range(kills):
        keys = [f"{attempt}/{k}" for k in range(32)]
        generator.submit([Request(key, [1, 2, 3], Sampling(max_tokens=400), k) for k, key in enumerate(keys)])
        time.sleep(rng.uniform(0.2, 1.0))
        _send_signal(tmp_path, rng, signal.SIGKILL if attempt % 4 else signal.SIGSTOP)
        completions = []
        while len(completions) < len(keys):
            collected = generator.collect(timeout=300.0)
            assert collected, "300 seconds without a completion"
            completions += collected
        assert sorted(completion.key for completion in completions) == sorted(keys)
        assert {completion.finish for completion in completions} == {"length"}
        assert {version for completion in completions for version in completion.version} == {7}
    generator.close()
    assert processes(tmp_path) == []


def _send_signal(folder: Path, rng: random.Random, number: int) -> None:
    """Send a signal to a random process of the engine; the last one may have ended it, so that it starts again."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with suppress(IndexError, ProcessLookupError):
            return os.kill(rng.choice(processes(folder)), number)
        time.sleep(0.1)
    pytest.fail("no process of the engine for 60 seconds")
