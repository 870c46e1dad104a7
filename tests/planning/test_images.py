"""The plan of a vision-language model: its whole weights count, and what images need is said not to be counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attrs import evolve
from safetensors import safe_open

from purerl.backends.hf import trainer
from purerl.planning import plan_memory
from tests.backends.vision import write_vision_model
from tests.loop.image_runs import image_run


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "idefics3", "llava"])
def test_weights_of_the_vision_tower_count(family: str, tmp_path: Path) -> None:
    path = write_vision_model(tmp_path, family, dtype="float32")
    with safe_open(Path(path) / "model.safetensors", "pt") as file:
        size = sum(4 * file.get_tensor(name).numel() for name in file.keys())
    plan = plan_memory(image_run(tmp_path, family))
    assert size <= plan.device["policy: parameters"]["training"] < 1.02 * size, "and buffers"
    assert any("what the vision tower computes is not counted" in text for text in plan.assumed)


def test_a_frozen_vision_tower_has_no_gradients(tmp_path: Path) -> None:
    write_vision_model(tmp_path, dtype="float32")
    config = image_run(tmp_path)
    whole, frozen = (plan_memory(evolve(config, trainer=trainer.Config(freeze=freeze))) for freeze in ((), ("vision",)))
    for name in ("gradients", "AdamW's moments"):
        assert frozen.device[f"policy: {name}"]["training"] < whole.device[f"policy: {name}"]["training"]
    assert frozen.device["policy: parameters"] == whole.device["policy: parameters"]


def test_many_layers_are_extrapolated(tmp_path: Path) -> None:
    peaks = []
    for layers in (4, 6, 8):
        path = Path(write_vision_model(tmp_path / str(layers), dtype="float32")) / "config.json"
        config = json.loads(path.read_text())
        config["text_config"] |= {"num_hidden_layers": layers, "layer_types": ["full_attention"] * layers}
        path.write_text(json.dumps(config))
        peaks.append(plan_memory(image_run(path.parent.parent)).peak)
    assert peaks[2] - peaks[1] == pytest.approx(peaks[1] - peaks[0], rel=0.02)
    assert peaks[1] > 1.1 * peaks[0]
