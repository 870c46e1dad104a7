"""Optimizers of other libraries in the HF trainer: their steps, their state in checkpoints, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from purerl.backends.hf.mesh import Mesh
from purerl.backends.hf.settings import OptimizerSettings
from purerl.backends.hf.trainer import Config, check
from purerl.backends.hf.weights.checkpoint import ShardFiles
from purerl.config.structure import dumps, from_dict, to_dict
from purerl.errors import CheckpointError, ConfigError, InputError
from tests.backends.tiny import make_trainer, write_model
from tests.backends.training import CRITIC, POLICY, equal, make_batch, parameters_of, train, weights_of

OWN = "tests.backends.own_optimizers"

# name -> the section `optimizer`
SECTIONS: dict[str, dict[str, Any]] = {
    "sgd": {"factory": "torch.optim:SGD"},
    "momentum": {"factory": "torch.optim:SGD", "kwargs": {"momentum": 0.9, "nesterov": True}},
    "adafactor": {"factory": "torch.optim:Adafactor", "kwargs": {"beta2_decay": -0.5}},
    "nadam": {"factory": "torch.optim:NAdam", "kwargs": {"betas": [0.8, 0.9]}},
    "adagrad": {"factory": "torch.optim:Adagrad", "kwargs": {"initial_accumulator_value": 0.1}},
    "asgd": {"factory": "torch.optim:ASGD", "kwargs": {"t0": 2.0}},
    "rprop": {"factory": "torch.optim:Rprop"},
    "muon": {"factory": "torch.optim:Muon", "kwargs": {"adjust_lr_fn": "match_rms_adamw"}, "parameters": "matrices"},
    "own": {"factory": f"{OWN}:Growing", "kwargs": {"growth": 1.25}},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("models"), "qwen3", tie_word_embeddings=False)


def section(name: str) -> OptimizerSettings:
    return OptimizerSettings(**SECTIONS[name])


# --- steps ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["momentum", "adafactor", "nadam", "muon"])
def test_steps_equal_a_plain_loop_with_the_optimizer(path: str, name: str) -> None:
    trainer = make_trainer(path, lr=1e-2, weight_decay=0.3, optimizer=section(name), max_grad_norm=0.5)
    plain = copy.deepcopy(trainer.module)
    named = dict(plain.named_parameters())
    matrices = [p for n, p in named.items() if n.endswith("proj.weight")]
    head = [p for n, p in named.items() if n.endswith("lm_head.weight")]
    others = [p for n, p in named.items() if not n.endswith(("proj.weight", "lm_head.weight"))]
    arguments = SECTIONS[name]["kwargs"]
    cls = getattr(torch.optim, SECTIONS[name]["factory"].partition(":")[2])
    if name == "muon":
        optimizers = [cls(matrices, lr=1e-2, weight_decay=0.3, **arguments)]
        groups = [{"params": head, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}]
        optimizers += [torch.optim.AdamW(groups, lr=1e-2)]
    else:
        groups = [{"params": [*matrices, *head], "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}]
        optimizers = [cls(groups, lr=1e-2, **arguments)]
    train(trainer, 4)
    for seed in range(4):
        batch = make_batch(seed)
        plain.zero_grad()
        logp = plain(batch["tokens"], batch["action"], batch["temperature"], ("logp",))["logp"]
        (-(logp * batch["advantage"])[batch["mask"]].mean()).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        for optimizer in optimizers:
            optimizer.step()
    expected = {key: parameter.detach() for key, parameter in plain.model.named_parameters()}
    torch.testing.assert_close(weights_of(trainer), expected, rtol=1e-6, atol=1e-8)


def test_schedule_sets_the_learning_rate_of_all_optimizers(path: str) -> None:
    trainer = make_trainer(path, lr=1e-2, lr_scheduler="linear", updates=4, optimizer=section("muon"))
    train(trainer, 2)
    assert [group["lr"] for group in trainer.optimizer.param_groups] == [0.75e-2] * 3


# --- checkpoints ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("name", SECTIONS)
def test_resumed_optimizer_takes_the_same_steps_bit_for_bit(path: str, tmp_path: Path, name: str, steps: int) -> None:
    settings: dict[str, Any] = dict(lr=1e-2, lr_scheduler="cosine", updates=8, optimizer=section(name))
    saved, loaded = (make_trainer(path, **settings) for _ in range(2))
    train(saved, steps)
    train(loaded, 2)  # what it has learned so far is forgotten
    saved.save(tmp_path)
    loaded.load(tmp_path)
    assert train(saved, 3) == train(loaded, 3)
    assert equal(parameters_of(saved), parameters_of(loaded))


@pytest.mark.parametrize("name", ["momentum", "adafactor", "own"])
def test_resume_without_the_state_takes_other_steps(path: str, tmp_path: Path, name: str) -> None:
    saved, loaded = (make_trainer(path, lr=1e-2, optimizer=section(name)) for _ in range(2))
    train(saved, 3)
    saved.save(tmp_path)
    loaded.load(tmp_path)
    for group in loaded.optimizer.param_groups:
        group.update(scale=1.0)
    loaded.optimizer.state.clear()
    train(saved, 2), train(loaded, 2)
    assert not equal(parameters_of(saved), parameters_of(loaded))


def test_critic_with_muon_is_resumed(path: str, tmp_path: Path) -> None:
    saved, loaded = (make_trainer(path, "critic", lr=1e-2, optimizer=section("muon")) for _ in range(2))
    train(saved, 2, CRITIC)
    saved.save(tmp_path)
    loaded.load(tmp_path)
    assert train(saved, 2, CRITIC) == train(loaded, 2, CRITIC)
    assert equal(parameters_of(saved), parameters_of(loaded))


def test_names_of_the_state_in_a_checkpoint(path: str, tmp_path: Path) -> None:
    trainer = make_trainer(path, lr=1e-2, optimizer=section("own"))
    train(trainer, 2)
    trainer.save(tmp_path)
    names = {name for name in ShardFiles(tmp_path).kinds if name.startswith("optimizer.")}
    of_parameters = {f"optimizer.number:own.{name}" for name in trainer.trained}
    of_groups = {f"optimizer.group:{index}:number:{key}" for index in (0, 1) for key in ("scale", "count")}
    assert names == {f"optimizer.class:{OWN}:Growing", *of_parameters, *of_groups}


@pytest.mark.parametrize(("first", "second"), [("adamw", "nadam"), ("nadam", "adamw"), ("momentum", "own")])
def test_checkpoint_of_another_optimizer_is_refused(path: str, tmp_path: Path, first: str, second: str) -> None:
    saved, loaded = (
        make_trainer(path, lr=1e-2, optimizer=None if name == "adamw" else section(name)) for name in (first, second)
    )
    train(saved)
    saved.save(tmp_path)
    before = parameters_of(loaded)
    with pytest.raises(CheckpointError, match="the checkpoint has another optimizer\n  got:  the state of "):
        loaded.load(tmp_path)
    assert equal(parameters_of(loaded), before)


def test_state_that_cannot_be_stored_is_refused_in_the_first_step(path: str) -> None:
    trainer = make_trainer(path, lr=1e-2, optimizer=OptimizerSettings(f"{OWN}:Listing"))
    with pytest.raises(InputError, match="optimizer's 'history' cannot be stored in a checkpoint\n  got:  list"):
        train(trainer, 1, POLICY)


# --- settings ------------------------------------------------------------------------------------------------------


def test_string_is_the_address_of_the_class() -> None:
    config = from_dict(Config, {"optimizer": "torch.optim:SGD"})
    assert config == Config(optimizer=OptimizerSettings("torch.optim:SGD"))
    assert to_dict(config)["optimizer"] == {"factory": "torch.optim:SGD", "kwargs": {}, "parameters": "all"}
    assert 'factory = "torch.optim:SGD"' in dumps(config)


def check_run(optimizer: dict[str, Any], **settings: Any) -> None:
    """The checks before a model is loaded."""
    check(Config(optimizer=OptimizerSettings(**optimizer), **settings), role="policy", outputs=(), updates=4)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"factory": "torch.optim:Adafacto"}, "cannot find 'torch.optim:Adafacto'"),
        ({"factory": "no_such_package:Lion"}, "cannot find 'no_such_package:Lion'"),
        ({"factory": f"{OWN}:NotAnOptimizer"}, "need: a subclass of torch.optim.Optimizer"),
        ({"factory": f"{OWN}:WithClosure"}, "without evaluating the loss again"),
        ({"factory": "torch.optim:LBFGS"}, "without evaluating the loss again"),
        ({"factory": "torch.optim:SGD", "kwargs": {"momentun": 0.9}}, "did you mean 'momentum'?"),
        ({"factory": "torch.optim:SGD", "kwargs": {"momentum": -1.0}}, "Invalid momentum value: -1.0"),
        ({"factory": "torch.optim:SGD", "kwargs": {"lr": 0.1}}, "kwargs.lr\n  got:  0.1\n  need: trainer.lr instead"),
        ({"factory": "torch.optim:SGD", "kwargs": {"weight_decay": 0.1}}, "need: trainer.weight_decay instead"),
        ({"factory": "torch.optim:SGD", "parameters": "matrix"}, "one of: all, matrices"),
        ({"factory": ""}, "factory\n  got:  an empty string"),
    ],
)
def test_optimizer_that_cannot_be_built_is_refused_before_a_model_is_loaded(section: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_run(section)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("factory", "settings", "message"),
    [
        ("torch.optim:SGD", {"betas": (0.8, 0.9)}, "betas has no effect"),
        ("torch.optim:SGD", {"eps": 1e-6}, "eps has no effect"),
        (f"{OWN}:Growing", {"weight_decay": 0.1}, "weight_decay has no effect"),
        ("torch.optim:SGD", {"mesh": Mesh(shard=2)}, "optimizer\n  got:  torch.optim:SGD\n  need: AdamW with"),
    ],
)
def test_settings_without_effect_are_refused(factory: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_run({"factory": factory}, **settings)


def test_settings_of_adamw_have_an_effect_beside_an_optimizer_of_matrices() -> None:
    check_run(SECTIONS["muon"], betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1)


def test_optimizer_of_matrices_alone_names_the_setting_for_it(path: str) -> None:
    with pytest.raises(ConfigError, match="optimizer torch.optim:Muon\n(.*\n)*.*parameters=matrices"):
        make_trainer(path, lr=1e-2, optimizer=OptimizerSettings("torch.optim:Muon"))


def test_model_that_is_not_trained_ignores_the_optimizer(path: str) -> None:
    trainer = make_trainer(path, optimizer=OptimizerSettings("torch.optim:SGD"), updates=0)
    assert trainer.optimizer is None
