"""The interaction of the policy in a run: an environment with its tools, or a workflow of a user."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

from attrs import evolve, frozen

from purerl.data.chat import Chat, Messages
from purerl.data.columns import ExampleFormat
from purerl.data.examples import extract_prompt
from purerl.data.limits import min_limit
from purerl.data.turn_tokens import Tools
from purerl.envs.failures import EnvironmentFailure
from purerl.envs.hosts import Host, episode, open_host
from purerl.envs.settings import EnvironmentSettings, name_of_source
from purerl.envs.turns import TurnRenderer, open_renderer
from purerl.errors import RolloutError
from purerl.protocols import Capabilities, Sampling
from purerl.rewards.runner import RewardRunner
from purerl.rollouts.custom_workflow import WorkflowFunction
from purerl.rollouts.environment import EnvironmentWorkflow
from purerl.rollouts.row_images import RowImages
from purerl.rollouts.runtime import Runtime
from purerl.rollouts.settings import WorkflowSettings
from purerl.rollouts.single_turn import RowFields, SingleTurn
from purerl.rollouts.types import Draw, Workflow
from purerl.settings import in_section, no_effect

__all__ = ["Interaction", "OpenedEnvironment", "open_interaction", "open_renderer_of", "open_workflow", "with_limit"]


@frozen
class OpenedEnvironment:
    """An environment that can be used: its settings, its host, and the renderer of its conversations.

    gives_rewards        whether episodes have the rewards of the environment. If not, and without reward functions,
                         they have no rewards
    max_sequence_length  tokens of the longest row; None: no limit
    """

    settings: EnvironmentSettings
    host: Host
    renderer: TurnRenderer
    gives_rewards: bool
    max_sequence_length: int | None = None


Interaction = OpenedEnvironment | WorkflowFunction | None
"""The part of a run between a prompt and its rows. None: the policy completes the prompt."""


def open_interaction(
    environment: EnvironmentSettings | None,
    workflow: WorkflowSettings | None,
    runtime: Runtime,
    chat: Chat,
    example: Mapping[str, Any],
    *,
    seed: int,
) -> Interaction:
    """Start the environment, if there is one, and one episode of `example`, which shows its tools.

    `workflow` is that of a user, and `seed` that of the run. No engine is needed, so that what is wrong with an
    environment is known before a model is loaded.

    Raises: RolloutError if the episode cannot be started; ConfigError if the chat template does not fit the tools, or
    if a setting has no effect.
    """
    if workflow is not None:
        return WorkflowFunction(workflow, runtime, seed)
    return None if environment is None else _open_environment(environment, runtime, chat, example)


def _open_environment(
    settings: EnvironmentSettings, runtime: Runtime, chat: Chat, example: Mapping[str, Any]
) -> OpenedEnvironment:
    host = open_host(settings)
    runtime.add_cleanup(host.close)
    try:
        tools = runtime.run(_tools_of(host, example), timeout=600.0 + settings.timeout)
    except EnvironmentFailure as error:
        failure = error.failure
        what = f"the environment {name_of_source(settings)} cannot start an episode"
        do = "fix it; purerl.testing.check_environment tests an environment"
        do = "start the server, or correct environment.url" if settings.url else do
        raise RolloutError(what, got=f"{failure.kind}\n{failure.traceback}".rstrip(), do=do) from error
    return OpenedEnvironment(settings, host, open_renderer_of(settings, chat, tools), settings.gives_rewards)


def open_renderer_of(settings: EnvironmentSettings, chat: Chat, tools: Tools) -> TurnRenderer:
    """The renderer of conversations with the environment of `settings`, which has these `tools`.

    Raises: ConfigError as `open_renderer`, with the key of the setting; for a setting without effect.
    """
    with in_section("environment", EnvironmentSettings):
        if settings.history == "rerender" and chat.prompt_format == "text":
            raise no_effect("history", settings.history, "chat messages: text is never rendered again")
        return open_renderer(chat, tools, renderer=settings.renderer, tool_format=settings.tool_format)


def with_limit(interaction: Interaction, *engines: Capabilities) -> Interaction:
    """`interaction`, if there is one, with rows that are no longer than all of `engines` allow."""
    return interaction and evolve(interaction, max_sequence_length=min_limit(*engines))


async def _tools_of(host: Host, example: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    async with episode(host) as opened:
        await opened.reset(example, 0)
        return tuple(opened.tools or ())


def open_workflow(
    interaction: Interaction,
    chat: Chat,
    example_format: ExampleFormat,
    *,
    sampling: Sampling,
    samples: int,
    rewards: RewardRunner,
    row_fields: RowFields,
    runtime: Runtime | None = None,
    is_synchronous: bool = True,
) -> Workflow:
    """The workflow that samples `samples` completions, or episodes, of each draw, and scores them with `rewards`.

    runtime         in which it will run, for episodes that wait for each other; None: they do not
    is_synchronous  all draws are waited for before the weights change
    """
    if interaction is None:
        return SingleTurn(
            tokenizer=chat.tokenizer,
            sampling=sampling,
            samples=samples,
            score=rewards.score,
            row_fields=row_fields,
            images=RowImages(chat),
            reads_query=rewards.reads_query,
        )
    messages = _messages_of(example_format)
    if isinstance(interaction, WorkflowFunction):
        return interaction(chat, messages, sampling=sampling, samples=samples, rewards=rewards, row_fields=row_fields)
    settings, host = interaction.settings, interaction.host
    return EnvironmentWorkflow(
        open_environment=lambda draw, k: host.open(),
        renderer=interaction.renderer,
        messages=messages,
        sampling=sampling,
        samples_per_prompt=samples,
        max_turns=settings.max_turns,
        max_episode_tokens=settings.max_episode_tokens,
        max_sequence_length=interaction.max_sequence_length,
        history=settings.history,
        players=settings.players,
        has_states=settings.has_states,
        has_scores=settings.has_scores,
        gives_rewards=interaction.gives_rewards,
        score=rewards.score if rewards.names or not interaction.gives_rewards else None,
        fields=row_fields,
        close_timeout=settings.timeout,
        images=RowImages(chat),
        open_requests=runtime.episodes(in_lockstep=is_synchronous and settings.lockstep) if runtime else nullcontext,
    )


def _messages_of(example_format: ExampleFormat) -> Callable[[Draw], Messages]:
    """The messages of the prompt of a draw; a plain-text prompt is one of them."""

    def messages(draw: Draw) -> Messages:
        prompt = extract_prompt(example_format, draw.example)
        return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt

    return messages
