"""Runs with a curriculum: the prompts that they draw, resume, repeated prompts, retirement, and refusals."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve

from purerl.algos import codapo, grpo
from purerl.algos.modifiers import bypass, group_filter
from purerl.composition import Composition
from purerl.config.check import check_settings
from purerl.config.schema import RunConfig
from purerl.data.curriculum import importance_weights, probabilities
from purerl.data.curriculum_settings import Curriculum
from purerl.errors import ConfigError, DataError
from purerl.loop.train import Summary, train
from purerl.replay import measure, notes, open_recording, replay
from purerl.rewards.settings import Reward
from purerl.store.checkpoint import newest, restore
from purerl.store.rollouts import read_rollouts
from tests.data.made import write

from .runs import records, train_until, without_times
from .small import fake

SIX = [{"prompt": f"{k}+{k}=", "answer": f"{2 * k:03}"} for k in range(6)]


def config(folder: Path, max_steps: int = 6, *, rows: list[dict[str, Any]] = SIX, **changes: Any) -> RunConfig:
    """A run on six prompts, four of which are drawn in each step, with a checkpoint of every second one."""
    settings = {"evaluate": None, "num_minibatches": 1, "max_steps": max_steps} | changes
    curriculum = settings.pop("curriculum", Curriculum(solved_at=0.2, uniform_share=0.3))
    data = evolve(fake().data, files=(write(folder / "six.parquet", rows),), curriculum=curriculum)
    return fake(data=evolve(data, validation_fraction=None), **settings)


def drawn(run: Summary, step: int) -> dict[int, int]:
    """The example of each group of a step."""
    return {row["group"]: row["example"] for row in read_rollouts(run.directory / "rollouts", step)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, Summary]:
    """A run of six steps without an interruption, two of whose groups are sampled in advance."""
    folder = tmp_path_factory.mktemp("whole")
    rollout, algorithm = evolve(fake().rollout, max_staleness=1), Composition(grpo.Config(), (bypass.Config(),))
    settings = config(folder, rollout=rollout, algorithm=algorithm)
    return settings, train(settings, directory=folder / "run")


def test_every_row_has_the_weight_of_its_draw_given_what_was_known(whole: tuple[RunConfig, Summary]) -> None:
    """The first draws are uniform. Later weights are those of the attempts in the steps before the draw."""
    settings, run = whole
    assert settings.data.curriculum is not None
    solved, attempts = torch.zeros(6).double(), torch.zeros(6).double()
    weights = [importance_weights(probabilities(settings.data.curriculum, solved, attempts))]
    for step in range(1, 7):
        rows = read_rollouts(run.directory / "rollouts", step)
        for row in rows:
            known = weights[
                max(0, step - 2)
            ]  # a draw of the step before the last one has been decided one step earlier
            assert row["draw_weight"] == pytest.approx(float(known[row["example"]]), rel=1e-6)
            solved[row["example"]] += sum(row["reward"]) >= 0.2
            attempts[row["example"]] += 1
        weights.append(importance_weights(probabilities(settings.data.curriculum, solved, attempts)))
    assert len({round(float(w), 6) for w in weights[-1]}) > 1
    assert records(run)[-1]["curriculum/tried"] == int((attempts > 0).sum())


@pytest.mark.parametrize("step", [2, 3, 4])
def test_a_resumed_run_is_the_same_bit_for_bit(whole: tuple[RunConfig, Summary], step: int, tmp_path: Path) -> None:
    settings, run = whole
    train_until(step, settings, directory=tmp_path / "run")
    resumed = train(settings, directory=tmp_path / "run")
    assert without_times(records(resumed)) == without_times(records(run))
    for number in range(1, 7):
        assert read_rollouts(resumed.directory / "rollouts", number) == read_rollouts(
            run.directory / "rollouts", number
        )
    states = [restore(newest(each.directory / "checkpoints") or Path(), {})["curriculum"] for each in (resumed, run)]
    assert repr(states[0]) == repr(states[1])
    assert states[0]["decided"], "the draws that are in flight"


def test_a_replay_shows_which_prompts_were_drawn(whole: tuple[RunConfig, Summary]) -> None:
    """And gives the advantages of the run bit for bit, whose loss has the weights of the draws."""
    _, run = whole
    recording = open_recording(run.directory)
    numbers = [measure(step) for step in replay(recording)]
    assert [each.prompts for each in numbers] == [[*drawn(run, step).values()] for step in range(1, 7)]
    assert all(each.is_exact for each in numbers)
    different = len({prompt for each in numbers for prompt in each.prompts})
    assert f"the groups are 24 draws of {different} prompts; --json lists them by step" in notes(
        recording, recording.algorithm, numbers, ()
    )


def test_bands_get_their_shares(tmp_path: Path) -> None:
    """With a share of 0, the prompts that are never solved are not drawn again once they are hard."""
    curriculum = Curriculum(by="bands", shares=(0, 1, 0), unbiased=False, solved_at=9.0)
    run = train(config(tmp_path, max_steps=4, curriculum=curriculum), directory=tmp_path / "run")
    counts = Counter(example for step in range(1, 4) for example in drawn(run, step).values())
    last = records(run)[-1]
    assert last["curriculum/hard"] + last["curriculum/normal"] == 6
    tried_before_the_last = {example for step in (1, 2) for example in drawn(run, step).values()}
    if len(tried_before_the_last) < 6:
        assert not tried_before_the_last & {*drawn(run, 3).values()}
    assert sum(counts.values()) == 12
    assert "draw_weight" not in read_rollouts(run.directory / "rollouts", 1)[0]


def test_a_retired_prompt_is_not_drawn_again_and_a_run_without_prompts_ends(tmp_path: Path) -> None:
    """Every completion solves its prompt, so each prompt is retired after its first group of four."""
    curriculum = Curriculum(by="uniform", solved_at=-1.0, retire_above=0.9, retire_after=4)
    with pytest.raises(DataError, match="no prompt can be drawn\n  got:  6 prompts, all of which are retired"):
        train(config(tmp_path, max_steps=9, curriculum=curriculum), directory=tmp_path / "run")
    metrics = records(tmp_path / "run")
    assert [record["curriculum/retired"] for record in metrics[1:]][-1] == 6
    seen: set[int] = set()
    for step in range(1, len(metrics)):
        examples = {row["example"] for row in read_rollouts(tmp_path / "run" / "rollouts", step)}
        assert not examples & seen
        seen |= examples
    assert seen == {*range(6)}


def codapo_config(folder: Path, **changes: Any) -> RunConfig:
    rewards = (Reward("tests.loop.rewards:digits"), Reward("tests.loop.rewards:first_is_even", 0.0, name="correctness"))
    curriculum = Curriculum(by="uniform", unbiased=False, focus=2)
    rows = [{"prompt": f"{k}+{9 - k}=", "answer": "009"} for k in range(10)]
    return config(
        folder, rows=rows, **{"algorithm": codapo.Config(), "rewards": rewards, "curriculum": curriculum} | changes
    )


def test_codapo_repeats_the_most_valuable_prompts_in_every_other_step(tmp_path: Path) -> None:
    """Two prompts of a step, in turn, with other draws and new completions; then fresh ones."""
    run = train(codapo_config(tmp_path), directory=tmp_path / "run")
    examples = [[*drawn(run, step).values()] for step in range(1, 7)]
    groups = [[*drawn(run, step)] for step in range(1, 7)]
    assert groups == [[*range(4 * k, 4 * k + 4)] for k in range(6)]
    for first, second in ((0, 1), (2, 3), (4, 5)):
        repeated = examples[second]
        assert {*repeated} <= {*examples[first]}
        assert repeated == [*repeated[:2], *repeated[:2]]
        values = _values(run, first + 1)
        assert [values[example] for example in repeated[:2]] == sorted(values.values(), reverse=True)[:2]
    assert [record["curriculum/repeats_next"] for record in records(run)[1:]] == [1, 0, 1, 0, 1, 0]


def _values(run: Summary, step: int) -> dict[int, float]:
    """c (1 - 4 (d - 1/2)^2) of each prompt of a step, in plain Python."""
    rows: dict[int, list[dict[str, Any]]] = {}
    for row in read_rollouts(run.directory / "rollouts", step):
        rows.setdefault(row["example"], []).append(row)
    values = {}
    for example, of_prompt in rows.items():
        means = [
            sum(logp for logp, m in zip(row["rollout_logp"], row["mask"], strict=True) if m) / sum(row["mask"])
            for row in of_prompt
        ]
        c = torch.tensor(sum(means) / len(means)).exp()
        d = 1 - sum(row["correctness"] >= 0.5 for row in of_prompt) / len(of_prompt)
        values[example] = round(float(c) * (1 - 4 * (d - 0.5) ** 2), 5)
    return values


@pytest.mark.parametrize("step", [3, 4])
def test_codapo_resumes_within_a_focused_phase(step: int, tmp_path: Path) -> None:
    settings = codapo_config(tmp_path)
    whole = train(settings, directory=tmp_path / "whole")
    train_until(step, settings, directory=tmp_path / "run")
    resumed = train(settings, directory=tmp_path / "run")
    assert without_times(records(resumed)) == without_times(records(whole))


def test_codapo_without_a_component_of_correctness_is_refused(tmp_path: Path) -> None:
    settings = codapo_config(tmp_path, rewards=("tests.loop.rewards:digits",))
    with pytest.raises(ConfigError, match="the algorithm reads 'correctness'\n  got:  no such component"):
        train(settings, directory=tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout": evolve(fake().rollout, max_staleness=1)}, "rollout.max_staleness\n  got:  1\n  need: 0 with"),
        (
            {"algorithm": Composition(grpo.Config(), (group_filter.Config(),))},
            "the algorithm\n  got:  a filter of groups\n  need: an algorithm that keeps all groups",
        ),
    ],
)
def test_repeated_prompts_that_cannot_be_chosen_are_refused(changes, message, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        check_settings(codapo_config(tmp_path, **changes))


def test_a_curriculum_without_completions_or_in_a_fixed_order_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="order has no effect\n  got:  'sequential'"):
        evolve(config(tmp_path).data, order="sequential")
