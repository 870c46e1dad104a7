"""Loading a model: all of its weights come from its files, and what is wrong is told in our words."""

from __future__ import annotations

from pathlib import Path

import pytest

from purerl.backends.hf import generator
from purerl.backends.hf.model import load_model
from purerl.errors import ConfigError
from purerl.protocols import Model
from tests.backends.tiny import FAMILIES, trainer, write_model


def _rewritten(path: str, change) -> str:
    """The model at `path`, once `change` was made to its weights."""
    from safetensors.torch import load_file, save_file

    file = Path(path) / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})
    return path


@pytest.mark.parametrize("family", FAMILIES)
def test_a_whole_model_is_loaded_whatever_is_tied_in_it(tmp_path, family):
    load_model(Model(write_model(tmp_path, family), attention="eager"))


@pytest.mark.parametrize("role", ["policy", "critic", "reference"])
def test_weights_that_are_not_in_the_files_are_not_drawn(tmp_path, role):
    def without_a_layer(weights):
        for name in [name for name in weights if ".layers.1.mlp." in name]:
            del weights[name]

    path = _rewritten(write_model(tmp_path), without_a_layer)
    with pytest.raises(ConfigError) as caught:
        trainer(path, role)
    assert str(caught.value) == (
        f"the files of {path!r} do not hold the whole model\n"
        "  got:  no model.layers.1.mlp.down_proj.weight; no model.layers.1.mlp.gate_proj.weight; "
        "no model.layers.1.mlp.up_proj.weight\n"
        "  need: every weight of Qwen3ForCausalLM, in its shape: others would be drawn at random\n"
        "  do:   get the files again, or mend config.json where it describes another model"
    )
    with pytest.raises(ConfigError, match="do not hold the whole model"):
        generator.build(generator.Config(), model=Model(path), seed=0)


def test_weights_of_another_shape_are_not_drawn(tmp_path):
    def smaller(weights):
        weights["lm_head.weight"] = weights["lm_head.weight"][:5].clone()

    path = _rewritten(write_model(tmp_path), smaller)
    with pytest.raises(ConfigError, match=r"\n  got:  lm_head.weight \[5, 16\] there, \[19, 16\] here\n"):
        trainer(path)


def test_only_a_critic_needs_no_output_head(tmp_path):
    trainer(write_model(tmp_path), "critic").export(tmp_path / "critic")
    trainer(str(tmp_path / "critic"), "critic")
    with pytest.raises(ConfigError, match=r"\n  got:  no lm_head.weight\n"):
        trainer(str(tmp_path / "critic"))


def test_files_that_are_cut_off_are_refused(tmp_path):
    path = write_model(tmp_path)
    file = Path(path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=r"^no model can be loaded from the directory .*\n  got:  Error while deser"):
        trainer(path)


@pytest.mark.parametrize("attention", ["nonsense", "flash_attention_2"])
def test_an_attention_that_is_not_there_is_told_apart(tmp_path, attention):
    model = Model(write_model(tmp_path), attention=attention)
    with pytest.raises(ConfigError, match=rf"^model.attention\n  got:  '{attention}': .*\n  need: an attention impl"):
        load_model(model)


@pytest.mark.parametrize(
    ("dtype", "remedy"),
    [("fp32", "one of: auto, bfloat16, float16, float32, float64"), ("bf16", "did you mean 'bfloat16'?")],
)
def test_a_dtype_that_is_none_is_refused_at_once(dtype, remedy):
    with pytest.raises(ConfigError) as caught:
        Model("nowhere", dtype=dtype)
    assert str(caught.value) == f"dtype\n  got:  {dtype!r}\n  do:   {remedy}"


@pytest.mark.parametrize("device", ["gpu", "abacus"])
def test_a_generators_device_that_is_not_there_is_refused_before_its_model_is_loaded(device):
    with pytest.raises(ConfigError, match=rf"^device\n  got:  {device}: "):
        generator.build(generator.Config(device=device), model=Model("nowhere"), seed=0)
