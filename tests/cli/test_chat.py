"""`purerl chat`: conversations whose answers arrive token by token."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

from purerl.backends.hf.settings import GeneratorConfig
from purerl.errors import ConfigError, InputError
from purerl.loop.train import train
from purerl.opening.engines import open_generator
from purerl.protocols import Request, generate
from purerl.recipes.addition import prepare
from purerl.runs.chat import ChatSettings, Conversation, open_conversation, stream
from purerl.runs.export import export_model
from purerl.settings import Model
from purerl_cli.chat import _growing
from purerl_cli.main import app
from tests.loop.small import small_real
from tests.recipes.made import write_model

from .terminal import run_in_terminal

if TYPE_CHECKING:
    from purerl.backends.hf.sampling.engine import HFGenerator

SHORT = ChatSettings(max_tokens=12, temperature=1.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("chat") / "model")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def _answer(conversation: Conversation, question: str) -> str:
    for _ in stream([conversation], question):
        pass
    return conversation.text


def _purerl_chat(*arguments: object, lines: str) -> Result:
    return CliRunner().invoke(app, ["chat", *map(str, arguments)], input=lines)


# --- conversations -----------------------------------------------------------------------------------------------


def test_answer_grows_to_the_completion_of_the_rendered_conversation(
    model: str, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = open_conversation(model, SHORT, stack)
    requests: list[Request] = []
    submit = conversation.generator.submit

    def record(new: Sequence[Request]) -> None:
        requests.extend(new)
        submit(new)

    monkeypatch.setattr(conversation.generator, "submit", record)
    for question in ("2 + 3?", "and 4?"):
        texts = [conversation.text for _ in stream([conversation], question)]
        assert len(texts) > 5
        assert all(text.startswith(before) for before, text in pairwise(texts))
    assert [message["role"] for message in conversation.messages] == ["user", "assistant"] * 2
    other = open_generator(GeneratorConfig(), Model(model), 0)
    stack.callback(other.close)
    tokenizer = conversation.chat.tokenizer
    for request, message in zip(requests, conversation.messages[1::2], strict=True):
        [completion] = generate(other, [request])
        assert tokenizer.decode(completion.tokens, skip_special_tokens=True) == message["content"]
    assert "2 + 3?<|im_end|>" in tokenizer.decode(requests[1].tokens)
    assert conversation.messages[1]["content"] in tokenizer.decode(requests[1].tokens)


def test_tokens_of_a_request_can_be_read_while_it_is_sampled(model: str, stack: ExitStack) -> None:
    conversation = open_conversation(model, SHORT, stack)
    conversation.ask("2 + 3?")
    generator, seen = conversation.generator, [[]]
    while not (finished := generator.collect(0.0)):
        seen.append(generator.sampled("chat/0"))
        assert seen[-1][: len(seen[-2])] == seen[-2]
        assert len(seen[-1]) == len(seen[-2]) + 1
    assert [*finished[0].tokens][: len(seen[-1])] == seen[-1]
    assert generator.sampled("chat/0") == []


def test_reset_and_system_prompt(model: str, stack: ExitStack) -> None:
    conversation = open_conversation(model, SHORT, stack)
    first = _answer(conversation, "2 + 3?")
    assert _answer(conversation, "2 + 3?") != first
    conversation.reset()
    assert _answer(conversation, "2 + 3?") == first
    conversation.set_system_prompt("Be short.")
    assert conversation.messages == []
    assert _answer(conversation, "2 + 3?") != first
    conversation.set_system_prompt(None)
    assert _answer(conversation, "2 + 3?") == first


def test_conversation_that_is_too_long(model: str, stack: ExitStack) -> None:
    conversation = open_conversation(model, SHORT, stack)
    with pytest.raises(InputError, match=r"(?s)^the conversation with .*got:  \d{4} tokens\n.*do:   /reset starts"):
        conversation.ask("2" * 5000)
    assert conversation.messages == []
    assert not conversation.is_answering
    other = open_conversation(model, SHORT, stack)
    _answer(conversation, "2" * 1100)
    with pytest.raises(InputError):
        list(stream([other, conversation], "2" * 1100))
    assert other.messages == []
    assert len(conversation.messages) == 2
    assert not other.is_answering


def test_ctrl_c_ends_an_answer_and_not_the_conversation(model: str, stack: ExitStack) -> None:
    conversation = open_conversation(model, ChatSettings(max_tokens=500, temperature=1.0), stack)
    conversation.sampling = conversation.sampling.__class__(temperature=1.0, max_tokens=500)  # no stop token
    before = signal.getsignal(signal.SIGINT)
    for count, _ in enumerate(_growing([conversation], "2 + 3?")):
        if count == 3:
            signal.raise_signal(signal.SIGINT)
    assert conversation.finish == "cancelled"
    assert 3 < count < 10
    assert signal.getsignal(signal.SIGINT) is before
    assert conversation.messages[-1] == {"role": "assistant", "content": conversation.text}
    conversation.sampling = conversation.sampling.__class__(temperature=1.0, max_tokens=5)
    _answer(conversation, "and 4?")
    assert conversation.finish == "length"


def test_model_without_a_chat_template(tmp_path: Path, stack: ExitStack) -> None:
    prepare(tmp_path, seed=0)
    model = tmp_path / "model"
    with pytest.raises(ConfigError, match=f"(?s)without a chat template.*purerl sample {model} --prompt TEXT"):
        open_conversation(str(model), SHORT, stack)


def test_checkpoints_of_a_run(model: str, tmp_path: Path, stack: ExitStack) -> None:
    run = tmp_path / "run"
    train(small_real(4, model=Model(model)), directory=run)
    names = (str(run), f"{run}:2", f"{run}/checkpoints/000002")
    exported = [run / "final", *[export_model(run, "2", tmp_path / "two")] * 2]
    for name, folder in zip(names, exported, strict=True):
        conversation = open_conversation(name, SHORT, stack)
        expected = load_file(folder / "model.safetensors")
        loaded = cast("HFGenerator", conversation.generator)._model.state_dict()
        assert all((loaded[key] == value).all() for key, value in expected.items())
        assert conversation.name == (name if name == str(run) else f"{run}:2")
        _answer(conversation, "2 + 3?")
    with pytest.raises(ConfigError, match="(?s)^the model\n  got:  .*:last"):
        open_conversation(f"{run}:last", SHORT, stack)


# --- the command -------------------------------------------------------------------------------------------------


def test_each_line_of_standard_input_is_a_message(model: str, stack: ExitStack) -> None:
    options = ("--max-tokens", 6, "--temperature", 0)
    result = _purerl_chat(model, *options, lines="2 + 3?\n\n/reset\n2 + 3?\n/what\n/quit\nnot asked\n")
    assert result.exit_code == 0, result.output
    expected = _answer(open_conversation(model, ChatSettings(max_tokens=6, temperature=0.0), stack), "2 + 3?")
    assert result.stdout == f"{expected}\n" * 2
    assert "loading: " in result.stderr
    assert "error: command '/what'\n  need: /system TEXT, /reset or /quit" in result.stderr
    assert result.stderr.count("(the answer was ended by the maximum number of tokens)") == 2


def test_two_models_answer_below_each_other(model: str, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other", head_dim=32)
    result = _purerl_chat(model, other, "--max-tokens", 4, lines="2 + 3?\n")
    assert result.exit_code == 0, result.output
    heads = [line for line in result.stdout.splitlines() if line.startswith("[/")]
    assert heads == [f"[{model}]", f"[{other}]"]


def test_two_models_answer_side_by_side_in_a_terminal(model: str) -> None:
    command = [sys.executable, "-m", "purerl_cli", "chat", model, model, "--max-tokens", "3", "--temperature", "0"]
    output, status = run_in_terminal(command, typed=[("> ", "2 + 3?\n"), ("> ", "/quit\n")])
    assert status == 0, output
    assert "/system TEXT starts again" in output
    heads = [line for line in output.splitlines() if line.count(model[-10:]) == 2]
    assert heads, output
