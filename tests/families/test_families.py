"""Every option of the trainer on every family of causal language models in transformers: the same result, or a refusal.

A family with an option is either trained as without it, or refused by a message whose advice works. `refused.toml` has
the families that are refused, by option: what transformers changes shows itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from purerl.backends.hf.trainer import Config
from purerl.settings import Model
from tests.families.tables import (
    OPTIONS,
    Outcome,
    config_with,
    default_of,
    difference,
    is_refused,
    misleading,
    model_of,
    outcome_of,
    remedied,
)
from tests.families.tiny import OWN, SKIPPED, families
from tests.ranks import check_cases

pytestmark = pytest.mark.families

PARTS = 6  # of the families, each of which two ranks train


def test_all_families_of_transformers_are_in_the_tables():
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as KNOWN

    assert SKIPPED.keys() <= KNOWN.keys()
    assert OWN.keys() <= {*families()}
    assert len(families()) > 170
    assert sum(not is_refused(family, "default") for family in families()) > 150


@pytest.mark.parametrize("family", families())
def test_an_option_trains_a_family_as_without_it_or_is_refused(tmp_path, family):
    model = model_of(tmp_path, family)
    assert list(_problems(family, model)) == []


def _problems(family: str, model: Model) -> Iterator[str]:
    """The faults, for each option."""
    default = default_of(model)
    for option in ("default", *OPTIONS):
        config = config_with(option, model)
        outcome = default if option == "default" else outcome_of(model, config)
        if (outcome.refusal is not None) is not is_refused(family, option):
            yield f"{option}: {outcome.refusal or 'trained'}, and refused.toml says otherwise"
        if outcome.refusal is None:
            found = difference(family, option, outcome, default)
            yield from [f"{option}: {found}"] if found else []
        else:
            yield from (f"{option}: {each}" for each in _wrong_refusal(family, outcome.refusal, default, model, config))


def _wrong_refusal(family: str, refusal: str, default: Outcome, model: Model, config: Config) -> Iterator[str]:
    if found := misleading(refusal, model, config):
        yield found
    other = remedied(refusal, config)
    if other is None or default.refusal is not None:
        return
    outcome = outcome_of(model, other)
    if found := outcome.refusal or difference(family, "lora", outcome, default):
        yield f"the remedy fails: {found}"


@pytest.mark.parametrize("part", range(PARTS))
def test_two_ranks_train_a_family_as_one_or_refuse_to(part):
    check_cases("-m", "tests.families.on_ranks", str(part), str(PARTS))


@pytest.mark.parametrize("family", ["qwen3", "gemma2", "gpt_oss", "mamba", "bamba"])
def test_compiled_layers_train_a_family_as_others_do(tmp_path, family):
    """Few families, because torch compiles for up to a minute."""
    model = model_of(tmp_path, family)
    outcome = outcome_of(model, config_with("compile", model))
    assert outcome.refusal is None
    assert difference(family, "compile", outcome, default_of(model)) is None
