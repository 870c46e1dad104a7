"""Every family of algorithms learns, in the loop and with the real engine, from random weights, in seconds.

The bound is far from what a run that learns nothing comes to: shuffled rewards leave it at a seventh of the digits.
`benchmarks/families.py` does the same on the task of the default recipe, for minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from purerl.algos import dapo, gspo, kl_cov, opd, pf_ppo, ppo, prime, reinforce_plus_plus, remax, sft, sppo
from purerl.config.schema import Checkpoint, Overlong
from purerl.loop.train import Summary, train
from purerl.protocols import Model
from purerl.store.rollouts import read_rollouts

from . import shuffled
from .copying import copying, right_digits

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
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Summary]:
    """The run of a family, done when it is first asked for."""
    done: dict[str, Summary] = {}

    def find(family: str) -> Summary:
        if family not in done:
            directory = tmp_path_factory.mktemp(family) / "run"
            done[family] = train(copying(**FAMILIES[family]), directory=directory)
        return done[family]

    return find


@pytest.mark.parametrize("family", FAMILIES)
def test_it_learns_from_its_rewards(family: str, run: Callable[[str], Summary]) -> None:
    summary = run(family)
    assert summary.before["eval/reward"] < NOT_LEARNED
    assert summary.after["eval/reward"] > LEARNED


def test_shuffled_rewards_teach_nothing(tmp_path: Path) -> None:
    summary = train(copying(algorithm=shuffled.Config()), directory=tmp_path / "run")
    assert summary.after["eval/reward"] < NOT_LEARNED


@pytest.mark.parametrize("penalty", [0.0, 0.5])
def test_remax_subtracts_the_score_of_the_greedy_completion_of_the_policy_as_it_is(
    tmp_path: Path, penalty: float
) -> None:
    config = copying(algorithm=remax.Config(), num_minibatches=1, max_steps=5, checkpoint=Checkpoint(every=1, keep=5))
    if penalty:  # for completions of two tokens, the most that there may be
        config = evolve(config, rollout=evolve(config.rollout, overlong=Overlong(buffer=1, factor=penalty)))
    run = train(evolve(config, trainer=evolve(config.trainer, lr=1e-2, lr_scheduler="constant")), directory=tmp_path)
    rows = _last_rollouts(run)
    assert all(len({a for a, m in zip(row["advantage"], row["mask"], strict=True) if m}) == 1 for row in rows)
    baselines = {row["prompt"]: sum(row["reward"]) - row["advantage"][-1] for row in rows}
    assert baselines == _greedy_scores(tmp_path, 4, baselines, penalty)
    assert baselines != _greedy_scores(tmp_path, 3, baselines, penalty)


def test_distillation_learns_from_the_teacher_alone(tmp_path: Path) -> None:
    teacher = train(copying(algorithm=sft.Config(), rollout=None, seed=1), directory=tmp_path / "teacher")
    student = train(copying(algorithm=opd.Config(), teacher=Model(str(teacher.model))), directory=tmp_path / "student")
    assert student.before["eval/reward"] < NOT_LEARNED
    assert student.after["eval/reward"] > LEARNED


def test_the_critic_foresees_the_reward(run: Callable[[str], Summary]) -> None:
    rows = _last_rollouts(run("ppo"))
    assert _correlation([row["old_value"][-1] for row in rows], _rewards(rows)) > 0.25


def test_the_reward_model_has_learned_online_what_is_rewarded(run: Callable[[str], Summary]) -> None:
    rows = _last_rollouts(run("prime"))
    implicit = [sum(row["reward_model_logp"]) - sum(row["ref_logp"]) for row in rows]
    assert _correlation(implicit, _rewards(rows)) > 0.5  # of 256 rows: chance gives 0.06


def _last_rollouts(summary: Summary) -> list[dict[str, Any]]:
    return read_rollouts(summary.directory / "rollouts", summary.steps)


def _greedy_scores(run: Path, step: int, prompts: Iterable[str], penalty: float) -> dict[str, float]:
    """What the greedy completion of each of `prompts` scores after `step` of `run`, by transformers alone.

    `penalty` is what one of two tokens loses.
    """
    prepared = run / "prepared" / "model"
    policy, tokenizer = AutoModelForCausalLM.from_pretrained(prepared), AutoTokenizer.from_pretrained(prepared)
    weights = load_file(run / "checkpoints" / f"{step:06d}" / "policy" / "weights.safetensors")
    policy.load_state_dict({name.removeprefix("causal."): weight for name, weight in weights.items()})
    texts = list(prompts)
    tokens = policy.generate(**tokenizer(texts, return_tensors="pt"), max_new_tokens=2, do_sample=False)
    completions = tokenizer.batch_decode(tokens[:, 3:], skip_special_tokens=True)
    lost = (penalty * (tokens[:, 3] != tokenizer.eos_token_id)).tolist()
    return {
        text: right_digits(answer, {"prompt": text}) - less
        for text, answer, less in zip(texts, completions, lost, strict=True)
    }


def _rewards(rows: list[dict[str, Any]]) -> list[float]:
    return [sum(row["reward"]) for row in rows]


def _correlation(one: list[float], other: list[float]) -> float:
    return float(torch.corrcoef(torch.tensor([one, other]))[0, 1])
