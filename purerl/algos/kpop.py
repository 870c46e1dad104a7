"""KPop, GRPO with a KL bound for each token: Guo et al. 2026, Ant Group (ringtech.notion.site/kpop).

KPop is GRPO with a correction for the training-inference mismatch. `icepop` bounds the ratio of the probabilities that
the trainer and the generator compute for a token. KPop bounds a divergence of the distribution "this token, or any
other", in both directions. A rare token may then have a large ratio, and a frequent one may not.

    p_it = exp(old_logp_it)
    q_it = exp(rollout_logp_it)
    D_it = max(kl(p_it, q_it), kl(q_it, p_it))

with kl(a, b) = a log(a / b) + (1 - a) log((1 - a) / (1 - b)). A token with D_it > `max_divergence` is rejected: it has
no effect at all, also not on denominators. The rest is as in `grpo`. The metrics of rejected tokens are described in
`parts.corrections`.

Choices that differ between libraries:

- AReaL and verl compare the old policy with the rollout policy, as here; AReaL's default bound is 2. The loss `kpop` of
  prime-rl compares the current policy with it, and has the bound 0.1.

Differences from the source:

1. The source, a web page, could not be read completely. The equations are those of AReaL and of pull requests to verl
   and prime-rl; the bound is what prime-rl quotes from the page. Clipping, reduction and standard deviation are as in
   `grpo`. That the remaining tokens have no importance weight was not checked; `importance_weight` adds one.
"""

from __future__ import annotations

from attrs import frozen

from purerl.algos import grpo
from purerl.algos.algebra import Algorithm
from purerl.algos.modifiers import rejection
from purerl.algos.parts.settings import base_settings, number
from purerl.composition import Composition, build_algorithm

__all__ = ["EXEMPTIONS", "Config", "algorithm", "composition"]

EXEMPTIONS = {"group_independence": rejection.EXEMPTIONS["group_independence"]}


@frozen(kw_only=True)
class Config(grpo.Config):
    """Hyperparameters of KPop: the settings of GRPO, and the bound of the divergence."""

    max_divergence: float = number(
        "a token with a larger divergence of trainer and generator is rejected", 0.1, above=0, unit="nats"
    )


def composition(config: Config) -> Composition:
    """KPop as GRPO with a modifier."""
    bound = rejection.Config(level="token", measure="binary_kl", max_value=config.max_divergence)
    return Composition(base_settings(config, grpo.Config), (bound,))


def algorithm(config: Config = Config()) -> Algorithm:
    """Build KPop from `config`."""
    return build_algorithm(composition(config))
