"""Optimizer steps whose tokens go through the experts of the pass that computed `old_logp`."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import prepare_step
from purerl.backends.hf import trainer
from purerl.backends.hf.model import token_model as modules
from purerl.backends.hf.model.token_model import Extras
from purerl.backends.hf.moe.replay import LIVE, ROUTES
from purerl.backends.hf.training.engine import HFTrainer
from purerl.backends.hf.training.expert_records import RouteRecords
from purerl.batch import with_fields
from purerl.errors import BatchError, ConfigError
from purerl.loop.update import score
from purerl.ranks import Ranks
from purerl.settings import Model
from tests.backends.tiny import make_trainer, write_model
from tests.backends.training import POLICY, equal, make_batch, parameters_of
from tests.ranks import check_cases

LAYOUTS: dict[str, dict[str, Any]] = {
    "packed": {"packing": True},
    "recomputed": {"recompute": "layers"},
    "selective": {"recompute": "selective", "packing": True},
    "micro-batches": {"max_tokens_per_microbatch": 12},
    "packed micro-batches": {"max_tokens_per_microbatch": 12, "packing": True},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("models"), "qwen3_moe")


def build(path: str, **settings: Any) -> HFTrainer:
    """A trainer with large updates, in float32: transformers computes experts in float32 at most."""
    return make_trainer(path, dtype="float32", **{"replay_routes": "old_logp", "lr": 0.1, **settings})


def scored(policy: HFTrainer, seed: int = 0) -> TensorDict:
    return score({"policy": policy}, make_batch(seed, torch.float32), ("old_logp",))


def steps(policy: HFTrainer, batch: TensorDict, count: int) -> list[dict[str, float]]:
    step, counts = prepare_step(POLICY, batch)
    reports = [policy.step(step, POLICY, counts) for _ in range(count)]
    return [{name: float(m.total / m.weight) for name, m in report.items() if m.weight} for report in reports]


def test_the_first_step_is_bit_for_bit_that_of_the_live_router(path):
    policies = build(path), build(path, replay_routes="off", share_prefixes=False)
    (replayed,), (live,) = (steps(policy, scored(policy), 1) for policy in policies)
    assert replayed.pop("router_changed_fraction") == 0
    assert replayed == live
    assert equal(*(parameters_of(policy) for policy in policies))


def test_later_steps_use_the_recorded_experts(path):
    """The log-probabilities of the third step are those of a forward pass with the choices of the scoring pass."""
    policy, names = build(path), ("logp", ROUTES)
    batch = scored(policy)
    arguments = batch["tokens"], batch["action"], batch["temperature"]
    recorded = policy.module(*arguments, (ROUTES,))[ROUTES]
    steps(policy, batch, 2)
    live = policy.module(*arguments, names)
    forced = policy.module(*arguments, names, extras=Extras(experts=recorded))
    third = steps(policy, batch, 1)[0]
    expected = {
        kind: -(outputs["logp"] * batch["advantage"])[batch["mask"]].mean().item()
        for kind, outputs in {"forced": forced, "live": live}.items()
    }
    assert third["loss/policy"] == pytest.approx(expected["forced"], rel=1e-4)
    assert third["loss/policy"] != pytest.approx(expected["live"], rel=1e-2)
    before = batch["action"].roll(-1, -1)
    differs = (forced[ROUTES].sort(-1).values != recorded.sort(-1).values).any(-1)[before]
    assert third["router_changed_fraction"] == pytest.approx(differs.float().mean().item())
    assert third["router_changed_fraction"] > 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_how_rows_are_read_changes_nothing(path, layout):
    settings = {"router_aux_loss_coef": 0.1, "lr": 0.02}
    policies = build(path, **settings), build(path, **settings, **LAYOUTS[layout])
    expected, report = (steps(policy, scored(policy), 3) for policy in policies)
    assert report == [pytest.approx(each, rel=1e-3, abs=1e-5) for each in expected]
    assert expected[2]["router_changed_fraction"] > 0


def test_the_auxiliary_loss_is_that_of_the_live_router(path):
    """After two steps it is the loss of the live choices in a pass with the replayed experts."""
    policy = build(path, router_aux_loss_coef=0.1)
    batch = scored(policy)
    arguments = batch["tokens"], batch["action"], batch["temperature"]
    recorded = policy.module(*arguments, (ROUTES,))[ROUTES]
    steps(policy, batch, 2)
    names = (ROUTES, "router_probability")
    outputs = policy.module(*arguments, names, extras=Extras(experts=recorded))
    before = batch["action"].roll(-1, -1)
    loss = {}
    for kind, chosen in {"live": outputs[ROUTES], "replayed": recorded}.items():
        count = torch.stack([(chosen[before] == expert).sum() for expert in range(4)])
        reads = count.sum() / 2
        loss[kind] = float(4 * (count * outputs["router_probability"].detach()).sum() / reads**2)
    report = steps(policy, batch, 1)[0]
    assert report["router_aux_loss"] == pytest.approx(loss["live"], rel=1e-4)
    assert report["router_aux_loss"] != pytest.approx(loss["replayed"], rel=1e-3)


def test_a_model_that_is_not_the_policy_replays_nothing(path):
    assert ROUTES not in build(path, role="reference", updates=0).capabilities.outputs
    critic = build(path, role="critic")
    assert ROUTES not in critic.capabilities.outputs


# --- mutants -------------------------------------------------------------------------------------------------------


def _of_the_token_before(records: RouteRecords, numbers: Tensor, time: int) -> Tensor:
    return PADDED(records, numbers, time).roll(1, 1)


def _without_replay(records: RouteRecords, numbers: Tensor, time: int) -> None:
    return None


def _of_the_layer_before(records: RouteRecords, numbers: Tensor, time: int) -> Tensor:
    return PADDED(records, numbers, time).roll(1, 2)


PADDED = RouteRecords.padded


@pytest.mark.parametrize("mutant", [_of_the_token_before, _without_replay, _of_the_layer_before])
def test_the_law_of_later_steps_catches_other_experts(monkeypatch, path, mutant):
    monkeypatch.setattr(RouteRecords, "padded", mutant)
    with pytest.raises((AssertionError, KeyError)):
        test_later_steps_use_the_recorded_experts(path)


def test_the_law_of_the_auxiliary_loss_catches_counts_of_other_experts(monkeypatch, path):
    def of_others(logits: list[Tensor], top_k: int) -> dict[str, Tensor]:
        load = LOAD_OF(logits, top_k)
        return {**load, "router_count": load["router_count"].roll(1)}

    monkeypatch.setattr(modules, "load_of", of_others)
    with pytest.raises(AssertionError):
        test_the_auxiliary_loss_is_that_of_the_live_router(path)


LOAD_OF = modules.load_of


# --- records -------------------------------------------------------------------------------------------------------


def records_of(action: Tensor) -> tuple[RouteRecords, Tensor]:
    records = RouteRecords(Ranks(), torch.device("cpu"), (3, 2))
    records.begin(action)
    routes = torch.arange(action.numel() * 6).view(*action.shape, 3, 2)
    return records, records.keep(torch.arange(len(action)), routes)


def test_a_record_has_the_tokens_that_are_read_and_live_choices_after_them():
    action = torch.tensor([[False, True, False, False], [False, False, False, False], [False, False, False, True]])
    records, numbers = records_of(action)
    assert numbers.tolist() == [1, 0, 3]
    padded = records.padded(numbers[[2, 0, 1]], 4)
    assert padded is not None
    assert (padded != LIVE).all(-1).all(-1).tolist() == [[True] * 3 + [False], [True] + [False] * 3, [False] * 4]
    assert padded[0, 1].flatten().tolist() == list(range(54, 60))


def test_numbers_of_an_earlier_pass_are_refused():
    action = torch.tensor([[False, True]])
    records, numbers = records_of(action)
    records.begin(action)
    with pytest.raises(BatchError) as error:
        records.fetch(numbers, action, [])
    assert str(error.value).splitlines() == [
        "field 'routes'",
        "  got:  numbers of records that do not exist",
        "  need: the `routes` that the last pass with this output has returned",
        "  do:   score the batch again",
    ]


def test_rows_of_another_length_are_refused():
    records, numbers = records_of(torch.tensor([[False, True, False]]))
    with pytest.raises(BatchError, match="got:  rows of another length than the records"):
        records.fetch(numbers, torch.tensor([[False, True, True]]), [])


def test_a_step_without_records_is_refused(path):
    policy = build(path)
    with pytest.raises(BatchError, match="^field 'routes' is missing\n"):
        steps(policy, scored(policy).exclude(ROUTES), 1)


def test_a_gradient_without_records_is_that_of_the_live_router(path):
    policies = build(path), build(path, replay_routes="off", share_prefixes=False)
    step, counts = prepare_step(POLICY, with_fields(make_batch(0, torch.float32)))
    assert equal(*(policy.gradient(step, POLICY, counts) for policy in policies))


# --- refused -------------------------------------------------------------------------------------------------------


def test_a_model_without_experts_is_refused_before_and_when_it_is_loaded(tmp_path):
    dense, config = write_model(tmp_path), trainer.Config(replay_routes="old_logp")
    message = (
        "trainer.replay_routes\n  got:  Qwen3Model: no experts\n  need: a mixture of experts with one router in a layer"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        build(dense)
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        trainer.check_model(config, model=Model(dense), outputs=("logp",), is_trained=True)
    trainer.check_model(config, model=Model(dense), outputs=("logp",), is_trained=False)


def test_shared_prefixes_are_refused():
    with pytest.raises(ConfigError) as error:
        trainer.Config(replay_routes="old_logp", share_prefixes=True)
    assert str(error.value).splitlines() == [
        "share_prefixes",
        "  got:  True",
        "  need: false with replay_routes: each row has its own record of the experts of its prefix",
        "  do:   leave share_prefixes out",
    ]


# --- on several ranks ----------------------------------------------------------------------------------------------


@pytest.mark.parallel
def test_steps_on_two_ranks_equal_those_of_one_process():
    check_cases("-m", "tests.backends.replayed_ranks", ranks=2, timeout=600)
