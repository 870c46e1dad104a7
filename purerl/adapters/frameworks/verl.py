"""Policy losses and advantage estimators for verl: the functions that verl calls, and the names that it knows them by.

    algorithm.adv_estimator=purerl:rloo
    actor_rollout_ref.actor.policy_loss.loss_mode=purerl:gspo

Every algorithm and every preset has a loss ``purerl:NAME``, an estimator ``purerl:NAME``, or both. Settings other than
the defaults are variants, see `read_variants`. Importing verl registers all of them, by the entry point in the group
``verl.plugins`` (`purerl.adapters.frameworks.verl_plugin`).

Denominators are verl's own: the tokens and rows of a mini-batch over all ranks (`batch_num_tokens`,
`global_batch_size`), so neither micro-batches nor ranks change the gradient. The reduction is that of the algorithm.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from purerl.adapters.frameworks.availability import VERL, estimator_refusals, loss_refusals, policy_objective, require
from purerl.adapters.frameworks.compose import compose
from purerl.adapters.frameworks.tensors import completions, counts_of, estimate, means
from purerl.algos.algebra import Algorithm, Objective, compute_loss, keep_all
from purerl.algos.parts import reductions
from purerl.algos.parts.corrections import weighted_loss
from purerl.algos.parts.editing import change_surrogate
from purerl.composition import build_algorithm
from purerl.config.presets import presets
from purerl.config.tables import read_table
from purerl.errors import ConfigError
from purerl.plugins import find, names
from purerl.types import Scalar

__all__ = ["PREFIX", "Estimator", "PolicyLoss", "Registered", "read_variants", "register"]

PREFIX = "purerl:"
"""The prefix of our names in verl's configuration."""

_MODES = {
    reductions.token_mean: "token-mean",
    reductions.token_sum: "token-sum",
    reductions.sequence_mean_of_token_mean: "seq-mean-token-mean",
    reductions.sequence_mean_of_token_sum: "seq-mean-token-sum",
}
"""verl's loss_agg_mode of a reduction."""

_DEFAULT_MODE = "token-mean"

_UNUSED_BY_LOSSES = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "tau_pos", "tau_neg")
_UNUSED_IN_POLICY_LOSS = ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef", "dro_beta")
_UNUSED_BY_ESTIMATORS = {"gamma": 1.0, "lam": 1.0, "norm_adv_by_std_in_grpo": True}


@frozen
class PolicyLoss:
    """The loss of the policy of an algorithm, as a policy loss of verl. verl calls it for each micro-batch.

    weighted   the objective with `rollout_is_weights`, which verl passes if its rollout correction computes weights
    """

    name: str
    objective: Objective
    weighted: Objective | None

    @classmethod
    def of(cls, name: str, algorithm: Algorithm) -> PolicyLoss:
        """The loss of `algorithm`. Raises ConfigError, with the reason, if verl does not pass what it needs."""
        require(f"the loss of {name!r} in verl", [*loss_refusals(algorithm, VERL)])
        return cls(name, policy_objective(algorithm, VERL), _weighted(algorithm))

    def __call__(
        self,
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = _DEFAULT_MODE,
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Scalar, dict[str, float]]:
        """Return the loss of a micro-batch, scaled as verl's own losses are, and its metrics.

        Raises: ConfigError for settings of verl that have no effect on this loss, without ``bypass_mode`` if the loss
            reads the log-probabilities of the rollout policy, and for importance weights that it cannot use.
        """
        _check_settings(config, self.objective, loss_agg_mode)
        objective, fields = self.objective, {"old_logp": old_log_prob, "rollout_logp": old_log_prob}
        if rollout_is_weights is not None:
            objective, fields["weight"] = self._weighted(), rollout_is_weights
        read = {name: value for name, value in fields.items() if name in objective.reads}
        part = completions(response_mask, advantage=advantages, logp=log_prob, **read)
        tokens, rows, ranks = _denominators(getattr(config, "global_batch_info", {}), part["mask"])
        loss, metrics = compute_loss(objective, part, counts_of(objective, tokens, rows))
        values = means({name: value for name, value in metrics.items() if not name.startswith("loss/")})
        # Two metrics of verl's own losses are added under verl's names.
        mask, clipped = part["mask"], values.get("clip_fraction")
        difference = torch.where(mask, old_log_prob - part["logp"].detach(), 0).sum() / mask.sum().clamp(min=1)
        theirs = {"actor/ppo_kl": difference.item(), **({} if clipped is None else {"actor/pg_clipfrac": clipped})}
        return loss * ranks, {f"actor/{name}": value for name, value in values.items()} | theirs

    def _weighted(self) -> Objective:
        if self.weighted is None:
            need = "a loss with a policy gradient or a surrogate of it"
            raise ConfigError(f"rollout_correction.rollout_is with the loss {self.name!r}", need=need)
        return self.weighted


