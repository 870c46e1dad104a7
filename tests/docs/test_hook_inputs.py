"""The functions for tinker, SkyRL, prime-rl and slime refuse inputs and settings that would give a wrong result."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from purerl.adapters.frameworks import prime_rl
from purerl.adapters.frameworks.compose import compose
from purerl.adapters.frameworks.skyrl import advantage_estimator
from purerl.adapters.frameworks.slime import reward_post_process
from purerl.adapters.frameworks.tinker import custom_loss
from purerl.errors import BatchError, ConfigError, InputError


def _refused(error: type[InputError], message: str, function: Callable[[], Any]) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        function()


# --- algorithms and settings -------------------------------------------------------------------------------------


def test_a_list_of_modifiers_is_needed() -> None:
    message = "modifiers\n  got:  'bypass'\n  need: a list of modifiers\n  do:   ['bypass']"
    _refused(ConfigError, message, lambda: compose("dapo", "bypass"))
    _refused(ConfigError, "modifiers\n  got:  {'kind': 'bypass'}", lambda: compose("dapo", {"kind": "bypass"}))  # type: ignore[arg-type]


def test_an_algorithm_of_another_type_is_refused() -> None:
    _refused(ConfigError, "algorithm\n  got:  None\n  need: a name, a preset, a table", lambda: compose(None))


HOOKS: Mapping[str, Callable[..., Any]] = {
    "advantages in SkyRL": advantage_estimator,
    "advantages in slime": reward_post_process,
    "the loss in prime-rl": lambda *algorithm: prime_rl.loss(_sequence(), *algorithm),
}


@pytest.mark.parametrize(
    ("part", "name", "algorithm", "modifiers"),
    [
        ("advantages in SkyRL", "clip_high", {"kind": "grpo", "clip_high": 0.3}, []),
        ("advantages in SkyRL", "modifier 'kl_loss'", "grpo", [{"kind": "kl_loss", "coef": 0.1}]),
        ("advantages in slime", "modifier 'dual_clip'", "grpo", ["advantage_scale", "dual_clip"]),
        ("the loss in prime-rl", "modifier 'advantage_scale'", "dapo", ["bypass", "advantage_scale"]),
        ("the loss in prime-rl", "advantage_scale", {"kind": "dapo", "advantage_scale": "batch_std"}, ["bypass"]),
    ],
)
def test_a_setting_that_the_framework_would_ignore_is_refused(
    part: str, name: str, algorithm: Any, modifiers: list[Any]
) -> None:
    message = f"{name}\n  got:  no effect on {part}\n  need: settings with an effect\n  do:   leave it out"
    _refused(ConfigError, message, lambda: HOOKS[part](algorithm, modifiers))


def test_settings_with_an_effect_and_defaults_are_accepted() -> None:
    assert advantage_estimator({"kind": "grpo", "clip_high": 0.2}, [{"kind": "reward_clip", "low": 0.0, "high": 1.0}])
    assert advantage_estimator("grpo@verl")
    assert reward_post_process("grpo", [{"kind": "advantage_scale", "eps": 1e-4}])
    assert prime_rl.loss(_sequence(), {"kind": "dapo", "clip_high": 0.3, "clip_low": 0.2}, ["bypass", "dual_clip"])


# --- prime-rl ----------------------------------------------------------------------------------------------------


class LossInputs(SimpleNamespace):
    """The fields of prime-rl's class."""


class LossOutputs(SimpleNamespace):
    """The fields of prime-rl's class."""


def _sequence(**changes: Any) -> LossInputs:
    logp = torch.tensor([0.0, -1.0, -2.0, -0.5], dtype=torch.float64)
    fields = {"trainer_logprobs": logp.clone().requires_grad_(), "inference_logprobs": logp - 0.1}
    fields |= {"ref_logprobs": None, "advantages": torch.full_like(logp, 2.0), "loss_weights": None}
    return LossInputs(**{**fields, "loss_mask": torch.tensor([False, True, True, True]), **changes})


