"""Which completions are in a page: whole groups, from all along the run, and no more than fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models

from purerl.errors import DataError
from purerl.report.completions import completions
from tests.report.made import hand_made

PROMPTS = [(f"{number}+1=", ["right", "wrong", "wrong too"]) for number in range(8)]


def _size(found: dict) -> int:
    return sum(len(json.dumps(group).encode()) for group in found["groups"])


def test_a_row_has_its_numbers_its_texts_and_what_is_known_of_its_tokens(tmp_path: Path) -> None:
    run = hand_made(tmp_path / "run", steps=1, texts=[("a=", ["é", "b"])])
    (group,) = completions(run, size=10**6)["groups"]
    assert (group["step"], group["group"], group["prompt"], group["size"], group["mean"]) == (1, 0, "a=", 2, 0.5)
    assert group["prompt_at"]["text"] == ["a", "="]
    one, other = group["rows"]
    assert (one["completion"], one["finish"], one["score"]) == ("é", "stop", 1)
    assert one["at"]["text"] == ["", "é", "<end>"]
    assert one["at"]["rollout_logp"] == [-0.1, -0.2, -0.3]
    assert one["at"]["old_logp"] == [-0.09, -0.19, -0.29]
    assert (one["at"]["advantage"], other["at"]["advantage"]) == (0.5, -0.5), "the same at every token, so said once"
    assert (one["at"]["action"], one["at"]["mask"], one["at"]["reward"]) == (True, True, [0, 0, 1])


def test_all_of_it_where_it_fits(tmp_path: Path) -> None:
    run = hand_made(tmp_path / "run", steps=5, texts=PROMPTS)
    found = completions(run, size=10**7)
    assert (found["rows"], found["steps"], found["stored"]) == (5 * 8 * 3, 5, 5)


@pytest.mark.parametrize("size", [6_000, 20_000, 60_000])
def test_whole_groups_from_all_along_the_run_within_the_size(tmp_path: Path, size: int) -> None:
    run = hand_made(tmp_path / "run", steps=12, texts=PROMPTS)
    found = completions(run, size=size)
    steps = [group["step"] for group in found["groups"]]
    assert 0.6 * size < _size(found) <= size
    assert all(len(group["rows"]) == group["size"] == 3 for group in found["groups"])
    assert max(steps) - min(steps) >= 8
    assert max(map(steps.count, steps)) - min(map(steps.count, set(steps))) <= 1


def test_runs_on_the_same_data_show_the_same_prompts(tmp_path: Path) -> None:
    one = hand_made(tmp_path / "one", texts=PROMPTS)
    other = hand_made(tmp_path / "other", texts=[(prompt, said[:2]) for prompt, said in PROMPTS[:6]])
    shown = [{group["prompt"] for group in completions(run, size=12_000)["groups"]} for run in (one, other)]
    assert len(shown[0]) < len(shown[1]) < 6
    assert shown[0] < shown[1]


def test_where_no_group_fits_there_are_rows_of_one(tmp_path: Path) -> None:
    run = hand_made(tmp_path / "run", steps=3, texts=[("p", ["word " * 40] * 4)])
    whole = _size(completions(run, size=10**6)) // 3
    (group,) = completions(run, size=round(whole * 0.6))["groups"]
    assert (group["step"], len(group["rows"]), group["size"]) == (3, 2, 4)
    exact = len(json.dumps(group).encode())
    assert len(completions(run, size=exact)["groups"][0]["rows"]) == 2
    assert len(completions(run, size=exact - 3)["groups"][0]["rows"]) == 1
    assert completions(run, size=100)["rows"] == 0


def test_of_a_group_that_is_far_too_large_no_text_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(
        "purerl.report.completions.pieces", lambda decode, ids: made.append(len(ids)) or [""] * len(ids)
    )
    run = hand_made(tmp_path / "run", steps=1, texts=[("p", ["short"]), ("p", ["word " * 500])])
    assert completions(run, size=4_000)["rows"] == 1
    assert max(made) < 10


def test_a_space_before_the_completion_is_seen(tmp_path: Path) -> None:
    run = hand_made(tmp_path / "run", steps=1)
    tokenizer = Tokenizer(models.WordLevel({f"▁{number}": number for number in range(300)}, unk_token="▁0"))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.save(str(run / "tokenizer" / "tokenizer.json"))
    (group,) = completions(run, size=10**6)["groups"]
    assert not group["prompt_at"]["text"][0].startswith(" ")
    assert group["rows"][0]["at"]["text"][0].startswith(" ")


def test_at_most_48_steps_are_read_the_first_and_the_last_among_them(tmp_path: Path) -> None:
    found = completions(hand_made(tmp_path / "run", steps=60), size=10**6)
    steps = [group["step"] for group in found["groups"]]
    assert (len(steps), steps[0], steps[-1], found["stored"]) == (48, 1, 60, 60)


def test_a_run_without_rollouts_has_none(tmp_path: Path) -> None:
    assert completions(tmp_path, size=10**6) == {"groups": [], "rows": 0, "steps": 0, "stored": 0}


@pytest.mark.parametrize("content", [b"", b"PAR1 and then nothing"])
def test_a_broken_file_is_named(tmp_path: Path, content: bytes) -> None:
    run = hand_made(tmp_path / "run", steps=2)
    (run / "rollouts" / "000002.parquet").write_bytes(content)
    with pytest.raises(DataError) as caught:
        completions(run, size=10**6)
    first, *_, last = str(caught.value).splitlines()
    assert first == f"rollouts {str(run / 'rollouts' / '000002.parquet')!r}"
    assert last == "  do:   move the file away; the report does without it"


def test_a_file_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    run = hand_made(tmp_path / "run", steps=2)
    (run / "rollouts" / "000003.partial").write_bytes(b"PAR1")
    assert completions(run, size=10**6)["stored"] == 2
