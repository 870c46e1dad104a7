"""The functions for tinker and SkyRL, called by their own code. Those for prime-rl and slime get what these pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.adapters.frameworks import prime_rl
from purerl.adapters.frameworks.availability import PRIME_RL, SKYRL, TINKER, estimator_refusals, loss_refusals, refusals
from purerl.adapters.frameworks.compose import compose
from purerl.adapters.frameworks.skyrl import advantage_estimator
from purerl.adapters.frameworks.slime import reward_post_process
from purerl.adapters.frameworks.tinker import custom_loss
from purerl.algos.algebra import keep_all
from purerl.batch import with_fields
from purerl.composition import build_algorithm
from purerl.errors import BatchError, ConfigError
from purerl.plugins import names

from .agreement import assert_agree
from .compositions import Result, algorithm_of, completions, result_of
from .placeholders import add_placeholders

_ALL = names("algorithm")


def _named(name: str, *modifiers: Any) -> Any:
    return build_algorithm(compose(name, modifiers))


def _rows(values: Tensor, mask: Tensor) -> list[Tensor]:
    """The values of each row where `mask` is true."""
    return [row[keep] for row, keep in zip(values, mask, strict=True)]


def _padded(values: Sequence[Tensor], mask: Tensor) -> Tensor:
    """The inverse of `_rows`, with zeros elsewhere."""
    padded = torch.zeros(mask.shape, dtype=values[0].dtype)
    padded[mask] = torch.cat([*values])
    return padded


# --- tinker ------------------------------------------------------------------------------------------------------


def _in_tinker(name: str, batch: TensorDict, **arguments: Any) -> Result:
    """The loss and gradient by tinker's own client, which computes the weights that it sends from the loss."""
    tinker = pytest.importorskip("tinker", reason="tinker is not installed: nox -s oracle")
    client = pytest.importorskip("tinker.lib.public_interfaces.training_client").TrainingClient
    mask = batch["mask"]
    values = {key: _rows(batch[key], mask) for key in ("logp", "old_logp", "rollout_logp")}

    def tensor(values: Tensor) -> Any:
        return tinker.TensorData(data=values.tolist(), dtype="float32", shape=list(values.shape))

    data = [
        tinker.Datum(
            model_input=tinker.ModelInput.from_ints([1] * len(logp)),
            loss_fn_inputs={
                "target_tokens": tinker.TensorData(data=[1] * len(logp), dtype="int64", shape=[len(logp)]),
                "mask": tensor(torch.ones_like(logp)),
                "logprobs": tensor(rollout),
            },
        )
        for logp, rollout in zip(values["logp"], values["rollout_logp"], strict=True)
    ]
    loss = custom_loss(
        name,
        rewards=batch["reward"].sum(-1).tolist(),
        groups=[f"prompt {group}" for group in batch["group"].tolist()],
        old_logprobs=values["old_logp"],
        **arguments,
    )
    outputs = SimpleNamespace(loss_fn_outputs=[{"logprobs": tensor(logp)} for logp in values["logp"]])
    computed = client._compute_custom_loss(data, loss, outputs)
    weights = [datum.loss_fn_inputs["weights"].to_torch() for datum in computed.data]
    return Result(torch.zeros(0), torch.tensor(computed.loss_sum), -_padded(weights, mask))


