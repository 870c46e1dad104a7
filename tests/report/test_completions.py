"""Selection of completions for the report: full groups from evenly spaced steps, within a size limit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models

from purerl.report.completions import NO_COMPLETIONS, select_completions
from purerl.store.rollouts import total_reward
from tests.report.sample_runs import make_evaluation, make_run

GROUPS = [(f"{number}+1=", ["1", "2", "10"]) for number in range(8)]


def _group_bytes(selection: dict) -> int:
    return sum(len(json.dumps(group).encode()) for group in selection["groups"])


def test_row_contains_its_fields_its_text_and_its_values_per_token(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1, groups=[("a=", ["é", "b"])])
    (group,) = select_completions(run, max_bytes=10**6)["groups"]
    assert (group["step"], group["group"], group["prompt"], group["size"]) == (1, 0, "a=", 2)
    assert group["mean_reward"] == 0.5
    assert group["prompt_tokens"]["text"] == ["a", "="]
    first, second = group["rows"]
    assert (first["completion"], first["finish"], first["reward"]) == ("é", "stop", 1)
    fields = first["per_token"]
    assert fields["text"] == ["", "é", "<end>"]
    assert fields["rollout_logp"] == [-0.1, -0.2, -0.3]
    assert fields["old_logp"] == [-0.09, -0.19, -0.29]
    assert (fields["advantage"], second["per_token"]["advantage"]) == (0.5, -0.5), "equal values are stored once"
    assert (fields["action"], fields["mask"], fields["reward"]) == (True, True, [0, 0, 1])


def test_row_without_a_reward_is_not_counted_as_0(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1, groups=[("a=", ["1", "2", "3"]), ("b=", ["4"])], unrewarded=("2", "4"))
    first, second = select_completions(run, max_bytes=10**6)["groups"]
    assert ([row["reward"] for row in first["rows"]], first["mean_reward"]) == ([1, None, 0], 0.5)
    assert ([row["reward"] for row in second["rows"]], second["mean_reward"]) == ([None], None)


@pytest.mark.parametrize(
    ("row", "reward"),
    [
        ({"reward": [0.0, 0.25, 0.5], "mask": [False, True, False]}, 0.75),
        ({"reward": [0.0, 0.0], "mask": [False, True]}, 0.0),
        ({"reward": [0.0, 0.5], "mask": [False, False]}, None),
        ({"reward": [0.0, 0.5], "mask": [False, False], "rejected": [False, False]}, None),
        ({"reward": [0.0, 0.5], "mask": [False, False], "rejected": [False, True]}, 0.5),
        ({"reward": [0.0, 0.5]}, 0.5),
    ],
)
def test_total_reward_of_a_row(row: dict[str, list], reward: float | None) -> None:
    assert total_reward(row) == reward


def test_all_completions_are_selected_if_they_fit(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=5, groups=GROUPS)
    selection = select_completions(run, max_bytes=10**7)
    assert selection["num_rows"] == 5 * 8 * 3
    assert (selection["num_steps"], selection["num_stored_steps"]) == (5, 5)


@pytest.mark.parametrize("max_bytes", [8_000, 20_000, 60_000])
def test_full_groups_from_all_parts_of_the_run_fill_the_limit(tmp_path: Path, max_bytes: int) -> None:
    run = make_run(tmp_path / "run", steps=12, groups=GROUPS)
    selection = select_completions(run, max_bytes=max_bytes)
    steps = [group["step"] for group in selection["groups"]]
    assert 0.6 * max_bytes < _group_bytes(selection) <= max_bytes
    assert all(len(group["rows"]) == group["size"] == 3 for group in selection["groups"])
    assert max(steps) - min(steps) >= 8
    assert max(map(steps.count, steps)) - min(map(steps.count, set(steps))) <= 1


def test_runs_on_the_same_data_show_the_same_prompts(tmp_path: Path) -> None:
    large = make_run(tmp_path / "large", groups=GROUPS)
    small = make_run(tmp_path / "small", groups=[(prompt, completions[:2]) for prompt, completions in GROUPS[:6]])
    prompts = [
        {group["prompt"] for group in select_completions(run, max_bytes=12_000)["groups"]} for run in (large, small)
    ]
    assert len(prompts[0]) < len(prompts[1]) < 6
    assert prompts[0] < prompts[1]


def test_rows_of_one_group_are_selected_if_no_group_fits(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=3, groups=[("p", ["word " * 40] * 4)])
    group_bytes = _group_bytes(select_completions(run, max_bytes=10**6)) // 3
    (group,) = select_completions(run, max_bytes=round(group_bytes * 0.6))["groups"]
    assert (group["step"], len(group["rows"]), group["size"]) == (3, 2, 4)
    exact = len(json.dumps(group).encode())
    assert len(select_completions(run, max_bytes=exact)["groups"][0]["rows"]) == 2
    assert len(select_completions(run, max_bytes=exact - 3)["groups"][0]["rows"]) == 1
    assert select_completions(run, max_bytes=100)["num_rows"] == 0


def test_group_that_is_far_too_large_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded_lengths: list[int] = []
    monkeypatch.setattr(
        "purerl.report.groups.decode_tokens",
        lambda decode, ids: decoded_lengths.append(len(ids)) or [""] * len(ids),
    )
    run = make_run(tmp_path / "run", steps=1, groups=[("p", ["short"]), ("p", ["word " * 500])])
    assert select_completions(run, max_bytes=4_000)["num_rows"] == 1
    assert max(decoded_lengths) < 10


def test_space_at_the_start_of_a_completion_is_kept(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    tokenizer = Tokenizer(models.WordLevel({f"▁{number}": number for number in range(300)}, unk_token="▁0"))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.save(str(run / "tokenizer" / "tokenizer.json"))
    (group,) = select_completions(run, max_bytes=10**6)["groups"]
    assert not group["prompt_tokens"]["text"][0].startswith(" ")
    assert group["rows"][0]["per_token"]["text"][0].startswith(" ")


def test_at_most_48_steps_are_read_including_the_first_and_the_last(tmp_path: Path) -> None:
    selection = select_completions(make_run(tmp_path / "run", steps=60), max_bytes=10**6)
    steps = [group["step"] for group in selection["groups"]]
    assert (len(steps), steps[0], steps[-1], selection["num_stored_steps"]) == (48, 1, 60, 60)


def test_run_without_rollouts_has_no_completions(tmp_path: Path) -> None:
    selection = select_completions(tmp_path, max_bytes=10**6)
    assert selection == NO_COMPLETIONS


def test_partially_written_rollout_file_is_ignored(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    (run / "rollouts" / "000003.partial").write_bytes(b"PAR1")
    assert select_completions(run, max_bytes=10**6)["num_stored_steps"] == 2


# --- evaluations -------------------------------------------------------------------------------------------------


def test_attempt_has_its_answer_its_components_and_its_ground_truth(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    make_evaluation(run, 1, data_sets=("math", "new"))
    selection = select_completions(run, max_bytes=10**6)
    groups = [group for group in selection["groups"] if "data_set" in group]
    assert [(group["data_set"], group["example"]) for group in groups] == [
        ("math", 0),
        ("new", 0),
        ("math", 1),
        ("new", 1),
    ]
    group = groups[2]
    assert (group["step"], group["prompt"], group["ground_truth"], group["mean_reward"]) == (1, "1+1=", "2", 0.5)
    first, second = group["rows"]
    assert (first["answer"], first["correct"], first["reward"], first["num_tokens"]) == ("2", True, 1, 7)
    assert (second["correct"], second["per_token"]["text"]) == (False, ["3"])
    assert first["extra"] == {"reward/exact": 1, "reward/short": 0.25}
    assert (selection["num_evaluations"], selection["num_stored_evaluations"], selection["num_rows"]) == (1, 1, 10)


def test_rollout_has_its_components_and_its_ground_truth(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1, groups=[("a=", ["1", "2"])], unrewarded=("2",))
    (group,) = select_completions(run, max_bytes=10**6)["groups"]
    assert group["ground_truth"] == "the answer to a="
    assert [row["extra"]["reward/exact"] for row in group["rows"]] == [1, None]


def test_evaluations_have_at_most_a_quarter_of_the_size_unless_there_are_no_rollouts(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=12, groups=GROUPS)
    for step in range(40):
        make_evaluation(run, step, attempts=8)
    for max_bytes in (20_000, 60_000):
        selection = select_completions(run, max_bytes=max_bytes)
        sizes = {
            is_evaluation: sum(
                len(json.dumps(group).encode())
                for group in selection["groups"]
                if ("data_set" in group) == is_evaluation
            )
            for is_evaluation in (True, False)
        }
        assert 0.6 * max_bytes / 4 < sizes[True] <= max_bytes / 4
        assert 0.6 * max_bytes < sum(sizes.values()) <= max_bytes
    for path in (run / "rollouts").iterdir():
        path.unlink()
    selection = select_completions(run, max_bytes=20_000)
    assert 12_000 < _group_bytes(selection) <= 20_000
    assert (selection["num_evaluations"] > 8, selection["num_stored_evaluations"]) == (True, 40)
