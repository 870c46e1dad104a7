"""Plans of Megatron layouts, without Megatron-core. `tests/megatron/planned.py` compares them with real trainers."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path
from unittest import mock

import pytest
from attrs import evolve
from transformers import AutoConfig, AutoModelForCausalLM

from purerl.backends.hf.memory.simulation import fake_model, with_fake_weights
from purerl.backends.megatron import activations, trainer
from purerl.backends.megatron.activations import sizes_of
from purerl.backends.megatron.bridge import BUCKET
from purerl.backends.megatron.memory import memory_of_trainer, parameters_of_stage
from purerl.backends.megatron.mesh import MegatronMesh as Mesh
from purerl.backends.megatron.names import weights_of
from purerl.backends.megatron.shape import Shape, shape_of
from purerl.backends.megatron.trainer import Config
from purerl.config.check import check, check_settings
from purerl.config.schema import RunConfig
from purerl.config.structure import read_toml
from purerl.errors import ConfigError
from purerl.planning import plan_memory
from purerl.planning.capacity import capacity_of
from purerl.planning.speed import plan_speed
from purerl.planning.suggest import suggest
from purerl.settings import Model
from purerl.system.memory_use import COPIES, GRADIENTS, MOMENTS, PARAMETERS, Workload
from tests.accelerators import simulate
from tests.backends.tiny import FAMILIES
from tests.megatron.models_table import MODELS

ROOT = Path(__file__).parents[2]
DEEPSEEK = Model(str(ROOT / "docs" / "deepseek_v3"), dtype="bfloat16")
OUTPUTS = ("logp",)
WORKLOAD = Workload(rows=64, group_size=4, minibatches=2, prompt_tokens=128, completion_tokens=384, ranks=16)
SMALL = dict(
    vocab_size=1000,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=8,
    max_position_embeddings=4096,
    tie_word_embeddings=False,
)
EXPERTS = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16, decoder_sparse_step=1)


def _write(folder: Path, family: str = "qwen3", **changes: object) -> Model:
    """A directory with a config.json, and nothing else."""
    AutoConfig.for_model(family, **SMALL | changes).save_pretrained(folder)
    return Model(str(folder), dtype="bfloat16")


def _memory(config: Config, model: Model, workload: Workload = WORKLOAD, **options: object):
    return memory_of_trainer(config, model=model, outputs=OUTPUTS, is_trained=True, workload=workload, **options)


# --- parameters ----------------------------------------------------------------------------------------------------

MESHES = (
    *(Mesh(tensor=t, pipeline=p, sequence_parallel=t > 1) for t, p in product((1, 2), (1, 2))),
    Mesh(expert=2),
    Mesh(tensor=2, pipeline=2, expert=4, sequence_parallel=True),
)


def _of_table(shape: Shape, mesh: Mesh, stage: int, *, has_head: bool) -> int:
    """The parameters of a rank, from the table of names with which the trainer reads files."""
    total = 0
    for weight in weights_of(shape, has_head=has_head):
        of_stage = (weight.layer or 0) * mesh.pipeline // shape.layers == stage
        of_expert = (weight.expert or 0) * mesh.expert // max(1, shape.experts) == 0
        if of_stage and of_expert and not (weight.is_copy and mesh.pipeline == 1):
            total += math.prod(weight.part_shape(mesh.tensor if weight.expert is None else mesh.expert_tensor))
    return total


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_of_the_table_of_names(name: str, mesh: Mesh) -> None:
    family, changes = MODELS[name]
    config = AutoConfig.for_model(family, **FAMILIES[family] | changes)
    if mesh.expert > 1 and "moe" not in family:
        pytest.skip("no experts")
    causal, shape = with_fake_weights(AutoModelForCausalLM.from_config(config)), shape_of(config)
    for stage in range(mesh.pipeline):
        assert parameters_of_stage(causal, mesh, stage, OUTPUTS).total == _of_table(shape, mesh, stage, has_head=True)
        heads = config.hidden_size + 1 if stage == mesh.pipeline - 1 else 0
        critic = parameters_of_stage(causal, mesh, stage, ("value",)).total
        assert critic == _of_table(shape, mesh, stage, has_head=False) + heads


def test_rows_of_the_vocabulary_are_padded() -> None:
    """19 tokens are 10 rows for each of 2 tensor ranks, in the embedding and in the head."""
    family, changes = MODELS["qwen3"]
    config = AutoConfig.for_model(family, **FAMILIES[family] | changes)
    odd, even = (
        parameters_of_stage(with_fake_weights(AutoModelForCausalLM.from_config(each)), Mesh(tensor=2), 0, OUTPUTS).total
        for each in (config, AutoConfig.for_model(family, **FAMILIES[family] | changes | {"vocab_size": 20}))
    )
    assert odd == even


def test_all_ranks_together_have_the_parameters_of_the_model() -> None:
    """671 billion, and those that tensor ranks have more than once."""
    causal, mesh = fake_model(DEEPSEEK), Mesh(tensor=1, pipeline=16, expert=64)
    counts = [parameters_of_stage(causal, mesh, stage, OUTPUTS) for stage in range(16)]
    assert sum(count.shared + 64 * count.experts for count in counts) == 671_026_404_352


# --- states and activations ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("is_distributed", "dtype"), [*product((False, True), ("bfloat16", "float32"))])
def test_states_are_those_of_the_formulas(tmp_path: Path, dtype: str, *, is_distributed: bool) -> None:
    model, mesh = evolve(_write(tmp_path, "qwen3_moe", **EXPERTS), dtype=dtype), Mesh(pipeline=2, expert=4)
    use = _memory(Config(mesh=mesh, distributed_optimizer=is_distributed), model)
    count = parameters_of_stage(fake_model(model), mesh, 1, OUTPUTS)  # with the head and the last norm
    optimized = -(-count.shared // 8) - (-count.experts // 2) if is_distributed else count.total
    width, copies = (2, {COPIES: 4 * optimized}) if dtype == "bfloat16" else (4, {})
    states = {PARAMETERS: width * count.total, GRADIENTS: 4 * count.total, MOMENTS: 8 * optimized}
    assert use.states == states | copies


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_an_offloaded_optimizer_is_in_main_memory(tmp_path: Path, dtype: str) -> None:
    model, mesh = evolve(_write(tmp_path), dtype=dtype), Mesh(tensor=2)
    whole = _memory(Config(mesh=mesh, distributed_optimizer=True), model)
    use = _memory(Config(mesh=mesh, distributed_optimizer=True, optimizer_offload=True), model)
    assert (whole.host, use.states.keys()) == ({}, {PARAMETERS, GRADIENTS})
    assert {**use.states, **use.host} == whole.states
    assert sum(use.transient.pop("optimizer").values()) == 0 < sum(whole.transient.pop("optimizer").values())
    assert use.transient == whole.transient


def test_a_model_that_is_not_trained_has_its_parameters_only(tmp_path: Path) -> None:
    model, mesh = _write(tmp_path), Mesh(pipeline=2)
    for config in (Config(mesh=mesh), Config(mesh=mesh, optimizer_offload=True)):
        use = memory_of_trainer(config, model=model, outputs=OUTPUTS, is_trained=False, workload=WORKLOAD)
        assert (list(use.states), use.host) == ([PARAMETERS], {})
    assert set(use.transient) == {"scoring", "weight sync"}


def test_the_first_stage_keeps_as_many_micro_batches_as_there_are_stages(tmp_path: Path) -> None:
    model = _write(tmp_path, vocab_size=8)
    config = Config(mesh=Mesh(pipeline=4), max_tokens_per_microbatch=512)
    use = _memory(config, model)
    assert use.remarks == ("the rank that needs most is in stage 1 of 4 of the pipeline",)
    sizes, mesh = sizes_of(fake_model(model)), config.mesh
    layer = activations.kept(sizes, mesh, 512, 2, has_experts=False) + activations.scores(sizes, mesh, 1, 512, 2)
    assert use.transient["training"]["activations of 4 micro-batches"] == 4 * 2 * layer
    few = _memory(config, model, evolve(WORKLOAD, rows=16))
    assert few.transient["training"]["activations of 2 micro-batches"] == 2 * 2 * layer


@pytest.mark.parametrize("recompute", ["layers", "selective"])
def test_recomputation_keeps_less_and_computes_one_layer_at_a_time(tmp_path: Path, recompute: str) -> None:
    model, mesh = _write(tmp_path, vocab_size=8), Mesh(tensor=2, sequence_parallel=True)
    whole = _memory(Config(mesh=mesh, max_tokens_per_microbatch=512), model).transient["training"]
    less = _memory(Config(mesh=mesh, max_tokens_per_microbatch=512, recompute=recompute), model).transient["training"]
    name, sizes = "activations of 1 micro-batch", sizes_of(fake_model(model))
    assert less[name] < whole[name]
    again = activations.scores(sizes, mesh, 1, 512, 2)
    again += activations.kept(sizes, mesh, 512, 2, has_experts=False) if recompute == "layers" else 0
    assert less["activations that are computed again"] == again
    if recompute == "layers":
        assert less[name] == 8 * 512 * 64 * 2 // 2


def test_sequence_parallelism_divides_what_is_between_matrices(tmp_path: Path) -> None:
    sizes = sizes_of(fake_model(_write(tmp_path)))
    kept = [
        activations.kept(sizes, Mesh(tensor=2, sequence_parallel=parallel), 100, 2, has_experts=False)
        for parallel in (False, True)
    ]
    assert kept[0] - kept[1] == 100 * 2 * (2 * 4 + 2) * 64 // 2


@pytest.mark.parametrize("recompute", ["none", "selective", "layers"])
def test_context_ranks_divide_positions_and_the_optimizer_but_not_the_weights(tmp_path: Path, recompute: str) -> None:
    model = _write(tmp_path, "qwen3_moe", **EXPERTS, vocab_size=100_000)
    options = {"recompute": recompute, "distributed_optimizer": True, "max_tokens_per_microbatch": 512}
    one, two = (_memory(Config(mesh=Mesh(context=size), **options), model) for size in (1, 2))
    assert two.states == one.states, "as many ranks divide the optimizer"
    for name, size in one.transient["training"].items():
        if name.startswith("logits"):  # 256 of 384 action tokens may be those of one rank
            assert two.transient["training"][name] < size
        elif size:
            assert two.transient["training"][name] == pytest.approx(size / 2, abs=8), name


def test_every_context_rank_has_all_its_keys_to_itself(tmp_path: Path) -> None:
    """Keys and values that are sent no longer share a tensor with the queries, also where they are not repeated."""
    sizes = sizes_of(fake_model(_write(tmp_path, num_key_value_heads=8)))
    one, two = (activations.kept(sizes, Mesh(context=size), 100, 2, has_experts=False) for size in (1, 2))
    assert one - 2 * two == 100 * 2 * 8 * (8 + 8)


def test_the_head_counts_on_the_last_stage_only(tmp_path: Path) -> None:
    model = _write(tmp_path, vocab_size=100_000, num_hidden_layers=2)
    use = _memory(Config(mesh=Mesh(tensor=2, pipeline=2), recompute="layers"), model)
    whole = sum(parameter.numel() for parameter in fake_model(model).parameters())
    assert use.remarks[0].startswith("the rank that needs most is in stage 2 of 2")
    assert use.transient["training"]["logits and gradient of the head"] > 2 * 4 * 50_000 * 64
    assert use.transient["weight sync"]["bucket of weights"] == 100_000 * 64 * 2 + min(BUCKET, 2 * whole)


# --- plans ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def config() -> RunConfig:
    """The run of docs/explanation/paper_671b.md."""
    config = read_toml(str(ROOT / "docs" / "deepseek_v3" / "run.toml"), RunConfig)
    return evolve(config, model=DEEPSEEK)


def test_a_model_that_the_trainer_refuses_is_planned_and_refused(config: RunConfig) -> None:
    plan = plan_memory(config, ranks=256, memory=80 * 10**9)
    assert plan.fits
    [refused] = plan.refused
    assert refused.startswith(
        "policy: megatron cannot train this model; got: the architecture deepseek_v3; need: one of"
    )
    assert list(plan.host) == ["program and libraries", "batch"], "Megatron-core computes on an accelerator"


def test_layers_that_cannot_be_divided_are_planned_and_refused(tmp_path: Path) -> None:
    use = _memory(Config(mesh=Mesh(pipeline=16)), _write(tmp_path, num_hidden_layers=24))
    assert use.refused == ("mesh.pipeline; got: 16, and 24 layers; need: one of: 1, 2, 3, 4, 6, 8, 12, 24",)
    with pytest.raises(ConfigError, match="^mesh\n  got:  tensor 1 x context 1 x pipeline 3 = 3, with 16"):
        _memory(Config(mesh=Mesh(pipeline=3)), _write(tmp_path, num_hidden_layers=24))


@mock.patch("purerl.planning.suggest._MAX_SHOWN", 20)
def test_suggestions_divide_the_model_further_and_are_not_refused(tmp_path: Path, config: RunConfig) -> None:
    mesh = Mesh(tensor=2, sequence_parallel=True)
    model = _write(tmp_path, hidden_size=2048, intermediate_size=8192, num_hidden_layers=6)
    small = evolve(config, model=model, trainer=Config(mesh=mesh))
    settings = {setting for each in suggest(small, ranks=16) for setting in each.settings}
    assert {"trainer.distributed_optimizer=true", "trainer.mesh.tensor=4", "trainer.mesh.pipeline=2"} <= settings
    assert {"trainer.optimizer_offload=true", "trainer.mesh.context=2"} <= settings
    odd = evolve(small, model=_write(tmp_path / "odd", num_hidden_layers=5, hidden_size=2048))
    assert "trainer.mesh.pipeline=2" not in {s for each in suggest(odd, ranks=16) for s in each.settings}


def test_settings_are_checked_without_the_library_and_runs_are_not(config: RunConfig) -> None:
    with mock.patch.object(trainer, "find_spec", return_value=None):
        check_settings(config)
        with pytest.raises(ConfigError, match="^trainer.kind\n  got:  megatron, which is not installed"):
            check(config)


def test_the_capacity_is_that_of_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch, None)
    capacity = capacity_of(Config(), 2, None)
    assert (capacity.size, capacity.source, capacity.is_accelerator) == (None, "memory of an accelerator", True)


# --- speed ---------------------------------------------------------------------------------------------------------


def test_speed_is_that_of_the_formulas(config: RunConfig) -> None:
    numbers = plan_speed(config, ranks=256, device="H100", utilization=0.2, bandwidth=50 * 10**9).numbers
    # DeepSeek-V3 activates 37 billion parameters for a token; an embedding is no product.
    active = 671_026_404_352 - 58 * 248 * 3 * 7168 * 2048 - 129_280 * 7168 - 61 * (2 * 7168 + 1536 + 512) - 7168
    flops = 6 * active + 6 * 61 * 128 * (192 + 128) * 4096
    assert numbers["flops_per_token"] == pytest.approx(flops, rel=1e-12)
    assert numbers["trained_tokens_per_second"] == pytest.approx(256 * 989.4e12 * 0.2 / flops, rel=1e-12)
    assert numbers["weight_bytes"] == 2 * 671_026_404_352
    assert numbers["transfer_seconds"] == pytest.approx(26.841, abs=1e-3)


def test_a_utilization_that_is_not_given_is_assumed(config: RunConfig) -> None:
    assumed, given = plan_speed(config, device="H100"), plan_speed(config, device="H100", utilization=0.4)
    assert assumed.numbers == given.numbers
    assert assumed.lines[1] == f"{given.lines[1]}, which is assumed: --utilization sets another fraction"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"utilization": 0.5}, "--utilization has no effect\n  got:  no --device"),
        ({"device": "H100", "utilization": 1.5}, "--utilization\n  got:  1.5"),
        ({"device": "P100", "utilization": 0.5}, "--device\n  got:  'P100'\n  need: one of: H100 PCIe"),
    ],
)
def test_speed_needs_a_known_device(config: RunConfig, options: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_speed(config, **options)
    assert str(caught.value).startswith(message)


def test_nothing_is_computed_if_nothing_is_asked_for(config: RunConfig) -> None:
    missing = evolve(config, model=Model("/nowhere"))
    assert (plan_speed(missing).lines, plan_speed(missing).numbers) == ((), {})


def test_the_configuration_is_that_of_the_published_sizes() -> None:
    published = json.loads((ROOT / "docs" / "deepseek_v3" / "config.json").read_text(encoding="utf-8"))
    sizes = sizes_of(fake_model(DEEPSEEK))
    assert (sizes.layers, sizes.experts, sizes.top_k, sizes.latent) == (61, 256, 8, 512 + 64 + 1536)
    assert sizes.moe_layers.index(True) == published["first_k_dense_replace"] == 3