def test_the_example_in_prime_rl_is_the_sum_of_a_clipped_surrogate() -> None:
    """The ratio of each of three tokens is exp(0.1), below the clip range, and advantages are 2."""
    inputs = _sequence()
    loss = prime_rl.loss(inputs, "dapo", ["bypass"]).loss
    loss.backward()
    ratio = torch.tensor(0.1, dtype=torch.float64).exp()
    torch.testing.assert_close(loss.detach(), -3 * 2 * ratio)
    torch.testing.assert_close(inputs.trainer_logprobs.grad, -2 * ratio * inputs.loss_mask.double())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"advantages": torch.zeros(3)}, "advantages of prime-rl\n  got:  shape (3,)\n  need: a tensor of shape (4,)"),
        ({"advantages": torch.tensor(1.0)}, "advantages of prime-rl\n  got:  shape ()"),
        ({"inference_logprobs": None}, "inference_logprobs of prime-rl\n  got:  None\n  need: a tensor of shape (4,)"),
        ({"loss_mask": torch.ones(1, 4)}, "loss_mask of prime-rl\n  got:  shape (1, 4)"),
        ({"ref_logprobs": torch.zeros(5)}, "ref_logprobs of prime-rl\n  got:  shape (5,)"),
        (
            {"trainer_logprobs": torch.zeros(1, 4)},
            "trainer_logprobs of prime-rl\n  got:  shape (1, 4)\n  need: a tensor",
        ),
    ],
)
def test_inputs_of_prime_rl_with_other_shapes_are_refused(changes: dict[str, Any], message: str) -> None:
    _refused(BatchError, message, lambda: prime_rl.loss(_sequence(**changes), "dapo", ["bypass"]))


def test_weights_of_prime_rl_are_read_at_counted_tokens_whatever_the_type_of_the_mask() -> None:
    weights = torch.tensor([1.0, 1.0, 2.0, 1.0])
    inputs = _sequence(loss_weights=weights, loss_mask=torch.tensor([0, 1, 1, 0]))
    _refused(ConfigError, "loss_weights of prime-rl", lambda: prime_rl.loss(inputs, "dapo", ["bypass"]))
    assert prime_rl.loss(_sequence(loss_weights=weights, loss_mask=torch.tensor([0, 1, 0, 1])), "dapo", ["bypass"])


# --- SkyRL -------------------------------------------------------------------------------------------------------


def _in_skyrl(**changes: Any) -> Any:
    reward = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.5], [0.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 1, 1], [1, 0, 0]])
    arguments = {"token_level_rewards": reward, "response_mask": mask, "index": np.array(["a", "a", "b", "b"])}
    return advantage_estimator("rloo")(**{**arguments, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_level_rewards": torch.zeros(4)}, "token_level_rewards\n  got:  shape (4,)\n  need: a tensor of shape"),
        ({"index": np.array(["a"])}, "labels of prompts\n  got:  shape (1,)\n  need: a tensor of shape (4,)"),
        (
            {"token_level_rewards": torch.full((4, 3), torch.nan)},
            "rewards of row 0\n  got:  NaN or infinity\n  need: a",
        ),
        ({"index": np.arange(4)}, "advantages of 'rloo'\n  got:  1 row in the largest group"),
    ],
)
def test_inputs_of_skyrl_that_would_give_a_wrong_advantage_are_refused(changes: dict[str, Any], message: str) -> None:
    _refused(BatchError, message, lambda: _in_skyrl(**changes))


def test_the_leave_one_out_advantages_in_skyrl_by_hand() -> None:
    advantage, returns = _in_skyrl()
    assert advantage.tolist() == [[1, 1, 0], [-1, -1, -1], [0.5, 0.5, 0.5], [-0.5, 0, 0]]
    assert returns.equal(advantage)


# --- slime -------------------------------------------------------------------------------------------------------


def _sample(reward: Any, group: Any = 0, *, length: int = 3, mask: list[int] | None = None) -> SimpleNamespace:
    return SimpleNamespace(
        group_index=group, response_length=length, loss_mask=mask, get_reward_value=lambda args: reward
    )


GRPO = SimpleNamespace(advantage_estimator="grpo")


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "samples of slime\n  got:  none\n  need: at least one"),
        (
            [_sample(1.0), _sample(None)],
            "reward of sample 1 of slime\n  got:  None\n  need: a number\n  do:   score each",
        ),
        (
            [_sample({"a": 1.0})],
            "reward of sample 0 of slime\n  got:  {'a': 1.0}\n  need: a number\n  do:   set --reward",
        ),
        ([_sample(torch.nan), _sample(0.0)], "rewards of row 0\n  got:  NaN or infinity"),
        (
            [_sample(1.0), _sample(0.0, mask=[1])],
            "loss_mask of sample 1 of slime\n  got:  1 numbers\n  need: 3, its resp",
        ),
        (
            [_sample(1.0, None), _sample(0.0, None)],
            "advantages of 'rloo'\n  got:  rows without labels of their prompts",
        ),
    ],
)
def test_samples_of_slime_that_would_give_a_wrong_advantage_are_refused(samples: list[Any], message: str) -> None:
    _refused(BatchError, message, lambda: reward_post_process("rloo")(GRPO, samples))


