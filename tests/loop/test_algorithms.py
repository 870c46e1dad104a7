"""Every algorithm in a small run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from tensordict import TensorDict

from purerl.algos import dapo, opd_top_k, prime, remax, reward_model, turn_credit
from purerl.algos.algebra import Algorithm, prepare_step, reads_of, roles
from purerl.algos.modifiers import importance_weight
from purerl.algos.parts.behavior import has_policy_ratio
from purerl.backends.fake import trainer as fake_trainer
from purerl.batch import FIELDS, empty_batch
from purerl.composition import Composition
from purerl.config.check import check
from purerl.config.schema import Role, RunConfig
from purerl.errors import ConfigError
from purerl.loop.train import Summary, train
from purerl.plugins import find, names
from purerl.recipes.addition import character_tokenizer
from purerl.rewards.settings import Reward
from purerl.rollouts.check import needs_rollouts
from purerl.rollouts.filtering import NAMED_COMPONENTS
from purerl.store.rollouts import read_rollouts
from tests.data.made import write

from .dialogs import TURNS, TWO_PLAYERS, game, rerendered
from .runs import losses, records
from .small import fake, small_real


def _answers(path: Path) -> str:
    """Rows with the columns of preferences, of demonstrations and of labeled completions, and with values."""
    texts = {"chosen": "{sum}", "rejected": "+", "completion": "{sum}"}
    return write(
        path,
        [
            {
                "prompt": f"{k}+{k}=",
                "label": k % 2 == 0,
                "answer": f"{2 * k}",
                "optimal_value": k / 4,
                **{name: text.format(sum=2 * k) for name, text in texts.items()},
            }
            for k in range(5)
        ],
    )


def _changes(algorithm: Algorithm, folder: Path) -> dict[str, Any]:
    """Settings that `algorithm` needs beside those of the small run: other data, one optimizer step, or a teacher."""
    changes = {} if needs_rollouts(algorithm) else {"rollout": None, "data": _answers(folder / "answers.parquet")}
    if not has_policy_ratio(algorithm):
        changes["num_minibatches"] = 1
    if "optimal_value" in reads_of(algorithm):
        changes["data"] = _answers(folder / "values.parquet")
    if "teacher" in roles(algorithm, FIELDS):
        # The fake engine draws the weights of a model from its path, so the teacher differs from the policy.
        character_tokenizer().save_pretrained(folder / "teacher")
        changes["roles"] = {"teacher": Role(model=str(folder / "teacher"))}
    reads = reads_of(algorithm)
    if {"anchor", "progress", "role"} & {*reads}:
        fields = {"has_states": "anchor" in reads, "has_scores": "progress" in reads}
        environment = game(**fields, **(TWO_PLAYERS if "role" in reads else {}))
        changes |= {"environment": environment, "rewards": ()}
    if named := [name for name in NAMED_COMPONENTS if name in reads]:
        others = [Reward("tests.loop.rewards:first_is_even", weight=0.0, name=name) for name in named]
        changes["rewards"] = (Reward("tests.loop.rewards:digits"), *others)
    return changes


# The fake classifier reads only the last token, which is the same in both rows of a pair. A real one is tested below.
@pytest.mark.parametrize("name", sorted({*names("algorithm")} - {"reward_model"}))
def test_algorithm_trains(name: str, tmp_path: Path) -> None:
    module = find("algorithm", name)
    rollout = evolve(fake().rollout, samples_per_prompt=8)
    changes = {"rollout": rollout} | _changes(module.algorithm(), tmp_path)
    evaluate = None if changes["rollout"] else fake().evaluate  # else the generator has no effect
    config = fake(3, algorithm=module.Config(), evaluate=evaluate, **changes)
    _check_trained(train(config, directory=tmp_path / "run"), module.algorithm())


@pytest.mark.parametrize(("name", "field"), [("gigpo", "anchor"), ("rae", "role"), ("turn_credit", "progress")])
def test_algorithm_without_its_environment_is_refused_with_the_missing_field(name: str, field: str) -> None:
    algorithm = find("algorithm", name).Config()
    for environment in ({}, {"environment": game(), "rewards": ()}):
        with pytest.raises(ConfigError, match=f"the field '{field}' .* written by an environment"):
            check(fake(algorithm=algorithm, **environment))


def test_greedy_baseline_is_an_episode_of_the_environment(tmp_path: Path) -> None:
    changes = _changes(remax.algorithm(), tmp_path)
    config = fake(3, algorithm=remax.Config(), environment=game(), rewards=(), evaluate=None, **changes)
    _check_trained(train(config, directory=tmp_path / "run"), remax.algorithm())


@pytest.mark.parametrize("name", ["dapo", "echo", "gdpo", "grpo", "gspo", "kl_cov", "ppo", "spo", "sppo"])
def test_algorithm_trains_on_episodes_of_several_rows(name: str, tmp_path: Path) -> None:
    """Estimators of groups, with a filter, of components and of pairs; a critic, a baseline with a state, ratios."""
    module = find("algorithm", name)
    rewards = ("tests.loop.rewards:first_is_even",) if name == "gdpo" else ()
    steps = {} if has_policy_ratio(module.algorithm()) else {"num_minibatches": 1, "max_steps": 4}
    config = rerendered(algorithm=module.Config(), rewards=rewards, **steps)
    if name == "dapo":  # so that some groups have two equal rewards
        config = evolve(config, rollout=evolve(config.rollout, samples_per_prompt=2))
    summary = train(config, directory=tmp_path / "run")
    _check_trained(summary, module.algorithm())
    if name == "echo":
        assert all(record["policy/loss/observation"] > 0 for record in records(summary)[1:])
    for record in records(summary)[1:]:
        assert 2 < record["environment/rows"] < TURNS
        assert record["rollout/failed"] == 0
    kept = {record["rollout/kept_fraction"] < 1 for record in records(summary)[1:]}
    assert kept == {False} if name != "dapo" else True in kept, "DAPO drops groups without a spread of rewards"


def test_a_filter_selects_episodes_before_models_score_what_a_modifier_reads(tmp_path: Path) -> None:
    config = rerendered(algorithm=Composition(dapo.Config(), (importance_weight.Config(),)))
    config = evolve(config, rollout=evolve(config.rollout, samples_per_prompt=2))
    summary = train(config, directory=tmp_path / "run")
    assert records(summary)[-1]["rollout/kept_fraction"] > 0


def _check_trained(summary: Summary, algorithm: Algorithm) -> None:
    metrics = records(summary)
    assert [record["step"] for record in metrics] == [*range(summary.steps + 1)]
    assert all(math.isfinite(value) for record in metrics for value in record.values())
    for role in {objective.role for objective in algorithm.objectives}:
        assert max(record.get(f"{role}/grad_norm", 0) for record in metrics[1:]) > 0


@pytest.mark.parametrize("name", ["flowrl", "opd_top_k", "otb"])
def test_algorithm_with_special_outputs_trains_a_transformers_model(
    name: str, other_model: Path, tmp_path: Path
) -> None:
    module = find("algorithm", name)
    teacher = Role(model=str(other_model), trainer=evolve(small_real().trainer, top_k=8))
    has_teacher = "teacher" in roles(module.algorithm(), FIELDS)
    # As many optimizer steps with one mini-batch as with two, because the trainer warms up in the first two.
    steps = {} if has_policy_ratio(module.algorithm()) else {"num_minibatches": 1, "max_steps": 4}
    changes = {"roles": {"teacher": teacher} if has_teacher else {}} | steps
    config = small_real(algorithm=module.Config(), evaluate=None, **changes)
    _check_trained(train(config, directory=tmp_path / "run"), module.algorithm())


def test_reward_model_trains_a_transformers_model(tmp_path: Path) -> None:
    changes = {**_changes(reward_model.algorithm(), tmp_path), "num_minibatches": 1, "max_steps": 4}
    config = small_real(algorithm=reward_model.Config(), evaluate=None, rewards=(), generator=None, **changes)
    _check_trained(train(config, directory=tmp_path / "run"), reward_model.algorithm())


def test_model_that_has_not_changed_is_scored_once_in_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PRIME reads `ref_logp` before and after it trains the reward model, but the reference model is not trained."""
    score, scored = fake_trainer.FakeTrainer.score, list[tuple[str, ...]]()

    def counted(self: Any, batch: TensorDict, outputs: tuple[str, ...]) -> TensorDict:
        scored.append((*outputs,))
        return score(self, batch, outputs)

    monkeypatch.setattr(fake_trainer.FakeTrainer, "score", counted)
    train(fake(algorithm=prime.Config(), max_steps=1, evaluate=None), directory=tmp_path / "run")
    of_step = scored[2:]  # after those of the check before the first step
    assert of_step == [("logp",)] * 3, "of the reference model, the trained reward model, and the policy"


