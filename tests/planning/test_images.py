"""The plan of a vision-language model: its whole weights count, and what images need is said not to be counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attrs import evolve
from safetensors import safe_open

from purerl.backends.hf.memory import simulation
from purerl.planning import plan_memory
from tests.backends.vision import write_vision_model
from tests.loop.image_runs import image_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder, because a plan is computed once for the models in it."""
    return tmp_path_factory.mktemp("models")


OTHERS = [pytest.param(family, marks=pytest.mark.slow) for family in ("qwen2_5_vl", "idefics3", "llava")]


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl", *OTHERS])
def test_weights_of_the_vision_tower_count(family: str, folder: Path) -> None:
    path = write_vision_model(folder, family, dtype="float32")
    with safe_open(Path(path) / "model.safetensors", "pt") as file:
        size = sum(4 * file.get_tensor(name).numel() for name in file.keys())
    plan = plan_memory(image_run(folder, family))
    assert size <= plan.device["policy: parameters"]["training"] < 1.02 * size, "and buffers"
    assert any("what the vision tower computes is not counted" in text for text in plan.assumed)


def test_a_frozen_vision_tower_has_no_gradients(folder: Path) -> None:
    write_vision_model(folder, dtype="float32")
    config = image_run(folder)
    whole, frozen = (plan_memory(evolve(config, trainer=evolve(config.trainer, freeze=f))) for f in ((), ("vision",)))
    for name in ("gradients", "AdamW's moments"):
        assert frozen.device[f"policy: {name}"]["training"] < whole.device[f"policy: {name}"]["training"]
    assert frozen.device["policy: parameters"] == whole.device["policy: parameters"]


def test_many_layers_are_extrapolated(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("purerl.planning.plan._PROGRAM", 0)  # it needs more than these models
    write_vision_model(folder, dtype="float32")
    plans = [plan_memory(image_run(folder))]
    for name, most in (("whole", 4), ("extrapolated", 3)):
        path = Path(write_vision_model(tmp_path / name, dtype="float32")) / "config.json"
        config = json.loads(path.read_text())
        config["text_config"] |= {"num_hidden_layers": 4, "layer_types": ["full_attention"] * 4}
        path.write_text(json.dumps(config))
        for limit, layers in {"_FEWER": 2, "_MORE": 3, "_ALL": most}.items():
            monkeypatch.setattr(simulation, limit, layers)
        plans.append(plan_memory(image_run(tmp_path / name)))
    of_two_layers, whole, extrapolated = plans
    assert extrapolated.phases == pytest.approx(whole.phases, rel=0.02)
    assert whole.peak > 1.1 * of_two_layers.peak
