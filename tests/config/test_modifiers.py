"""Modifiers in a configuration: how they are written, read, explained and refused, and when runs are different."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.algos import deepseek_v3_2, grpo, sft
from purerl.algos.modifiers import dual_clip, entropy_bonus, kl_loss, kl_reward, reduction
from purerl.composition import Composition, build_algorithm, to_composition, with_modifiers
from purerl.config.check import check
from purerl.config.listing import explain
from purerl.config.overrides import apply, build
from purerl.config.plan import plan
from purerl.config.requirements import requirements_of
from purerl.config.schema import RunConfig
from purerl.config.structure import digest, dumps, from_dict, to_dict
from purerl.config.tables import differences, flat
from purerl.errors import ConfigError, RunDirectoryError
from purerl.loop.train import claim_directory
from purerl.recipes import explain_recipe
from purerl.recipes.addition import addition
from tests.config.own_modifiers import Plain, Scaled
from tests.loop.small import fake

from .compositions import error_of, recipe_with

OWN = "tests.config.own_modifiers"
GRPO = "algorithm.kind=grpo"
KL, ENTROPY, DUAL = kl_loss.Config, entropy_bonus.Config, dual_clip.Config


def _modifiers(*settings: str, start: RunConfig | None = None) -> tuple[Any, ...]:
    return apply(start or addition(), [*settings]).algorithm.modifiers


# --- how they are written ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # the list
        (['algorithm.modifiers=["kl_loss"]'], (KL(),)),
        (['algorithm.modifiers=["kl_loss", {kind = "dual_clip", ratio = 4}]'], (KL(), DUAL(ratio=4))),
        (["algorithm.modifiers=[]"], ()),
        (["algorithm.modifiers="], ()),
        # the main field
        (["algorithm.kl_loss=0.5"], (KL(coef=0.5),)),
        (["algorithm.kl_loss=1"], (KL(coef=1.0),)),
        (["algorithm.reduction=token_sum"], (reduction.Config(by="token_sum"),)),
        # a section
        (['algorithm.kl_loss={coef = 0.5, estimator = "k2"}'], (KL(coef=0.5, estimator="k2"),)),
        (["algorithm.kl_loss={}"], (KL(),)),
        (["algorithm.kl_loss.estimator=k2"], (KL(estimator="k2"),)),
        (["algorithm.kl_loss.coef="], (KL(),)),
        # both
        (["algorithm.kl_loss=0.5", "algorithm.kl_loss.estimator=k2"], (KL(coef=0.5, estimator="k2"),)),
        (["algorithm.kl_loss.estimator=k2", "algorithm.kl_loss=0.5"], (KL(coef=0.5, estimator="k2"),)),
        (["algorithm.kl_loss=0.5", "algorithm.kl_loss.coef=0.25"], (KL(coef=0.25),)),
        (["algorithm.kl_loss=true", "algorithm.kl_loss.estimator=k2"], (KL(estimator="k2"),)),
        # true, false, and nothing
        (["algorithm.kl_loss=true"], (KL(),)),
        (["algorithm.kl_loss=false"], ()),
        (["algorithm.kl_loss="], ()),
    ],
)
def test_forms_of_a_modifier(settings: list[str], expected: tuple[Any, ...]) -> None:
    assert _modifiers(GRPO, *settings) == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], (KL(coef=0.5, estimator="k2"), ENTROPY())),
        (["algorithm.kl_loss=0.25"], (KL(coef=0.25, estimator="k2"), ENTROPY())),
        (["algorithm.kl_loss={coef = 0.25}"], (KL(coef=0.25, estimator="k2"), ENTROPY())),
        (["algorithm.kl_loss.coef="], (KL(estimator="k2"), ENTROPY())),
        (["algorithm.kl_loss=true"], (KL(coef=0.5, estimator="k2"), ENTROPY())),
        (["algorithm.kl_loss="], (ENTROPY(),)),
        (["algorithm.kl_loss=false"], (ENTROPY(),)),
        (["algorithm.kl_loss=", "algorithm.kl_loss.coef=0.25"], (ENTROPY(), KL(coef=0.25))),
        (["algorithm.dual_clip=4"], (KL(coef=0.5, estimator="k2"), ENTROPY(), DUAL(ratio=4))),
        (["algorithm.modifiers="], ()),
        (['algorithm.modifiers=["dual_clip"]'], (DUAL(),)),
        (['algorithm.modifiers=["dual_clip"]', "algorithm.kl_loss=0.25"], (DUAL(), KL(coef=0.25))),
        ([GRPO], (KL(coef=0.5, estimator="k2"), ENTROPY())),
        (["algorithm.kind=dapo"], ()),
        (["algorithm.kind=dapo", "algorithm.kl_loss=0.25"], (KL(coef=0.25),)),
        (["algorithm.clip_high=0.28"], (KL(coef=0.5, estimator="k2"), ENTROPY())),
    ],
)
def test_a_setting_changes_the_modifiers_of_a_configuration(settings: list[str], expected: tuple[Any, ...]) -> None:
    assert _modifiers(*settings, start=recipe_with(KL(coef=0.5, estimator="k2"), ENTROPY())) == expected


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        (["kl_loss=1", "dual_clip=3", "reduction=token_sum"], "kl_loss + dual_clip + reduction"),
        (["reduction=token_sum", "kl_loss=1", "dual_clip=3"], "reduction + kl_loss + dual_clip"),
        (["kl_loss.coef=1", "dual_clip=3"], "kl_loss + dual_clip"),
        (["dual_clip=3", "kl_loss.coef=1", "dual_clip.ratio=4"], "dual_clip + kl_loss"),
        (['modifiers=["reduction", "dual_clip"]', "kl_loss=1"], "reduction + dual_clip + kl_loss"),
        (["kl_loss=1", 'modifiers=["reduction", "kl_loss", "dual_clip"]'], "reduction + kl_loss + dual_clip"),
    ],
)
def test_modifiers_are_applied_in_the_order_in_which_they_are_first_named(settings: list[str], kinds: str) -> None:
    config = apply(addition(), [GRPO, *(f"algorithm.{setting}" for setting in settings)])
    assert str(config.algorithm) == f"grpo + {kinds}"


def test_settings_of_a_modifier_in_the_initial_run() -> None:
    config = apply(addition(), ["initial_run.algorithm.entropy_bonus=0.5", "initial_run.algorithm.kl_loss.coef=0.25"])
    assert str(config.algorithm) == "dapo"
    assert config.initial_run.algorithm == Composition(sft.Config(), (ENTROPY(coef=0.5), KL(coef=0.25)))


def test_a_field_of_the_algorithm_hides_the_modifier_of_its_name() -> None:
    assert apply(addition(), ["algorithm.kind=deepseek_v3_2", "algorithm.kl_loss=0.5"]).algorithm == Composition(
        deepseek_v3_2.Config(kl_loss=0.5)
    )
    message = error_of("algorithm.kind=deepseek_v3_2", "algorithm.kl_loss=0.5", "algorithm.kl_loss.coef=0.5")
    assert message.startswith('algorithm.kl_loss\n  got:  0.5 and {"coef": 0.5}\n  need: a number\n')


TOML = """
kind = "grpo"
clip_high = 0.28
modifiers = [{kind = "reduction", by = "token_sum"}, "dual_clip"]
kl_loss = 0.5
entropy_bonus = {coef = 0.25, reduction = "token_mean"}
"""


def test_the_section_of_an_algorithm_in_toml(tmp_path: Path) -> None:
    table = to_dict(addition()) | {"algorithm": tomllib.loads(TOML)}
    config = from_dict(RunConfig, table)
    expected = (reduction.Config(by="token_sum"), DUAL(), KL(coef=0.5), ENTROPY(coef=0.25, reduction="token_mean"))
    assert config.algorithm == Composition(grpo.Config(clip_high=0.28), expected)
    assert build(RunConfig, ["algorithm.kl_loss=false"], table).algorithm.modifiers == (*expected[:2], expected[3])


def test_configurations_are_written_as_a_list_and_read_again() -> None:
    config = recipe_with(reduction.Config(by="token_sum"), KL(estimator="k2"), Scaled.Config(factor=3))
    assert to_dict(config)["algorithm"]["modifiers"] == [
        {"kind": "reduction", "by": "token_sum", "length": 0.0},
        {"kind": "kl_loss", "coef": 0.001, "estimator": "k2", "reduction": "policy", "target": 0.0, "horizon": 10000.0},
        {"kind": f"{OWN}:Scaled", "factor": 3.0, "size": 1.0},
    ]
    assert from_dict(RunConfig, tomllib.loads(dumps(config))) == config
    assert "modifiers" not in to_dict(recipe_with())["algorithm"]


# --- compositions --------------------------------------------------------------------------------------------------


def test_a_config_without_modifiers_is_a_composition() -> None:
    assert evolve(addition(), algorithm=grpo.Config()) == recipe_with()
    assert to_composition(composition := Composition(grpo.Config(), [KL()])) is composition
    assert composition.modifiers == (KL(),)
    assert hash(composition) == hash(Composition(grpo.Config(), (KL(),)))


def test_a_composition_builds_what_its_functions_build() -> None:
    composition = Composition(grpo.Config(clip_high=0.28), (KL(coef=0.5), DUAL()))
    plain = grpo.algorithm(grpo.Config(clip_high=0.28))
    expected = dual_clip.modify(DUAL(), kl_loss.modify(KL(coef=0.5), plain))
    assert build_algorithm(composition) == with_modifiers(plain, KL(coef=0.5), DUAL()) == expected
    assert requirements_of(evolve(addition(), algorithm=composition)).algorithm == expected
    assert with_modifiers(plain) == plain


@pytest.mark.parametrize(
    ("modifiers", "message"),
    [
        ((KL(), KL(coef=0.5)), "modifiers\n  got:  2 of the kind 'kl_loss'\n  need: each kind at most once"),
        ((grpo.Config(),), "modifiers: unknown modifier 'grpo'\n"),
        (("kl_loss",), "str is not the Config of a plugin\n"),
    ],
)
def test_modifiers_that_are_none_are_refused(modifiers: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Composition(grpo.Config(), modifiers)
    assert str(error.value).startswith(message)


def test_models_that_a_modifier_needs_are_models_of_the_run() -> None:
    def roles(config: RunConfig) -> set[str]:
        return {*requirements_of(config).models}

    assert roles(recipe_with()) == {"policy"}
    assert roles(recipe_with(KL())) == roles(recipe_with(kl_reward.Config())) == {"policy", "reference"}
    check(apply(recipe_with(KL()), ["roles.reference.model=m"]))
    message = "roles.reference has no effect\n  need: an algorithm that uses it; grpo uses only the policy\n"
    assert error_of("roles.reference.model=m", start=recipe_with()).startswith(message)


# --- a modifier of one's own -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([f'algorithm.modifiers=["{OWN}:Scaled"]'], (Scaled.Config(),)),
        ([f'algorithm.modifiers=[{{kind = "{OWN}:Scaled", factor = 3}}]'], (Scaled.Config(factor=3),)),
        ([f'algorithm."{OWN}:Scaled"=3'], (Scaled.Config(factor=3),)),
        ([f'algorithm."{OWN}:Scaled".size=3', "algorithm.kl_loss=1"], (Scaled.Config(size=3), KL(coef=1))),
        ([f'algorithm."{OWN}:Plain"=true'], (Plain.Config(),)),
    ],
)
def test_a_modifier_of_ones_own_has_its_address_as_name(settings: list[str], expected: tuple[Any, ...]) -> None:
    assert _modifiers(GRPO, *settings) == expected


def test_a_modifier_of_ones_own_changes_the_algorithm() -> None:
    [policy] = requirements_of(apply(addition(), [GRPO, f'algorithm."{OWN}:Scaled"=3'])).algorithm.objectives
    assert [term.weight for term in policy.terms] == [3.0]


def test_a_file_in_the_working_directory_can_have_a_modifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "class Mine:\n    class Config(Scaled.Config):\n        pass\n\n    modify = Scaled.modify\n"
    (tmp_path / "modifiers_in_a_file.py").write_text(f"from {OWN} import Scaled\n\n\n{code}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    config = apply(addition(), [GRPO, "algorithm.modifiers_in_a_file:Mine=3"])
    assert apply(addition(), [GRPO, 'algorithm."modifiers_in_a_file.py:Mine"=3']) == config
    assert requirements_of(config).algorithm == with_modifiers(grpo.algorithm(), Scaled.Config(factor=3))


# --- settings, sources, summaries --------------------------------------------------------------------------------


def test_settings_of_modifiers_are_explained_in_their_order() -> None:
    settings = explain(recipe_with(reduction.Config(), KL(coef=0.5), Scaled.Config(), Plain.Config()), recipe="recipe")
    rows = {setting.key: setting for setting in settings if setting.key.startswith("algorithm.")}
    assert [*rows] == [
        "algorithm.kind", "algorithm.clip_low", "algorithm.clip_high", "algorithm.modifiers",
        "algorithm.reduction.by", "algorithm.reduction.length", "algorithm.kl_loss.coef",
        "algorithm.kl_loss.estimator", "algorithm.kl_loss.reduction", "algorithm.kl_loss.target",
        "algorithm.kl_loss.horizon",
        f'algorithm."{OWN}:Scaled".factor', f'algorithm."{OWN}:Scaled".size',
    ]  # fmt: skip
    assert rows["algorithm.modifiers"].value == f'["reduction", "kl_loss", "{OWN}:Scaled", "{OWN}:Plain"]'
    assert rows["algorithm.kl_loss.coef"].value == "0.5"
    assert rows["algorithm.kl_loss.coef"].meaning.startswith("coefficient of the KL penalty;")
    assert rows["algorithm.reduction.length"].unit == "tokens"
    assert [row.key for row in rows.values() if not row.meaning] == []


def test_explained_settings_give_the_same_configuration() -> None:
    config = recipe_with(
        reduction.Config(by="token_sum"), KL(coef=0.5), Scaled.Config(factor=3), Plain.Config(), DUAL()
    )
    settings = [f"{setting.key}={setting.value}" for setting in explain(config, recipe="recipe") if setting.value]
    assert apply(addition(), settings) == config


def test_sources_of_the_settings_of_modifiers(tmp_path: Path) -> None:
    sources = {s.key: s.source for s in explain_recipe("addition", ["algorithm.kl_loss=0.5", "algorithm.dual_clip={}"])}
    assert (sources["algorithm.modifiers"], sources["algorithm.kl_loss.coef"]) == ("--set", "--set")
    assert (sources["algorithm.kl_loss.estimator"], sources["algorithm.dual_clip.ratio"]) == ("default", "default")
    path = tmp_path / "run.toml"
    path.write_text(dumps(recipe_with(KL(), DUAL())))
    sources = {s.key: s.source for s in explain_recipe(str(path), ["algorithm.dual_clip=4"])}
    assert (sources["algorithm.modifiers"], sources["algorithm.kl_loss.coef"]) == (str(path), str(path))
    assert sources["algorithm.dual_clip.ratio"] == "--set"


def test_the_summary_of_a_run_has_its_modifiers() -> None:
    assert "addition: grpo + kl_loss + dual_clip, 240 steps" in plan(recipe_with(KL(), DUAL())).splitlines()


def test_flat_tables_have_the_settings_of_each_modifier() -> None:
    table = flat(to_dict(recipe_with(KL(coef=0.5), Plain.Config())))
    assert table["algorithm.modifiers"] == ["kl_loss", f"{OWN}:Plain"]
    assert (table["algorithm.kl_loss.coef"], table["algorithm.kl_loss.estimator"]) == (0.5, "k3")
    assert flat({"algorithm": {"modifiers": ["kl_loss"]}, "modifiers": [3]}) == {
        "algorithm.modifiers": ["kl_loss"], "modifiers": [3]
    }  # fmt: skip


# --- another configuration ---------------------------------------------------------------------------------------

CHANGED = {
    "added": (KL(coef=0.5), DUAL(), ENTROPY()),
    "removed": (KL(coef=0.5),),
    "changed": (KL(coef=0.25), DUAL()),
    "in another order": (DUAL(), KL(coef=0.5)),
}


@pytest.mark.parametrize("modifiers", CHANGED.values(), ids=CHANGED)
def test_a_run_with_other_modifiers_is_another_run(modifiers: tuple[Any, ...], tmp_path: Path) -> None:
    before, after = (
        fake(algorithm=Composition(grpo.Config(), each)) for each in ((KL(coef=0.5), DUAL()), tuple(modifiers))
    )
    assert digest(before) != digest(after)
    assert digest(before) == digest(fake(algorithm=Composition(grpo.Config(), (KL(coef=0.5), DUAL(ratio=3)))))
    directory = claim_directory(tmp_path / "run", before)
    directory.log({"step": 0})
    directory.release()
    claim_directory(tmp_path / "run", before).release()
    with pytest.raises(RunDirectoryError, match=r"algorithm\.(modifiers|kl_loss\.coef)"):
        claim_directory(tmp_path / "run", after)


def test_differences_name_the_modifier() -> None:
    assert differences(*map(to_dict, (recipe_with(KL(coef=0.5)), recipe_with(KL(coef=0.25), DUAL())))) == [
        ("algorithm.modifiers", ["kl_loss"], ["kl_loss", "dual_clip"]),
        ("algorithm.kl_loss.coef", 0.5, 0.25),
        ("algorithm.dual_clip.ratio", None, 3.0),
    ]