def test_distillation_from_distributions_learns_from_rollouts_or_from_data() -> None:
    config: RunConfig = fake(algorithm=opd_top_k.Config(), roles={"teacher": Role(model="{run}/teacher")})
    check(config)
    check(evolve(config, rollout=None))


@pytest.mark.parametrize("name", names("algorithm"))
def test_optimizer_step_without_rows_changes_no_weights(name: str) -> None:
    algorithm = find("algorithm", name).algorithm()
    for objective in (*algorithm.before, *algorithm.objectives):
        trainer = fake_trainer.build(
            fake().trainer, model=fake().model, role=objective.role, outputs=objective.outputs, updates=1, seed=0
        )
        before = {key: weight.clone() for key, weight in trainer.weights()}
        prepared, counts = prepare_step(objective, empty_batch())
        trainer.step(prepared, objective, counts)
        assert all(torch.equal(weight, before[key]) for key, weight in trainer.weights())


@pytest.mark.parametrize("name", ["sft", "dpo"])
def test_learning_from_data_needs_no_generator_and_no_rewards(name: str, tmp_path: Path) -> None:
    absent = {"rollout": None, "generator": None, "rewards": (), "evaluate": None}
    algorithm = find("algorithm", name).Config()
    config = fake(algorithm=algorithm, data=_answers(tmp_path / "answers.parquet"), max_steps=30, **absent)
    summary = train(config, directory=tmp_path / "run")
    values = losses(records(summary))
    assert values[-1] < 0.8 * values[0]
    assert not (summary.directory / "rollouts").exists()


