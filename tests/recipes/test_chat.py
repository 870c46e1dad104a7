"""`chat`: the loss is on the assistant's turns, all of them and nothing else, and the model then answers as shown."""

from __future__ import annotations

import re
from pathlib import Path

from purerl.backends.hf.model import load_model
from purerl.backends.tokenizer import load_tokenizer
from purerl.data.examples import rows_at, tokenized_at
from purerl.data.files import read_table
from purerl.loop.data import open_data, read_data
from purerl.loop.train import Summary
from purerl.protocols import Model
from purerl.recipes.chat import chat
from tests.data.made import assistant, user

from .made import PROBLEMS, lines, write_model, write_talks


def test_what_is_learned_is_what_the_assistant_says(tmp_path: Path) -> None:
    config = chat(model=write_model(tmp_path / "model"), data=write_talks(tmp_path))
    tokenizer = load_tokenizer(config.model)
    data = open_data(config, *read_data(config, "demonstrations"), tokenizer)
    for index, (example, problem) in enumerate(zip(rows_at(data.examples, range(8)), PROBLEMS, strict=True)):
        [row] = tokenized_at(data.chat, data.examples, index, example)
        learned = tokenizer.decode([token for token, yes in zip(row.tokens, row.action, strict=True) if yes])
        assert learned == f"#### {problem['answer'][-1]}<|im_end|>Yes<|im_end|>"
        assert tokenizer.decode(row.tokens).count("<|im_end|>") == 4


def test_the_loss_falls_and_counts_those_tokens(taught: Summary) -> None:
    steps = lines(taught.directory)[1:]
    said = len("#### 5") + len("Yes") + 2  # and what ends a turn, twice
    assert {step["rollout/length"] for step in steps} == {said}
    assert steps[-1]["policy/loss/nll"] < 0.1 * steps[0]["policy/loss/nll"]


def test_the_model_then_answers_in_both_turns(taught: Summary) -> None:
    model = Model(str(taught.model))
    tokenizer, network = load_tokenizer(model), load_model(model)

    def answer(messages: list[dict[str, str]]) -> str:
        prompt = tokenizer.apply_chat_template(
            messages, tokenize=True, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        tokens = network.generate(**prompt, max_new_tokens=10, do_sample=False, eos_token_id=end)
        return tokenizer.decode(tokens[0, prompt["input_ids"].shape[1] :])

    [asked] = read_table(str(taught.directory.parent / "problems.parquet")).column("prompt").to_pylist()[3]
    first = answer([asked])
    assert re.fullmatch(r"#### \d<\|im_end\|>", first)
    assert answer([asked, assistant(first.removesuffix("<|im_end|>")), user("Sure?")]) == "Yes<|im_end|>"
