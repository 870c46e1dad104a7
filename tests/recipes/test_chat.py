"""`chat`: the loss covers exactly the assistant's turns, and the model learns to answer in all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from purerl.backends.hf.decoder.loading import load_model
from purerl.data.examples import rows_at, tokenized_at
from purerl.data.files import read_table
from purerl.data.open import open_data, open_run_chat, read_data
from purerl.loop.train import Summary
from purerl.models.tokenizer import load_tokenizer
from purerl.recipes.chat import chat
from purerl.settings import Model
from tests.data.made import assistant, user

from .made import PROBLEMS, records, write_conversations, write_model


def test_the_loss_covers_the_turns_of_the_assistant(tmp_path: Path) -> None:
    config = chat(model=write_model(tmp_path / "model"), data=write_conversations(tmp_path))
    tokenizer = load_tokenizer(config.model)
    examples = read_data(config.data, "demonstrations")
    chat_of_run = open_run_chat(config.data, config.model, examples, (), tokenizer, needs_stop_token=False)
    data = open_data(config.data, examples, {}, chat_of_run, max_problems=None, is_evaluated=False)
    for index, (example, problem) in enumerate(zip(rows_at(data.examples, range(8)), PROBLEMS, strict=True)):
        [row] = tokenized_at(chat_of_run, data.examples, index, example)
        learned = tokenizer.decode(
            [token for token, is_action in zip(row.tokens, row.action, strict=True) if is_action]
        )
        assert learned == f"#### {problem['answer'][-1]}<|im_end|>Yes<|im_end|>"
        assert tokenizer.decode(row.tokens).count("<|im_end|>") == 4


@pytest.mark.slow
def test_the_loss_falls(chat_run: Summary) -> None:
    steps = records(chat_run.directory)[1:]
    length = len("#### 5") + len("Yes") + 2  # with the token that ends each turn
    assert {step["rollout/length"] for step in steps} == {length}
    assert steps[-1]["policy/loss/nll"] < 0.1 * steps[0]["policy/loss/nll"]


def test_the_trained_model_answers_in_both_turns(chat_run: Summary) -> None:
    model = Model(str(chat_run.model))
    tokenizer, network = load_tokenizer(model), load_model(model)

    def answer(messages: list[dict[str, str]]) -> str:
        prompt = tokenizer.apply_chat_template(
            messages, tokenize=True, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        tokens = network.generate(**prompt, max_new_tokens=10, do_sample=False, eos_token_id=end)
        return tokenizer.decode(tokens[0, prompt["input_ids"].shape[1] :])

    [question] = read_table(str(chat_run.directory.parent / "problems.parquet")).column("prompt").to_pylist()[3]
    first = answer([question])
    assert re.fullmatch(r"#### \d<\|im_end\|>", first)
    assert answer([question, assistant(first.removesuffix("<|im_end|>")), user("Sure?")]) == "Yes<|im_end|>"
