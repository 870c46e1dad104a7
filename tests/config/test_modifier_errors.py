"""Modifiers that are refused: unknown names, invalid values, and algorithms without the part that they change."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from purerl.algos import dapo, deepseek_v3_2, ppo
from purerl.algos.modifiers import dual_clip, kl_loss
from purerl.config.check import check
from purerl.config.overrides import apply
from purerl.config.schema import RunConfig
from purerl.config.structure import from_dict
from purerl.errors import ConfigError
from purerl.recipes import resolve
from purerl_cli.main import app
from tests.config.own_modifiers import Plain

from .compositions import error_of, recipe_with

OWN = "tests.config.own_modifiers"
GRPO = "algorithm.kind=grpo"
KL, DUAL = kl_loss.Config, dual_clip.Config

LISTED = "\n  need: one that `purerl config` lists\n  do:   did you mean "
NO = " has no effect\n  got:  "
DO = "\n  do:   leave algorithm."
LIST = "\n  need: a list of names, or of sections with their kind\n"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        # unknown names
        (["algorithm.kl_los=1"], f"algorithm.kl_los\n  got:  no such setting{LISTED}'kl_loss'?"),
        (["algorithm.entropy_bonu.coef=1"], f"algorithm.entropy_bonu.coef\n  got:  no such setting{LISTED}'entropy_b"),
        (["algorithm.modifier=[]"], f"algorithm.modifier\n  got:  no such setting{LISTED}'modifiers'?"),
        (["algorithm.clip_hig=1"], f"algorithm.clip_hig\n  got:  no such setting{LISTED}'clip_high'?"),
        (['algorithm.modifiers=["kl_los"]'], "algorithm.modifiers: unknown modifier 'kl_los'\n  do:   did you mean 'k"),
        (['algorithm.modifiers=["a.b:C"]'], "algorithm.modifiers: cannot find 'a.b:C'\n  got:  No module named 'a'"),
        (['algorithm."a.b:C"=1'], "algorithm.modifiers: cannot find 'a.b:C'\n  got:  No module named 'a'"),
        (['algorithm.modifiers=["purerl.algos.grpo"]'], "algorithm.modifiers: invalid modifier 'purerl.algos.grpo'\n"),
        (["algorithm.kind=grp", "algorithm.kl_loss=1"], "algorithm.kind: unknown algorithm 'grp'\n"),
        (["trainer.kl_loss=1"], "trainer.kl_loss\n  got:  no such setting\n"),
        (["kl_loss=1"], "kl_loss\n  got:  no such setting\n"),
        # unknown fields
        (["algorithm.kl_loss.cof=1"], f"algorithm.kl_loss.cof\n  got:  no such setting{LISTED}'coef'?"),
        (["algorithm.kl_loss={cof = 1}"], f"algorithm.kl_loss.cof\n  got:  no such setting{LISTED}'coef'?"),
        (['algorithm.modifiers=[{kind = "kl_loss", cof = 1}]'], "algorithm.kl_loss.cof\n  got:  no such setting"),
        ([f'algorithm."{OWN}:Scaled".facto=1'], f'algorithm."{OWN}:Scaled".facto\n  got:  no such setting{LISTED}\'fa'),
        # values
        (["algorithm.kl_loss=0"], "algorithm.kl_loss.coef\n  got:  0\n  need: a number above 0: without a target"),
        (["algorithm.kl_loss=many"], 'algorithm.kl_loss.coef\n  got:  "many"\n  need: a number\n'),
        (["algorithm.kl_loss=[1]"], "algorithm.kl_loss.coef\n  got:  [1]\n  need: a number\n"),
        (["algorithm.kl_loss.coef=-1"], "algorithm.kl_loss.coef\n  got:  -1.0\n  need: a number at least 0\n"),
        (["algorithm.kl_loss.estimator=k9"], "algorithm.kl_loss.estimator\n  got:  'k9'\n  need: one of: k3, k2,"),
        (["algorithm.kl_loss.coef.x=1"], "algorithm.kl_loss.coef"),
        (["algorithm.reduction=constant_norm"], "algorithm.reduction.length\n  got:  0, with by = constant_norm\n"),
        ([f'algorithm."{OWN}:Plain"=3'], f"algorithm.modifiers\n  got:  {OWN}:Plain = 3\n  need: true or false: {OWN}"),
        # the list
        (["algorithm.modifiers=kl_loss"], f'algorithm.modifiers\n  got:  "kl_loss"{LIST}'),
        (["algorithm.modifiers=[3]"], f"algorithm.modifiers\n  got:  [3]{LIST}"),
        (["algorithm.modifiers=[{coef = 1}]"], f'algorithm.modifiers\n  got:  [{{"coef": 1}}]{LIST}'),
        (["algorithm.modifiers=[{kind = 3}]"], f'algorithm.modifiers\n  got:  [{{"kind": 3}}]{LIST}'),
        (["algorithm.modifiers.kl_loss=1"], f'algorithm.modifiers\n  got:  {{"kl_loss": 1}}{LIST}'),
        (
            ['algorithm.modifiers=["kl_loss", "kl_loss"]'],
            "algorithm.modifiers\n  got:  2 of the kind 'kl_loss'\n  need: each kind at most once",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_refused_with_their_key(settings: list[str], message: str) -> None:
    assert error_of(GRPO, *settings).startswith(message)


def test_all_mistakes_are_reported_together() -> None:
    settings = ["clip_low=x", "kl_loss.coef=y", "entropy_bonus.cof=1", "dual_clip=z", "cllp=1"]
    lines = error_of(GRPO, *(f"algorithm.{setting}" for setting in settings)).splitlines()
    assert [line for line in lines if line.startswith(("algorithm", "  algorithm"))] == [
        "  algorithm.cllp = 1", "  algorithm.entropy_bonus.cof = 1",
        "algorithm.clip_low", "algorithm.kl_loss.coef", "algorithm.dual_clip.ratio",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            recipe_with(DUAL(), base=ppo.Config(clip_high=3.0)),
            f"algorithm.dual_clip{NO}ratio = 3\n  need: above the upper clip bound, 4{DO}dual_clip out",
        ),
        (
            recipe_with(KL(), base=deepseek_v3_2.Config(kl_loss=0.5)),
            f"algorithm.kl_loss{NO}a loss that has the term 'ref_kl'\n  need: a loss without it{DO}kl_loss out",
        ),
        (
            apply(recipe_with(base=dapo.Config()), [f'algorithm."{OWN}:Scaled".size=6']),
            f'algorithm."{OWN}:Scaled".size\n  got:  6.0\n  need: at most 5',
        ),
        (recipe_with(Plain.Config()), f'algorithm."{OWN}:Plain": this is not possible'),
    ],
)
def test_a_refusal_has_the_key_of_the_modifier(config: RunConfig, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        check(config)
    assert str(error.value) == message


def test_a_refused_modifier_exits_with_status_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ["--set", "algorithm.kind=rloo", "--set", "algorithm.dual_clip=3"]
    result = CliRunner().invoke(app, ["train", "addition", *settings])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: algorithm.dual_clip has no effect\n  got:  a loss without a clip\n")
    assert [*tmp_path.iterdir()] == []


def test_a_dry_run_prints_the_modifiers() -> None:
    settings = ["--set", GRPO, "--set", "algorithm.kl_loss=0.5", "--set", "algorithm.dual_clip=true", "--dry-run"]
    result = CliRunner().invoke(app, ["train", "addition", *settings])
    assert "# addition: grpo + kl_loss + dual_clip, 240 steps\n" in result.stdout
    config = from_dict(RunConfig, tomllib.loads(result.stdout))
    assert config == resolve("addition", [GRPO, "algorithm.kl_loss=0.5", "algorithm.dual_clip=true"])