def test_an_estimator_of_slime_that_computes_something_else_is_refused() -> None:
    samples = [_sample(np.float32(1.0)), _sample(0)]
    for name in ("grpo", "gspo", "cispo"):
        arguments = SimpleNamespace(advantage_estimator=name)
        assert reward_post_process("rloo")(arguments, samples) == ([1.0, 0.0], [1.0, -1.0])
    message = "advantage_estimator of slime\n  got:  ppo\n  need: grpo, gspo, cispo: they give"
    arguments = SimpleNamespace(advantage_estimator="ppo")
    _refused(ConfigError, message, lambda: reward_post_process("rloo")(arguments, samples))


# --- tinker ------------------------------------------------------------------------------------------------------


class _Data:
    """A tensor as tinker's TensorData."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def to_torch(self) -> Tensor:
        return self.values


def _in_tinker(name: str = "grpo", lengths: tuple[int, ...] = (3, 2, 4, 3), **changes: Any) -> tuple[Tensor, list[Any]]:
    """The loss of `name` on four data, whose first token is of the prompt, and the log-probabilities."""
    inputs = {field: changes.pop(field, lengths) for field in ("mask", "logprobs")}
    logprobs = [torch.full((n,), -1.0, dtype=torch.float64, requires_grad=True) for n in lengths]
    data = [
        SimpleNamespace(
            loss_fn_inputs={
                "mask": _Data((torch.arange(inputs["mask"][row]) > 0).double()),
                "logprobs": _Data(torch.full((inputs["logprobs"][row],), -1.1)),
            }
        )
        for row in range(len(lengths))
    ]
    arguments = {"rewards": [1.0, 0.0, 0.0, 1.0], "groups": ["a", "a", "b", "b"]}
    return custom_loss(name, **{**arguments, **changes})(data, logprobs)[0], logprobs


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask": (3, 2, 3, 3)}, "mask or weights of datum 2\n  got:  shape (3,)\n  need: a tensor of shape (4,)"),
        ({"old_logprobs": [torch.zeros(3)] * 4}, "old_logprobs of datum 1\n  got:  shape (3,)\n  need: a tensor of"),
        ({"old_logprobs": [torch.zeros(3)]}, "old_logprobs\n  got:  1 for 4 data\n  need: one for each datum"),
        (
            {"rewards": [1.0, None, 0.0, 0.0]},
            "reward of datum 1\n  got:  None\n  need: a number, or NaN if there is none",
        ),
        ({"groups": range(4)}, "advantages of 'grpo'\n  got:  1 row in the largest group, so every advantage is 0"),
        ({"lengths": (), "rewards": [], "groups": []}, "data\n  got:  none\n  need: those of an optimizer step"),
    ],
)
def test_data_of_tinker_that_would_give_a_wrong_loss_are_refused(changes: dict[str, Any], message: str) -> None:
    _refused(BatchError, message, lambda: _in_tinker(**changes))


def test_logprobs_of_the_sampler_in_tinker_with_another_length_are_refused() -> None:
    old = [torch.zeros(length) for length in (3, 2, 4, 3)]
    message = "logprobs of datum 0\n  got:  shape (2,)\n  need: a tensor of shape (3,)"
    _refused(BatchError, message, lambda: _in_tinker("icepop", old_logprobs=old, logprobs=(2, 2, 4, 3)))


def test_labels_of_tinker_in_a_tensor_are_those_of_a_list() -> None:
    """On policy, the gradient of a token is minus the advantage, divided by the tokens of its row and by rows."""
    for groups in (torch.tensor([0, 0, 1, 1]), ["a", "a", "b", "b"]):
        loss, logprobs = _in_tinker(groups=groups)
        loss.backward()
        scale = 0.5**0.5 + 1e-6  # the standard deviation of two scores
        advantage = torch.tensor([0.5, -0.5, -0.5, 0.5], dtype=torch.float64) / scale
        for row, values in enumerate(logprobs):
            tokens = len(values) - 1
            expected = torch.cat([torch.zeros(1), torch.full((tokens,), 1.0)]).double() * -advantage[row] / tokens / 4
            torch.testing.assert_close(values.grad, expected)
