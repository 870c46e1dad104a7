"""Training on two and four ranks equals training in one process: the table of parallel_table.py."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
import torch

from purerl.backends.hf import trainer
from purerl.backends.hf.decoder.preview import without_weights
from purerl.backends.hf.mesh import Mesh, open_mesh
from purerl.backends.hf.model.fit import check_divisible
from purerl.backends.hf.moe.router import balance_loss, load_of
from purerl.errors import ConfigError
from purerl.ranks import Ranks
from purerl.settings import Model
from purerl.system.memory_use import Workload
from tests.backends.parallel_table import ALGORITHMS, MEMORY, MESHES, ROWS, pairwise
from tests.backends.tiny import make_trainer, write_model
from tests.backends.training import train
from tests.ranks import check_cases

CPU = torch.device("cpu")
ONE_ROW = Workload(rows=1, group_size=1, minibatches=1, prompt_tokens=4, completion_tokens=4, ranks=2)


@pytest.mark.parallel
@pytest.mark.parametrize(("which", "ranks"), [("all", 2), ("all", 4), ("compiled", 2)])
def test_training_on_several_ranks_equals_one_process(tmp_path: Path, which: str, ranks: int) -> None:
    """Compiled code is in a directory of its own: a process that is killed may leave a broken file."""
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    check_cases("-m", "tests.backends.parallel_table", which, ranks=ranks, timeout=1500, environment=environment)


def test_the_table_has_every_pair_of_values():
    columns = (tuple(MESHES[2]), tuple(ROWS), tuple(MEMORY), tuple(ALGORITHMS))
    rows = pairwise(columns)
    assert len(rows) <= len(ALGORITHMS) * len(MEMORY), "no more than the pairs of the two longest columns"
    # Without the two pairs that a configuration refuses.
    for i in range(4):
        for j in range(i):
            found = {(row[i], row[j]) for row in rows}
            assert len(found) == len(columns[i]) * len(columns[j]) - (2 if (i, j) == (2, 0) else 0)


# --- refused before a model is loaded ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mesh", "ranks", "lines"),
    [
        (Mesh(shard=2), 1, ["mesh", "  got:  shard 2 = 2, with 1 rank", "  need: a product that divides it"]),
        (
            Mesh(shard=2, tensor=2),
            6,
            ["mesh", "  got:  shard 2 x tensor 2 = 4, with 6 ranks", "  need: a product that divides it"],
        ),
        (
            Mesh(replicate=3, sequence=2),
            4,
            [
                "mesh",
                "  got:  shard 1 x replicate 3 x tensor 1 x sequence 2 = 6, with 4 ranks",
                "  need: a product that is the number of ranks",
            ],
        ),
    ],
)
def test_a_mesh_that_does_not_fit_the_ranks_is_refused(monkeypatch, mesh, ranks, lines):
    monkeypatch.setattr("purerl.ranks.current_ranks", lambda: Ranks(0, ranks))
    with pytest.raises(ConfigError) as error:
        make_trainer("nowhere", mesh=mesh)
    *message, do = str(error.value).splitlines()
    assert message == lines
    assert re.fullmatch(r"  do:   start \d+ ranks \(with Ray placement.trainers.count\), or change trainer.mesh", do)


def test_ranks_that_the_mesh_does_not_mention_are_replicas():
    assert Mesh(shard=2, tensor=2).replicas(8) == 2
    assert open_mesh(Mesh(), CPU).data == Ranks()


@pytest.mark.parametrize(
    ("family", "mesh", "attention", "message"),
    [
        ("qwen3", Mesh(tensor=2), "sdpa", "mesh.tensor\n  got:  2, and 1 key and value heads\n  need: one of: 1"),
        ("gpt2", Mesh(tensor=2), "sdpa", "mesh.tensor\n  got:  2, and GPT2LMHeadModel, for which transformers has no"),
        (
            "qwen3",
            Mesh(sequence=3),
            "sdpa",
            "mesh.sequence\n  got:  3, and 2 heads of each tensor-parallel rank\n  need: one of: 1, 2",
        ),
        ("qwen3", Mesh(sequence=2), "eager", "mesh.sequence\n  got:  2, and Qwen3ForCausalLM with attention eager"),
    ],
)
def test_a_model_that_cannot_be_divided_is_refused(tmp_path, family, mesh, attention, message):
    layers = {"n_layer": 1} if family == "gpt2" else {"num_hidden_layers": 1}
    model = Model(write_model(tmp_path, family, **layers), attention=attention)
    config, needed = trainer.Config(mesh=mesh), {"outputs": ("logp",), "is_trained": True}
    for check in (trainer.preview, partial(trainer.check_model, **needed)):
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
            check(config, model=model)
    [refused] = trainer.memory(config, model=model, workload=ONE_ROW, **needed).refused
    assert refused.startswith("; ".join(" ".join(line.split()) for line in message.splitlines()))
    check_divisible(without_weights(model, device="cpu"), model, Mesh(shard=16))


@pytest.mark.parametrize("setting", [{"cpu_offload": True}, {"reshard_after_forward": False}])
def test_settings_without_effect_are_refused(setting):
    [(name, value)] = setting.items()
    need = "parameters that are divided among ranks: trainer.mesh.shard, tensor or sequence above 1"
    with pytest.raises(ConfigError) as error:
        trainer.Config(**setting)
    assert str(error.value).splitlines()[:3] == [f"{name} has no effect", f"  got:  {value}", f"  need: {need}"]
    trainer.Config(**setting, mesh=Mesh(tensor=2))


def test_selective_recomputation_of_compiled_layers_is_refused():
    with pytest.raises(ConfigError, match="^recompute\n  got:  selective\n  need: layers or none with compile"):
        trainer.Config(compile=True, recompute="selective")


# --- experts -------------------------------------------------------------------------------------------------------


def test_the_auxiliary_loss_is_that_of_transformers():
    from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

    logits = torch.randn(2, 12, 4, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(12) % 3 > 0
    expected = load_balancing_loss_func(tuple(logits), 4, 2, mask[None])
    load = load_of([layer[mask] for layer in logits], 2)
    torch.testing.assert_close(balance_loss(load["router_count"], load["router_probability"], 2), expected)


def test_the_auxiliary_loss_does_not_depend_on_micro_batches_and_changes_the_weights(tmp_path):
    path, reports = write_model(tmp_path, "qwen3_moe"), []
    for settings in ({}, {"max_tokens_per_microbatch": 12}, {"share_prefixes": False}, {"router_aux_loss_coef": 0.0}):
        policy = make_trainer(path, dtype="float32", **{"router_aux_loss_coef": 0.5, "lr": 1e-2, **settings})
        reports.append(train(policy, 2))
    whole, split, separate, without = reports
    for other in (split, separate):
        assert other == [pytest.approx(report, rel=1e-3) for report in whole]
    assert whole[0]["router_aux_loss"] > 0
    assert "router_aux_loss" not in without[0]
    assert whole[0]["grad_norm"] != pytest.approx(without[0]["grad_norm"], rel=1e-3)


def test_an_auxiliary_loss_of_a_model_without_experts_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="^router_aux_loss_coef has no effect\n  got:  0.1\n  need: a mixture-of"):
        make_trainer(write_model(tmp_path), router_aux_loss_coef=0.1)
