"""Pages that are generated from the package: their sections, the curves of losses, and the files that are written."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import attrs
import pytest
import torch

import purerl
from docs import generate
from docs.generate import algorithms, modules, settings
from docs.generate.curves import Curves, curves
from docs.generate.formulas import typeset
from docs.generate.metrics import metrics
from purerl.algos import cispo, clip_cov, dpo, forking_tokens, grpo, gspo, gvpo, kl_cov, ppo, prime, rloo, sapo, topr
from purerl.algos.modifiers import kl_reward
from purerl.backends.hf import trainer
from purerl.composition import with_modifiers
from purerl.config.schema import RunConfig
from purerl.explain.description import parts
from purerl.monitoring.metric_meanings import meanings
from purerl.plugins import find, names
from purerl.settings import Model
from purerl.testing import exemptions, variants

pytestmark = pytest.mark.slow

NAMES, MODIFIERS = names("algorithm"), names("modifier")


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return dict(algorithms.pages())


def test_every_algorithm_has_a_page_and_a_row(pages):
    assert set(pages) == {"index", *NAMES}
    assert [name for name in NAMES if pages["index"].count(f"| [{name}]({name}.md)") != 1] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_page_contains_docstring_settings_and_code(pages, name):
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


def test_parts_of_ppo():
    assert list(parts(with_modifiers(ppo.algorithm(), kl_reward.Config(coef=0.5)))) == [
        ("on the whole batch", "reward = kl_reward(reward, old_logp, ref_logp, estimate=k1, kl_reward_coef=0.5)"),
        ("on the whole batch", "gae_advantage(discount=1, lambda_=0.95)"),
        ("on the whole batch", "advantage = whiten(advantage, mask)"),
        ("loss of the critic", "token_mean of clipped_value_loss(value, old_value, returns, value_clip=0.5)"),
        (
            "loss of the policy",
            "token_mean of clip_surrogate(clip_high=0.2, clip_low=0.2, ratio=token_ratio(logp, old_logp))",
        ),
    ]


def test_selection_and_preparation_are_parts():
    assert next(parts(forking_tokens.algorithm())) == ("rows that are kept", "groups_with_variance")
    chosen = "dropped = low_entropy_tokens(old_entropy, mask, top_fraction=0.2)"
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
def test_an_algorithm_is_listed_in_its_family(pages, name, family):
    [section] = [part for part in pages["index"].split("\n## ") if f"| [{name}](" in part]
    assert section.startswith(f"{family}\n")


SECTIONS = ("Loss", "Composition", "Requirements", "Settings", "Modifiers", "Usage", "Metrics", "Laws")


def test_page_of_grpo_has_all_sections(pages):
    assert re.findall("^## (.*)", pages["grpo"], re.MULTILINE) == [*SECTIONS, "Source code"]
    for line in (
        "| on the whole batch | `advantage = outcome_advantage(estimator=group_normalized_advantage)` |",
        "| `clip_low` | `0.2` | a number at least 0 and at most 1 | lower clip offset: the ratio is clipped",
        "| `policy/clip_fraction` | fraction | Counted tokens whose loss is clipped.",
        "The equations: {py:obj}`group_normalized_advantage <purerl.algos.estimators.group_relative.",
    ):
        assert f"\n{line}" in pages["grpo"]


def test_a_page_shows_what_an_optional_term_adds(pages):
    loss = "with_substituted_fields(function=importance_k3(logp, old_logp, ref_logp), sources="
    term = f"`sequence_mean_of_token_mean of 0.1 * {loss}"
    assert f"\n| loss of the policy, with `kl_loss=0.1` | {term}" in pages["deepseek_v3_2"]
    assert "\n| a reference | `logp`; with `kl_loss=0.1` |" in pages["deepseek_v3_2"]


def test_a_page_shows_what_an_algorithm_is_defined_as(pages):
    for line in (
        "It is [dapo](dapo.md) with the modifiers [high_entropy_tokens](../modifiers/high_entropy_tokens.md):",
        "- `forking_tokens = dapo + high_entropy_tokens(top_fraction=0.2)`",
        "- `dapo = grpo(clip_high=0.28) + reduction(by=token_mean) + group_filter(by=variance)`",
        "| `policy/clip_fraction` | fraction | Counted tokens whose loss is clipped.",
    ):
        assert f"\n{line}" in pages["forking_tokens"]
    assert "It is [" not in pages["grpo"]


@pytest.mark.parametrize(("name", "base"), [("icepop", "grpo"), ("pass_k", "grpo"), ("opo", "rloo"), ("pf_ppo", "ppo")])
def test_a_page_links_to_the_page_of_the_base(pages, name, base):
    assert f"as in [`{base}`]({base}.md)" in " ".join(pages[name].split())
    assert f"[`{name}`](" not in pages[name]


def test_a_page_shows_why_the_default_recipe_is_refused(pages):
    assert "It takes a recipe of its own." not in pages["ppo"]
    assert (
        "error: algorithm 'gigpo' cannot be used here\n  got:  no such field in the run\n  need: the field 'anchor'"
        in pages["gigpo"]
    )


def test_every_metric_of_every_algorithm_is_explained():
    unexplained = []
    for name in NAMES:
        for algorithm in variants(find("algorithm", name)).values():
            explained = meanings(metrics(algorithm))
            unexplained += [(name, metric) for metric in metrics(algorithm) if not explained.get(metric, ("", ""))[1]]
    assert unexplained == []


# --- curves ------------------------------------------------------------------------------------------------------


def _of(module) -> Curves | None:
    return curves(module.algorithm(), module.Config())


def test_curves_of_grpo_match_its_equation():
    ratio, gradient, loss = _of(grpo)
    for row, sign in enumerate((1.0, -1.0)):
        torch.testing.assert_close(loss[row], torch.maximum(-sign * ratio, -sign * ratio.clamp(0.8, 1.2)))
        free = ratio < 1.2 if sign > 0 else ratio > 0.8
        torch.testing.assert_close(gradient[row], torch.where(free, -sign * ratio, 0))


def test_a_detached_weight_has_a_gradient_curve_only():
    ratio, gradient, loss = _of(cispo)
    torch.testing.assert_close(gradient, torch.stack([-ratio.clamp(max=5), ratio.clamp(max=5)]))
    assert loss is None
    assert _of(topr).loss is None


def test_algorithms_that_have_curves():
    drawn = {name for name in NAMES if _of(find("algorithm", name))}
    assert {"aspo", "cispo", "dapo", "gmpo", "grpo", "gspo", "icepop", "luspo", "ppo", "sapo", "vespo"} < drawn


def test_curves_extend_beyond_the_clip_range():
    assert _of(gspo).ratio[[0, -1]].tolist() == pytest.approx([1 - 12e-4, 1 + 12e-4])
    assert _of(sapo).ratio[[0, -1]].tolist() == pytest.approx([0.01, 2.5])


@pytest.mark.parametrize("module", [clip_cov, dpo, gvpo, kl_cov, rloo])
def test_no_curve_if_the_gradient_is_not_a_function_of_ratio_and_advantage(module):
    assert _of(module) is None


# --- the reference, and the folder -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def module_pages() -> dict[str, str]:
    return dict(modules.pages())


def test_every_module_has_a_page(module_pages):
    every_name = {info.name for info in walk_packages(purerl.__path__, "purerl.")}
    names_found = {name for name in every_name if not name.endswith(".__main__")}
    documented = {name for name in names_found if import_module(name).__doc__}
    documented -= {f"purerl.algos.{name}" for name in NAMES} | {f"purerl.algos.modifiers.{name}" for name in MODIFIERS}
    assert set(module_pages) == {"index", "purerl", *documented}
    assert [name for name in documented if f"({name}.md): " not in module_pages["index"]] == []


def _help(config: type, name: str) -> str:
    return attrs.fields_dict(config)[name].metadata["help"]


def test_the_page_of_settings_has_every_section():
    [(_, page)] = settings.pages()
    for line in (
        f"| `rollout` | none |  | {_help(RunConfig, 'rollout')} |",
        f"| `lr` | `1e-06` | a number from 0 to 1 | {_help(trainer.Config, 'lr')} |",
        f"| `revision` | none |  | {_help(Model, 'revision')} |",
    ):
        assert f"\n{line}\n" in page
    titles = re.findall("^## (.*)", page, re.MULTILINE)
    assert {"A run", "`rollout.overlong`", "`rewards`", "`stop_when`", "Trainer `hf`", "Tracker `wandb`"} < set(titles)
    assert any("`model`" in title for title in titles)


@attrs.frozen
class _Inner:
    size: int = 1


@attrs.frozen
class _Outer:
    table: Mapping[str, _Inner | Mapping[str, _Inner]]
    items: tuple[_Inner, ...] = ()
    optional: _Inner | None = None
    plain: Mapping[str, str] = {}


def test_sections_in_mappings_tuples_and_optional_fields_are_found():
    sections = [("table.<name>", _Inner), ("items", _Inner), ("optional", _Inner)]
    assert list(settings._sections(_Outer)) == sections


def test_a_re_exported_name_is_a_link(module_pages):
    page = module_pages["purerl.algos"]
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
def test_a_docstring_is_converted_to_restructured_text(docstring, rst):
    assert modules.as_rst(docstring) == rst


@pytest.mark.slow
def test_write_keeps_unchanged_pages_and_deletes_old_ones(pages, tmp_path: Path):
    (tmp_path / "algorithms").mkdir()
    (tmp_path / "algorithms" / "removed.md").write_text("a page of an algorithm that no longer exists")
    generate.write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "algorithms",
        "frameworks",
        "mathematics",
        "migration",
        "modifiers",
        "modules",
        "presets",
        "settings",
    }
    assert {path.stem for path in (tmp_path / "algorithms").iterdir()} == set(pages)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.md")}
    generate.write(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.md")} == before
