"""Loading a model: all of its weights are in its files, and errors name what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from purerl.backends.hf import generator
from purerl.backends.hf.decoder.loading import load_model
from purerl.errors import ConfigError
from purerl.settings import Model
from tests.backends.tiny import FAMILIES, make_trainer, write_model


def rewrite(path: str, change) -> str:
    """Apply `change` to the weights in the files of the model; return `path`."""
    from safetensors.torch import load_file, save_file

    file = Path(path) / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})
    return path


@pytest.mark.parametrize("family", FAMILIES)
def test_complete_model_is_loaded_with_and_without_tied_weights(tmp_path, family):
    load_model(Model(write_model(tmp_path, family), attention="eager"))


@pytest.mark.parametrize("role", ["policy", "critic", "reference"])
def test_model_with_missing_weights_is_refused(tmp_path, role):
    def remove_layer(weights):
        for name in [name for name in weights if ".layers.1.mlp." in name]:
            del weights[name]

    path = rewrite(write_model(tmp_path), remove_layer)
    with pytest.raises(ConfigError) as caught:
        make_trainer(path, role)
    assert str(caught.value) == (
        f"the files of {path!r} do not contain the whole model\n"
        "  got:  no model.layers.1.mlp.down_proj.weight; no model.layers.1.mlp.gate_proj.weight; "
        "no model.layers.1.mlp.up_proj.weight\n"
        "  need: all weights of Qwen3ForCausalLM, in its shapes; others would be initialized at random\n"
        "  do:   download the files again, or fix config.json if it describes another model"
    )
    with pytest.raises(ConfigError, match="do not contain the whole model"):
        generator.build(generator.Config(), model=Model(path), seed=0)


def test_model_with_weights_of_another_shape_is_refused(tmp_path):
    def shrink_head(weights):
        weights["lm_head.weight"] = weights["lm_head.weight"][:5].clone()

    path = rewrite(write_model(tmp_path), shrink_head)
    message = r"\n  got:  lm_head.weight is \[5, 16\] in the files and \[19, 16\] in the model\n"
    with pytest.raises(ConfigError, match=message):
        make_trainer(path)


def test_only_a_critic_can_be_loaded_without_an_output_head(tmp_path):
    make_trainer(write_model(tmp_path), "critic").export(tmp_path / "critic")
    make_trainer(str(tmp_path / "critic"), "critic")
    with pytest.raises(ConfigError, match=r"\n  got:  no lm_head.weight\n"):
        make_trainer(str(tmp_path / "critic"))


def test_truncated_file_is_refused(tmp_path):
    path = write_model(tmp_path)
    file = Path(path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=r"^no model can be loaded from the directory .*\n  got:  SafetensorError: "):
        make_trainer(path)


@pytest.mark.parametrize("attention", ["nonsense", "flash_attention_2"])
def test_unavailable_attention_implementation_is_refused_by_name(tmp_path, attention):
    model = Model(write_model(tmp_path), attention=attention)
    message = rf"^model.attention\n  got:  '{attention}': .*\n  need: an attention implementation that is installed"
    with pytest.raises(ConfigError, match=message):
        load_model(model)


@pytest.mark.parametrize(
    ("dtype", "remedy"),
    [("fp32", "one of: auto, bfloat16, float16, float32, float64"), ("bf16", "did you mean 'bfloat16'?")],
)
def test_unknown_dtype_is_refused(dtype, remedy):
    with pytest.raises(ConfigError) as caught:
        Model("nowhere", dtype=dtype)
    assert str(caught.value) == f"dtype\n  got:  {dtype!r}\n  do:   {remedy}"


@pytest.mark.parametrize("device", ["gpu", "abacus"])
def test_unknown_device_of_a_generator_is_refused_before_its_model_is_loaded(device):
    with pytest.raises(ConfigError, match=rf"^device\n  got:  {device}: "):
        generator.build(generator.Config(device=device), model=Model("nowhere"), seed=0)
