"""Models whose scores are rewards, in runs: what they read, what their scores become, and what fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from purerl.algos import dapo, remax
from purerl.backends.fake import trainer as fake_trainer
from purerl.config.check import check
from purerl.config.schema import RunConfig
from purerl.errors import ConfigError, RewardError
from purerl.evaluation.problem_results import metrics
from purerl.loop.train import train
from purerl.rewards.settings import Reward, RewardWorkers
from purerl.rewards.steps import Steps
from purerl.rollouts.settings import Rollout
from purerl.runs.dry_run import dry_run
from purerl.runs.evaluation import evaluation_of_run, run_evaluation
from purerl.store.evaluations import read_evaluation
from purerl.store.rollouts import read_batch, read_rollouts
from tests.data.made import CHATML, tokenizer, user, write

from . import dialogs
from .classifiers import parity, with_models, write_classifier, write_scores
from .runs import failures, records, train_until, without_times
from .small import fake, small_real

pytestmark = pytest.mark.slow

DIGITS, EVEN = "tests.loop.rewards:digits", "tests.loop.rewards:first_is_even"


# --- what scores become --------------------------------------------------------------------------------------------


def test_the_score_is_a_component_of_the_reward_at_the_last_token(tmp_path: Path) -> None:
    config = with_models(fake(1, rewards=(DIGITS,)), weight=0.5, parity=write_scores(tmp_path / "model"))
    summary = train(config, directory=tmp_path / "run")
    rows, batch = (read(summary.directory / "rollouts", 1) for read in (read_rollouts, read_batch))
    assert {row["reward/parity"] for row in rows} == {-1.0, 0.0, 1.0}
    for row, reward, action in zip(rows, batch["reward"], batch["action"], strict=True):
        assert row["reward/parity"] == parity(row["completion"])
        expected = torch.zeros_like(reward)
        expected[action.nonzero()[-1]] = row["reward/digits"] + 0.5 * row["reward/parity"]
        torch.testing.assert_close(reward, expected)
    record = records(summary)[1]
    assert record["reward/parity"] == pytest.approx(sum(row["reward/parity"] for row in rows) / len(rows))
    assert record["reward/mean"] == pytest.approx(record["reward/digits"] + 0.5 * record["reward/parity"])
    assert record["time/reward"] > 0


def test_models_may_be_the_only_rewards(tmp_path: Path) -> None:
    paths = {name: write_scores(tmp_path / name, f) for name, f in (("large", float), ("small", lambda c: -float(c)))}
    summary = train(with_models(fake(1, rewards=()), **paths), directory=tmp_path / "run")
    rows, batch = (read(summary.directory / "rollouts", 1) for read in (read_rollouts, read_batch))
    assert torch.equal(batch["mask"], batch["action"])
    for row in rows:
        assert sum(row["reward"]) == row["reward/large"] + row["reward/small"]
    evaluated = read_evaluation(summary.directory / "evaluations", 0)
    assert all(attempt["reward/large"] is not None for attempt in evaluated)
    record = records(summary)[0]
    assert {"eval/reward", "eval/reward/large", "eval/reward/small"} <= record.keys()
    assert "eval/accuracy" not in record  # a score does not say what is correct


def test_a_gate_that_is_closed_leaves_nothing_of_the_score(tmp_path: Path) -> None:
    config = with_models(fake(1, rewards=(), gates=(EVEN,)), digit=write_scores(tmp_path / "model", float))
    summary = train(config, directory=tmp_path / "run")
    rows = read_rollouts(summary.directory / "rollouts", 1)
    assert {row["reward/first_is_even"] for row in rows} == {0.0, 1.0}
    for row in rows:
        assert sum(row["reward"]) == row["reward/digit"] * row["reward/first_is_even"]


def none_of_odd(completion: str, example: Any) -> float | None:
    return 1.0 if completion[-1:] in "02468" else None


def test_a_row_without_the_reward_of_a_function_is_not_scored(tmp_path: Path) -> None:
    config = with_models(fake(1), digit=write_scores(tmp_path / "model", float))
    summary = train(config, rewards=[none_of_odd, Reward(role="digit")], directory=tmp_path / "run")
    rows = read_rollouts(summary.directory / "rollouts", 1)
    without = [row for row in rows if none_of_odd(row["completion"], {}) is None]
    assert 0 < len(without) < len(rows)
    for row in rows:
        assert (row["reward/digit"] is None) == (row in without)
        assert any(row["mask"]) == (row not in without)


def test_groups_are_selected_by_the_scores(tmp_path: Path) -> None:
    config = fake(1, rewards=(), algorithm=dapo.Config(), evaluate=None)
    constant = with_models(config, same=write_scores(tmp_path / "same", lambda _: -1))
    assert records(train(constant, directory=tmp_path / "a"))[1]["rollout/kept_fraction"] == 0
    varying = with_models(config, digit=write_scores(tmp_path / "digit", float))
    assert records(train(varying, directory=tmp_path / "b"))[1]["rollout/kept_fraction"] > 0


def test_a_resumed_run_is_bit_for_bit_that_of_one_that_was_not_interrupted(tmp_path: Path) -> None:
    config = with_models(fake(rewards=(DIGITS,)), digit=write_scores(tmp_path / "model", float))
    whole = train(config, directory=tmp_path / "whole")
    train_until(3, config, directory=tmp_path / "cut")
    resumed = train(config, directory=tmp_path / "cut")
    assert without_times(records(resumed)) == without_times(records(whole))


def test_an_evaluation_of_the_run_has_the_scores_too(tmp_path: Path) -> None:
    config = with_models(fake(1, rewards=(DIGITS,)), digit=write_scores(tmp_path / "model", float))
    summary = train(config, directory=tmp_path / "run")
    evaluation = evaluation_of_run(summary.directory, {})
    results = run_evaluation(evaluation)
    measured = metrics(results, evaluation.settings)
    last = records(summary)[-1]
    assert {name: measured[name] for name in measured if "reward" in name} == {
        name: last[name] for name in last if name.startswith("eval/") and "reward" in name
    }
    assert "eval/reward/digit" in measured


# --- what models read ----------------------------------------------------------------------------------------------


def scores_of_transformers(path: str, texts: list[str], *, is_rendered: bool) -> torch.Tensor:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    own, model = AutoTokenizer.from_pretrained(path), AutoModelForSequenceClassification.from_pretrained(path)
    inputs = own(texts, padding=True, return_tensors="pt", add_special_tokens=not is_rendered)
    with torch.inference_mode():
        return model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits[:, 0]


def real(folder: Path, prompts: list[Any], **changes: Any) -> RunConfig:
    """A step of a real model with random weights and the chat template CHATML."""
    from tests.recipes.made import write_model

    data = write(folder / "prompts.jsonl", [{"prompt": prompt} for prompt in prompts])
    rollout = Rollout(samples_per_prompt=4, max_tokens=12)
    settings = {"prepare_data": None, "data": data, "rewards": (), "evaluate": None, "rollout": rollout}
    return small_real(max_steps=1, model=write_model(folder / "policy", CHATML), **settings | changes)


def test_a_model_reads_the_conversation_as_its_own_template_renders_it(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    path = write_classifier(tmp_path / "classifier")
    prompts = [[user(f"{k} + {k}?")] for k in range(4)]
    summary = train(with_models(real(tmp_path, prompts), good=path), directory=tmp_path / "run")
    own = AutoTokenizer.from_pretrained(path)
    rows = read_rollouts(summary.directory / "rollouts", 1)
    conversations = [[*prompts[row["example"]], {"role": "assistant", "content": row["completion"]}] for row in rows]
    texts = own.apply_chat_template(conversations, tokenize=False)
    expected = scores_of_transformers(path, texts, is_rendered=True)
    assert expected.std() > 0.01
    torch.testing.assert_close(torch.tensor([row["reward/good"] for row in rows]), expected, rtol=1e-4, atol=1e-4)


def test_a_model_reads_plain_text_up_to_its_eos_token(tmp_path: Path) -> None:
    path = write_classifier(tmp_path / "classifier", None)
    prompts = [f"{k} + {k} =" for k in range(4)]
    summary = train(with_models(real(tmp_path, prompts), good=path), directory=tmp_path / "run")
    rows = read_rollouts(summary.directory / "rollouts", 1)
    texts = [prompts[row["example"]] + row["completion"] + "<eos>" for row in rows]
    expected = scores_of_transformers(path, texts, is_rendered=False)
    torch.testing.assert_close(torch.tensor([row["reward/good"] for row in rows]), expected, rtol=1e-4, atol=1e-4)


FAKE = fake_trainer.Config(vocab_size=14)
CONTENTS = "{%- for message in messages -%}{{ message.content }}{%- endfor -%}"


@pytest.mark.parametrize("history", ["append", "rerender"])
def test_an_episode_is_scored_as_a_whole_and_the_score_is_at_its_end(history: str, tmp_path: Path) -> None:
    path = write_scores(tmp_path / "model", float, template=CONTENTS)
    config = dialogs.rerendered(max_steps=1, environment=dialogs.game(history=history))
    summary = train(with_models(config, {"trainer": FAKE}, weight=10.0, digit=path), directory=tmp_path / "run")
    rows, batch = (read(summary.directory / "rollouts", 1) for read in (read_rollouts, read_batch))
    assert history == "append" or len(rows) > len({row["episode"] for row in rows})
    for episode in {row["episode"] for row in rows}:
        own = [k for k, row in enumerate(rows) if row["episode"] == episode]
        *others, last = own
        text = rows[last]["completion"]
        assert not text or rows[last]["reward/digit"] == (float(text[-1]) if text[-1].isdecimal() else -1.0)
        assert all(rows[k]["reward/digit"] is None for k in others)
        reward, end = batch["reward"][last], int(batch["action"][last].nonzero()[-1])
        assert abs(float(reward[end]) - 10 * rows[last]["reward/digit"]) <= 1  # the game gives 0 or 1 for a turn
        assert float(batch["reward"][others].abs().sum()) <= 3


def test_two_players_are_scored_separately(tmp_path: Path) -> None:
    path = write_scores(tmp_path / "model", float, template=CONTENTS)
    game = dialogs.game(**dialogs.TWO_PLAYERS)
    summary = train(
        with_models(dialogs.rerendered(max_steps=1, environment=game), {"trainer": FAKE}, digit=path),
        directory=tmp_path / "run",
    )
    rows = read_rollouts(summary.directory / "rollouts", 1)
    assert {row["role"] for row in rows} == {0, 1}
    spoken = [row for row in rows if row["completion"]]  # otherwise the score is that of the message before
    assert len(spoken) > len(rows) / 2
    for row in spoken:
        assert row["reward/digit"] == (float(row["completion"][-1]) if row["completion"][-1].isdecimal() else -1.0)


# --- process rewards -----------------------------------------------------------------------------------------------


def step_scores(path: str, prompt: Any, completion: str, separator: str, marker: str) -> list[float]:
    """The probability of the second label at the end of each marker, from a text that ends there."""
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    own, model = AutoTokenizer.from_pretrained(path), AutoModelForTokenClassification.from_pretrained(path).eval()
    text, scores = own.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True), []
    for step in completion.split(separator):
        if step.strip() or not completion.strip():
            text += step + marker
            tokens = own(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
            with torch.inference_mode():
                scores.append(model(input_ids=tokens).logits[0, -1].softmax(-1)[1].item())
    return scores


@pytest.mark.parametrize(("marker", "aggregation"), [(None, "none"), ("<think>", "none"), ("<think>", "min")])
def test_the_score_of_a_step_is_the_reward_of_its_last_token(
    tmp_path: Path, marker: str | None, aggregation: Any
) -> None:
    path = write_classifier(tmp_path / "classifier", CHATML, kind="Token", num_labels=2)
    prompts, separator = [[user(f"{k} + {k}?")] for k in range(4)], "a"
    rollout = Rollout(samples_per_prompt=8, max_tokens=100)
    steps = Steps(separator=separator, marker=marker, aggregate=aggregation)
    config = with_models(real(tmp_path, prompts, rollout=rollout), {"steps": steps}, weight=2.0, good=path)
    summary = train(config, directory=tmp_path / "run")
    rows, batch = (read(summary.directory / "rollouts", 1) for read in (read_rollouts, read_batch))
    decode, counts = tokenizer(CHATML).decode, []
    for k, row in enumerate(rows):
        scores = step_scores(path, prompts[row["example"]], row["completion"], separator, marker or separator)
        values = scores if aggregation == "none" else [min(scores)]
        assert row["reward/good"] == pytest.approx(sum(values), abs=1e-4)
        placed = batch["reward"][k].nonzero()[:, 0].tolist()
        torch.testing.assert_close(batch["reward"][k][placed], 2 * torch.tensor(values), rtol=0, atol=1e-4)
        assert placed[-1] == int(batch["action"][k].nonzero()[-1])
        assert all(decode([int(batch["tokens"][k, position])]) == separator for position in placed[:-1])
        counts.append(len(placed))
    assert max(counts) > (1 if aggregation == "none" else 0)


# --- failures and refusals -----------------------------------------------------------------------------------------


def test_a_conversation_that_is_too_long_is_a_missing_sample(tmp_path: Path) -> None:
    path = write_classifier(tmp_path / "classifier", max_position_embeddings=64)
    prompts = [[user("x" * (1 if k else 60))] for k in range(4)]
    config = real(tmp_path, prompts, reward_workers=RewardWorkers(max_failure_rate=0.5))
    summary = train(with_models(config, good=path), directory=tmp_path / "run")
    rows = read_rollouts(summary.directory / "rollouts", 1)
    missing = [row for row in rows if row["example"] == 0]
    assert len(missing) == 4
    assert not any(any(row["mask"]) or row["reward/good"] is not None for row in missing)
    assert records(summary)[1]["reward/failed"] == 0.25
    logged = [entry for entry in failures(summary.directory) if entry["step"] == 1]
    assert [entry["function"] for entry in logged] == ["good"] * 4
    assert "tokens, and the model reads at most 64\n" in logged[0]["traceback"]


def test_a_score_that_is_no_number_is_a_failure_and_stops_the_run_if_all_are(tmp_path: Path) -> None:
    config = with_models(fake(rewards=()), broken=write_scores(tmp_path / "model", lambda _: float("nan")))
    with pytest.raises(RewardError, match="\n  \\| broken returned an invalid value\n  \\| the score is nan\n"):
        train(config, directory=tmp_path / "run")


def test_a_model_that_is_no_classifier_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    config = real(tmp_path, [[user("1?")]])
    config = with_models(config, good=config.model.path)
    for run in (dry_run, lambda config: train(config, directory=tmp_path / "run")):
        with pytest.raises(ConfigError) as error:
            run(config)
        assert str(error.value).splitlines() == [
            f"roles.rewards.good.model: {config.model.path!r} is no classifier",
            "  got:  Qwen3ForCausalLM",
            (
                "  need: ...ForSequenceClassification or ...ForTokenClassification, with 1 label, or 2 of which the "
                "second is the positive one"
            ),
            "  do:   name a classifier; purerl train reward_model makes one from a language model",
        ]


def test_a_model_without_a_chat_template_is_refused_for_messages(tmp_path: Path) -> None:
    config = with_models(real(tmp_path, [[user("1?")]]), good=write_classifier(tmp_path / "classifier", None))
    with pytest.raises(ConfigError, match="^roles.rewards.good: the tokenizer of .* has no chat template\n"):
        dry_run(config)


def test_a_greedy_baseline_without_scores_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="^rewards or gates\n  got:  good\n  need: functions and kinds only: remax compares"
    ):
        check(with_models(fake(algorithm=remax.Config()), good="m"))
