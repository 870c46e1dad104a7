"""Test an algorithm, or a module that defines algorithms, with the laws.

If a law cannot hold for the algorithms of a module, the module declares an exemption with a reason:

    EXEMPTIONS = {"gradient_matches_finite_differences": "the gradient of the ratio is stopped on purpose"}

`check_module` also searches for a batch that violates each exempted law, and fails if it finds none. An exemption that
is no longer needed must be removed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any

import attrs

from purerl.algos.algebra import Algorithm
from purerl.errors import ConfigError, nearest
from purerl.system.phases import phase, shown
from purerl.testing.batches import Layout, example_batch, fields_of, random_layout
from purerl.testing.bounds import check_bounds
from purerl.testing.laws import LAWS, SINGLE_BATCH_LAWS, Law
from purerl.testing.losses import LawResult
from purerl.testing.outcome import find_difference, run

__all__ = [
    "check_algorithm",
    "check_exemptions",
    "check_module",
    "check_settings",
    "exemptions",
    "find_counterexample",
    "module_results",
    "variants",
]

_LAWS: Mapping[str, Law] = {law.__name__: law for law in LAWS}


def find_counterexample(law: Law, algorithm: Algorithm, *, seed: int = 0, batches: int = 20) -> AssertionError | None:
    """The error that `law` raises on the first batch that violates it, or None if `batches` batches satisfy it.

    A note on the error says how to make the batch. A law in `SINGLE_BATCH_LAWS` is tested on one batch.
    """
    found = _find(law, algorithm, seed, batches)
    return found and found[0]


def _find(law: Law, algorithm: Algorithm, seed: int, batches: int) -> tuple[AssertionError, Layout, int] | None:
    for number in range(seed, seed + (1 if law in SINGLE_BATCH_LAWS else batches)):
        layout = random_layout(number, pairs="chosen" in fields_of(algorithm))
        error = _error_on(law, algorithm, layout, number)
        if error is not None:
            return error, layout, number
    return None


def _error_on(law: Law, algorithm: Algorithm, layout: Layout, seed: int) -> AssertionError | None:
    fields = fields_of(algorithm)
    try:
        law(algorithm, example_batch(fields, layout, seed=seed))
    except AssertionError as error:
        error.add_note(f"batch = example_batch({fields}, {layout}, seed={seed})")
        return error
    return None


def _on_fewer_rows(law: Law, algorithm: Algorithm, error: AssertionError, layout: Layout, seed: int) -> AssertionError:
    """The error of `law` on as few of the rows of `layout` as still violate it, with other random values."""
    index = 0
    while index < len(layout) > 1:
        smaller = layout[:index] + layout[index + 1 :]
        found = _error_on(law, algorithm, smaller, seed)
        error, layout, index = (error, layout, index + 1) if found is None else (found, smaller, index)
    return error


def check_algorithm(algorithm: Algorithm, *, seed: int = 0, batches: int = 20, exempt: Collection[str] = ()) -> None:
    """Test `algorithm` with every law that is not in `exempt`, on `batches` random batches for each law.

    The batches are generated from the seeds `seed`, `seed + 1`, and so on. From a batch that violates a law, rows are
    removed as long as it still does.

    Raises: AssertionError with the name of the law and the largest difference, the law in words, what often breaks it,
        and the batch; ConfigError if a name in `exempt` is not a law.

    >>> from purerl.algos import grpo
    >>> check_algorithm(grpo.algorithm(), batches=1, exempt=["picklable"])
    """
    _check_law_names(exempt)
    for name, law in _LAWS.items():
        found = None if name in exempt else _find(law, algorithm, seed, batches)
        if found is not None:
            raise found[0] if law in SINGLE_BATCH_LAWS else _on_fewer_rows(law, algorithm, *found)


def check_module(module: ModuleType, *, seed: int = 0, batches: int = 20) -> None:
    """Test `module` with `check_algorithm` on each of its `variants`, and with the other checks of a module.

    These are `check_exemptions`, `check_settings` and `check_bounds`. Laws that the module is exempt from are skipped.
    If it takes longer than two seconds, lines on stderr say so.

    Raises: the errors of these functions.
    """
    with shown(), phase(f"testing {module.__name__} with every law"):
        _check_variants(module, seed, batches, exempt=exemptions(module))
        check_exemptions(module, seed=seed)
        check_settings(module, seed=seed)
        check_bounds(module, seed=seed)


def module_results(
    module: ModuleType, *, laws: Collection[str] | None = None, seed: int = 0, batches: int = 20
) -> tuple[LawResult, ...]:
    """The result of each law for the algorithms of `module`, then those of `check_settings` and `check_bounds`.

    `laws` are the names of the laws to test; with them, the settings are not tested. A law that one of the `variants`
    violates has failed.

    Raises: ConfigError for an unknown law.
    """
    _check_law_names([*exemptions(module), *(laws or ())])
    names = [name for name in _LAWS if laws is None or name in laws]
    results = [_result_of_law(module, name, seed, batches) for name in names]
    for check in (check_settings, check_bounds) if laws is None else ():
        try:
            check(module, seed=seed)
            results.append(LawResult(check.__name__, "passed"))
        except AssertionError as error:
            results.append(LawResult(check.__name__, "failed", str(error)))
    return tuple(results)


def _result_of_law(module: ModuleType, name: str, seed: int, batches: int) -> LawResult:
    reason = exemptions(module).get(name)
    try:
        if reason is None:
            _check_variants(module, seed, batches, exempt=_LAWS.keys() - {name})
        else:
            check_exemptions(module, seed=seed, only=[name])
    except AssertionError as error:
        return LawResult(name, "failed", "\n".join([str(error), *getattr(error, "__notes__", ())]))
    return LawResult(name, "passed") if reason is None else LawResult(name, "exempt", reason)


def _check_variants(module: ModuleType, seed: int, batches: int, exempt: Collection[str]) -> None:
    for name, algorithm in variants(module).items():
        try:
            check_algorithm(algorithm, seed=seed, batches=batches, exempt=exempt)
        except AssertionError as error:
            error.add_note(f"algorithm = variants({module.__name__})[{name!r}]")
            raise


def variants(module: ModuleType) -> dict[str, Algorithm]:
    """The algorithm of `module` with its default settings, and once with each coefficient of 0.0 set to 0.1.

    >>> from purerl.algos import deepseek_v3_2
    >>> list(variants(deepseek_v3_2))
    ['default', 'kl_loss=0.1']
    """
    off = [field.name for field in attrs.fields(module.Config) if type(field.default) is float and field.default == 0]
    configs = {"default": module.Config(), **{f"{name}=0.1": module.Config(**{name: 0.1}) for name in off}}
    return {name: module.algorithm(config) for name, config in configs.items()}


def exemptions(module: ModuleType) -> Mapping[str, str]:
    """The laws that the algorithms of `module` do not have to satisfy, each with a reason."""
    return getattr(module, "EXEMPTIONS", {})


def check_exemptions(
    module: ModuleType, *, seed: int = 0, batches: int = 50, only: Collection[str] | None = None
) -> None:
    """Test that every exemption of `module` has a reason, and that some variant violates the law on some batch.

    `only` are the names of the exemptions that are tested; all of them, if it is not given.

    Raises: AssertionError if an exemption fails the test; ConfigError if an exemption is not the name of a law.
    """
    _check_law_names(exemptions(module))
    for name, reason in exemptions(module).items():
        if only is not None and name not in only:
            continue
        assert reason, f"{module.__name__} is exempt from {name} without a reason"
        errors = (
            find_counterexample(_LAWS[name], algorithm, seed=seed, batches=batches)
            for algorithm in variants(module).values()
        )
        assert any(errors), f"{module.__name__} is exempt from {name}, but satisfies it on {batches} batches"


def check_settings(module: ModuleType, *, seed: int = 0, batches: int = 60) -> None:
    """Test that every setting in the Config of `module` has an effect on training, not only on metrics.

    Raises: AssertionError for a setting without an effect on `batches` batches, or if no other value of a setting is
        valid among those that are tried.
    """
    for field in attrs.fields(module.Config):
        # A setting may have an effect only with one of the values of a choice.
        choices = (each for each in attrs.fields(module.Config) if "options" in each.metadata)
        contexts = [{}, *({each.name: value} for each in choices for value in _candidate_values(each))]
        pairs = [pair for context in contexts for pair in _changed_pairs(module, field, context)]
        assert pairs, f"{module.__name__}: found no valid value of {field.name!r} besides its default"
        has_effect = any(
            _differ(default, changed, number) for number in range(seed, seed + batches) for default, changed in pairs
        )
        assert has_effect, f"{module.__name__}: the setting {field.name!r} has no effect on training"


def _changed_pairs(
    module: ModuleType, field: attrs.Attribute, context: dict[str, Any]
) -> list[tuple[Algorithm, Algorithm]]:
    """The algorithm with the settings `context`, and that with another value of `field` too, if both are valid."""
    pairs = []
    for value in _candidate_values(field) if field.name not in context else ():
        with suppress(ConfigError):
            configs = module.Config(**context), module.Config(**context, **{field.name: value})
            pairs.append(tuple(map(module.algorithm, configs)))
    return pairs


def _candidate_values(field: attrs.Attribute) -> list[Any]:
    value: Any = field.default
    options = field.metadata.get("options", ())
    if isinstance(value, tuple) and options:
        return list(zip(options, options[1:], options[2:], strict=False))
    if options:
        return [option for option in options if option != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, tuple):
        return [(0.5, 0.2, 0.3)]  # `example_batch` gives additional axes the size 3, as have the tuples above.
    return [value + 1] if isinstance(value, int) else [value / 4, 3 * value, value + 0.1, value + 0.9, value + 1]


def _differ(first: Algorithm, second: Algorithm, number: int) -> bool:
    fields = tuple(dict.fromkeys([*fields_of(first), *fields_of(second)]))
    batch = example_batch(fields, random_layout(number, pairs="chosen" in fields), seed=number)
    # A setting that changes only a metric has no effect on training.
    expected, actual = (run(algorithm, batch)._replace(metrics={}) for algorithm in (first, second))
    return find_difference(expected, actual, tolerance=0.0) is not None


def _check_law_names(names: Collection[str]) -> None:
    for name in names:
        if name not in _LAWS:
            raise ConfigError("an exemption", got=repr(name), need="the name of a law", do=nearest(name, _LAWS))
