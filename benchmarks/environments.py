"""Episodes in environments, with every part of the package that a run uses: for `benchmarks.turns`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from purerl.backends.hf.sampling.engine import HFGenerator
from purerl.data.chat import Chat, Prompt, open_chat
from purerl.envs.hosts import open_host
from purerl.envs.protocol import Observation, ToolCall
from purerl.envs.settings import EnvironmentSettings
from purerl.envs.turns import open_renderer
from purerl.protocols import Completion, Request, Sampling, Weights
from purerl.rollouts.environment import EnvironmentWorkflow
from purerl.rollouts.rollouts import Rollouts
from purerl.rollouts.runtime import Runtime
from purerl.rollouts.types import Draw

TURNS, FIRST_LETTER = 4, 0x4E00
SPECIAL = ("<|im_start|>", "<|im_end|>", "user\n", "assistant\n", "\n")
TEMPLATE = """\
{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""


class SlowAnswer:
    """An environment that answers each turn but the last after `seconds`. Its answer is 12 tokens in the row."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._turns = seconds, 0

    async def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        return Observation()

    async def step(self, text: str, calls: Sequence[ToolCall]) -> Observation:
        self._turns += 1
        if self._turns == TURNS:
            return Observation(reward=float(len(text)), done=True)
        await asyncio.sleep(self._seconds)
        return Observation(messages=[{"role": "user", "content": _letters(range(4))}])

    async def close(self) -> None: ...


class RandomLengths:
    """`generator`, whose completions have 32 to 64 tokens, and end as if a stop string had ended them.

    idle    seconds in which no request was in flight and this process did not work either
    tokens  number of sampled tokens
    """

    def __init__(self, generator: HFGenerator) -> None:
        self._generator, self.capabilities, self._in_flight = generator, generator.capabilities, 0
        self.start()

    def start(self) -> None:
        """Count from now on."""
        self._wait_since, self.idle, self.tokens = (time.monotonic(), time.process_time()), 0.0, 0

    def stop(self) -> None:
        """Count the time until now."""
        if not self._in_flight:
            wall, cpu = self._wait_since
            self.idle += max(0.0, time.monotonic() - wall - (time.process_time() - cpu))

    def submit(self, requests: Sequence[Request]) -> None:
        self.stop()
        self._in_flight += len(requests)
        self._generator.submit(
            [Request(r.key, r.tokens, _with_length(r.sampling, 32 + r.seed % 33), r.seed, r.keep) for r in requests]
        )

    def collect(self, timeout: float | None = None) -> list[Completion]:
        completions = self._generator.collect(timeout)
        self._in_flight -= len(completions)
        self.tokens += sum(len(completion.tokens) for completion in completions)
        self._wait_since = time.monotonic(), time.process_time()
        return [Completion(c.key, c.tokens, c.logp, c.version, "stop") for c in completions]

    def cancel(self, keys: Sequence[str]) -> None:
        self._generator.cancel(keys)

    def load_weights(self, weights: Weights, *, version: int) -> None:
        self._generator.load_weights(weights, version=version)

    def close(self) -> None:
        self._generator.close()


class Episodes:
    """Runs `number` episodes whose environments are in worker processes, or in the event loop (`run_in`).

    tool      seconds of an answer
    lockstep  whether the episodes wait for each other in each turn
    """

    def __init__(
        self,
        generator: HFGenerator,
        number: int,
        *,
        run_in: str,
        tool: float,
        vocabulary: int,
        lockstep: bool = False,
    ) -> None:
        self._generator, self._number = RandomLengths(generator), number
        self.runtime = Runtime(self._generator)
        settings = EnvironmentSettings(
            factory="benchmarks.environments:SlowAnswer",
            kwargs={"seconds": tool},
            run_in=run_in,
            max_turns=TURNS,
        )
        host = open_host(settings)
        self.runtime.add_cleanup(host.close)
        workflow = EnvironmentWorkflow(
            open_environment=lambda draw, sample: host.open(),
            renderer=open_renderer(_chat(vocabulary)),
            messages=lambda draw: [{"role": "user", "content": draw.example["prompt"]}],
            sampling=Sampling(max_tokens=64),
            samples_per_prompt=1,
            max_turns=TURNS,
            open_requests=self.runtime.episodes(in_lockstep=lockstep),
        )
        self._rollouts = Rollouts(self.runtime, workflow)
        self._letters = vocabulary - len(SPECIAL)

    def run(self) -> tuple[int, float]:
        """The number of sampled tokens, and the seconds in which all environments were waiting."""
        self._generator.start()
        draws = [
            Draw(
                k, k, {"prompt": _letters((7 * k + j) % self._letters for j in range(58))}, Prompt("", []), str(k), (k,)
            )
            for k in range(self._number)
        ]
        self._rollouts.submit(draws)
        groups = self._rollouts.collect(draws=range(self._number))
        self._generator.stop()
        rows = [trajectory for group in groups for trajectory in group.trajectories]
        if len(rows) != self._number or any(row.result.failure for row in rows):
            raise SystemExit(f"episodes have failed: {next(row.result.failure for row in rows if row.result.failure)}")
        return self._generator.tokens, self._generator.idle


def _with_length(sampling: Sampling, length: int) -> Sampling:
    """`attrs.evolve` takes longer than all that is measured here."""
    return Sampling(sampling.temperature, length, sampling.stop_tokens, sampling.stop_strings)


def _letters(numbers: Any) -> str:
    return "".join(chr(FIRST_LETTER + number) for number in numbers)


def _chat(vocabulary: int) -> Chat:
    """A chat in which a prompt of 58 letters has 64 tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = [*SPECIAL, *map(chr, range(FIRST_LETTER, FIRST_LETTER + vocabulary - len(SPECIAL)))]
    letters = Tokenizer(models.WordLevel({token: k for k, token in enumerate(tokens)}, unk_token=SPECIAL[-1]))
    letters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    letters.decoder = decoders.Fuse()
    letters.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="<|im_end|>", pad_token="\n")
    tokenizer.chat_template = TEMPLATE
    return open_chat(tokenizer, "messages")
