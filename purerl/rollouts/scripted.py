"""A generator that replays given texts, for playing an episode without a model."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from purerl.data.chat import Chat
from purerl.errors import EngineError
from purerl.protocols import Capabilities, Completion, Request, Weights

__all__ = ["ScriptedGenerator"]


class ScriptedGenerator:
    """A `Generator` that answers each request with the next one of `turns`, and a stop token.

    Special tokens may be spelled, as in the calls of some formats of tools. A turn that is longer than the request
    allows is cut. Log-probabilities are 0.

    Raises: EngineError for a request without a turn.
    """

    capabilities = Capabilities(in_process=True)

    def __init__(self, chat: Chat, turns: Sequence[str]) -> None:
        self._chat, self._turns = chat, deque(turns)
        self._finished: list[Completion] = []

    def submit(self, requests: Sequence[Request]) -> None:
        self._finished += [self._completion(request) for request in requests]

    def collect(self, timeout: float | None = None) -> list[Completion]:
        finished, self._finished = self._finished, []
        return finished

    def cancel(self, keys: Sequence[str]) -> None:
        self._finished = [completion for completion in self._finished if completion.key not in keys]

    def load_weights(self, weights: Weights, *, version: int) -> None:
        pass

    def close(self) -> None:
        pass

    def _completion(self, request: Request) -> Completion:
        if not self._turns:
            raise EngineError("there is no turn for another request", need="a text for each turn of the model")
        text = self._chat.tokenizer(self._turns.popleft(), add_special_tokens=False)["input_ids"]
        tokens = [*text, *self._chat.stop_tokens[:1]]
        said = tokens[: request.sampling.max_tokens]
        finish = "stop" if len(said) == len(tokens) else "length"
        return Completion(request.key, said, [0.0] * len(said), [0] * len(said), finish)
