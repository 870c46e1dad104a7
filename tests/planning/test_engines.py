"""The planned memory of trainers and generators, against that of the same engines with weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.algos.algebra import prepare_step
from purerl.backends.hf import generator, trainer
from purerl.backends.hf.lora import Lora
from purerl.backends.hf.memory.trainer import microbatches_to_plan, probe_objective
from purerl.backends.hf.mesh import Mesh
from purerl.backends.hf.training.engine import HFTrainer
from purerl.protocols import Request, Sampling, generate
from purerl.settings import Model
from purerl.system.memory_use import MemoryUse, Workload
from purerl.system.tensor_tracker import MemoryTracker
from tests.planning.models import WORKLOAD, write_model

pytestmark = pytest.mark.slow

OUTPUTS = ("logp", "entropy")


def _planned(use: MemoryUse, phase: str) -> int:
    return sum(use.states.values()) + sum(use.transient[phase].values())


def _measured(engine: HFTrainer, outputs: tuple[str, ...]) -> dict[str, int]:
    """The peaks of the second step, by phase."""
    batch, objective = microbatches_to_plan(engine, WORKLOAD)[0], probe_objective(outputs)
    step, counts = prepare_step(objective, batch)
    if engine.optimizer is not None:
        engine.step(step, objective, counts)
    with MemoryTracker() as tracker:
        states = engine.optimizer.state.values() if engine.optimizer else ()
        tracker.label("states", engine.module.parameters())
        tracker.label("states", engine.module.buffers())
        tracker.label("states", [value for state in states for value in state.values()])
        tracker.label("states", [p.grad for p in engine.trained.values() if p.grad is not None])
        with tracker.phase("scoring"):
            engine.score(batch, outputs)
        if engine.optimizer is not None:
            with tracker.phase("training"):
                engine.step(step, objective, counts)
    return {phase: tracker.peak(phase) for phase in tracker.peaks}


SETTINGS: dict[str, dict[str, Any]] = {
    "full": {},
    "small micro-batches": {"max_tokens_per_microbatch": 256},
    "rows alone": {"share_prefixes": False},
    "packed": {"packing": True},
    "recomputed layers": {"recompute": "layers"},
    "selective recomputation": {"recompute": "selective"},
    "autocast": {"mixed_precision": "bfloat16"},
    "lora": {"lora": Lora(rank=4)},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_training_needs_what_was_planned(name: str, tmp_path: Path) -> None:
    layers = 2 if "recompute" in SETTINGS[name] else 1
    model = write_model(tmp_path, num_hidden_layers=layers)
    config = trainer.Config(device="cpu", **SETTINGS[name])
    use = trainer.memory(config, model=model, outputs=OUTPUTS, is_trained=True, workload=WORKLOAD)
    engine = trainer.build(config, model=model, role="policy", outputs=OUTPUTS, updates=3, seed=0)
    for phase, peak in _measured(engine, OUTPUTS).items():
        assert _planned(use, phase) == pytest.approx(peak, rel=0.02)


@pytest.mark.parametrize(
    "family", [*(pytest.param(each, marks=pytest.mark.slow) for each in ("qwen3", "gemma2")), "qwen3_moe", "gpt2"]
)
def test_other_families(family: str, tmp_path: Path) -> None:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    changes = {"qwen3_moe": experts, "gpt2": {"n_embd": 96, "n_layer": 2, "n_head": 6, "n_positions": 256}}
    model = write_model(tmp_path, family, **changes.get(family, {}))
    model = Model(model.path, attention="eager" if family == "gemma2" else "sdpa")
    config = trainer.Config(device="cpu")
    use = trainer.memory(config, model=model, outputs=OUTPUTS, is_trained=True, workload=WORKLOAD)
    engine = trainer.build(config, model=model, role="policy", outputs=OUTPUTS, updates=3, seed=0)
    assert _planned(use, "training") == pytest.approx(_measured(engine, OUTPUTS)["training"], rel=0.1)


def test_a_critic_and_a_model_that_is_not_trained(tmp_path: Path) -> None:
    model, config = write_model(tmp_path, num_hidden_layers=1), trainer.Config(device="cpu")
    for outputs, updates in ((("value",), 3), (("logp",), 0)):
        use = trainer.memory(config, model=model, outputs=outputs, is_trained=updates > 0, workload=WORKLOAD)
        engine = trainer.build(config, model=model, role="critic", outputs=outputs, updates=updates, seed=0)
        for phase, peak in _measured(engine, outputs).items():
            assert _planned(use, phase) == pytest.approx(peak, rel=0.02)
        assert ("gradients" in use.transient.get("training", {})) == (updates > 0)


SHARDED = trainer.Config(device="cpu", recompute="layers", mixed_precision="bfloat16", mesh=Mesh(shard=4))


@pytest.mark.slow
@pytest.mark.parametrize("config", [trainer.Config(device="cpu", recompute="layers"), SHARDED])
def test_deep_models_are_extrapolated_exactly(
    config: trainer.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(tmp_path, num_hidden_layers=9)
    arguments: dict[str, Any] = {"model": model, "outputs": OUTPUTS, "is_trained": True, "workload": WORKLOAD}
    extrapolated = trainer.memory(config, **arguments)
    monkeypatch.setattr("purerl.backends.hf.memory.simulation._ALL", 9)
    whole = trainer.memory(config, **arguments)
    assert _planned(extrapolated, "training") == pytest.approx(_planned(whole, "training"), rel=0.01)


@pytest.mark.slow
def test_weights_that_are_cast_are_kept_of_one_layer_at_a_time(tmp_path: Path) -> None:
    """autocast has a cache, which would keep the whole model in bfloat16 on each rank."""
    peaks = []
    for layers in (3, 4):
        model = write_model(tmp_path / str(layers), num_hidden_layers=layers, vocab_size=64, hidden_size=384)
        use = trainer.memory(SHARDED, model=model, outputs=OUTPUTS, is_trained=True, workload=WORKLOAD)
        peaks.append(sum(use.transient["scoring"].values()))
    assert 0 <= peaks[1] - peaks[0] < 2 * 384**2, "less than what one matrix of the fourth layer needs"


@pytest.mark.slow
def test_states_are_divided_by_the_ranks_of_the_mesh(tmp_path: Path) -> None:
    model = write_model(tmp_path, num_hidden_layers=1)
    arguments: dict[str, Any] = {"model": model, "outputs": OUTPUTS, "is_trained": True}
    workload = Workload(rows=16, group_size=4, minibatches=1, prompt_tokens=24, completion_tokens=40, ranks=4)
    whole = trainer.memory(trainer.Config(), workload=workload, **arguments)
    parts = trainer.memory(trainer.Config(mesh=Mesh(shard=4)), workload=workload, **arguments)
    for name, size in whole.states.items():
        assert parts.states[name] == pytest.approx(size / 4, rel=0.01)
    assert "gathered parameters and gradients" in parts.transient["training"]
    offloaded = trainer.memory(trainer.Config(mesh=Mesh(shard=4), cpu_offload=True), workload=workload, **arguments)
    gradients = {"gradients": parts.transient["training"]["gradients"]}
    assert (offloaded.states, offloaded.host) == ({}, parts.states | gradients)
    staged = trainer.memory(
        trainer.Config(mesh=Mesh(shard=4)), workload=evolve(workload, stages_checkpoints=True), **arguments
    )
    copied = parts.states["parameters"] + parts.states["AdamW's moments"]
    assert (parts.host, staged.host) == ({}, {"copy for the checkpoint": copied})


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "limit"), [(16, 256), (16, 4)])
def test_sampling_needs_what_was_planned(rows: int, limit: int, tmp_path: Path) -> None:
    model, config = write_model(tmp_path), generator.Config(device="cpu", max_num_seqs=limit)
    use = generator.memory(config, model=model, workload=WORKLOAD)
    engine = generator.build(config, model=model, seed=0)
    sampling = Sampling(max_tokens=WORKLOAD.completion_tokens)
    prompts = [[(row // 4 + k) % 1024 for k in range(WORKLOAD.prompt_tokens)] for row in range(rows)]
    requests = [Request(str(row), prompt, sampling, seed=row) for row, prompt in enumerate(prompts)]
    with MemoryTracker() as tracker, tracker.phase("sampling"):
        generate(engine, requests)
    assert _planned(use, "sampling") == pytest.approx(tracker.peak("sampling"), rel=0.1)


@pytest.mark.parametrize(("dtype", "is_mapped"), [("float32", True), ("auto", True), ("bfloat16", False)])
def test_a_model_that_only_scores_is_counted_in_scoring_if_its_files_are_mapped(
    dtype: str, is_mapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("purerl.backends.hf.memory.trainer.MIN_SIZE", 0)
    model = evolve(write_model(tmp_path, num_hidden_layers=1), dtype=dtype)
    arguments: dict[str, Any] = {"model": model, "outputs": ("logp",), "workload": WORKLOAD}
    frozen = trainer.memory(trainer.Config(device="cpu"), is_trained=False, **arguments)
    assert ("parameters" in frozen.states) != is_mapped
    assert ("parameters" in frozen.transient["scoring"]) == is_mapped
    on_accelerator = trainer.memory(trainer.Config(device="cpu"), is_trained=False, on_accelerator=True, **arguments)
    assert "parameters" in on_accelerator.states
    assert "parameters" in trainer.memory(trainer.Config(device="cpu"), is_trained=True, **arguments).states
