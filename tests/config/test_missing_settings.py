"""Settings that are missing: all of them in one message, each with the line to write; and limits of evaluations."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from attrs import evolve

from purerl.config.check import check
from purerl.config.overrides import apply
from purerl.errors import ConfigError
from purerl.evaluation.settings import Evaluate
from purerl.recipes import settle
from purerl.recipes.addition import addition

EMPTY = ["name", "model", "data", "algorithm", "batch_size", "trainer", "max_steps"]
SAMPLING = ["rollout", "generator", "rewards"]
START = 'name = "x"\nmodel = "m"\ndata = "d.jsonl"\nbatch_size = 4\ntrainer = "hf"\nmax_steps = 3\n'


def _missing(folder: Path, text: str) -> dict[str, str]:
    """The settings that are missing in the TOML file, and the remedies."""
    (folder / "run.toml").write_text(text)
    with pytest.raises(ConfigError) as error:
        settle(str(folder / "run.toml"), (), check)
    first, *lines = str(error.value).splitlines()
    lines = lines if first.endswith("run.toml'") else [first, *lines]
    names = [line.removesuffix(" is missing") for line in lines if line.endswith(" is missing")]
    return dict(zip(names, [line[8:] for line in lines if line.startswith("  do:   ")], strict=True))


def test_everything_that_is_missing_is_listed_with_a_line_to_write(tmp_path: Path) -> None:
    assert [*_missing(tmp_path, "seed = 3")] == EMPTY
    found = _missing(tmp_path, 'algorithm = "grpo"')
    assert [*found] == [name for name in EMPTY if name != "algorithm"] + SAMPLING
    lines = [remedy.removeprefix("write ") for remedy in found.values()]
    assert tomllib.loads("\n".join(lines)).keys() == found.keys()
    assert found["generator"] == 'write generator = "hf"'
    assert [*_missing(tmp_path, 'algorithm = "sft"')] == [name for name in EMPTY if name != "algorithm"]


def test_sections_of_sampling_are_listed_together(tmp_path: Path) -> None:
    text = START + 'algorithm = "grpo"\n[rollout]\nmax_tokens = 4\n'
    assert _missing(tmp_path, text) == {
        "rollout.samples_per_prompt": "write samples_per_prompt = 8 in [rollout]",
        "generator": 'write generator = "hf"',
        "rewards": 'write rewards = ["my_rewards.py:correct"]',
    }
    assert [*_missing(tmp_path, text + "samples_per_prompt = 2\n")] == ["generator", "rewards"]


def test_an_evaluation_has_the_limit_of_the_rollout() -> None:
    config = apply(addition(), ["evaluate.max_tokens=", "rollout.max_tokens=7"])
    assert (config.evaluate.max_tokens, config.evaluation.max_tokens) == (None, 7)
    check(config)
    assert apply(config, ["evaluate.max_tokens=3"]).evaluation.max_tokens == 3
    without = evolve(config, rollout=None, evaluate=Evaluate(data="d.jsonl"))
    assert without.evaluation == without.evaluate
    with pytest.raises(ConfigError, match=r"^evaluate.max_tokens is missing\n.*no rollout"):
        check(apply(without, ["algorithm=sft"]))
