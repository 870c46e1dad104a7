"""DPO, direct preference optimization: Rafailov et al. 2023 (2305.18290).

DPO learns from pairs of completions of one prompt. One completion of each pair is preferred. It needs neither rollouts
nor rewards: the log-ratio of policy and reference model is an implicit reward. The two completions of a pair are rows
of one group. The field `chosen` marks the preferred one.

    L_i  = sum_t (logp_it - ref_logp_it)
    D_g  = L_chosen - L_rejected
    loss = -(1 / pairs) sum_g log sigmoid(beta * D_g)

L_chosen and L_rejected are the log-ratios of the two rows of pair g. `pairs` is the number of pairs of the optimizer
step. Losses, means and counts cover only tokens where `mask` is 1.

With `losses`, other losses of L_chosen and L_rejected take the place of -log sigmoid(beta * D_g), alone or as a sum
with `weights`. `parts.pair_losses` has their equations and sources. MPO (2411.10442) for example is
``losses = ["sigmoid", "bco_pair"]`` with ``weights = [0.8, 0.2]`` and the modifier `nll_loss`.

Choices that differ between libraries:

- Log-probabilities are summed over tokens, not averaged. The modifier `length_normalization` averages them.
- Labels are not smoothed. The modifier `label_smoothing` does so.
- A group that does not have exactly one chosen and one rejected row, each with a counted token, is not a pair. It is
  left out of the value, the gradient and the denominator.

Metrics, means over the pairs:

- `policy/accuracy`: fraction of pairs with D_g > 0.
- `policy/margin`: beta * D_g. `policy/chosen_reward` and `policy/rejected_reward` are beta * L of the two rows.
"""

from __future__ import annotations

from attrs import fields_dict, frozen

from purerl.algos.algebra import Algorithm, Bound, bind, identity
from purerl.algos.parts import pair_losses
from purerl.algos.parts.preferences import pair_objective, relative_to
from purerl.algos.parts.settings import choices, number, numbers
from purerl.errors import ConfigError

__all__ = ["EXEMPTIONS", "Config", "algorithm"]

EXEMPTIONS = {
    "episode_invariance": "a pair consists of two rows",
    "reinforce_gradient_on_policy": "it learns from pairs and has no advantage",
}

_SETTINGS_OF_LOSSES = {"exo_smoothing": ("exo_pair", "smoothing"), "discopop_tau": ("discopop", "tau")}
"""A setting of the Config, the loss that it is for, and the argument of this loss."""


@frozen(kw_only=True)
class Config:
    """Hyperparameters of DPO."""

    beta: float = number("a larger beta keeps the policy closer to the reference model", 0.1, above=0)
    losses: tuple[str, ...] = choices(
        "losses of a pair; their weighted sum is minimized", pair_losses.__all__, ("sigmoid",)
    )
    weights: tuple[float, ...] = numbers("weight of each loss, in the order of losses; by default each is 1")
    exo_smoothing: float = number(
        "probability of the rejected completion in the labels of the loss exo_pair", 1e-3, above=0, max=0.5
    )
    discopop_tau: float = number("width of the transition between the two parts of the loss discopop", 0.05, above=0)

    def __attrs_post_init__(self) -> None:
        if self.weights and len(self.weights) != len(self.losses):
            got, need = f"{len(self.weights)} weights", f"{len(self.losses)}: one for each of losses, or none"
            raise ConfigError("weights", got=got, need=need)
        for name, (loss, _) in _SETTINGS_OF_LOSSES.items():
            if loss not in self.losses and getattr(self, name) != fields_dict(Config)[name].default:
                need = f"the loss {loss}: others do not have this setting"
                raise ConfigError(name, got=f"losses = {', '.join(self.losses)}", need=need)


def algorithm(config: Config = Config()) -> Algorithm:
    """Build DPO from `config`."""
    weights = config.weights or (1.0,) * len(config.losses)
    named = config.losses if len(config.losses) > 1 else ("preference",)
    losses = zip(named, (_loss(name, config) for name in config.losses), weights, strict=True)
    objective = pair_objective(relative_to("ref_logp"), *losses, reads=("ref_logp",), beta=config.beta)
    return Algorithm(reads=(), advantage=identity, objectives=(objective,))


def _loss(name: str, config: Config) -> Bound:
    own = {argument: getattr(config, key) for key, (loss, argument) in _SETTINGS_OF_LOSSES.items() if loss == name}
    return bind(getattr(pair_losses, name), beta=config.beta, **own)