@frozen
class Estimator:
    """The advantages of an algorithm, as an advantage estimator of verl. verl calls it for the whole batch."""

    name: str
    algorithm: Algorithm

    @classmethod
    def of(cls, name: str, algorithm: Algorithm) -> Estimator:
        """The estimator of `algorithm`. Raises ConfigError, with the reason, if verl does not pass what it needs."""
        require(f"the advantage estimator of {name!r} in verl", [*estimator_refusals(algorithm, VERL)])
        return cls(name, algorithm)

    def __call__(
        self, token_level_rewards: Tensor, response_mask: Tensor, config: Any = None, index: Any = None, **_: Any
    ) -> tuple[Tensor, Tensor]:
        """Return (advantages, returns), [rows, time] each. Without returns of its own they are the advantages.

        Raises: ConfigError for settings of verl that have no effect on this estimator, and if the algorithm selects
            groups and verl's ``filter_groups`` is off. BatchError as `estimate`.
        """
        self._check_settings(config)
        batch = estimate(self.algorithm, token_level_rewards, response_mask, index, name=self.name)
        advantage = batch["advantage"]
        return advantage, batch["returns"] if "returns" in batch.keys() else advantage

    def _check_settings(self, config: Any) -> None:
        changed = {
            name: _get(config, name)
            for name, default in _UNUSED_BY_ESTIMATORS.items()
            if _get(config, name) not in (None, default)
        }
        for name, value in changed.items():
            do = "leave it out, and set its counterpart in a variant: docs/how-to/algorithms_in_verl.md"
            raise ConfigError(f"algorithm.{name}", got=value, need=f"no effect on {self.name!r}", do=do)
        filters = _get(config, "filter_groups")
        if self.algorithm.select is not keep_all and config is not None and not _get(filters, "enable"):
            got, need = "algorithm.filter_groups.enable=False", "verl's filter, which replaces groups of equal rewards"
            do = "set algorithm.filter_groups.enable=True, or take an estimator that selects nothing"
            raise ConfigError(f"{self.name!r} trains only on groups with different rewards", got=got, need=need, do=do)


# --- a micro-batch -----------------------------------------------------------------------------------------------


def _weighted(algorithm: Algorithm) -> Objective | None:
    """The objective whose term ``policy`` is multiplied by the field `weight`; None if it has no such term."""
    try:
        changed = change_surrogate(algorithm, lambda term: term._replace(loss=weighted_loss(term.loss)), "weight")
    except ConfigError:
        return None
    return policy_objective(changed, VERL)


def _denominators(info: Mapping[str, Any], mask: Tensor) -> tuple[Tensor, Tensor, int]:
    """(tokens, rows) of the mini-batch on all ranks, and the number of ranks, over which verl averages gradients."""
    ranks = info.get("dp_size") or 1
    tokens, rows = info.get("batch_num_tokens"), info.get("global_batch_size")
    if ranks > 1 and (tokens is None or rows is None):
        got = f"batch_num_tokens={tokens}, global_batch_size={rows}"
        raise ConfigError(f"global_batch_info on {ranks} ranks", got=got, need="the counts of the whole mini-batch")
    tokens = mask.sum() if tokens is None else tokens
    rows = mask.any(-1).sum() if rows is None else rows
    return torch.as_tensor(tokens, device=mask.device), torch.as_tensor(rows, device=mask.device), ranks


# --- settings of verl that our functions would ignore ------------------------------------------------------------


def _get(config: Any, name: str) -> Any:
    """The setting `name` of a dataclass, a mapping or an OmegaConf object; None if it has none."""
    if config is None:
        return None
    return config.get(name) if hasattr(config, "get") else getattr(config, name, None)


