"""Published tests for algorithms, trainers, generators, trackers, environments and workflows.

    check_algorithm(algorithm)    tests one algorithm with the laws; `LAWS` lists them
    check_module(module)          tests an algorithm module: the laws with each optional term enabled, the exemptions,
                                  that every setting has an effect, and the bounds of the settings; `module_results`
                                  returns what each law says
    check_objective(loss)         tests a plain loss, with the parameters of verl, TRL or purerl, with the laws;
                                  `law_results` returns what each of them says
    check_generator, check_trainer    conformance suites for engines
    check_tracker                     conformance suite for trackers
    check_environment                 conformance suite for environments
    check_rollouts                    conformance suite for workflows

Each function raises AssertionError with a message that says what is wrong. None of them needs a test framework.
"""

from __future__ import annotations

from purerl.testing.batches import Layout, example_batch, fields_of, layouts, random_layout
from purerl.testing.bounds import check_bounds
from purerl.testing.check import (
    check_algorithm,
    check_exemptions,
    check_module,
    check_settings,
    exemptions,
    find_counterexample,
    module_results,
    variants,
)
from purerl.testing.compositions import exemptions_of, exemptions_of_modifier, random_composition
from purerl.testing.environment import check_environment
from purerl.testing.generator import check_generator
from purerl.testing.laws import LAWS, SINGLE_BATCH_LAWS, Law
from purerl.testing.losses import LawResult, check_objective, law_results
from purerl.testing.rollouts import check_rollouts
from purerl.testing.tracker import check_tracker
from purerl.testing.trainer import check_trainer

__all__ = [
    "LAWS",
    "SINGLE_BATCH_LAWS",
    "Law",
    "LawResult",
    "Layout",
    "check_algorithm",
    "check_bounds",
    "check_environment",
    "check_exemptions",
    "check_generator",
    "check_module",
    "check_objective",
    "check_rollouts",
    "check_settings",
    "check_tracker",
    "check_trainer",
    "example_batch",
    "exemptions",
    "exemptions_of",
    "exemptions_of_modifier",
    "fields_of",
    "find_counterexample",
    "law_results",
    "layouts",
    "module_results",
    "random_composition",
    "random_layout",
    "variants",
]
