"""Checks of the setting `trainer.replay_routes`, which needs a pass, or an engine, that records experts."""

from __future__ import annotations

from purerl.backends.plugin import generator_plugin, trainer_plugin
from purerl.config.requirements import Requirements
from purerl.errors import ConfigError
from purerl.plugins import kind_of
from purerl.rollouts.settings import Rollout
from purerl.settings import no_effect

__all__ = ["check_routes", "replayed_routes"]

_KEY = "trainer.replay_routes"
_RETURN = "generator.return_routes"


def replayed_routes(trainer: object) -> str:
    """Who records the experts that the policy replays: ``old_logp``, ``generator``, or ``off``: nobody."""
    return trainer_plugin(trainer).replayed_routes(trainer)


def check_routes(needs: Requirements, rollout: Rollout | None, generator: object | None) -> None:
    """Refuse to replay the choices of routers if nothing records them, and to record them for nobody.

    If a step is one optimizer step, only what advantages and corrections read is computed beforehand.

    Raises: ConfigError.
    """
    replayed, is_returned = replayed_routes(needs.models["policy"].settings.trainer), _returns_routes(generator)
    if is_returned and replayed != "generator":
        need = f"a trainer that replays them: {_KEY}=generator; {replayed!r} does not"
        raise no_effect(_RETURN, True, need)  # noqa: FBT003 - the value
    if replayed == "generator":
        _check_generator(rollout, generator, is_returned=is_returned)
    if replayed == "old_logp":
        _check_pass(needs)


def _returns_routes(generator: object | None) -> bool:
    return generator is not None and generator_plugin(generator).returns_routes(generator)


def _check_generator(rollout: Rollout | None, generator: object | None, *, is_returned: bool) -> None:
    if rollout is None or rollout.recorded is not None:
        got = "a run on data" if rollout is None else "recorded completions, whose experts are not stored"
        do = "set it to old_logp or off"
        raise ConfigError(f"{_KEY}=generator", got=got, need="completions that the run samples", do=do)
    if not is_returned:
        kind = kind_of(generator)
        got = f"generator.kind={kind}, which does not return them as it is set"
        need = "a generator that returns the experts of each token"
        do = f"set {_RETURN}=true, which the kinds hf, vllm and sglang have, or {_KEY}=old_logp"
        raise ConfigError(f"{_KEY}=generator", got=got, need=need, do=do)


def _check_pass(needs: Requirements) -> None:
    algorithm, has_pass = needs.algorithm, needs.schedule.updates_per_step > 1
    read = [*algorithm.reads, *(name for each in algorithm.objectives for name in each.reads if has_pass)]
    if "old_logp" not in read:
        need = f"a pass that computes old_logp before the optimizer steps of a step; this run of {needs.kind} has none"
        do = "leave it out, or set num_minibatches or ppo_epochs above 1 with an algorithm that reads old_logp"
        raise no_effect(_KEY, "old_logp", need, do)
