"""Every family of algorithms learns a small task from random weights, in seconds, with the Hugging Face engine.

With shuffled rewards about a seventh of the digits are correct. The bounds are far from that.
`benchmarks/families.py` does the same on the task of the default recipe, in minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from transformers import AutoModelForCausalLM, AutoTokenizer

from purerl.algos import (
    a_star_po,
    dapo,
    flowrl,
    gspo,
    kl_cov,
    opd,
    opd_top_k,
    otb,
    pf_ppo,
    ppo,
    prime,
    reinforce_plus_plus,
    remax,
    sft,
    sppo,
)
from purerl.config.schema import Role
from purerl.loop.train import Summary, train
from purerl.rollouts.settings import Overlong, Rollout
from purerl.settings import Model
from purerl.store.rollouts import read_rollouts
from purerl.store.settings import Checkpoint
from tests.backends.saved import saved_tensors

from . import shuffled
from .copying import copying, correct_digits

pytestmark = [pytest.mark.slow, pytest.mark.training]

LEARNED, NOT_LEARNED = 0.6, 0.25

FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "dapo": {"algorithm": dapo.Config()},
    "ppo": {"algorithm": ppo.Config()},
    "remax": {"algorithm": remax.Config(), "num_minibatches": 1, "max_steps": 90},
    "kl_cov": {"algorithm": kl_cov.Config()},
    "gspo": {"algorithm": gspo.Config()},
    "reinforce_plus_plus": {"algorithm": reinforce_plus_plus.Config()},
    "prime": {"algorithm": prime.Config(beta=0.5, process_coef=0.5)},
    "pf_ppo": {"algorithm": pf_ppo.Config()},
    "sppo": {"algorithm": sppo.Config(eta=2.0)},
    "otb": {"algorithm": otb.Config(), "num_minibatches": 1, "max_steps": 90},
    "flowrl": {"algorithm": flowrl.Config(beta=2.0)},
    "a_star_po": {
        "algorithm": a_star_po.Config(beta=0.05),
        "prepare_data": "tests.recipes.copying:prepare_with_values",
        "data": "{run}/prepared/values.parquet",
        "rollout": Rollout(samples_per_prompt=1, max_tokens=2),  # no baseline of a group
        "batch_size": 256,
    },
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Summary]:
    """A function that returns the run of a family. Each run is done once."""
    summaries: dict[str, Summary] = {}

    def find(family: str) -> Summary:
        if family not in summaries:
            directory = tmp_path_factory.mktemp(family) / "run"
            summaries[family] = train(copying(**FAMILIES[family]), directory=directory)
        return summaries[family]

    return find


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_learns_from_rewards(family: str, run: Callable[[str], Summary]) -> None:
    summary = run(family)
    assert summary.before["eval/reward"] < NOT_LEARNED
    assert summary.after["eval/reward"] > LEARNED


def test_nothing_is_learned_from_shuffled_rewards(tmp_path: Path) -> None:
    summary = train(copying(algorithm=shuffled.Config()), directory=tmp_path / "run")
    assert summary.after["eval/reward"] < NOT_LEARNED


@pytest.mark.parametrize("penalty", [0.0, 0.5])
def test_remax_subtracts_the_score_of_the_greedy_completion_of_the_current_policy(
    tmp_path: Path, penalty: float
) -> None:
    config = copying(algorithm=remax.Config(), num_minibatches=1, max_steps=5, checkpoint=Checkpoint(every=1, keep=5))
    if penalty:  # for completions of two tokens, the maximum
        config = evolve(config, rollout=evolve(config.rollout, overlong=Overlong(buffer=1, factor=penalty)))
    run = train(evolve(config, trainer=evolve(config.trainer, lr=1e-2, lr_scheduler="constant")), directory=tmp_path)
    rows = _last_rollouts(run)
    assert all(len({a for a, m in zip(row["advantage"], row["mask"], strict=True) if m}) == 1 for row in rows)
    scores = [sum(row["reward"]) - penalty * (sum(row["action"]) == 2) for row in rows]
    baselines = {row["prompt"]: score - row["advantage"][-1] for row, score in zip(rows, scores, strict=True)}
    assert baselines == _greedy_scores(tmp_path, 4, baselines, penalty)
    assert baselines != _greedy_scores(tmp_path, 3, baselines, penalty)


def test_distillation_learns_from_the_teacher_only(tmp_path: Path) -> None:
    teacher = train(copying(algorithm=sft.Config(), rollout=None, seed=1), directory=tmp_path / "teacher")
    model = Model(str(teacher.model))
    top_k = evolve(copying(algorithm=sft.Config()).trainer, top_k=4)
    for algorithm, role in {opd: Role(model=model), opd_top_k: Role(model=model, trainer=top_k)}.items():
        config = copying(algorithm=algorithm.Config(), roles={"teacher": role})
        student = train(config, directory=tmp_path / algorithm.__name__)
        assert student.before["eval/reward"] < NOT_LEARNED
        assert student.after["eval/reward"] > LEARNED


def test_the_critic_predicts_the_reward(run: Callable[[str], Summary]) -> None:
    rows = _last_rollouts(run("ppo"))
    assert _correlation([row["old_value"][-1] for row in rows], _rewards(rows)) > 0.25


def test_the_reward_model_of_prime_learns_the_reward_online(run: Callable[[str], Summary]) -> None:
    rows = _last_rollouts(run("prime"))
    implicit = [sum(row["reward_model_logp"]) - sum(row["ref_logp"]) for row in rows]
    assert _correlation(implicit, _rewards(rows)) > 0.5  # of 256 rows: chance gives 0.06


def _last_rollouts(summary: Summary) -> list[dict[str, Any]]:
    return read_rollouts(summary.directory / "rollouts", summary.steps)


def _greedy_scores(run: Path, step: int, prompts: Iterable[str], penalty: float) -> dict[str, float]:
    """The score of the greedy completion of each of `prompts` after `step` of `run`, sampled with transformers.

    `penalty` is subtracted from the score of a completion of two tokens.
    """
    prepared = run / "prepared" / "model"
    policy, tokenizer = AutoModelForCausalLM.from_pretrained(prepared), AutoTokenizer.from_pretrained(prepared)
    weights = saved_tensors(run / "checkpoints" / f"{step:06d}" / "policy", "weights.")
    policy.load_state_dict({name.removeprefix("model."): weight for name, weight in weights.items()})
    texts = list(prompts)
    tokens = policy.generate(**tokenizer(texts, return_tensors="pt"), max_new_tokens=2, do_sample=False)
    completions = tokenizer.batch_decode(tokens[:, 3:], skip_special_tokens=True)
    penalties = (penalty * (tokens[:, 3] != tokenizer.eos_token_id)).tolist()
    return {
        text: correct_digits(completion, {"prompt": text}) - subtracted
        for text, completion, subtracted in zip(texts, completions, penalties, strict=True)
    }


def _rewards(rows: list[dict[str, Any]]) -> list[float]:
    return [sum(row["reward"]) for row in rows]


def _correlation(a: list[float], b: list[float]) -> float:
    return float(torch.corrcoef(torch.tensor([a, b]))[0, 1])
