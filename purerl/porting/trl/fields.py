"""Access of rules to the settings of TRL by the names of their fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["PROCESSES", "Fields"]


class Fields:
    """The settings of one trainer: those of its configuration, and the arguments of the trainer.

    >>> fields = Fields({"DPOConfig.beta": 0.2, "DPOTrainer.model": "m"})
    >>> fields.method, fields["beta"], fields.argument("model"), fields["loss_type"]
    ('DPO', 0.2, 'm', None)
    """

    def __init__(self, values: Mapping[str, Any]):
        self.values = values
        self.method = next(name.partition("Trainer.")[0] for name in values if "Trainer." in name)

    def __getitem__(self, field: str) -> Any:
        return self.values.get(self.name(field))

    def name(self, field: str) -> str:
        """The name of a field of the configuration, with its class."""
        return f"{self.method}Config.{field}"

    def argument(self, name: str) -> Any:
        """An argument of the trainer."""
        return self.values.get(f"{self.method}Trainer.{name}")

    @property
    def samples(self) -> bool:
        """Whether the trainer samples completions."""
        return self.method == "GRPO"

    @property
    def steps_per_loop(self) -> int:
        """Optimizer steps of TRL in one step of the loop of purerl."""
        if not self.samples:
            return 1
        return max(1, self.generations_per_update[0]) * (self["num_iterations"] or 1)

    @property
    def generations_per_update(self) -> tuple[int, int]:
        """(optimizer steps of each generation, generations of each optimizer step); 0 where it is no integer."""
        steps, accumulated = self["steps_per_generation"], self["gradient_accumulation_steps"]
        if steps is None and self["generation_batch_size"] is not None:
            steps = self["generation_batch_size"] // (self["per_device_train_batch_size"] * self.processes)
        steps = steps or accumulated
        return (
            steps // accumulated if steps % accumulated == 0 else 0,
            accumulated // steps if accumulated % steps == 0 else 0,
        )

    @property
    def processes(self) -> int:
        """Processes that the script is started on."""
        return self.values.get(PROCESSES, 1)


PROCESSES = "processes"
"""The name of the number of processes among the values: it is no setting of TRL."""
