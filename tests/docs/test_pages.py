"""The pages that are made from the package: each has its parts, and curves are those of the equations."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import attrs
import pytest
import torch

import purerl
from docs import generate
from docs.generate import algorithms, reference
from docs.generate.composition import parts
from docs.generate.curves import Curves, curves
from docs.generate.formulas import typeset
from docs.generate.metrics import meaning, metrics
from purerl.algos import cispo, clip_cov, dpo, forking_tokens, grpo, gspo, gvpo, kl_cov, ppo, prime, rloo, sapo, topr
from purerl.plugins import find, names
from purerl.testing import exemptions, variants

NAMES = names("algorithm")


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return dict(algorithms.pages())


def test_every_algorithm_has_a_page_and_a_row(pages):
    assert set(pages) == {"index", *NAMES}
    assert [name for name in NAMES if pages["index"].count(f"| [{name}]({name}.md)") != 1] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_page_tells_what_the_module_says(pages, name):
    module, page = find("algorithm", name), pages[name]
    title, *_ = inspect.getdoc(module).splitlines()
    assert page.startswith(f"# {title.partition(':')[0]}\n")
    formulas = [block for block in re.split(r"\n\n+", inspect.getdoc(module)) if block.startswith("    ")]
    assert formulas
    assert [block for block in formulas if f"```{{math}}\n{typeset(block)}\n```" not in page] == []
    for paper in re.findall(r"\d{4}\.\d{5}", title):
        assert f"[{paper}](https://arxiv.org/abs/{paper})" in page
    for field in attrs.fields(module.Config):
        assert f"\n| `{field.name}` | `" in page
        assert field.metadata["help"] in page
        assert field.metadata["need"] in page
    for law, reason in exemptions(module).items():
        assert f"- exempt from `{law}`: {reason}." in page
    assert f"purerl train addition --set algorithm.kind={name}\n" in page
    assert inspect.getsource(module.algorithm) in page


def test_ppo_is_made_of_these_parts():
    assert list(parts(ppo.algorithm(ppo.Config(kl_reward_coef=0.5)))) == [
        ("on the whole batch", "reward = kl_reward(reward, old_logp, ref_logp, kl_reward_coef=0.5)"),
        ("on the whole batch", "gae_advantage(discount=1, lambda_=0.95)"),
        ("on the whole batch", "advantage = whiten(advantage, mask)"),
        ("loss of the critic", "token_mean of clipped_value_loss(value, old_value, returns, value_clip=0.5)"),
        (
            "loss of the policy",
            "token_mean of clip_surrogate(clip_high=0.2, clip_low=0.2, ratio=token_ratio(logp, old_logp))",
        ),
    ]


def test_what_an_algorithm_chooses_before_it_learns_is_a_part_too():
    assert next(parts(forking_tokens.algorithm())) == ("rows that are kept", "groups_with_variance")
    chosen = "dropped = least_uncertain(old_entropy, mask, top_fraction=0.2)"
    assert ("before each step of the policy", chosen) in parts(forking_tokens.algorithm())
    assert [what for what, _ in parts(prime.algorithm())][:2] == ["rows that are kept", "loss of the reward model"]


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("opd", "From a teacher"),
        ("dpo", "From data"),
        ("ppo", "With a critic"),
        ("rloo", "Policy gradients"),
        ("icepop", "Clipped surrogates"),
        ("cispo", "Weighted policy gradients"),
        ("sapo", "Other losses"),
    ],
)
def test_an_algorithm_stands_in_its_family(pages, name, family):
    [section] = [part for part in pages["index"].split("\n## ") if f"| [{name}](" in part]
    assert section.startswith(f"{family}\n")


SECTIONS = ("Loss", "Composition", "Requirements", "Settings", "Usage", "Metrics", "Laws")


def test_a_page_has_its_sections(pages):
    assert re.findall("^## (.*)", pages["grpo"], re.MULTILINE) == [*SECTIONS, "Source code"]
    for line in (
        "| on the whole batch | `advantage = outcome_advantage(estimator=group_normalized_advantage)` |",
        "| loss of the policy, with `entropy_coef=0.1` | `-0.1 * sequence_mean_of_token_mean of entropy` |",
        "| a reference | `logp`; with `kl_loss_coef=0.1` |",
        "| `clip_low` | `0.2` | a number at least 0 and at most 1 | how far the ratio may fall below 1",
        "| `policy/clip_fraction` | share | counted tokens whose loss is clipped",
        "The equations: {py:obj}`group_normalized_advantage <purerl.algos.estimators.group_relative.",
    ):
        assert f"\n{line}" in pages["grpo"]


def test_a_page_says_what_the_default_recipe_lacks(pages):
    assert "needs a recipe that supplies its inputs" not in pages["ppo"]
    assert "needs a recipe that supplies its inputs" in pages["gigpo"]
    assert "error: algorithm 'gigpo'\n  got:  a run that cannot supply a field\n  need: 'anchor'" in pages["gigpo"]


@pytest.mark.parametrize("name", NAMES)
def test_every_metric_of_every_algorithm_is_explained(name):
    for algorithm in variants(find("algorithm", name)).values():
        for metric in metrics(algorithm):
            assert meaning(metric)[1], metric


def test_a_metric_that_nobody_explains_is_an_error():
    with pytest.raises(KeyError):
        meaning("policy/beauty")


# --- curves ------------------------------------------------------------------------------------------------------


def _of(module) -> Curves | None:
    return curves(module.algorithm(), module.Config())


def test_the_curves_of_grpo_are_its_equation():
    ratio, gradient, loss = _of(grpo)
    for row, sign in enumerate((1.0, -1.0)):
        torch.testing.assert_close(loss[row], torch.maximum(-sign * ratio, -sign * ratio.clamp(0.8, 1.2)))
        free = ratio < 1.2 if sign > 0 else ratio > 0.8
        torch.testing.assert_close(gradient[row], torch.where(free, -sign * ratio, 0))


def test_the_curves_of_a_detached_weight_are_its_gradient_alone():
    ratio, gradient, loss = _of(cispo)
    torch.testing.assert_close(gradient, torch.stack([-ratio.clamp(max=5), ratio.clamp(max=5)]))
    assert loss is None
    assert _of(topr).loss is None


def test_these_are_drawn():
    drawn = {name for name in NAMES if _of(find("algorithm", name))}
    assert {"aspo", "cispo", "dapo", "gmpo", "grpo", "gspo", "icepop", "luspo", "ppo", "sapo", "vespo"} < drawn


def test_they_reach_as_far_as_there_is_something_to_see():
    assert _of(gspo).ratio[[0, -1]].tolist() == pytest.approx([1 - 12e-4, 1 + 12e-4])
    assert _of(sapo).ratio[[0, -1]].tolist() == pytest.approx([0.01, 2.5])


@pytest.mark.parametrize("module", [clip_cov, dpo, gvpo, kl_cov, rloo])
def test_what_is_no_function_of_ratio_and_advantage_is_not_drawn(module):
    assert _of(module) is None


# --- the reference, and the folder -------------------------------------------------------------------------------


def test_every_module_has_a_page():
    found = {info.name for info in walk_packages(purerl.__path__, "purerl.")}
    modules = {name for name in found if import_module(name).__doc__} - {f"purerl.algos.{name}" for name in NAMES}
    made = dict(reference.pages())
    assert set(made) == {"index", "settings", "purerl", *modules}
    assert [name for name in modules if f"<{name}>" not in made["index"]] == []
    for line in (
        "| `rollout` | none |  | how completions are sampled for training |",
        "| `lr` | `1e-06` | a number from 0 to 1 | learning rate, at its highest |",
        "| `revision` | none | of the hub's repository |",
    ):
        assert f"\n{line}\n" in made["settings"]


def test_what_a_module_passes_on_is_a_link():
    page = dict(reference.pages())["purerl.algos"]
    assert "{py:obj}`gae <purerl.algos.estimators.returns.gae>`" in page


@pytest.mark.parametrize(
    ("docstring", "rst"),
    [
        (["Prose.", "", "    a -> b_", "    c -> d"], ["Prose.", "", "::", "", "    a -> b_", "    c -> d", ""]),
        (["Code::", "", "    a = b_", "", "    c = d"], ["Code::", "", "    a = b_", "", "    c = d", ""]),
        ([">>> f(a_=2 * 3)", "6"], [">>> f(a_=2 * 3)", "6", ""]),
        (["one     its meaning", "another its"], ["::", "", "    one     its meaning", "    another its", ""]),
        (["1. One,", "   and more.", "", "   Still."], ["1. One,", "   and more.", "", "   Still.", ""]),
        (["lambda_ and `lambda_`"], ["lambda\\_ and `lambda_`", ""]),
        (["|x| * *this*, **these"], ["\\|x\\| \\* *this*, \\*\\*these", ""]),
        (["in 1707.06347."], ["in `1707.06347 <https://arxiv.org/abs/1707.06347>`__.", ""]),
    ],
)
def test_a_docstring_becomes_restructured_text(docstring, rst):
    assert reference.as_rst(docstring) == rst


def test_what_is_written_is_what_is_made_and_no_more(pages, tmp_path: Path):
    (tmp_path / "algorithms").mkdir()
    (tmp_path / "algorithms" / "gone.md").write_text("of an algorithm that is no more")
    generate.write(tmp_path)
    assert {path.stem for path in (tmp_path / "algorithms").iterdir()} == set(pages)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.md")}
    generate.write(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.md")} == before
