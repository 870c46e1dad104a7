"""The rules that purerl/config/aliases/verl_answers.toml names: pure functions of all settings of a trainer."""

from __future__ import annotations

from collections.abc import Mapping

from purerl.porting.outcomes import Rule
from purerl.porting.verl.rules import algorithm, loss, rewards, roles, run, sampling, training

__all__ = ["RULES"]

RULES: Mapping[str, Rule] = {
    "algorithm": algorithm.algorithm,
    "batches": run.batches,
    "checkpoints": run.checkpoints,
    "corrections": loss.corrections,
    "critic": roles.critic,
    "critic_batches": roles.critic_batches,
    "data": run.data,
    "distillation": algorithm.distillation,
    "environment": sampling.environment,
    "evaluation": run.evaluation,
    "filtering": loss.filtering,
    "generator": sampling.generator,
    "loss": loss.loss,
    "model": run.model,
    "optimizer": training.optimizer,
    "overlong": rewards.overlong,
    "penalties": loss.penalties,
    "profiling": run.profiling,
    "reference": roles.reference,
    "rewards": rewards.rewards,
    "rollout": sampling.rollout,
    "routes": sampling.routes,
    "run": run.run,
    "staleness": sampling.staleness,
    "trackers": run.trackers,
    "trainer": training.trainer,
}
"""Each rule by its name."""