def test_turn_credit_gets_the_changes_of_the_score_of_the_state(tmp_path: Path) -> None:
    """The field `progress` from the rewards of the turns, whose sum is the score, and the advantages from it."""
    algorithm = turn_credit.Config(credit_coef=0.5, decay=0.5)
    changes = {"environment": game(has_scores=True), "rewards": (), "evaluate": None, "num_minibatches": 1}
    rollout = evolve(fake().rollout, samples_per_prompt=8, stop_strings=("1", "3", "5", "7", "9"))
    changes |= {"rollout": rollout, "batch_size": 16}
    run = train(fake(1, algorithm=algorithm, **changes), directory=tmp_path / "run")
    rows = read_rollouts(run.directory / "rollouts", 1)
    totals: dict[int, list[float]] = {}
    for row in rows:
        (first, second, third), progress = _by_turn(row, "reward"), _by_turn(row, "progress")
        is_cut = max(row["turn"]) < 2 or (row["truncated"] and not third)
        # After the second turn the score is not known, and a turn that is cut has none.
        assert progress == [first, 0, 0 if is_cut and not progress[2] else second + third]
        totals.setdefault(row["group"], []).append(sum(row["reward"]) + sum(progress))
    assert any(_by_turn(row, "progress")[2] for row in rows)
    for row in rows:
        tokens = [turn for turn, is_action in zip(row["turn"], row["action"], strict=True) if is_action]
        credit = _credit(_by_turn(row, "progress"), 0.5)
        mean = sum(credit[turn] for turn in tokens) / len(tokens)
        of_group = totals[row["group"]]
        centered = sum(row["reward"]) + sum(row["progress"]) - sum(of_group) / len(of_group)
        expected = [centered + 0.5 * (credit[turn] - mean) for turn in tokens]
        actual = [a for a, is_action in zip(row["advantage"], row["action"], strict=True) if is_action]
        assert actual == pytest.approx(expected, abs=1e-5)


def _by_turn(row: dict[str, Any], name: str) -> list[float]:
    return [sum(x for x, turn in zip(row[name], row["turn"], strict=True) if turn == k) for k in range(TURNS)]


def _credit(progress: list[float], decay: float) -> list[float]:
    """Each change divided among its turn and those before it, in the proportions 1 : decay : decay^2 : ..."""
    credit = [0.0] * len(progress)
    for k, change in enumerate(progress):
        total = sum(decay**distance for distance in range(k + 1))
        for j in range(k + 1):
            credit[j] += change * decay ** (k - j) / total
    return credit