@pytest.mark.parametrize("name", [name for name in _ALL if not [*refusals(_named(name), TINKER)]])
def test_a_loss_in_tinker_has_the_value_and_gradient_of_purerl(name: str) -> None:
    """tinker computes in float32."""
    batch = completions(1, prompts=2, samples=6)
    theirs, ours = (
        _in_tinker(name, batch),
        result_of(algorithm_of(name), with_fields(batch, score=batch["reward"].sum(-1))),
    )
    scale = max(1.0, float(ours.gradient.abs().max()))
    torch.testing.assert_close(theirs.loss.double(), ours.loss, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(theirs.gradient.double(), ours.gradient, rtol=1e-4, atol=1e-6 * scale)


def test_a_datum_without_a_reward_is_not_counted_in_tinker() -> None:
    batch = completions(2, prompts=2, samples=4)
    reward = batch["reward"].clone()
    reward[3] = torch.nan
    counted = with_fields(batch, mask=batch["mask"] & (batch["row"] != 3).unsqueeze(-1))
    theirs, ours = _in_tinker("grpo", with_fields(batch, reward=reward)), result_of(algorithm_of("grpo"), counted)
    torch.testing.assert_close(theirs.gradient.double(), ours.gradient, rtol=1e-4, atol=1e-6)
    assert theirs.gradient[3].eq(0).all()


def test_what_tinker_cannot_compute_is_refused() -> None:
    with pytest.raises(ConfigError, match="this algorithm in tinker is not available\n.*teacher_logp"):
        custom_loss("opd", rewards=[], groups=[])
    with pytest.raises(ConfigError, match="training_client.forward"):
        custom_loss("icepop", rewards=[], groups=[])
    datum = SimpleNamespace(loss_fn_inputs={})
    with pytest.raises(BatchError, match="1 for 2 data"):
        custom_loss("grpo", rewards=[1.0], groups=[0, 0])([datum, datum], [torch.zeros(1)] * 2)
    with pytest.raises(BatchError, match="loss_fn_inputs of datum 0\n  got:  nothing\n  need: also weights"):
        custom_loss("grpo", rewards=[1.0, 0.0], groups=[0, 0])([datum, datum], [torch.zeros(1)] * 2)


# --- SkyRL -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def skyrl() -> Any:
    """SkyRL's module of estimators. Placeholders stand for its server and its configuration, which it does not use."""
    pytest.importorskip("loguru", reason="SkyRL is not installed: nox -s oracle")
    utils = "skyrl.backends.skyrl_train.utils"
    add_placeholders(
        ["skyrl.backends.backend", "skyrl.train", "skyrl.train.config", f"{utils}.off_policy_correction_utils"]
    )
    return pytest.importorskip(f"{utils}.ppo_utils", reason="SkyRL is not installed: nox -s oracle")


def _in_skyrl(skyrl: Any, name: str, batch: TensorDict) -> Tensor:
    return skyrl.compute_advantages_and_returns(
        token_level_rewards=batch["reward"].clone(),
        response_mask=batch["mask"].double(),
        index=np.array([f"prompt {group}" for group in batch["group"].tolist()]),
        adv_estimator=name,
        config=None,
    )[0]


@pytest.mark.parametrize("name", [name for name in _ALL if not [*estimator_refusals(_named(name), SKYRL)]])
def test_an_estimator_in_skyrl_has_the_advantages_of_purerl(name: str, skyrl: Any) -> None:
    batch = completions(4, prompts=2, samples=6)
    skyrl.AdvantageEstimatorRegistry.register(f"purerl_{name}", advantage_estimator(name))
    algorithm = algorithm_of(name)
    expected = algorithm_of("grpo")._replace(reads=algorithm.reads, advantage=algorithm.advantage, select=keep_all)
    torch.testing.assert_close(_in_skyrl(skyrl, f"purerl_{name}", batch), result_of(expected, batch).advantage)


def test_an_estimator_of_skyrl_is_that_of_purerl(skyrl: Any) -> None:
    batch = completions(5)
    torch.testing.assert_close(_in_skyrl(skyrl, "rloo", batch), result_of(algorithm_of("rloo"), batch).advantage)
    scaled = _named("grpo", {"kind": "advantage_scale", "eps": 1e-6})
    ours = result_of(scaled, batch).advantage
    torch.testing.assert_close(_in_skyrl(skyrl, "grpo", batch), ours, rtol=1e-5, atol=1e-6)  # SkyRL's mean is float32


def test_an_estimator_that_skyrl_cannot_call_is_refused() -> None:
    with pytest.raises(ConfigError, match="this algorithm in SkyRL is not available\n.*it selects rows"):
        advantage_estimator("dapo")


# --- prime-rl ----------------------------------------------------------------------------------------------------


@dataclass
class LossInputs:
    """The fields of prime-rl's class."""

    trainer_logprobs: Tensor
    inference_logprobs: Tensor
    ref_logprobs: Tensor | None
    advantages: Tensor
    loss_mask: Tensor
    loss_weights: Tensor | None = None


@dataclass
class LossOutputs:
    """The fields of prime-rl's class."""

    loss: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)


_PRIME_RL = [(name, ()) for name in _ALL if not [*loss_refusals(_named(name), PRIME_RL)]]
_PRIME_RL += [(name, ("bypass",)) for name in ("ppo", "cispo", "dapo")]


def _inputs(batch: TensorDict, row: int, logp: Tensor, advantage: Tensor, **more: Any) -> LossInputs:
    """A sequence whose first token is of the prompt."""

    def values(tensor: Tensor) -> Tensor:
        return torch.cat([tensor.new_zeros(1), tensor[row]])

    reference = values(batch["ref_logp"])
    sequence = (values(logp), values(batch["rollout_logp"]), reference, values(advantage), values(batch["mask"]))
    return LossInputs(*sequence, **more)


