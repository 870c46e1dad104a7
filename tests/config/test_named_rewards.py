"""Settings of an item of a list of tables, by its name or its index."""

from __future__ import annotations

import pytest

from purerl.config.overrides import apply
from purerl.errors import ConfigError
from purerl.recipes import resolve
from purerl.recipes.addition import addition
from purerl.rewards.settings import Reward

EXACT = "purerl.rewards.exact:exact_match"
TWO = f'rewards=["{EXACT}", {{kind = "format", weight = 0.5}}, {{function = "a:b", name = "other one"}}]'


@pytest.mark.parametrize("name", ["exact_match", "0", f'"{EXACT}"'])
def test_a_reward_is_named_as_a_recipe_shows_it_or_by_its_index(name: str) -> None:
    assert resolve("addition", [f"rewards.{name}.weight=0.25"]).rewards == (Reward(EXACT, 0.25),)


def test_kinds_names_and_strings_are_items_too() -> None:
    settings = [TWO, "rewards.format.weight=2.0", "rewards.other one.weight=3.0", "rewards.exact_match.weight=4.0"]
    assert [reward.weight for reward in apply(addition(), settings).rewards] == [4.0, 2.0, 3.0]
    gates = ["gates=['a:b']", "gates.b.at_least=2"]
    changed = apply(addition(), [TWO, "rewards.format.otherwise=-1.0", "rewards.exact_match=", *gates])
    assert [reward.full_name for reward in changed.rewards] == ["format", "other one"]
    assert changed.rewards[0].config.otherwise == -1.0
    assert changed.gates[0].at_least == 2.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["rewards.exact_mach.weight=1"],
            "rewards.exact_mach\n  got:  no item of this name\n  need: one of: exact_match; or an index from 0\n  do: ",
        ),
        (["gates.b.at_least=1"], "gates.b\n  got:  no item of this name\n  need: an item: the list is empty"),
        (
            ["rewards=['a:f', 'b:f']", "rewards.f.weight=1"],
            "rewards.f\n  got:  several of this name\n  need: one of: f, f; or an index from 0",
        ),
        (["rewards.exact_match.wieght=1"], "rewards.wieght\n  got:  no such setting\n"),
        (["rewards.exact_match.weight=much"], 'rewards.weight\n  got:  "much"\n  need: a number'),
    ],
)
def test_mistakes_name_the_items_that_there_are(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        apply(addition(), settings)
    assert str(error.value).startswith(message)
