"""A trainer whose tokens go through the experts that a generator has recorded, in float64.

The generator samples with perturbed routers, so it chooses other experts. What is expected comes from a model of its
own, with a plain computation of the weights of these experts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import prepare_step
from purerl.backends.hf import generator as generators
from purerl.backends.hf.lora import Lora
from purerl.backends.hf.mesh import open_mesh
from purerl.backends.hf.model.parallel import parallelize
from purerl.backends.hf.model.token_model import Extras, TokenModel
from purerl.backends.hf.moe.replay import ROUTES
from purerl.backends.hf.sampling.engine import HFGenerator
from purerl.backends.hf.trainer import Config
from purerl.backends.hf.training.engine import HFTrainer
from purerl.backends.hf.training.expert_records import SampledRoutes
from purerl.batch import collate, with_fields
from purerl.errors import BatchError, InputError
from purerl.expert_routes import LIVE, RouteStore
from purerl.loop.update import score
from purerl.protocols import Request, Sampling, generate
from purerl.rollouts.fields import RowTurn, token_fields
from purerl.rollouts.row_routes import store_routes
from purerl.rollouts.types import Group, Trajectory
from purerl.settings import Model
from tests.backends.routed_models import causal_model, chosen_experts, routers_in
from tests.backends.tiny import make_trainer, write_model
from tests.backends.training import POLICY

pytestmark = pytest.mark.slow

FAMILY = "qwen3_moe"
LAYERS, K = 3, 2
PROMPTS = ([3, 4, 5], [3, 4, 5], [6, 2, 8, 4, 9], [7])
LAYOUTS: dict[str, dict[str, Any]] = {
    "padded": {},
    "packed": {"packing": True},
    "micro-batches": {"max_tokens_per_microbatch": 12},
    "recomputed": {"recompute": "layers"},
}


def trainer_of(**settings: Any) -> HFTrainer:
    """A trainer of the model in float64."""
    config = Config(replay_routes="generator", lr=0.1, **settings)
    mesh = open_mesh(config.mesh, torch.device("cpu"))
    module = TokenModel(causal_model(FAMILY), ("logp",), path=Path("nowhere"))
    parallelize(module, config, mesh)
    options = {"model": Model("nowhere"), "updates": 9, "mesh": mesh, "share": False, "router_coefficient": 0.0}
    return HFTrainer(config, module.requires_grad_(True), **options)


def sampled(store: RouteStore, *, perturbation: float) -> TensorDict:
    """Rows of a generator whose routers differ by this much from those of the trainer."""
    causal = causal_model(FAMILY)
    for router in (m for m in causal.modules() if type(m).__name__ == "Qwen3MoeTopKRouter"):
        noise = torch.randn(router.weight.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        router.weight.data += perturbation * noise
    generator = HFGenerator(generators.Config(return_routes=True, max_num_seqs=2), causal, Model("nowhere"))
    requests = [Request(f"{k}", p, Sampling(1.0, 4 + k, (), ()), seed=k) for k, p in enumerate(PROMPTS)]
    rows = []
    for k, (prompt, completion) in enumerate(zip(PROMPTS, generate(generator, requests), strict=True)):
        fields = token_fields(prompt, [RowTurn(0, [], completion)])
        label = {"row": 10 + k, "group": k // 2, "temperature": 1.0}
        rows.append(Trajectory({name: value for name, value in fields.items() if name != "turn"} | label))
    group = store_routes(Group(0, tuple(rows)), store)
    batch = collate([row.fields for row in group.trajectories])
    advantage = torch.linspace(-1, 2, batch["action"].numel()).view_as(batch["reward"]) * batch["action"]
    return with_fields(batch, advantage=advantage).apply(lambda x: x.double() if x.is_floating_point() else x)


def choices_of(store: RouteStore, batch: TensorDict) -> Tensor:
    """[rows, time, layers, k] the records of the rows of `batch`, read from their files."""
    chosen = torch.full((*batch["tokens"].shape, LAYERS, K), LIVE)
    for row, number in enumerate(batch[ROUTES].tolist()):
        if number:
            record = torch.from_numpy(np.load(store.folder / f"{number}.npy").astype(np.int64))
            chosen[row, : len(record)] = record
    return chosen


def plain(batch: TensorDict, chosen: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
    """The log-probabilities of a model of its own with these experts, and the gradient of the loss of `POLICY`."""
    module = TokenModel(causal_model(FAMILY), ("logp",), path=Path("nowhere"))
    live = torch.full((*batch["tokens"].shape, LAYERS, K), LIVE) if chosen is None else chosen
    with chosen_experts(module, FAMILY, live[:, :-1].flatten(0, 1)):  # the last column is not read
        logp = module(batch["tokens"], batch["action"], batch["temperature"], ("logp",))["logp"]
        (-(logp * batch["advantage"])[batch["mask"]].sum() / batch["mask"].sum()).backward()
    return logp.detach(), {f"{n}": p.grad for n, p in module.named_parameters() if p.grad is not None}


# --- laws ----------------------------------------------------------------------------------------------------------


def replaying_the_same_weights_changes_nothing(store: RouteStore) -> None:
    batch, policy = sampled(store, perturbation=0.0), trainer_of()
    policy.use_routes(store)
    replayed = policy.score(batch, ("logp",))["logp"]
    torch.testing.assert_close(replayed, policy.score(batch.exclude(ROUTES), ("logp",))["logp"], rtol=0, atol=1e-12)
    torch.testing.assert_close(replayed, batch["rollout_logp"], rtol=0, atol=1e-5)


def scores_are_those_of_the_recorded_experts(store: RouteStore, **settings: Any) -> None:
    batch, policy = sampled(store, perturbation=1.0), trainer_of(**settings)
    policy.use_routes(store)
    expected, live = plain(batch, choices_of(store, batch))[0], plain(batch, None)[0]
    replayed = score({"policy": policy}, batch, ("old_logp",))["old_logp"]
    torch.testing.assert_close(replayed, expected, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(replayed, live, atol=1e-3), "the choices have an effect"


def steps_are_those_of_the_recorded_experts(store: RouteStore, **settings: Any) -> None:
    batch, policy = sampled(store, perturbation=1.0), trainer_of(**settings)
    policy.use_routes(store)
    chosen = choices_of(store, batch)
    logp, expected = plain(batch, chosen)
    step, counts = prepare_step(POLICY._replace(metric_outputs=()), batch)
    objective = POLICY._replace(metric_outputs=())
    for name, gradient in policy.gradient(step, objective, counts).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-7, msg=name)
    arguments = batch["tokens"], batch["action"], batch["temperature"]
    live = (
        policy.module(*arguments, (ROUTES,), extras=Extras(experts=chosen))[ROUTES]
        if not settings.get("packing")
        else None
    )
    report = policy.step(step, objective, counts)
    loss = -(logp * batch["advantage"])[batch["mask"]].mean().item()
    assert float(report["loss/policy"].total / report["loss/policy"].weight) == pytest.approx(loss, rel=1e-6)
    changed = float(report["router_changed_fraction"].total)
    assert 0 < changed < 1
    if live is not None:
        differs = (live.sort(-1).values != chosen.sort(-1).values).any(-1)[batch["action"].roll(-1, -1)]
        assert changed == pytest.approx(differs.double().mean().item())


def tokens_without_a_record_use_the_live_router(store: RouteStore) -> None:
    """A row without a number, and records with `LIVE` for some tokens and without the last ones."""
    batch, policy = sampled(store, perturbation=1.0), trainer_of()
    policy.use_routes(store)
    first, second = batch[ROUTES][:2].tolist()
    record = store.read(first)
    record[1::2] = LIVE
    store.write(first, record)
    store.write(second, store.read(second)[:4])
    batch[ROUTES][2] = 0
    chosen = choices_of(store, batch)
    replayed = policy.score(batch, ("logp",))["logp"]
    torch.testing.assert_close(replayed, plain(batch, chosen)[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(replayed[2], plain(batch, None)[0][2], rtol=1e-6, atol=1e-6)


LAWS = [
    scores_are_those_of_the_recorded_experts,
    steps_are_those_of_the_recorded_experts,
    tokens_without_a_record_use_the_live_router,
]


def test_replaying_the_same_weights_changes_nothing(tmp_path):
    replaying_the_same_weights_changes_nothing(RouteStore(tmp_path / "routes"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scores_are_those_of_the_recorded_experts(tmp_path, layout):
    scores_are_those_of_the_recorded_experts(RouteStore(tmp_path / "routes"), **LAYOUTS[layout])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_steps_are_those_of_the_recorded_experts(tmp_path, layout):
    steps_are_those_of_the_recorded_experts(RouteStore(tmp_path / "routes"), **LAYOUTS[layout])


def test_tokens_without_a_record_use_the_live_router(tmp_path):
    tokens_without_a_record_use_the_live_router(RouteStore(tmp_path / "routes"))


def test_records_of_all_layers_are_those_of_the_layers_with_routers(tmp_path):
    """Engines return a row for each layer, also for those without experts, which have no choices."""
    store = RouteStore(tmp_path / "routes")
    records = SampledRoutes(open_mesh(Config().mesh, torch.device("cpu")).data, torch.device("cpu"), _dense_first())
    records.store = store
    record = np.arange(24, dtype=np.int16).reshape(3, 4, 2) % 4
    store.write(1, record)
    store.write(2, record[:, 1:])
    records.fetch(torch.tensor([1, 2]), torch.ones(2, 4, dtype=torch.bool), [torch.tensor([0, 1])])
    padded = records.padded(torch.tensor([1, 2]), 2)
    assert padded is not None
    assert padded.tolist() == [record[:2, 1:].tolist()] * 2


def _dense_first() -> Any:
    from purerl.backends.hf.moe.replay import Routers

    return Routers(layers=(1, 2, 3), experts=4, k=2, routed=(1, 2, 3))


# --- mutants -------------------------------------------------------------------------------------------------------


def _of_the_token_before(records: SampledRoutes, numbers: Tensor, time: int) -> Tensor:
    return PADDED(records, numbers, time).roll(1, 1)


def _of_another_row(records: SampledRoutes, numbers: Tensor, time: int) -> Tensor:
    return PADDED(records, numbers, time).roll(1, 0)


def _of_another_layer(records: SampledRoutes, numbers: Tensor, time: int) -> Tensor:
    return PADDED(records, numbers, time).roll(1, 2)


def _without_replay(records: SampledRoutes, numbers: Tensor, time: int) -> None:
    return None


def _the_first_expert_in_place_of_live(records: SampledRoutes, numbers: Tensor, time: int) -> Tensor:
    return PADDED(records, numbers, time).clamp(min=0)


PADDED = SampledRoutes.padded


@pytest.mark.parametrize("mutant", [_of_the_token_before, _of_another_row, _of_another_layer, _without_replay])
@pytest.mark.parametrize("law", LAWS)
def test_other_experts_are_noticed(monkeypatch, tmp_path, law, mutant):
    monkeypatch.setattr(SampledRoutes, "padded", mutant)
    with pytest.raises((AssertionError, KeyError)):
        law(RouteStore(tmp_path / "routes"))


def test_experts_in_place_of_the_live_choice_are_noticed(monkeypatch, tmp_path):
    monkeypatch.setattr(SampledRoutes, "padded", _the_first_expert_in_place_of_live)
    with pytest.raises(AssertionError):
        tokens_without_a_record_use_the_live_router(RouteStore(tmp_path / "routes"))


def test_other_routers_in_the_generator_are_noticed(monkeypatch, tmp_path):
    original = sampled
    monkeypatch.setitem(globals(), "sampled", lambda store, perturbation: original(store, perturbation=1.0))
    with pytest.raises(AssertionError):
        replaying_the_same_weights_changes_nothing(RouteStore(tmp_path / "routes"))


# --- models that do not replay, and errors -------------------------------------------------------------------------


def test_the_model_without_its_adapter_uses_its_own_router(tmp_path):
    path = write_model(tmp_path, FAMILY)
    policy = make_trainer(
        path, dtype="float32", replay_routes="generator", lora=Lora(rank=2, target_modules=("q_proj",))
    )
    store, base = RouteStore(tmp_path / "routes"), policy.base()
    assert base is not None
    policy.use_routes(store)
    batch = sampled(store, perturbation=0.0)
    for number in batch[ROUTES].tolist():
        store.write(number, 1 - store.read(number)[:, :2].clip(0, 1))
    live = base.score(batch.exclude(ROUTES), ("logp",))["logp"]
    torch.testing.assert_close(base.score(batch, ("logp",))["logp"], live, rtol=0, atol=0)
    assert not torch.allclose(policy.score(batch, ("logp",))["logp"], live, atol=1e-3)


def test_a_trainer_without_a_store_refuses_routes(tmp_path):
    batch = sampled(RouteStore(tmp_path / "routes"), perturbation=0.0)
    with pytest.raises(InputError) as error:
        trainer_of().score(batch, ("logp",))
    assert str(error.value).splitlines() == [
        "a batch with routes",
        "  got:  a trainer without a store",
        "  need: the store of the experts of a generator",
        "  do:   use_routes first",
    ]


def test_a_trainer_that_replays_its_own_experts_refuses_a_store(tmp_path):
    path = write_model(tmp_path, FAMILY)
    with pytest.raises(InputError, match="need: trainer.replay_routes=generator"):
        make_trainer(path, dtype="float32", replay_routes="old_logp").use_routes(RouteStore(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record[:, :2], "got:  2 experts of a token in 2 layers\n  need: 2 in 3"),
        (lambda record: record[..., :1], "got:  1 experts of a token in 3 layers"),
        (lambda record: record + 9, "got:  experts from 9 to 1"),
        (lambda record: None, "got:  record 11: "),
    ],
    ids=["layers", "experts of a token", "experts", "missing"],
)
def test_records_that_do_not_fit_are_refused(tmp_path, change, message):
    store, policy = RouteStore(tmp_path / "routes"), trainer_of()
    batch = sampled(store, perturbation=0.0)
    policy.use_routes(store)
    changed = change(store.read(11))
    store.keep({11}) if changed is not None else store.keep(())
    if changed is not None:
        store.write(11, changed)
    with pytest.raises(BatchError, match=message):
        policy.score(batch[:1], ("logp",))


def test_a_step_without_numbers_is_refused(tmp_path):
    store, policy = RouteStore(tmp_path / "routes"), trainer_of()
    policy.use_routes(store)
    step, counts = prepare_step(POLICY, sampled(store, perturbation=0.0).exclude(ROUTES))
    with pytest.raises(BatchError, match="^field 'routes' is missing\n"):
        policy.step(step, POLICY, counts)
    assert len(routers_in(policy.module)) == LAYERS
