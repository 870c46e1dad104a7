"""Conversations with models and checkpoints of runs, whose answers arrive token by token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, cast

from attrs import define, evolve, field, frozen

from purerl.backends.hf.settings import GeneratorConfig
from purerl.config.generators import sampled_model
from purerl.config.requirements import requirements_of
from purerl.config.stored import read_config
from purerl.data.chat import Chat, open_chat, tokenize_prompts
from purerl.errors import ConfigError, InputError
from purerl.models.tokenizer import end_tokens, load_tokenizer
from purerl.opening.base_models import pin_recorded
from purerl.opening.engines import load_policy, open_generator
from purerl.opening.start_checkpoint import StartCheckpoint, find_checkpoint, parse_start_checkpoint
from purerl.protocols import FinishReason, Generator, Request, Sampling
from purerl.seeds import derive_seed
from purerl.settings import Model
from purerl.store.directory import is_started_run
from purerl.store.objects import read_facts

__all__ = ["ChatSettings", "Conversation", "StreamingGenerator", "open_conversation", "stream"]

_INCOMPLETE = "\ufffd"  # the last character of a text whose bytes are not all there


class StreamingGenerator(Generator, Protocol):
    """A generator that is `in_process`, and whose tokens can be read while they are sampled."""

    def sampled(self, key: str) -> list[int]:
        """The tokens of the request `key` so far, between two calls of `collect`; empty if it is not being decoded."""
        ...


@frozen(kw_only=True)
class ChatSettings:
    """Settings of a conversation.

    system_prompt, chat_template_kwargs  None: those of the run, or none
    dtype                                of the weights; None: as the run samples, or float32
    """

    system_prompt: str | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    temperature: float = 0.7
    max_tokens: int = 1024
    seed: int = 0
    dtype: str | None = None
    device: str = "auto"


@define(eq=False)
class Conversation:
    """A conversation with one model.

    name       of the model, for people
    generator  samples the answers
    messages   of the user and the model, without the system prompt
    text       the last answer, as far as it has been sampled
    finish     why it has ended; None while it is sampled, and before the first one
    """

    name: str
    chat: Chat
    generator: StreamingGenerator
    sampling: Sampling
    seed: int
    messages: list[dict[str, str]] = field(factory=list, init=False)
    text: str = field(default="", init=False)
    finish: FinishReason | None = field(default=None, init=False)
    _request: Request | None = field(default=None, init=False)
    _kept: list[str] = field(factory=list, init=False)
    _num_requests: int = field(default=0, init=False)

    @property
    def is_answering(self) -> bool:
        """Whether an answer is being sampled."""
        return self._request is not None

    def ask(self, question: str) -> None:
        """Request the answer to `question`. It is no longer than the room that the model has after the conversation.

        Raises: InputError if there is no room; DataError if the chat template refuses the conversation.
        """
        messages = [*self.messages, {"role": "user", "content": question}]
        [prompt] = tokenize_prompts(self.chat, [messages])
        limit = self.generator.capabilities.max_sequence_length
        room = self.sampling.max_tokens if limit is None else limit - len(prompt.tokens)
        if room < 1:
            got, need = f"{len(prompt.tokens)} tokens", f"less than {limit}, which the model can read"
            raise InputError(f"the conversation with {self.name}", got=got, need=need, do="/reset starts a new one")
        sampling = evolve(self.sampling, max_tokens=min(room, self.sampling.max_tokens))
        key, self._num_requests = f"chat/{self._num_requests}", self._num_requests + 1
        seed = derive_seed(self.seed, "chat", len(messages))
        self.generator.submit([request := Request(key, prompt.tokens, sampling, seed, keep=True)])
        self.messages, self.text, self.finish, self._request = messages, "", None, request

    def advance(self) -> None:
        """Sample at least one more token of the answer."""
        if self._request is None:
            return
        finished = self.generator.collect(0.0)
        if finished:
            self._end(finished[0].tokens, finished[0].finish)
        else:
            text = self._decode(self.generator.sampled(self._request.key))
            self.text = text.rstrip(_INCOMPLETE)

    def cancel(self) -> None:
        """End the answer here, if one is being sampled; it stays in the conversation."""
        if self._request is not None:
            self.generator.cancel([self._request.key])
            [completion] = self.generator.collect()
            self._end(completion.tokens, completion.finish)

    def withdraw(self) -> None:
        """Remove the last question and its answer."""
        self.cancel()
        self.messages = self.messages[:-2]

    def reset(self) -> None:
        """Forget the conversation."""
        self.cancel()
        self._release()
        self.messages = []

    def set_system_prompt(self, text: str | None) -> None:
        """Forget the conversation, and begin the next one with this system prompt; None: without one."""
        self.reset()
        self.chat = evolve(self.chat, system_prompt=text)

    def _end(self, tokens: Sequence[int], finish: FinishReason) -> None:
        request, self._request = self._request, None
        self.text, self.finish = self._decode(tokens), finish
        self.messages = [*self.messages, {"role": "assistant", "content": self.text}]
        self._release()
        self._kept = [request.key] if request else []

    def _release(self) -> None:
        """Let the generator forget what it keeps for a continuation that has begun, or will not come."""
        if self._kept:
            self.generator.cancel(self._kept)
        self._kept = []

    def _decode(self, tokens: Sequence[int]) -> str:
        if tokens and tokens[-1] in self.sampling.stop_tokens:
            tokens = tokens[:-1]
        return self.chat.tokenizer.decode([*tokens], skip_special_tokens=True)


def stream(conversations: Sequence[Conversation], question: str) -> Iterator[None]:
    """Ask all `conversations` the same `question`, and yield each time that their answers have grown.

    Raises: as `Conversation.ask`; then none of them has the question.
    """
    asked: list[Conversation] = []
    try:
        for conversation in conversations:
            conversation.ask(question)
            asked.append(conversation)
    except InputError:
        for conversation in asked:
            conversation.withdraw()
        raise
    while any(conversation.is_answering for conversation in conversations):
        for conversation in conversations:
            conversation.advance()
        yield


def open_conversation(name: str, settings: ChatSettings, stack: ExitStack) -> Conversation:
    """A conversation with `name`: a directory in Hugging Face's format, a name on the hub, RUN, RUN:STEP or RUN:best.

    Of a finished run the final model answers, and of one in progress its newest checkpoint. The system prompt and the
    arguments of the chat template are those of the run, unless `settings` has others. Environments and tools of a run
    are not used. `stack` closes the generator.

    Raises: ConfigError for a model that cannot be loaded or has no chat template; CheckpointError if there is no such
    checkpoint.
    """
    start = None if Path(name, "config.json").is_file() else parse_start_checkpoint(name, "the model")
    if start is None or not is_started_run(start.run):
        return _converse(name, Model(name, dtype=settings.dtype or "float32"), settings, stack)
    config = pin_recorded(read_config(start.run), start.run)
    given, changes = settings, {}
    if given.system_prompt is None:
        changes["system_prompt"] = config.data.system_prompt
    if given.chat_template_kwargs is None:
        changes["chat_template_kwargs"] = config.data.chat_template_kwargs
    settings = evolve(given, **changes)
    dtype = settings.dtype or sampled_model(config.model, config.trainer).dtype
    is_final = start.step == "latest" and (start.run / "summary.json").exists()
    if is_final:
        return _converse(name, evolve(config.model, path=str(start.run / "final"), dtype=dtype), settings, stack)
    checkpoint = find_checkpoint(StartCheckpoint(start.run, start.step))
    name = f"{start.run}:{int(checkpoint.name)}"
    conversation = _converse(name, evolve(config.model, dtype=dtype), settings, stack)
    num_examples = read_facts(start.run).get("examples", 0)
    with closing(load_policy(requirements_of(config), checkpoint, num_examples, seed=config.seed)) as policy:
        conversation.generator.load_weights(policy.weights(), version=0)
    return conversation


def _converse(name: str, model: Model, settings: ChatSettings, stack: ExitStack) -> Conversation:
    """A conversation with `model` as it is in its files."""
    tokenizer = load_tokenizer(model)
    if not tokenizer.chat_template:
        do = f"continue a text instead: purerl sample {model.path} --prompt TEXT"
        raise ConfigError(repr(name), got="a tokenizer without a chat template", need="a model for chats", do=do)
    chat = open_chat(
        tokenizer,
        "messages",
        system_prompt=settings.system_prompt,
        chat_template_kwargs=settings.chat_template_kwargs or MappingProxyType({}),
        extra_stop_tokens=end_tokens(model),
    )
    sampling = Sampling(settings.temperature, settings.max_tokens, chat.stop_tokens)
    generator = open_generator(GeneratorConfig(device=settings.device), model, settings.seed)
    stack.callback(generator.close)
    return Conversation(name, chat, cast("StreamingGenerator", generator), sampling, settings.seed)
