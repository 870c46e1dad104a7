"""Classes for TRL's `environment_factory` behave as in TRL itself."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from purerl.adapters.trl import TRLEnvironment
from purerl.envs.protocol import ToolCall
from purerl.errors import ConfigError, DataError
from tests.adapters import trl_environments as made
from tests.adapters.episodes import call, contents, finish
from tests.backends.tiny import write_model

EXAMPLE = {"prompt": [{"role": "user", "content": "Count."}], "target": 12}


def test_public_methods_are_tools_and_reset_gets_the_columns() -> None:
    environment = TRLEnvironment("tests.adapters.trl_environments:Counter")
    assert [tool["function"]["name"] for tool in environment.tools] == ["add", "divide"]
    assert environment.tools[0]["function"]["parameters"]["properties"]["number"]["type"] == "integer"
    first = finish(environment.reset(EXAMPLE, seed=1))
    assert first.messages == [{"role": "user", "content": "Reach 12."}]
    second = finish(environment.step("", [call("add", number=24), call("divide", number=2)]))
    assert contents(second) == ["24", "12"]
    assert [message["tool_call_id"] for message in second.messages] == ["id of add", "id of divide"]
    assert (second.reward, second.done) == (None, False)
    last = finish(environment.step("done", []))
    assert (last.reward, last.done, last.truncated, last.components) == (1.0, True, False, {"Counter": 1.0})
    finish(environment.close())


def test_whatever_is_wrong_with_a_call_is_its_answer() -> None:
    environment = TRLEnvironment(made.Counter)
    finish(environment.reset(EXAMPLE, seed=1))
    wrong = [call("ad", number=1), call("add"), call("divide", number=0), ToolCall("add", id="3", error="invalid JSON")]
    answers = contents(finish(environment.step("", wrong)))
    assert "did you mean 'add'" in answers[0]
    assert "number" in answers[1]
    assert "by zero" in answers[2]
    assert answers[3] == "{'error': 'invalid JSON'}"
    assert contents(finish(environment.step("", [call("add", number=2)]))) == ["2"]


def test_methods_without_async_functions_do_not_need_an_event_loop() -> None:
    environment = TRLEnvironment(made.Counter)
    assert contents(environment.reset(EXAMPLE, seed=1)) == ["Reach 12."]
    assert contents(environment.step("", [call("add", number=2)])) == ["2"]
    assert environment.step("", []).done


def test_reward_functions_get_the_environment_and_the_conversation() -> None:
    rewards = [made.near, made.turns, made.nothing, made.later]
    environment = TRLEnvironment(made.AsyncReward, rewards, [1.0, 0.5, 7.0, 0.1])
    finish(environment.reset(EXAMPLE, seed=1))
    finish(environment.step("", [call("add", number=10)]))
    last = finish(environment.step("done", []))
    assert last.components == {"near": -0.2, "turns": 2.0, "later": 10.0, "AsyncReward": 1.0}
    assert last.reward == pytest.approx(-0.2 + 0.5 * 2 + 0.1 * 10 + 1.0)


def test_without_a_reward_that_applies_there_is_none() -> None:
    environment = TRLEnvironment(made.Talk, [made.nothing])
    finish(environment.reset({}, seed=1))
    assert finish(environment.step("", [])).reward is None


def test_rewards_with_one_name_are_added() -> None:
    environment = TRLEnvironment(made.Talk, [made.said, made.said], [1.0, 2.0])
    finish(environment.reset({}, seed=1))
    finish(environment.step("", [call("say", text="a"), call("say", text="b")]))
    last = finish(environment.step("", []))
    assert (last.reward, last.components) == (6.0, {"said": 4.0})


def test_number_of_turns_with_tools_is_limited() -> None:
    environment = TRLEnvironment(made.Counter, max_tool_calling_iterations=1)
    finish(environment.reset(EXAMPLE, seed=1))
    assert not finish(environment.step("", [call("add", number=12)])).done
    last = finish(environment.step("", [call("add", number=1)]))
    assert (last.done, last.truncated, last.reward, last.messages) == (True, True, 1.0, ())


def test_column_selects_one_of_several_environments() -> None:
    environment = TRLEnvironment({"count": made.Counter, "talk": made.Talk}, [made.turns])
    assert contents(finish(environment.reset({"environment": "count", "target": 3}, seed=1))) == ["Reach 3."]
    assert [tool["function"]["name"] for tool in environment.tools] == ["add", "divide"]
    with pytest.raises(DataError, match="did you mean 'count'"):
        finish(environment.reset({"environment": "counts"}, seed=1))


def test_seed_is_passed_to_a_reset_that_takes_one() -> None:
    environment = TRLEnvironment(made.Seeded)
    finish(environment.reset({}, seed=5))
    assert environment._environment.seed == 5
    finish(environment.reset({"seed": 6}, seed=5))
    assert environment._environment.seed == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"factory": dict}, "reset"),
        ({"factory": made.Talk}, "get_reward"),
        ({"factory": made.Counter, "reward_functions": [made.needs_ids]}, "completion_ids"),
        ({"factory": made.Counter, "reward_functions": [made.near], "reward_weights": [1.0, 2.0]}, "2 weights"),
        ({"factory": "tests.adapters.trl_environments:Conter"}, "Conter"),
    ],
)
def test_what_cannot_work_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TRLEnvironment(**arguments)


# --- beside TRL --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """TRL's own trainer with a small random model, an environment and reward functions."""
    datasets = pytest.importorskip("datasets")
    trl = pytest.importorskip("trl", exc_type=ImportError)
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    folder = tmp_path_factory.mktemp("trl")
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: k for k, token in enumerate([*special, *letters])}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backend.add_special_tokens(special[:3])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    template = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    tokenizer.chat_template = template.read_text()
    model = write_model(folder, vocab_size=len(vocabulary), max_position_embeddings=4096)
    tokenizer.save_pretrained(model)
    return trl.GRPOTrainer(
        model=model,
        reward_funcs=[made.near, made.turns, made.nothing],
        args=trl.GRPOConfig(
            str(folder / "run"),
            report_to=[],
            use_cpu=True,
            bf16=False,
            reward_weights=[1.0, 0.5, 7.0],
            max_tool_calling_iterations=3,
            num_generations=2,
            per_device_train_batch_size=2,
        ),
        train_dataset=datasets.Dataset.from_list([dict(EXAMPLE)] * 4),
        processing_class=tokenizer,
        environment_factory=made.Counter,
    )