def _check_settings(config: Any, objective: Objective, loss_agg_mode: str) -> None:
    policy_loss = _get(config, "policy_loss")
    for section, prefix, unused in (
        (config, "", _UNUSED_BY_LOSSES),
        (policy_loss, "policy_loss.", _UNUSED_IN_POLICY_LOSS),
    ):
        for name, value in _changed(section, unused):
            do = "leave it out, and set its counterpart in a variant: docs/how-to/algorithms_in_verl.md"
            raise ConfigError(f"actor.{prefix}{name}", got=value, need="no effect on losses of purerl", do=do)
    modes = sorted({_DEFAULT_MODE} | {_MODES[term.reduce] for term in objective.terms if term.reduce in _MODES})
    if loss_agg_mode not in modes:
        do = "leave it out, or take the modifier reduction in a variant: docs/how-to/algorithms_in_verl.md"
        need = f"the reduction of the algorithm, or verl's default: {' or '.join(modes)}"
        raise ConfigError("actor.loss_agg_mode", got=loss_agg_mode, need=need, do=do)
    if "rollout_logp" in objective.reads and not _get(_get(policy_loss, "rollout_correction"), "bypass_mode"):
        do = (
            "set algorithm.rollout_correction.bypass_mode=True, and tell the loss by "
            "+actor_rollout_ref.actor.policy_loss.rollout_correction.bypass_mode=True"
        )
        need = "the log-probabilities of the rollout policy, which verl passes in bypass_mode"
        raise ConfigError("actor.policy_loss.loss_mode", got="a loss that reads rollout_logp", need=need, do=do)


def _changed(config: Any, unused: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """(name, value) of the fields `unused` of the dataclass `config` that are not at their defaults."""
    for field in dataclasses.fields(config) if dataclasses.is_dataclass(config) else ():
        if field.name in unused and getattr(config, field.name) != field.default:
            yield field.name, getattr(config, field.name)


# --- registration ------------------------------------------------------------------------------------------------


@frozen
class Registered:
    """The names that `register` has registered, without the prefix, and why others are not."""

    losses: tuple[str, ...]
    estimators: tuple[str, ...]
    refused: Mapping[str, tuple[str, ...]]


def read_variants(path: str | Path) -> dict[str, Algorithm]:
    """Read variants, algorithms with settings of your own, from a TOML file. Each table is one, by its name.

        [my_gspo]
        kind = "gspo"
        clip_high = 5e-4
        modifiers = ["dual_clip", {kind = "reduction", by = "token_mean"}]

    Raises: ConfigError for a file that cannot be read, unknown settings, the name of an algorithm or preset, and
        a variant of which verl can use neither the loss nor the advantages, with the reasons.
    """
    return {name: _variant(path, name, table) for name, table in read_table(path).items()}


def _variant(path: str | Path, name: str, table: Any) -> Algorithm:
    where = f"{str(path)!r}: [{name}]"
    if not isinstance(table, Mapping):
        raise ConfigError(where, got=repr(table), need="a table: kind, settings, modifiers")
    if name in names("algorithm") or name in presets():
        raise ConfigError(where, got="the name of an algorithm of purerl", need="a name of your own")
    try:
        algorithm = build_algorithm(compose(table))
    except ConfigError as error:
        raise ConfigError(f"{where}\n{error}") from error
    refused = [*estimator_refusals(algorithm, VERL)], [*loss_refusals(algorithm, VERL)]
    require(f"{where} in verl", [reason for reasons in refused for reason in reasons] if all(refused) else [])
    return algorithm


def register(variants: Mapping[str, Algorithm] | None = None) -> Registered:
    """Register the losses and estimators of all algorithms, presets and `variants` in verl.

    Registering the same again changes nothing. Raises: ImportError if verl cannot be imported.
    """
    core = import_module("verl.trainer.ppo.core_algos")
    losses, estimators, refused = [], [], {}
    modules = {name: find("algorithm", name) for name in names("algorithm")}
    algorithms = {name: module.algorithm(module.Config()) for name, module in modules.items()}
    algorithms |= {name: build_algorithm(compose(name)) for name in presets()}
    for name, algorithm in {**algorithms, **(variants or {})}.items():
        if not (reasons := [*loss_refusals(algorithm, VERL)]):
            core.register_policy_loss(PREFIX + name)(PolicyLoss.of(name, algorithm))
            losses.append(name)
        if not (more := [*estimator_refusals(algorithm, VERL)]):
            core.register_adv_est(PREFIX + name)(Estimator.of(name, algorithm))
            estimators.append(name)
        refused |= {name: (*reasons, *more)} if reasons or more else {}
    return Registered(tuple(losses), tuple(estimators), refused)
