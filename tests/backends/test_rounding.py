"""bfloat16 weights lose no updates on average: the two rules, and the optimizers of the HF trainer that use them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from purerl.backends.hf.lora import Lora
from purerl.backends.hf.settings import OptimizerSettings
from purerl.backends.hf.trainer import Config, check_model
from purerl.backends.hf.training import narrow_weights
from purerl.backends.hf.training.engine import HFTrainer
from purerl.backends.hf.training.rounding import Rounding, join, random_shorts, round_stochastically, split
from purerl.backends.hf.weights.chunks import Chunk
from purerl.errors import ConfigError
from purerl.ranks import ONE_RANK
from purerl.settings import Model
from tests.backends.gradients import keep_gradients
from tests.backends.tiny import make_trainer, write_model
from tests.backends.training import equal, make_step, parameters_of, train, weights_of
from tests.ranks import check_cases

pytestmark = pytest.mark.slow

ALL_NOISE = torch.arange(-(2**15), 2**15).to(torch.int16)
NUMBERS = [1.001, -1.001, 0.02, -3.3e-5, 1e-39, 2.0, 255.7, 1.9999999, 3e38, -(2.0**-133)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("models"))


def trainer_of(path: str, **settings: Any) -> HFTrainer:
    return make_trainer(path, **{"dtype": "bfloat16", "lr": 1e-4, "updates": 100, **settings})


# --- the rules -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", NUMBERS)
def test_the_mean_over_all_noise_is_the_number(number: float) -> None:
    x = torch.tensor(number)
    rounded = round_stochastically(x.expand(len(ALL_NOISE)).clone(), ALL_NOISE).double()
    assert float(rounded.mean()) == pytest.approx(float(x), rel=1e-12)
    assert len(rounded.unique()) <= 2


def test_numbers_of_bfloat16_infinities_and_nan_stay_as_they_are() -> None:
    exact = torch.tensor([0.0, -0.0, 1.0, -0.5, math.inf, -math.inf, 2.0**-133, 3.3895313892515355e38])
    for noise in (0, 1, -1, 2**15 - 1):
        rounded = round_stochastically(exact, torch.full_like(exact, noise, dtype=torch.int16))
        assert torch.equal(rounded.float(), exact)
    nan = torch.tensor([0x7FFFFFFF, 0x7FC00000, -1], dtype=torch.int32).view(torch.float32)
    assert round_stochastically(nan, torch.full((3,), -1, dtype=torch.int16)).isnan().all()


def test_split_rounds_to_nearest_and_join_is_exact() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(-(2**31), 2**31 - 1, (100_000,), generator=draw).to(torch.int32).view(torch.float32)
    x = torch.cat([x[x.isfinite()], torch.tensor([*NUMBERS, 0.0, -0.0, math.inf])])
    y, remainder = split(x)
    assert torch.equal(join(y, remainder).view(torch.int32), x.view(torch.int32))
    is_tie = (x.view(torch.int32) & 0xFFFF) == 0x8000
    assert torch.equal(y[~is_tie], x[~is_tie].to(torch.bfloat16))


def test_noise_does_not_depend_on_the_division_of_a_parameter() -> None:
    whole = torch.zeros(6, 5, 3)
    noise = random_shorts(11, Chunk((0, 0, 0), whole), whole.shape)
    assert noise.shape == (6, 5, 3, 4)
    for rows, columns in ((slice(2, 4), slice(0, 5)), (slice(0, 6), slice(3, 5))):
        chunk = Chunk((rows.start, columns.start, 0), whole[rows, columns])
        assert torch.equal(random_shorts(11, chunk, whole.shape), noise[rows, columns])
    assert random_shorts(11, Chunk((), torch.zeros(())), ()).shape == (4,)
    assert not torch.equal(random_shorts(12, Chunk((0, 0, 0), whole), whole.shape), noise)


def test_noise_is_uniform_and_independent() -> None:
    noise = random_shorts(3, Chunk((0,), torch.zeros(2**16)), (2**16,)).double()
    assert noise.mean(0).abs().max() < 5 * 2**16 / math.sqrt(12 * 2**16)
    assert torch.corrcoef(noise.T).fill_diagonal_(0).abs().max() < 5 / 2**8
    assert torch.corrcoef(torch.stack([noise[1:, 0], noise[:-1, 0]]))[0, 1].abs() < 5 / 2**8


# --- updates -------------------------------------------------------------------------------------------------------


def _stored(rounding: Rounding, parameter: Tensor, update: float, steps: int, nearest: bool = False) -> list[float]:
    """Store the same update in every step; return the share that was lost in each."""
    remainder = torch.zeros_like(parameter, dtype=torch.int16) if rounding.keeps else None
    chunk, lost = Chunk((0,) * parameter.ndim, parameter), []
    for position in range(steps):
        rounding.begin(position)
        new = rounding.widened(parameter, remainder) + update
        noise = rounding.noise(parameter, chunk)[..., 0]
        noise = torch.full_like(noise, -(2**15)) if nearest else noise  # bits + 2^15, truncated
        rounding.store(parameter, new, parameter, remainder, noise)
        lost.append(rounding.lost(ONE_RANK))
    return lost


@pytest.mark.parametrize("keeps", [False, True])
def test_the_mean_of_many_rounded_updates_is_the_exact_one(keeps: bool) -> None:
    parameter = torch.full((4096,), 0.75, dtype=torch.bfloat16)  # half a unit in its last place is 2^-9
    lost = _stored(Rounding({parameter: "w"}, 5, keeps=keeps), parameter, 1e-4, 100)
    # The compensated weights are all in the nearest number.
    assert float(parameter.float().mean()) - 0.75 == pytest.approx(0.01, abs=2**-9 if keeps else 5e-4)
    assert sum(lost) / len(lost) == pytest.approx(0, abs=0.05)


def test_rounding_to_nearest_loses_everything_and_the_metric_says_so() -> None:
    parameter = torch.full((64,), 0.75, dtype=torch.bfloat16)
    lost = _stored(Rounding({parameter: "w"}, 5, keeps=False), parameter, 1e-5, 3, nearest=True)
    assert (lost, parameter.unique().tolist()) == ([1, 1, 1], [0.75])
    half = _stored(Rounding({parameter: "w"}, 5, keeps=False), parameter, 2.0**-8, 1, nearest=True)
    assert half == [0]


def test_without_an_update_there_is_no_share() -> None:
    parameter = torch.ones(3, dtype=torch.bfloat16)
    assert _stored(Rounding({parameter: "w"}, 0, keeps=False), parameter, 0.0, 1) == [None]


# --- trainers ------------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, OptimizerSettings | None] = {
    "adamw": None,
    "momentum": OptimizerSettings("torch.optim:SGD", {"momentum": 0.9}),
    "sgd": OptimizerSettings("torch.optim:SGD"),
    "adagrad": OptimizerSettings("torch.optim:Adagrad"),  # has a state before its first step
    "muon": OptimizerSettings("torch.optim:Muon", {"adjust_lr_fn": "match_rms_adamw"}, "matrices"),
}


def _exact(trainer: HFTrainer) -> dict[str, Tensor]:
    """The weights of `trainer` in float64, with their remainders."""
    remainders = {name: trainer.optimizer.state[p].get("remainder") for name, p in trainer.trained.items()}
    weights = {name: p.detach() for name, p in trainer.trained.items()}
    return {n: (w if remainders[n] is None else join(w, remainders[n])).double() for n, w in weights.items()}


def _way(trainer: HFTrainer, twin: HFTrainer, start: dict[str, Tensor]) -> float:
    """The fraction of the way of the weights of `twin` that those of `trainer` went."""
    moved, expected = ({n: w - start[n] for n, w in _exact(t).items()} for t in (trainer, twin))
    dot = sum((moved[name] * expected[name]).sum() for name in expected)
    return float(dot / sum(value.square().sum() for value in expected.values()))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_small_updates_go_the_way_of_float32_weights(path: str, name: str) -> None:
    # The updates of SGD are those of AdamW only with a larger learning rate.
    settings = {"optimizer": OPTIMIZERS[name], "lr": 3e-3 if name in ("sgd", "momentum") else 5e-5}
    twin, *trainers = (
        trainer_of(path, **settings, **own)
        for own in ({"dtype": "float32"}, {"rounding": "compensated"}, {"rounding": "stochastic"})
    )
    start = _exact(trainers[0])
    twin.load_weights(trainers[0].weights())  # rounded to bfloat16
    kept = {trainer: keep_gradients(trainer) for trainer in trainers}
    for each in (twin, *trainers):
        for _ in range(10):
            each.step(*make_step(0))
    for trainer in trainers:
        assert _way(trainer, twin, start) == pytest.approx(1, abs=0.15)
        assert {p.dtype for p in trainer.trained.values()} == {torch.bfloat16}
        assert {gradient.dtype for gradient in kept[trainer].values()} == {torch.bfloat16}


def test_plain_adamw_would_lose_these_updates(path: str) -> None:
    twin, trainer = (trainer_of(path, dtype=dtype, lr=5e-5) for dtype in ("float32", "bfloat16"))
    start = _exact(trainer)
    twin.load_weights(trainer.weights())
    trainer.optimizer = torch.optim.AdamW([*trainer.trained.values()], weight_decay=0, fused=True)
    trainer.rounding = Rounding({}, 0, keeps=False)
    for each in (twin, trainer):
        for _ in range(10):
            each.step(*make_step(0))
    assert _way(trainer, twin, start) < 0.3


def test_compensated_weights_are_the_float32_weights_of_the_same_gradients(path: str) -> None:
    trainer = trainer_of(path, lr=1e-3)
    weights = {name: p.detach().float().requires_grad_() for name, p in trainer.trained.items()}
    plain, kept = torch.optim.AdamW([*weights.values()], lr=1e-3, weight_decay=0), keep_gradients(trainer)
    for seed in range(10):
        trainer.step(*make_step(seed))
        for name, weight in weights.items():
            weight.grad = kept[name].float()
        plain.step()
    for name, p in trainer.trained.items():
        state = trainer.optimizer.state[p]
        # The moments are rounded stochastically, to 8 bits.
        torch.testing.assert_close(join(p.detach(), state["remainder"]), weights[name].detach(), rtol=0, atol=2e-4)
        torch.testing.assert_close(p.detach(), weights[name].detach().to(torch.bfloat16), rtol=1e-2, atol=2e-4)


@pytest.mark.parametrize(
    ("rule", "name"),
    [("compensated", "adamw"), ("stochastic", "adamw"), ("compensated", "sgd"), ("stochastic", "muon")],
)
def test_a_run_resumes_bit_for_bit(path: str, tmp_path: Path, rule: str, name: str) -> None:
    build = lambda: trainer_of(path, rounding=rule, optimizer=OPTIMIZERS[name], lr=1e-3)  # noqa: E731
    whole, resumed = build(), build()
    train(whole, 2)
    whole.save(tmp_path)
    resumed.load(tmp_path)
    for trainer in (whole, resumed):
        train(trainer, 2)
    assert equal(parameters_of(resumed), parameters_of(whole))
    assert equal(resumed._optimizer_state(), whole._optimizer_state())
    assert any("remainder" in key for key in whole._optimizer_state()) == (rule == "compensated")


def test_seeds_and_steps_have_noise_of_their_own_and_pieces_have_not(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, again, other = (trainer_of(path, rounding="stochastic", seed=seed) for seed in (1, 1, 2))
    for trainer in (first, other):
        train(trainer, 2)
    monkeypatch.setattr(narrow_weights, "_ELEMENTS", 7)
    train(again, 2)
    assert equal(weights_of(first), weights_of(again))
    assert not equal(weights_of(first), weights_of(other))


def test_replaced_weights_have_no_remainders(path: str) -> None:
    trainer, other = trainer_of(path), trainer_of(path)
    train(trainer, 2)
    trainer.load_weights(other.weights())
    assert not any("remainder" in key for key in trainer._optimizer_state())


def test_adapters_of_bfloat16_models_are_in_float32_and_have_no_such_metric(path: str) -> None:
    trainer = trainer_of(path, lora=Lora(rank=2), lr=1e-6)
    before = weights_of(trainer)
    reports = train(trainer, 2)
    assert {p.dtype for p in trainer.trained.values()} == {torch.float32}
    assert "update_lost" not in reports[0]
    moved = {name: (weight - before[name]).abs().max() for name, weight in weights_of(trainer).items()}
    assert all(change > 0 for name, change in moved.items() if "lora_B" in name)


def test_float32_weights_have_no_such_metric(path: str) -> None:
    assert "update_lost" not in train(trainer_of(path, dtype="float32"))[0]


@pytest.mark.parametrize("settings", [{"dtype": "float32"}, {"dtype": "float64"}, {"lora": Lora(rank=2)}])
def test_a_rule_without_effect_is_refused_before_the_model_is_loaded(path: str, settings: dict[str, Any]) -> None:
    message = r"^rounding has no effect\n  got:  'stochastic'\n  need: weights that are trained in bfloat16"
    model = Model("nowhere", dtype=settings.get("dtype", "bfloat16"))
    config = Config(rounding="stochastic", lora=settings.get("lora"))
    with pytest.raises(ConfigError, match=message):
        check_model(config, model=model, outputs=("logp",), is_trained=True)
    with pytest.raises(ConfigError, match=message):
        trainer_of(path, rounding="stochastic", **settings)


@pytest.mark.parametrize("outputs", [("logp",), ("classifier_score",)])
def test_a_rule_without_effect_is_refused_for_every_model_that_a_run_trains(
    path: str, outputs: tuple[str, ...]
) -> None:
    config = Config(rounding="stochastic")
    with pytest.raises(ConfigError, match="rounding has no effect"):
        check_model(config, model=Model("nowhere", dtype="float32"), outputs=outputs, is_trained=True)
    narrow = Model(path, dtype="bfloat16")
    check_model(config, model=narrow, outputs=("logp",), is_trained=True)
    check_model(config, model=Model("nowhere", dtype="float32"), outputs=("value",), is_trained=True)  # of the policy
    check_model(config, model=Model("nowhere", dtype="float32"), outputs=("logp",), is_trained=False)


@pytest.mark.parametrize(
    ("dtype", "message"), [("float32", "^rounding has no effect"), ("float16", "^dtype\n  got:  float16")]
)
def test_the_dtype_of_the_files_is_known_before_the_model_is_loaded(tmp_path: Path, dtype: str, message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "dtype": dtype}))
    model, config = Model(str(tmp_path), dtype="auto"), Config(rounding="stochastic")
    with pytest.raises(ConfigError, match=message):
        check_model(config, model=model, outputs=("logp",), is_trained=True)
    check_model(config, model=model, outputs=("logp",), is_trained=False)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "dtype": "bfloat16"}))
    check_model(config, model=model, outputs=("logp",), is_trained=True)


@pytest.mark.parallel
def test_ranks_round_alike() -> None:
    check_cases("-m", "tests.backends.rounding_ranks")