def test_tools_are_those_of_trl(trainer: Any) -> None:
    environment = TRLEnvironment(made.Counter)
    render = partial(trainer.processing_class.apply_chat_template, EXAMPLE["prompt"], tokenize=False)
    assert render(tools=environment.tools) == render(tools=trainer._env_tools[None])
    assert "Add a number to the total." in render(tools=environment.tools)


def test_conversation_and_rewards_are_those_of_trl(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same turns in TRL's loop of tools give the same answers and the same rewards, one by one and as a sum."""
    tokenizer = trainer.processing_class
    texts = [
        '<tool_call>\n{"name": "add", "arguments": {"number": 5}}\n</tool_call>',
        '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "subtract", "arguments": {"number": 5}}\n</tool_call>',
        "It is 5.",
    ]
    calls = [[call("add", number=5)], [call("add")], [call("subtract", number=5)], []]
    sampled = [tokenizer.encode(text + "<|im_end|>", add_special_tokens=False) for text in texts]
    turns = iter(sampled)

    def sample(prompts: list[Any], *rest: Any, **kwargs: Any) -> Any:
        tokens = next(turns)
        return [list(tokens) for _ in prompts], [[0.0] * len(tokens) for _ in prompts]

    monkeypatch.setattr(trainer, "_generate_single_turn", sample)
    monkeypatch.setattr(trainer, "max_completion_length", 4000)
    monkeypatch.setattr(trainer, "_calculate_rewards", keep := _Kept(trainer._calculate_rewards))
    trainer._generate_and_score_completions([dict(EXAMPLE), dict(EXAMPLE)])
    completion, _ = keep.completions

    environment = TRLEnvironment(made.Counter, [made.near, made.turns, made.nothing], [1.0, 0.5, 7.0], 3)
    finish(environment.reset(EXAMPLE, seed=1))
    observations = [finish(environment.step(text, found)) for text, found in zip(texts, calls, strict=True)]
    ours = [message["content"] for observation in observations for message in observation.messages]
    theirs = [message["content"] for message in completion if message["role"] == "tool"]
    assert len(ours) == len(theirs) == 3
    assert ours[:2] == theirs[:2]  # the third one names the tools that exist
    assert [message["role"] for message in environment._messages] == [message["role"] for message in completion]

    values, _ = keep.rewards.tolist()
    names = trainer.reward_func_names
    assert names == ["near", "turns", "nothing", "Counter"]
    expected = {name: value for name, value in zip(names, values, strict=True) if value == value}
    assert observations[-1].components == pytest.approx(expected)
    total = sum(w * v for w, v in zip(trainer.reward_weights.tolist(), values, strict=True) if v == v)
    assert observations[-1].reward == pytest.approx(total)


class _Kept(SimpleNamespace):
    """Calls TRL's function, and keeps what it got and returned."""

    def __init__(self, function: Any):
        super().__init__(function=function)

    def __call__(self, inputs: Any, prompts: Any, completions: Any, ids: Any) -> Any:
        self.completions, self.rewards = completions, self.function(inputs, prompts, completions, ids)
        return self.rewards
