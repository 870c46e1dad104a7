"""Runs of a mixture of experts whose optimizer steps replay the choices of its routers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.config.check import check
from purerl.config.schema import RunConfig
from purerl.errors import ConfigError
from purerl.loop.train import train
from tests.loop.lora_task import prepare as prepare_dense
from tests.loop.lora_task import sevens
from tests.loop.runs import records

pytestmark = pytest.mark.slow


def prepare(folder: Path, seed: int) -> None:
    """The task of the adapter, with a mixture of experts in place of the model."""
    prepare_dense(folder, seed)
    write_experts(folder, seed)


def write_experts(folder: Path, seed: int) -> None:
    """Write a mixture of experts in place of the model in `folder`."""
    import torch
    from transformers import Qwen3Config, Qwen3MoeConfig, Qwen3MoeForCausalLM

    dense = Qwen3Config.from_pretrained(folder / "model").to_dict()
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
    names += ("max_position_embeddings", "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id")
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True}
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(**{name: dense[name] for name in names}, **experts)
    Qwen3MoeForCausalLM(config).save_pretrained(folder / "model")


def sevens_of_experts(max_steps: int, **settings: Any) -> RunConfig:
    """`sevens` with several optimizer steps per step, which train all weights of a mixture of experts."""
    config = sevens(max_steps)
    trainer = evolve(config.trainer, lora=None, replay_routes="old_logp")
    settings = {"prepare_data": "tests.loop.test_replayed_routes:prepare", "num_minibatches": 2, **settings}
    return evolve(config, trainer=trainer, **settings)


def test_a_run_replays_what_the_pass_of_old_logp_has_recorded(tmp_path):
    run = train(sevens_of_experts(2), directory=tmp_path / "run")
    name = "policy/router_changed_fraction"
    changed = [record[name] for record in records(run) if name in record]
    assert len(changed) == 2
    assert changed[0] < changed[1] < 1  # no completion of the first step has a reward, so it changes little


def test_a_run_without_a_pass_that_records_is_refused():
    with pytest.raises(ConfigError) as error:
        check(sevens_of_experts(2, num_minibatches=1))
    assert str(error.value).splitlines() == [
        "trainer.replay_routes has no effect",
        "  got:  'old_logp'",
        "  need: a pass that computes old_logp before the optimizer steps of a step; this run of grpo has none",
        "  do:   leave it out, or set num_minibatches or ppo_epochs above 1 with an algorithm that reads old_logp",
    ]


def test_a_model_without_experts_is_refused_before_it_is_loaded(tmp_path):
    config = sevens_of_experts(2, prepare_data="tests.loop.lora_task:prepare")
    with pytest.raises(ConfigError, match=r"^model: trainer\.replay_routes\n  got:  Qwen3Model: no experts\n"):
        train(config, directory=tmp_path / "run")
