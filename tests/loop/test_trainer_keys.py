"""Errors of trainers while they are built have the keys of the configuration."""

from __future__ import annotations

from typing import Any

import pytest

from purerl.config.requirements import requirements_of
from purerl.errors import ConfigError
from purerl.opening.engines import open_trainer

from .small import fake


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("lr has no effect", "trainer.lr has no effect"),
        ("dtype", "model.dtype"),
        ("the accelerator is lost", "the accelerator is lost"),
    ],
)
def test_error_of_a_trainer_that_is_built_has_the_key_of_its_setting(message: str, expected: str) -> None:
    class Refusing:
        def trainer(self, name: str, build: object) -> Any:
            raise ConfigError(message)

    config, processes = fake(), Refusing()
    role = requirements_of(config).models["policy"]
    with pytest.raises(ConfigError) as caught:
        open_trainer("policy", role, 1, seed=config.seed, processes=processes)  # pyright: ignore[reportArgumentType] -- a stub
    assert str(caught.value) == expected