@pytest.mark.parametrize(("name", "modifiers"), _PRIME_RL)
def test_a_loss_in_prime_rl_has_the_value_and_gradient_of_purerl(name: str, modifiers: Sequence[str]) -> None:
    """prime-rl adds up the losses of sequences, and divides by the number of tokens."""
    batch = completions(3)
    draw = torch.Generator().manual_seed(0)
    advantage = torch.randn(batch["mask"].shape, generator=draw, dtype=torch.float64) * batch["mask"]
    logp = batch["logp"].clone().requires_grad_()
    rows = [prime_rl.loss(_inputs(batch, row, logp, advantage), name, list(modifiers)) for row in range(len(batch))]
    total = torch.stack([row.loss for row in rows]).sum() / batch["mask"].sum()
    [gradient] = torch.autograd.grad(total, logp)
    given = _named(name, *modifiers)._replace(reads=(), advantage=algorithm_of("sft").advantage, select=keep_all)
    ours = result_of(given, with_fields(batch, advantage=advantage))
    assert_agree("prime-rl's loss of purerl", ours, Result(ours.advantage, total.detach(), gradient))
    assert all(isinstance(row, LossOutputs) for row in rows)


def test_a_kl_penalty_in_prime_rl_reads_the_reference() -> None:
    batch, modifiers = completions(3), ["bypass", {"kind": "kl_loss", "coef": 0.5}]
    zero = torch.zeros_like(batch["logp"])
    value = prime_rl.loss(_inputs(batch, 0, batch["logp"], zero), "dapo", modifiers).loss
    assert value > 0
    without = _inputs(batch, 0, batch["logp"], zero)
    without.ref_logprobs = None
    with pytest.raises(ConfigError, match="ref_logprobs of prime-rl"):
        prime_rl.loss(without, "dapo", modifiers)


def test_what_prime_rl_cannot_compute_is_refused() -> None:
    batch = completions(3)
    inputs = _inputs(
        batch, 0, batch["logp"], batch["logp"], loss_weights=torch.full((batch["mask"].shape[1] + 1,), 2.0)
    )
    with pytest.raises(ConfigError, match="loss_weights of prime-rl"):
        prime_rl.loss(inputs, "dppo")
    with pytest.raises(ConfigError, match=r'add modifiers = \["bypass"\]'):
        prime_rl.loss(inputs, "dapo")
    with pytest.raises(ConfigError, match="another reduction than token_mean"):
        prime_rl.loss(inputs, "rloo")


# --- slime -------------------------------------------------------------------------------------------------------


@dataclass
class Sample:
    """The attributes of slime's class that are read."""

    reward: float
    group_index: int
    response_length: int
    loss_mask: list[int] | None = None

    def get_reward_value(self, args: Any) -> float:
        return self.reward


def _samples(batch: TensorDict) -> list[Sample]:
    rewards, sizes = batch["reward"].sum(-1).tolist(), batch["mask"].sum(-1).tolist()
    return [Sample(*values) for values in zip(rewards, batch["group"].tolist(), sizes, strict=True)]


@pytest.mark.parametrize("name", ["grpo", "rloo", "gpg", "opo", "max_rl"])
def test_advantages_in_slime_are_those_of_purerl(name: str) -> None:
    batch = completions(6)
    raw, processed = reward_post_process(name)(SimpleNamespace(), _samples(batch))
    advantage = result_of(algorithm_of(name), batch).advantage
    expected = torch.where(batch["mask"], advantage, -torch.inf).amax(-1)
    assert raw == batch["reward"].sum(-1).tolist()
    torch.testing.assert_close(torch.tensor(processed, dtype=torch.float64), expected)


def test_a_sample_of_slime_without_counted_tokens_has_the_advantage_0() -> None:
    samples = [Sample(1.0, 0, 2, [0, 0]), Sample(1.0, 0, 2), Sample(0.0, 0, 3, [1, 0, 1])]
    _, processed = reward_post_process("rloo")(SimpleNamespace(), samples)
    assert processed[0] == 0
    assert processed[1] == -processed[2] != 0


def test_what_slime_cannot_compute_is_refused() -> None:
    with pytest.raises(ConfigError, match="this algorithm in slime is not available\n.*old_value"):
        reward_post_process("ppo")
    discounted = reward_post_process({"kind": "reinforce", "discount": 0.9})
    with pytest.raises(ConfigError, match="several advantages in a sample"):
        discounted(SimpleNamespace(), _samples(completions(6)))
