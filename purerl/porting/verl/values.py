"""The settings of a trainer of verl, by short names that are the same for all of its trainers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from purerl.errors import ConfigError
from purerl.porting.outcomes import Unknown
from purerl.porting.verl.overrides import parse_value

__all__ = ["SHORT", "Values", "as_number", "is_sft_of", "local_path"]

SHORT = {"actor": "actor_rollout_ref.actor", "rollout": "actor_rollout_ref.rollout", "ref": "actor_rollout_ref.ref"}
SHORT |= {"model": "actor_rollout_ref.model"}
"""The meaning of the first part of a short name."""

_OF_SFT = {"actor.optim": "optim", "actor.fsdp_config": "engine", "actor.megatron": "engine", "model": "model"}
_OF_SFT |= {"actor.strategy": "engine.strategy"}


def is_sft_of(values: Mapping[str, Any]) -> bool:
    """Whether `values` are those of the SFT trainer."""
    return "algorithm.adv_estimator" not in values


class Values:
    """Settings by short name: ``actor.optim.lr`` is ``actor_rollout_ref.actor.optim.lr``, and ``optim.lr`` of SFT."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self.is_sft = is_sft_of(values)

    @property
    def is_megatron(self) -> bool:
        """Whether the policy is trained by Megatron."""
        engine = self.get("engine._target_") if self.is_sft else None
        return "megatron" in (self.get("model_engine"), self.get("actor.strategy")) or "Mcore" in str(engine)

    def full(self, name: str) -> str:
        """The dotted key of the short name `name`."""
        for short, long in (_OF_SFT if self.is_sft else SHORT).items():
            if name == short or name.startswith(f"{short}."):
                return long + name[len(short) :]
        return name

    def get(self, *names: str) -> Any:
        """The value of the first of `names` that is set; None if none is."""
        found = (self._values.get(self.full(name)) for name in names)
        return next((value for value in found if value is not None), None)

    def number(self, *names: str) -> Any:
        """The number that the first of `names` has; None if none is set. Raises ConfigError for another value."""
        return as_number(self.full(names[0]), self.get(*names))

    def decimal(self, name: str, default: float) -> float:
        """The number `name`, or `default` if it is not set. Raises ConfigError for another value."""
        value = self.number(name)
        return default if value is None else float(value)

    def integer(self, *names: str) -> int:
        """The integer that the first of `names` has; 0 if none is set. Raises ConfigError for another value."""
        value = self.number(*names) or 0
        if int(value) != value:
            raise ConfigError(self.full(names[0]), got=value, need="an integer")
        return int(value)

    def is_on(self, *names: str) -> bool:
        """Whether the first of `names` that is set is true."""
        return str(self.get(*names)).lower() in ("true", "1")

    def table(self, name: str) -> dict[str, Any]:
        """The table `name`: its own value, and the settings below it."""
        full, own = self.full(name), self.get(name)
        below = {key[len(full) + 1 :]: value for key, value in self._values.items() if key.startswith(f"{full}.")}
        table = {**(own if isinstance(own, Mapping) else {}), **below}
        return {key: value for key, value in table.items() if value is not None and not isinstance(value, Unknown)}

    def texts(self, name: str) -> list[str]:
        """The list `name`; a text is a list of one, unless it is a list in quotes."""
        value = self.get(name)
        value = parse_value(value) if isinstance(value, str) and value.startswith("[") else value
        values = value if isinstance(value, list | tuple) else [] if value is None else [value]
        return [str(each) for each in values]

    # --- what several rules need -----------------------------------------------------------------------------------

    @property
    def ranks(self) -> int:
        """The number of GPUs."""
        return max(1, self.integer("trainer.n_gpus_per_node")) * max(1, self.integer("trainer.nnodes"))

    @property
    def row_tokens(self) -> int:
        """The tokens of the longest row."""
        if self.is_sft:
            return self.integer("data.max_length")
        return self.integer("data.max_prompt_length") + self.integer("data.max_response_length")

    @property
    def has_critic(self) -> bool:
        """Whether a critic is trained."""
        return not self.is_sft and not self.is_distillation and self.get("algorithm.adv_estimator") == "gae"

    @property
    def has_reference(self) -> bool:
        """Whether there is a KL penalty to a reference."""
        return not self.is_distillation and (
            self.is_on("actor.use_kl_loss") or self.is_on("algorithm.use_kl_in_reward")
        )

    @property
    def is_distillation(self) -> bool:
        """Whether the policy learns from a teacher."""
        return self.is_on("distillation.enabled")

    @property
    def has_environment(self) -> bool:
        """Whether an episode has several turns."""
        turns = "rollout.multi_turn."
        agent = self.get("rollout.agent.default_agent_loop")
        return (
            self.is_on(f"{turns}enable")
            or self.get(f"{turns}tool_config_path", f"{turns}function_tool_path", f"{turns}interaction_config_path")
            is not None
            or agent not in (None, "single_turn_agent")
        )


def as_number(key: str, value: Any) -> Any:
    """The number `value` of the setting `key`, an integer if it is one; None is None.

    Raises: ConfigError for another value.

    >>> as_number("a", "2"), as_number("a", 1e-6), as_number("a", None)
    (2, 1e-06, None)
    """
    number = value
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            number = ()
    if number is not None and not isinstance(number, int | float):
        raise ConfigError(key, got=repr(value), need="a number")
    return int(number) if isinstance(number, float) and number.is_integer() else number


def local_path(path: Any) -> str:
    """`path` with the home directory in place of ~, as verl reads it."""
    return str(Path(path).expanduser()) if str(path).startswith("~") else str(path)
