"""Families whose layers or attention differ from those of most, with settings by default and with single options."""

from __future__ import annotations

import pytest
from transformers import AutoModelForCausalLM

from purerl.backends.hf.decoder.limits import attention_of
from purerl.backends.hf.model.load import load_model
from purerl.backends.hf.trainer import Config, check_model, preview
from purerl.errors import ConfigError
from purerl.settings import Model
from tests.families.tables import config_with, default_of, difference, misleading, model_of, outcome_of, remedied

FAMILIES = ("mamba", "mamba2", "bamba", "gemma2", "gpt_oss", "bloom", "llama4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("families")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_trained_with_settings_by_default_and_the_attention_that_transformers_chooses(folder, family):
    model = model_of(folder, family)
    assert model.attention is None
    chosen = AutoModelForCausalLM.from_pretrained(model.path)
    assert attention_of(load_model(model)) == attention_of(chosen)
    outcome = default_of(model)
    assert outcome.refusal is None
    assert outcome.metrics["grad_norm"] > 0
    preview(Config(), model=model)


_LINEAR = "got:  {cls} with linear_attention\n  need: layers of full or sliding-window attention only"
_OWN = (
    "got:  BloomForCausalLM, whose code has an attention of its own\n  need: a model that calls the attention functions"
)


@pytest.mark.parametrize("option", ["packing", "share_prefixes"])
@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("mamba", _LINEAR.format(cls="MambaForCausalLM")),
        ("mamba2", _LINEAR.format(cls="Mamba2ForCausalLM")),
        ("bamba", _LINEAR.format(cls="BambaForCausalLM")),
        ("bloom", _OWN),
        ("llama4", "got:  Llama4ForCausalLM with chunked_attention\n"),
    ],
)
def test_an_option_that_needs_attention_is_refused_without_weights(folder, family, message, option):
    model = model_of(folder, family)
    if (family, option) == ("bloom", "share_prefixes"):
        assert difference(family, option, outcome_of(model, config_with(option, model)), default_of(model)) is None
        return
    config = config_with(option, model)
    with pytest.raises(ConfigError) as raised:
        check_model(config, model=model, outputs=("logp",), is_trained=True)
    assert str(raised.value).startswith(f"{option}\n  {message}")
    assert str(raised.value).endswith(f"do:   leave {option} out")
    assert misleading(str(raised.value), model, config) is None


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss"])
def test_rows_of_a_family_are_packed(folder, family):
    model = model_of(folder, family)
    outcome = outcome_of(model, config_with("packing", model))
    assert difference(family, "packing", outcome, default_of(model)) is None


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_sharded(folder, family):
    model = model_of(folder, family)
    check_model(config_with("shard", model), model=model, outputs=("logp",), is_trained=True)


@pytest.mark.parametrize(
    ("family", "mesh", "reason"),
    [
        ("mamba", "tensor", "MambaForCausalLM, for which transformers has no plan"),
        ("mamba", "sequence", "MambaForCausalLM with linear_attention"),
        ("mamba2", "tensor", "Mamba2ForCausalLM, for which transformers has no plan"),
        ("mamba2", "sequence", "Mamba2ForCausalLM with linear_attention"),
        ("bamba", "sequence", "BambaForCausalLM with linear_attention"),
        ("gemma2", "sequence", "Gemma2ForCausalLM with attention eager"),
        ("gpt_oss", "sequence", "GptOssForCausalLM with attention eager"),
        ("bloom", "sequence", "BloomForCausalLM, whose code has an attention of its own"),
        ("llama4", "tensor", "Llama4ForCausalLM, whose plan in transformers fails in the backward pass"),
    ],
)
def test_a_mesh_that_a_family_does_not_fit_is_refused_with_the_reason(folder, family, mesh, reason):
    model = model_of(folder, family)
    config = config_with(mesh, model)
    with pytest.raises(ConfigError) as raised:
        check_model(config, model=model, outputs=("logp",), is_trained=True)
    assert str(raised.value).startswith(f"mesh.{mesh}\n  got:  2, and {reason}")
    assert misleading(str(raised.value), model, config) is None


@pytest.mark.parametrize("family", FAMILIES)
def test_lora_trains_a_family_or_names_layers_that_can_have_an_adapter(folder, family):
    model = model_of(folder, family)
    config = config_with("lora", model)
    outcome = outcome_of(model, config)
    if outcome.refusal is not None:
        assert (outcome.stage, misleading(outcome.refusal, model, config)) == ("check", None)
        outcome = outcome_of(model, remedied(outcome.refusal, config))
    assert outcome.refusal is None
    assert difference(family, "lora", outcome, default_of(model)) is None


def test_a_reason_in_the_configuration_is_found_before_weights_are_read(folder, monkeypatch):
    """The load that a user would wait for: with a large model, minutes."""
    monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", lambda *args, **kwargs: pytest.fail("loaded"))
    model = model_of(folder, "bloom")
    for settings in ({"packing": True}, {"freeze": ("no.such",)}, {"freeze": ("*",)}):
        with pytest.raises(ConfigError):
            check_model(Config(**settings), model=model, outputs=("logp",), is_trained=True)


def test_experts_are_trained_in_float64(tmp_path):
    model = model_of(tmp_path, "mixtral")
    assert model.dtype == "float64"
    assert default_of(model).refusal is None


def test_an_attention_that_a_family_does_not_support_is_named_before_weights_are_read(folder):
    model = Model(model_of(folder, "bamba").path, attention="flex_attention")
    with pytest.raises(
        ConfigError, match=r"^model.attention\n  got:  'flex_attention': BambaForCausalLM(.|\n)*leave it out"
    ):
        check_model(Config(packing=True), model=model, outputs=("logp",), is_trained=True)
