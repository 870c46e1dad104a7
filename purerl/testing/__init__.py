"""Published tests: is an algorithm, a generator, a trainer or a tracker of yours sound?

    check_algorithm(algorithm)    the laws that every algorithm has to satisfy; `LAWS` one by one
    check_module(module)          the same for a module with a `Config`, its optional terms switched on; and that every
                                  setting has an effect
    check_generator, check_trainer    conformance of engines
    check_tracker    conformance of trackers

All of them raise AssertionError with a message that says what is wrong. They need no test framework.
"""

from __future__ import annotations

from purerl.testing.batches import Layout, example_batch, fields_of, layouts, random_layout
from purerl.testing.check import (
    check_algorithm,
    check_exemptions,
    check_module,
    check_settings,
    counterexample,
    exemptions,
    variants,
)
from purerl.testing.generator import check_generator
from purerl.testing.laws import LAWS, ONCE, Law
from purerl.testing.tracker import check_tracker
from purerl.testing.trainer import check_trainer

__all__ = [
    "LAWS",
    "ONCE",
    "Law",
    "Layout",
    "check_algorithm",
    "check_exemptions",
    "check_generator",
    "check_module",
    "check_settings",
    "check_tracker",
    "check_trainer",
    "counterexample",
    "example_batch",
    "exemptions",
    "fields_of",
    "layouts",
    "random_layout",
    "variants",
]
