"""Episodes of a configuration in this process, for a debugger: no worker processes, and no deadlines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast

from attrs import define, evolve, frozen

from purerl.config.check import check
from purerl.config.generators import sampled_model
from purerl.config.paths import resolve_paths
from purerl.config.schema import RunConfig
from purerl.data.chat import Chat, Messages, Prompt
from purerl.data.examples import rows_at
from purerl.data.turn_tokens import Tools
from purerl.envs.episode import Episode
from purerl.envs.hosts import Host, open_host
from purerl.envs.protocol import EndReason, Observation, ToolCall
from purerl.envs.settings import EnvironmentSettings
from purerl.envs.turn import Turn
from purerl.envs.turns import TurnRenderer
from purerl.errors import ConfigError, DataError
from purerl.opening.engines import open_generator
from purerl.opening.images import use_images
from purerl.opening.task import open_task
from purerl.protocols import FinishReason, Generator, Sampling
from purerl.rewards.settings import by_name
from purerl.rewards.sources import load, source_of
from purerl.rollouts.debug import play
from purerl.rollouts.environment import EnvironmentWorkflow
from purerl.rollouts.interaction import OpenedEnvironment, open_renderer_of, open_workflow
from purerl.rollouts.opened import Task
from purerl.rollouts.scripted import ScriptedGenerator
from purerl.rollouts.types import Trajectory
from purerl.settings import Model
from purerl.system.private_files import private_folder

__all__ = ["open_debug_workflow", "play_row"]

_A_DAY = 86400.0  # seconds


def play_row(
    config: RunConfig,
    row: int = 0,
    *,
    turns: Sequence[str] | None = None,
    directory: str | Path | None = None,
    number: int = 0,
    sample: int = 0,
) -> list[Trajectory]:
    """Play one episode of `config` in this thread, with its environment, tools and reward functions; return its rows.

    Breakpoints in the environment, in tools and in reward functions work, and an exception of the environment is
    raised. In a notebook the episode is played in another thread.

    row             of the training data
    turns           what the model says, a text for each turn; the episode ends after the last one. Without it, the
                    model of `config` is loaded, and samples
    directory       the run directory, if `config` names files in it
    number, sample  of the draw and of the episode, which their seeds depend on

    Raises: ConfigError and DataError for an invalid configuration; what the environment raises; RewardError if a reward
    function fails.
    """
    if directory is not None:  # but servers that the run uses stay those of the run
        generator, config = config.generator, resolve_paths(config, Path(directory))
        config = evolve(config, generator=_as_stranger(config.generator, generator))
    with ExitStack() as stack:
        images = stack.enter_context(private_folder("purerl-images-"))
        workflow, task = open_debug_workflow(config, images=images)
        examples = task.training.examples
        num_rows = sum(table.num_rows for table in examples.tables)
        if not 0 <= row < num_rows:
            raise DataError(f"row {row} of the training data", need=f"a number from 0 to {num_rows - 1:,}")
        example = rows_at(examples, [row])[0]
        if turns is not None and not turns:
            raise ConfigError("turns", got="no turn", need="a text for each turn of the model")
        sampler = config.generator and (config.generator, sampled_model(config.model, config.trainer))
        generator = stack.enter_context(closing(_open_generator(sampler, task.chat, turns, config.seed)))
        if turns is None:
            use_images(task.chat, {"generator": generator})
        limit, seed = generator.capabilities.max_sequence_length, config.seed
        max_turns = workflow.max_turns if turns is None else min(workflow.max_turns, len(turns))
        limited = evolve(workflow, max_turns=max_turns, max_sequence_length=limit)
        return play(limited, example, generator=generator, index=row, number=number, sample=sample, seed=seed)


def _as_stranger(resolved: Any, generator: Any) -> Any:
    """The settings `resolved` of a generator with the directory of logs of `generator`, by which a run is known."""
    if getattr(resolved, "server", None) is None:
        return resolved
    return evolve(resolved, server=evolve(resolved.server, logs=generator.server.logs))


def _open_generator(sampler: tuple[Any, Model] | None, chat: Chat, turns: Sequence[str] | None, seed: int) -> Generator:
    """A generator of these `turns`; without any, the engine of `sampler`, a Config and a model."""
    if turns is not None:
        return ScriptedGenerator(chat, turns)
    if sampler is None:
        raise ConfigError("generator is missing", need="an engine that samples the turns", do="set it, or give turns")
    return open_generator(*sampler, seed)


def open_debug_workflow(config: RunConfig, *, images: Path | None = None) -> tuple[EnvironmentWorkflow, Task]:
    """The workflow of `config` for `purerl.rollouts.play`, and the task of the run, whose training rows are examples.

    `images` is a directory for images in conversations. If there are any, it is needed.

    Everything runs in the thread that plays: environments, tools and reward functions. There are no deadlines, so that
    a debugger can stop in them. An environment on another machine stays there.

    Raises: ConfigError for a configuration that is invalid, or has no environment; DataError for invalid data.
    """
    needs = check(config)[""]
    sampled = config.rollout or config.evaluate
    if config.environment is None or sampled is None:
        raise ConfigError("environment is missing", need="a run with an environment or tools", do="set environment")
    rewards = by_name(config.rewards, config.gates)
    # Kinds are built, and the runner adds the arguments of a function.
    functions = {name: load(source_of(reward)._replace(kwargs=None)).function for name, reward in rewards.items()}
    task = open_task(config, needs, functions=functions)
    if images is not None:
        task = task.with_images(images)
    local = {} if config.environment.url else {"run_in": "event_loop", "num_workers": None, "max_memory": None}
    settings = evolve(config.environment, timeout=_A_DAY, **local)
    renderer = _LateRenderer(task.chat, settings)
    workflow = open_workflow(
        OpenedEnvironment(settings, _HostPerEpisode(settings), renderer, settings.gives_rewards),
        task.chat,
        task.training.examples.example_format,
        sampling=Sampling(sampled.temperature, sampled.max_tokens, task.chat.stop_tokens, sampled.stop_strings),
        samples=sampled.samples_per_prompt,
        rewards=task.rewards,
        row_fields=lambda draw: {"group": draw.number, "example": draw.index},
    )
    return cast("EnvironmentWorkflow", workflow), task


@frozen
class _HostPerEpisode:
    """A host that each episode has for itself, so that nothing is left when it is over."""

    settings: EnvironmentSettings

    async def open(self) -> Episode:
        host = open_host(self.settings)
        return _Opened(await host.open(), host)

    async def close(self) -> None:
        pass


@frozen
class _Opened:
    """An episode with its host, which is closed with it."""

    episode: Episode
    host: Host

    @property
    def tools(self) -> Any:
        return self.episode.tools

    async def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        return await self.episode.reset(example, seed)

    async def step(self, text: str, calls: Sequence[ToolCall]) -> Observation:
        return await self.episode.step(text, calls)

    async def end(self, reason: EndReason, text: str) -> Observation | None:
        return await self.episode.end(reason, text)

    async def close(self) -> None:
        await self.episode.close()
        await self.host.close()


@define
class _LateRenderer:
    """The renderer of an episode, opened with the tools of its first prompt: no other episode shows them before."""

    chat: Chat
    settings: EnvironmentSettings
    tools: Tools = ()
    opened: TurnRenderer | None = None

    def prompt(self, messages: Messages, tools: Tools | None = None) -> Prompt:
        self.tools = tools or ()
        return self._renderer().prompt(messages, tools)

    def parse(self, tokens: Sequence[int], finish: FinishReason, *, turn: int = 0) -> Turn:
        return self._renderer().parse(tokens, finish, turn=turn)

    def following(
        self, before: Messages, turn_tokens: Sequence[int], new: Messages, tools: Tools | None = None
    ) -> list[int]:
        return self._renderer().following(before, turn_tokens, new, tools)

    def rerendered(self, messages: Messages, tools: Tools | None = None) -> Prompt:
        return self._renderer().rerendered(messages, tools)

    def _renderer(self) -> TurnRenderer:
        if self.opened is None:
            self.opened = open_renderer_of(self.settings, self.chat, self.tools)
        return self.opened
