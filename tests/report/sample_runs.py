"""Small run directories for tests, with any metrics, prompts, completions and tokens."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from purerl.batch import collate, with_fields
from purerl.store.evaluations import write_evaluation
from purerl.store.rollouts import Metadata, write_rollouts

__all__ = ["make_byte_tokenizer", "make_conversation", "make_episodes", "make_evaluation", "make_metrics", "make_run"]

_CONFIG = """
name = "sample"
max_steps = {steps}
rewards = ["exact"]

[algorithm]
kind = "{algorithm}"
"""


def make_byte_tokenizer() -> Tokenizer:
    """A byte-level tokenizer with one token per byte, and one end token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: number for number, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer


def make_metrics(step: int) -> dict[str, float]:
    """An increasing reward, a decreasing entropy, and timings."""
    seconds = {"time/step": 2.0, "time/generate": 1.5, "time/update": 0.25, "time/cpu": 1.0}
    learning = {"reward/mean": step / 10, "policy/entropy": 1 / (step + 1), "policy/skipped": 0.0}
    return {**learning, **seconds, "time/tokens_per_second": 50.0}


def make_run(
    path: Path,
    *,
    steps: int = 4,
    groups: Sequence[tuple[str, Sequence[str]]] = (("1+1=", ("2", "3")),),
    metrics: Any = make_metrics,
    algorithm: str = "grpo",
    settings: Mapping[str, Any] | None = None,
    unrewarded: Collection[str] = (),
) -> Path:
    """Write a run of `steps` steps to `path`. Every step has the same `groups`, each a prompt and its completions.

    The first completion of a group has reward 1, the others have reward 0. Those in `unrewarded` have no reward.
    """
    path.mkdir(parents=True)
    extra_settings = "".join(f"{name} = {json.dumps(value)}\n" for name, value in (settings or {}).items())
    (path / "config.toml").write_text(extra_settings + _CONFIG.format(steps=steps, algorithm=algorithm))
    records = [{"step": 0, "eval/accuracy": 0.25}] + [{"step": step, **metrics(step)} for step in range(1, steps + 1)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    tokenizer = make_byte_tokenizer()
    (path / "tokenizer").mkdir()
    tokenizer.save(str(path / "tokenizer" / "tokenizer.json"))
    for step in range(1, steps + 1):
        rows = [
            _make_row(tokenizer, prompt, completion, group, sample, has_reward=completion not in unrewarded)
            for group, (prompt, completions) in enumerate(groups)
            for sample, completion in enumerate(completions)
        ]
        batch = collate([fields for fields, _ in rows])
        advantage = torch.where(batch["action"], batch["reward"].sum(-1, keepdim=True) - 0.5, 0.0)
        batch = with_fields(batch, old_logp=batch["rollout_logp"] + 0.01 * batch["action"], advantage=advantage)
        write_rollouts(path / "rollouts", step, batch, [strings for _, strings in rows], Metadata(algorithm, ()))
    return path


def make_evaluation(
    run: Path, step: int, *, data_sets: Sequence[str] = ("math",), attempts: int = 2, messages: str | None = None
) -> None:
    """Write an evaluation of two problems to the directory of a run. The first attempt at each is correct.

    The first attempts have the conversation `messages`.
    """
    rows = [
        {
            "data_set": data_set,
            "index": index,
            "attempt": attempt,
            "prompt": f"{index}+{index}=",
            "completion": str(2 * index + attempt),
            "tokens": 7,
            "finish": "stop",
            "answer": str(2 * index + attempt),
            "correct": attempt == 0,
            "reward": 1.0 - attempt,
            "ground_truth": str(2 * index),
            "reward/exact": 1.0 - attempt,
            "reward/short": 0.25,
        }
        | ({"messages": messages if attempt == 0 else None} if messages else {})
        for data_set in data_sets
        for index in range(2)
        for attempt in range(attempts)
    ]
    write_evaluation(run / "evaluations", step, rows)


def make_conversation(*answers: str, prompt: str = "How warm?", rewards: bool = True) -> list[dict[str, Any]]:
    """A conversation in which the model answers, and a tool answers between its turns. The last turn has reward 1."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    for turn, answer in enumerate(answers):
        is_last = turn == len(answers) - 1
        call = {"name": "weather", "arguments": {"city": f"Oslo {turn}"}, "id": str(turn)}
        call |= {"error": "no such city"} if turn else {}
        messages += [
            {"role": "assistant", "content": answer}
            | ({} if is_last else {"tool_calls": [call]})
            | ({"reward": float(is_last)} if rewards else {})
        ]
        messages += [] if is_last else [{"role": "tool", "name": "weather", "content": f"{turn} degrees"}]
    return messages


def make_episodes(run: Path, step: int, episodes: Sequence[Sequence[Sequence[str]]], *, messages: bool = True) -> None:
    """Write the rollouts of a step to the directory of a run: one group of episodes.

    An episode has rows, and each row has the texts of its turns. The last turn of an episode has reward 1.
    """
    tokenizer = make_byte_tokenizer()
    rows, texts = [], []
    for label, episode in enumerate(episodes):
        answers = [answer for row in episode for answer in row]
        conversation = json.dumps(make_conversation(*answers))
        turn = 0
        for row in episode:
            fields = _make_turns(tokenizer, row, first=turn, rewarded=turn + len(row) == len(answers))
            turn += len(row)
            rows += [fields | {"row": len(rows), "group": 0, "example": 5, "episode": label, "temperature": 1.0}]
            texts += [{"prompt": "How warm?", "completion": row[-1], "finish": "stop", "ground_truth": None}]
            texts[-1] |= {"messages": conversation} if messages else {}
    (run / "rollouts").mkdir(exist_ok=True)
    _write_rows(run, step, rows, texts)


def _make_turns(tokenizer: Tokenizer, answers: Sequence[str], *, first: int, rewarded: bool) -> dict[str, Any]:
    """The token fields of a row: the prompt, then turns with an answer of the tool before each but the first."""
    fields: dict[str, list[Any]] = {name: [] for name in ("tokens", "action", "turn", "anchor", "reward")}
    for turn, answer in enumerate(answers, start=first):
        before = f"{turn - 1} degrees" if turn else "How warm?"
        for text, is_action in ((before, False), (answer, True)):
            ids = tokenizer.encode(text).ids
            fields["tokens"] += ids
            fields["action"] += [is_action] * len(ids)
            fields["turn"] += [turn] * len(ids)
            fields["anchor"] += [2**60 + turn] * len(ids)
            fields["reward"] += [0.0] * len(ids)
    fields["reward"][-1] = float(rewarded)
    return fields | {"rollout_logp": [-0.5 * is_action for is_action in fields["action"]]}


def _write_rows(run: Path, step: int, rows: Sequence[Mapping[str, Any]], texts: Sequence[Mapping[str, Any]]) -> None:
    """Write rollouts, with columns that the schema of the batch may not have."""
    columns = dict.fromkeys(name for row in (*rows, *texts) for name in row)
    values = [{**row, **text, "step": step} for row, text in zip(rows, texts, strict=True)]
    table = pa.table({name: [row[name] for row in values] for name in columns})
    parquet.write_table(table, run / "rollouts" / f"{step:06d}.parquet")


def _make_row(
    tokenizer: Tokenizer, prompt: str, completion: str, group: int, sample: int, *, has_reward: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    prompt_ids = tokenizer.encode(prompt).ids
    completion_ids = [*tokenizer.encode(completion).ids, tokenizer.token_to_id("<end>")]
    zeros, ones = [0] * len(prompt_ids), [1] * len(completion_ids)
    fields = {
        "tokens": prompt_ids + completion_ids,
        "action": zeros + ones,
        "mask": zeros + [int(has_reward)] * len(completion_ids),
        "reward": zeros + [0.0] * (len(completion_ids) - 1) + [float(sample == 0 and has_reward)],
        "rollout_logp": zeros + [-0.1 * (k + 1) for k in range(len(completion_ids))],
        "row": 100 * group + sample,
        "group": group,
        "example": group,
        "temperature": 1.0,
        "truncated": False,
        "version": zeros + ones,
    }
    return fields, {
        "prompt": prompt,
        "completion": completion,
        "finish": "stop" if sample == 0 else "length",
        "ground_truth": f"the answer to {prompt}",
        "reward/exact": float(sample == 0) if has_reward else None,
    }
