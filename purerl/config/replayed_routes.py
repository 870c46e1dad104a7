"""Checks of the setting `trainer.replay_routes`, which needs a pass, or an engine, that records experts."""

from __future__ import annotations

from purerl.algos.algebra import Algorithm
from purerl.config.schema import RunConfig
from purerl.errors import ConfigError
from purerl.plugins import find, kind_of
from purerl.settings import no_effect

__all__ = ["check_routes", "replayed_routes"]

_KEY = "trainer.replay_routes"
_RETURN = "generator.return_routes"


def replayed_routes(config: RunConfig) -> str:
    """Who records the experts that the policy replays: ``old_logp``, ``generator``, or ``off``: nobody.

    A trainer that replays has a function `replayed_routes` in its module.
    """
    function = getattr(find("trainer", kind_of(config.trainer)), "replayed_routes", None)
    return "off" if function is None else function(config.trainer)


def check_routes(config: RunConfig, algorithm: Algorithm, kind: str) -> None:
    """Refuse to replay the choices of routers if nothing records them, and to record them for nobody.

    A generator that records has a function `returns_routes` in its module. If a step is one optimizer step, only what
    advantages and corrections read is computed beforehand.

    Raises: ConfigError.
    """
    replayed, is_returned = replayed_routes(config), _returns_routes(config)
    if is_returned and replayed != "generator":
        need = f"a trainer that replays them: {_KEY}=generator; {replayed!r} does not"
        raise no_effect(_RETURN, True, need)  # noqa: FBT003 - the value
    if replayed == "generator":
        _check_generator(config, is_returned=is_returned)
    if replayed == "old_logp":
        _check_pass(config, algorithm, kind)


def _returns_routes(config: RunConfig) -> bool:
    if config.generator is None:
        return False
    function = getattr(find("generator", kind_of(config.generator)), "returns_routes", None)
    return function is not None and function(config.generator)


def _check_generator(config: RunConfig, *, is_returned: bool) -> None:
    if config.rollout is None or config.rollout.recorded is not None:
        got = "a run on data" if config.rollout is None else "recorded completions, whose experts are not stored"
        do = "set it to old_logp or off"
        raise ConfigError(f"{_KEY}=generator", got=got, need="completions that the run samples", do=do)
    if not is_returned:
        kind = kind_of(config.generator)
        got = f"generator.kind={kind}, which does not return them as it is set"
        need = "a generator that returns the experts of each token"
        do = f"set {_RETURN}=true, which the kinds hf, vllm and sglang have, or {_KEY}=old_logp"
        raise ConfigError(f"{_KEY}=generator", got=got, need=need, do=do)


def _check_pass(config: RunConfig, algorithm: Algorithm, kind: str) -> None:
    has_pass = config.ppo_epochs * config.minibatches > 1
    read = [*algorithm.reads, *(name for each in algorithm.objectives for name in each.reads if has_pass)]
    if "old_logp" not in read:
        need = f"a pass that computes old_logp before the optimizer steps of a step; this run of {kind} has none"
        do = "leave it out, or set num_minibatches or ppo_epochs above 1 with an algorithm that reads old_logp"
        raise no_effect(_KEY, "old_logp", need, do)
