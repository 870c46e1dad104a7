"""The lists of planted errors, by what they are errors of."""

from __future__ import annotations

from collections.abc import Mapping

from tests.testing.planted import (
    environments,
    generators,
    loaded_weights,
    parameters,
    trainer_files,
    trainers,
    turns,
)
from tests.testing.planted.environments import PlantedEnvironment
from tests.testing.planted.errors import Planted

GENERATORS: Mapping[str, Planted] = generators.ERRORS | loaded_weights.ERRORS | turns.ERRORS | parameters.ERRORS
TRAINERS: Mapping[str, Planted] = trainers.ERRORS | trainer_files.ERRORS
ENVIRONMENTS: Mapping[str, PlantedEnvironment] = environments.ERRORS
