"""Holding an algorithm, or a module that makes algorithms, against the laws.

A law that cannot hold for the algorithms of a module is exempted there, by name and with a reason:

    EXEMPTIONS = {"gradient_matches_finite_differences": "the gradient of the ratio is stopped on purpose"}

`check_module` then looks for a batch that breaks the law, so that no exemption outlives its reason.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any

import attrs

from purerl.algos.algebra import Algorithm
from purerl.errors import ConfigError, nearest
from purerl.testing.batches import example_batch, fields_of, random_layout
from purerl.testing.laws import LAWS, ONCE, Law
from purerl.testing.outcome import difference, run

__all__ = [
    "check_algorithm",
    "check_exemptions",
    "check_module",
    "check_settings",
    "counterexample",
    "exemptions",
    "variants",
]

_LAWS: Mapping[str, Law] = {law.__name__: law for law in LAWS}


def counterexample(law: Law, algorithm: Algorithm, *, seed: int = 0, batches: int = 20) -> AssertionError | None:
    """What `law` raises on the first of so many batches that break it, with a note how to make that batch; or None.

    Laws in `ONCE` see one batch only.
    """
    fields = fields_of(algorithm)
    for number in range(seed, seed + (1 if law in ONCE else batches)):
        layout = random_layout(number, pairs="chosen" in fields)
        try:
            law(algorithm, example_batch(fields, layout, seed=number))
        except AssertionError as error:
            error.add_note(f"batch = example_batch({fields}, {layout}, seed={number})")
            return error
    return None


def check_algorithm(algorithm: Algorithm, *, seed: int = 0, batches: int = 20, exempt: Collection[str] = ()) -> None:
    """Hold `algorithm` against every law but those in `exempt`, each on so many batches drawn from `seed` on.

    Raises: AssertionError, which names the law, what differs most, and the batch on which it does; ConfigError for a
    name in `exempt` that is no law's.

    >>> from purerl.algos import grpo
    >>> check_algorithm(grpo.algorithm(), batches=1, exempt=["picklable"])
    """
    _check_known(exempt)
    for name, law in _LAWS.items():
        broken = None if name in exempt else counterexample(law, algorithm, seed=seed, batches=batches)
        if broken is not None:
            raise broken


def check_module(module: ModuleType, *, seed: int = 0, batches: int = 20) -> None:
    """`check_algorithm` for all `variants` of `module`, less its exemptions; `check_exemptions`; `check_settings`.

    Raises: as the two of them.
    """
    for name, algorithm in variants(module).items():
        try:
            check_algorithm(algorithm, seed=seed, batches=batches, exempt=exemptions(module))
        except AssertionError as error:
            error.add_note(f"algorithm = variants({module.__name__})[{name!r}]")
            raise
    check_exemptions(module, seed=seed)
    check_settings(module, seed=seed)


def variants(module: ModuleType) -> dict[str, Algorithm]:
    """The algorithms of `module` by what is set: by default, and with each coefficient at 0.1 that is 0.0 by default.

    >>> from purerl.algos import grpo
    >>> list(variants(grpo))
    ['default', 'kl_loss_coef=0.1', 'entropy_coef=0.1']
    """
    off = [field.name for field in attrs.fields(module.Config) if type(field.default) is float and field.default == 0]
    configs = {"default": module.Config(), **{f"{name}=0.1": module.Config(**{name: 0.1}) for name in off}}
    return {name: module.algorithm(config) for name, config in configs.items()}


def exemptions(module: ModuleType) -> Mapping[str, str]:
    """The laws that `module` says its algorithms cannot satisfy, with its reasons."""
    return getattr(module, "EXEMPTIONS", {})


def check_exemptions(module: ModuleType, *, seed: int = 0, batches: int = 50) -> None:
    """Raise AssertionError for an exemption without a reason, or that no variant needs on any of so many batches.

    Raises: also ConfigError for one that is no law's.
    """
    _check_known(exemptions(module))
    for name, reason in exemptions(module).items():
        assert reason, f"{module.__name__} is exempt from {name} without a reason"
        tried = (counterexample(_LAWS[name], one, seed=seed, batches=batches) for one in variants(module).values())
        assert any(tried), f"{module.__name__} is exempt from {name}, and satisfies it"


def check_settings(module: ModuleType, *, seed: int = 0, batches: int = 60) -> None:
    """Raise AssertionError for a field of the Config of `module` that, whatever it is set to, changes only metrics."""
    for field in attrs.fields(module.Config):
        configs = [module.Config(), *_set_otherwise(module, field)]
        assert len(configs) > 1, f"{module.__name__}: no other value of {field.name!r} is known to be legal"
        first, *others = map(module.algorithm, configs)
        matters = any(_differ(first, other, number) for number in range(seed, seed + batches) for other in others)
        assert matters, f"{module.__name__}: the setting {field.name!r} has no effect on what is learned"


def _set_otherwise(module: ModuleType, field: attrs.Attribute) -> list[Any]:
    """Configs in which one field has another value than its default; some values may be out of its range."""
    configs = []
    for value in _other_values(field.default):
        with suppress(ConfigError):
            configs.append(module.Config(**{field.name: value}))
    return configs


def _other_values(value: Any) -> list[Any]:
    if isinstance(value, tuple):
        return [(0.5, 0.2, 0.3)]  # Axes of their own are drawn with three places.
    return [value + 1] if isinstance(value, int) else [value / 4, 3 * value, value + 0.1, value + 0.9, value + 1]


def _differ(one: Algorithm, other: Algorithm, number: int) -> bool:
    fields = tuple(dict.fromkeys([*fields_of(one), *fields_of(other)]))
    batch = example_batch(fields, random_layout(number, pairs="chosen" in fields), seed=number)
    # A metric may show a setting that no loss knows of.
    learned, otherwise = (run(algorithm, batch)._replace(metrics={}) for algorithm in (one, other))
    return difference(learned, otherwise, tolerance=0.0) is not None


def _check_known(names: Collection[str]) -> None:
    for name in names:
        if name not in _LAWS:
            raise ConfigError("an exemption", got=repr(name), need="the name of a law", do=nearest(name, _LAWS))
