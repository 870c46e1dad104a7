"""The Megatron trainer without megatron-core: settings, shapes, and names of weights."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from attrs import evolve
from transformers import AutoConfig, LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from purerl.backends.megatron import trainer
from purerl.backends.megatron.mesh import MegatronMesh as Mesh
from purerl.backends.megatron.names import Weight, weights_of
from purerl.backends.megatron.shape import Shape, shape_of
from purerl.backends.megatron.trainer import Config
from purerl.backends.plugin import trainer_plugin
from purerl.errors import ConfigError
from purerl.opening.fit import check_devices
from purerl.plugins import find, names
from purerl.recipes.addition import addition
from purerl.settings import Model
from tests.backends.test_classifier import write_classifier
from tests.backends.tiny import FAMILIES, write_model
from tests.megatron.models_table import MODELS


def _shape(name: str) -> Shape:
    family, changes = MODELS[name]
    return shape_of(AutoConfig.for_model(family, **FAMILIES[family] | changes))


def test_it_is_a_plugin():
    assert "megatron" in names("trainer")
    assert find("trainer", "megatron") is trainer


# --- names of weights ----------------------------------------------------------------------------------------------


def _parameters(table: tuple[Weight, ...], tensors: dict[str, torch.Tensor], rank: int, ranks: int) -> dict[str, Any]:
    """The parameters of a tensor rank: as many elements as the parts in them, each of which has been copied."""
    parts = {weight.parameter: [w for w in table if w.parameter == weight.parameter] for weight in table}
    parameters = {}
    for parameter, weights in parts.items():
        columns = weights[0].part_shape(ranks)[1:]
        rows = sum(weight.part_shape(ranks)[0] for weight in weights)
        parameters[parameter] = torch.full((rows, *columns), math.nan)
        for weight in weights:
            view = weight.view(parameters[parameter])
            view.copy_(weight.part(tensors[weight.name], rank, ranks).reshape(view.shape))
    return parameters


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_the_parts_of_all_ranks_are_the_tensors_and_nothing_else(name, ranks):
    shape, draw = _shape(name), torch.Generator().manual_seed(0)
    table = tuple(weight for weight in weights_of(shape) if not weight.is_copy)
    tensors = {weight.name: torch.randn(weight.shape, generator=draw) for weight in table}
    of_ranks = [_parameters(table, tensors, rank, ranks) for rank in range(ranks)]
    for weight in table:
        views = [weight.view(parameters[weight.parameter]) for parameters in of_ranks]
        parts = torch.stack([view.reshape(weight.part_shape(ranks)) for view in views])
        assert torch.equal(weight.whole(parts), tensors[weight.name]), weight.name
    for parameters in of_ranks:
        assert not any(parameter.isnan().any() for parameter in parameters.values()), "no element is left out"


@pytest.mark.parametrize("name", MODELS)
def test_the_names_and_shapes_are_those_of_the_files(tmp_path, name):
    from safetensors.torch import load_file

    family, changes = MODELS[name]
    files = load_file(f"{write_model(tmp_path, family, **changes)}/model.safetensors")
    table = {weight.name: weight.shape for weight in weights_of(_shape(name)) if not weight.is_copy}
    assert table == {key: tuple(value.shape) for key, value in files.items()}


def test_a_query_group_has_its_queries_before_its_key_and_value():
    shape = _shape("qwen3")
    by_name = {weight.name: weight for weight in weights_of(shape)}
    rows = torch.arange(shape.key_heads * shape.group_heads * shape.head_dim)[:, None]
    queries, keys, values = (
        by_name[f"model.layers.0.self_attn.{part}_proj.weight"].view(rows).flatten(1) // shape.head_dim
        for part in "qkv"
    )
    assert queries.unique().tolist() == [0, 1, 4, 5]
    assert keys.unique().tolist() == [2, 6]
    assert values.unique().tolist() == [3, 7]


# --- refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "got"),
    [
        (Qwen2Config(use_sliding_window=True, sliding_window=4, max_window_layers=1), "layers of sliding_attention"),
        (LlamaConfig(attention_bias=True), "attention_bias = true"),
        (LlamaConfig(mlp_bias=True), "mlp_bias = true"),
        (Qwen3Config(hidden_act="gelu"), "the activation gelu"),
        (
            Qwen3Config(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}),
            "rotary embeddings of",
        ),
        (AutoConfig.for_model("gpt2"), "the architecture gpt2"),
    ],
)
def test_a_model_that_megatron_would_compute_differently_is_refused(config, got):
    with pytest.raises(ConfigError, match=f"^megatron cannot train this model\n  got:  {re.escape(got)}"):
        shape_of(config)


def test_the_rotary_embedding_of_llama_3_is_accepted_with_its_constants_only():
    rope = {"rope_type": "llama3", "factor": 8.0, "rope_theta": 5e5, "original_max_position_embeddings": 8192}
    rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    assert shape_of(LlamaConfig(rope_parameters=rope)).rope_factor == 8.0
    with pytest.raises(ConfigError, match="high_freq_factor = 2"):
        shape_of(LlamaConfig(rope_parameters=rope | {"high_freq_factor": 2.0}))


def test_layers_with_experts_are_those_of_transformers():
    shape = shape_of(Qwen3MoeConfig(num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3]))
    assert shape.moe_layers == (False, True, False, False, False, True)


@pytest.mark.parametrize(
    ("name", "mesh", "message"),
    [
        ("qwen3", Mesh(tensor=4), "mesh.tensor\n  got:  4, and 2 key and value heads\n  need: one of: 1, 2"),
        (
            "qwen3",
            Mesh(context=4, tensor=2),
            "mesh.context\n  got:  4, and 2 attention heads of a tensor rank\n  need: one of: 1, 2",
        ),
        ("qwen3", Mesh(pipeline=4), "mesh.pipeline\n  got:  4, and 2 layers\n  need: one of: 1, 2"),
        ("qwen3", Mesh(expert=2), "mesh.expert\n  got:  2\n  need: 1 for a model without experts"),
        ("qwen3_moe", Mesh(expert=3), "mesh.expert\n  got:  3, and 4 experts\n  need: one of: 1, 2, 4"),
        (
            "qwen3_moe",
            Mesh(tensor=2),
            "mesh.sequence_parallel\n  got:  False\n  need: true with mesh.tensor above 1",
        ),
    ],
)
def test_a_mesh_that_cannot_divide_the_model_is_refused(tmp_path, name, mesh, message):
    family, changes = MODELS[name]
    model = Model(write_model(tmp_path, family, **changes))
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        trainer.preview(Config(mesh=mesh), model=model)
    assert trainer.preview(Config(), model=model).max_sequence_length == 64


def test_replayed_routes_of_a_model_without_experts_are_refused(tmp_path):
    family, changes = MODELS["qwen3"]
    config, model = Config(replay_routes="old_logp"), Model(write_model(tmp_path, family, **changes))
    message = f"trainer.replay_routes\n  got:  {model.path!r}, a model without experts\n  need: a mixture of experts"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        trainer.check_model(config, model=model, outputs=("logp",), is_trained=True)
    trainer.check_model(config, model=model, outputs=("logp",), is_trained=False)
    trainer.check_model(config, model=model, outputs=("value",), is_trained=True)
    assert trainer_plugin(config).replayed_routes(config) == "old_logp"
    assert trainer_plugin(config).replayed_routes(Config()) == "off"


@pytest.mark.parametrize(("kind", "labels"), [("Token", 1), ("Sequence", 2)])
def test_only_a_classifier_of_sequences_with_one_label_scores(tmp_path, kind, labels):
    outputs, good = ("classifier_score",), Model(write_classifier(tmp_path / "good"))
    trainer.check_model(Config(), model=good, outputs=outputs, is_trained=False)
    other = Model(write_classifier(tmp_path, kind, labels=labels))
    with pytest.raises(ConfigError) as error:
        trainer.check_model(Config(), model=other, outputs=outputs, is_trained=False)
    assert str(error.value).splitlines() == [
        "megatron cannot train this model",
        f"  got:  Qwen3For{kind}Classification with {labels} labels",
        "  need: ...ForSequenceClassification with 1 label",
        "  do:   set trainer.kind to hf",
    ]


def test_sequence_parallelism_without_tensor_parallelism_is_refused():
    with pytest.raises(
        ConfigError, match="^mesh.sequence_parallel has no effect\n  got:  True\n  need: mesh.tensor above"
    ):
        Mesh(sequence_parallel=True)


@pytest.mark.parametrize(("ranks", "data"), [(8, 2), (4, 1)])
def test_data_ranks_are_those_that_the_mesh_leaves(ranks, data):
    assert Mesh(tensor=2, pipeline=2).data(ranks) == data
    assert Mesh(context=2, pipeline=2).data(ranks) == data


@pytest.mark.parametrize(
    ("mesh", "ranks", "message"),
    [
        (
            Mesh(tensor=2, pipeline=2),
            6,
            "mesh\n  got:  tensor 2 x context 1 x pipeline 2 = 4, with 6 ranks\n  need: a product",
        ),
        (
            Mesh(expert=4),
            2,
            "mesh.expert\n  got:  4, with 2 ranks in each stage of the pipeline\n  need: a number that",
        ),
        (Mesh(tensor=2), 1, "mesh\n  got:  tensor 2 x context 1 x pipeline 1 = 2, with 1 rank\n  need: a product"),
        (Mesh(context=2), 3, "mesh\n  got:  tensor 1 x context 2 x pipeline 1 = 2, with 3 ranks\n  need: a product"),
    ],
)
def test_a_mesh_that_does_not_fit_the_ranks_is_refused(mesh, ranks, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        mesh.data(ranks)


def test_settings_are_checked_before_a_model_is_loaded(monkeypatch):
    monkeypatch.setattr(trainer, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="^kind\n  got:  megatron, which is not installed\n  need: the library"):
        trainer.check_installed(Config())
    monkeypatch.setattr(trainer, "find_spec", lambda name: object())
    with pytest.raises(ConfigError, match="^kind\n  got:  the algorithm needs the output 'routes'"):
        trainer.check(Config(), role="policy", outputs=("routes",), updates=0)
    with pytest.raises(ConfigError, match="^warmup_steps\n  got:  5\n  need: less than the 5 optimizer steps"):
        trainer.check(Config(warmup_steps=5), role="policy", outputs=("logp",), updates=5)
    with pytest.raises(ConfigError, match="^top_k has no effect\n  got:  4"):
        trainer.check(Config(top_k=4), role="policy", outputs=("logp",), updates=5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_check_of_devices_refuses_a_host_without_a_gpu_and_no_other(monkeypatch):
    config = evolve(addition(), trainer=Config())
    with pytest.raises(ConfigError) as error:
        check_devices(config)
    what, got, need, do = str(error.value).splitlines()
    assert what == "trainer.kind"
    assert got.startswith("  got:  megatron: ")
    assert need == "  need: a GPU for each rank: megatron-core has no layers for a CPU"
    assert do == "  do:   set trainer.kind to hf"
    for name in ("init", "set_device"):
        monkeypatch.setattr(torch.cuda, name, lambda *arguments: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
    check_devices(config)


def test_the_learning_rate_is_that_of_the_hf_trainer():
    from purerl.backends.hf.trainer import Config as HFConfig

    settings = {"lr": 1e-3, "lr_scheduler": "cosine", "warmup_ratio": 0.2, "min_lr_ratio": 0.1}
    rates = [[config(**settings).learning_rate(k, 10) for k in range(12)] for config in (Config, HFConfig)]
    assert rates[0] == rates[1]
