"""The workflow that drives environments: a model and an environment take turns, and each episode becomes rows.

An episode that fails is a missing sample: its rows are masked out, and it never has the reward 0. It fails if the
environment raises an exception or exceeds a time limit, if the generator fails on a request, or if a reward function
fails. Other errors are raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import chain
from typing import Any, Literal, NamedTuple

from attrs import evolve, frozen

from purerl.data.chat import Messages
from purerl.data.row_images import images_of
from purerl.data.turn_tokens import Tools
from purerl.envs.protocol import EndReason, Environment, SupportsEnd
from purerl.envs.turns import TurnRenderer
from purerl.errors import EngineError
from purerl.images import Image
from purerl.protocols import Request, Sampling
from purerl.rewards.adapters import RewardInput
from purerl.rewards.outcomes import Failure
from purerl.rewards.results import RewardResult
from purerl.rollouts.episode import Episode, Player, Row, SampledTurn
from purerl.rollouts.episode_errors import EpisodeError, episode_error, failures_of, opened, place
from purerl.rollouts.episode_rows import ENVIRONMENT, RowLayout, make_trajectories
from purerl.rollouts.row_images import NO_IMAGES, RowImages
from purerl.rollouts.types import Draw, Generate, Score, Trajectory
from purerl.seeds import derive_seed

__all__ = ["EnvironmentWorkflow", "History", "OpenEnvironment", "OpenRequests"]

OpenEnvironment = Callable[[Draw, int], Awaitable[Environment]]
"""Opens the environment of one sample of a draw.

Its methods are async, they have time limits, and their results are valid for the number of players.
"""

OpenRequests = Callable[[Generate], AbstractContextManager[Generate]]
"""Opens the requests of one episode, which end with the block: see `purerl.rollouts.lockstep`."""

History = Literal["append", "rerender"]


class _Added(NamedTuple):
    """Tokens that are appended to a row, and the content id of the image of each; none in a run without images."""

    tokens: Sequence[int]
    image: Sequence[int]


def _no_fields(draw: Draw) -> Mapping[str, Any]:
    return {}


@frozen(kw_only=True)
class EnvironmentWorkflow:
    """Plays `samples_per_prompt` episodes of a draw at the same time, and returns their rows.

    open_environment     opens the environment of an episode
    renderer             renders conversations as tokens
    messages             the messages of the prompt of a draw
    sampling             of each turn. A turn that is cut at `sampling.max_tokens` ends the episode
    samples_per_prompt   number of episodes
    max_turns            of an episode, of all players together
    max_episode_tokens   tokens of an episode after its prompts, sampled ones and those of the environment, of each
                         player; None: no limit
    max_sequence_length  tokens of a row; None: no limit
    history              append: each turn and the answer to it are appended to the row, and there is one row.
                         rerender: the conversation is rendered again before each turn, and a new row starts if this
                         changes the tokens before it
    players              number of players of a game
    has_states           each turn has a state; the rows have the field `anchor`
    has_scores           observations may have a score of the state; the rows have the field `progress`
    gives_rewards        the environment gives rewards, though perhaps not in each episode
    score                reward functions, which score the conversation of each player at the end of an episode; None:
                         the environment gives all rewards
    fields               further fields of the rows of a draw
    close_timeout        seconds in which an environment must close
    images               of prompts and observations
    open_requests        opens the requests of an episode
    """

    open_environment: OpenEnvironment
    renderer: TurnRenderer
    messages: Callable[[Draw], Messages]
    sampling: Sampling
    samples_per_prompt: int
    max_turns: int
    max_episode_tokens: int | None = None
    max_sequence_length: int | None = None
    history: History = "append"
    players: int = 1
    has_states: bool = False
    has_scores: bool = False
    gives_rewards: bool = True
    score: Score | None = None
    fields: Callable[[Draw], Mapping[str, Any]] = _no_fields
    close_timeout: float = 10.0
    images: RowImages = NO_IMAGES
    open_requests: OpenRequests = nullcontext

    async def __call__(self, draw: Draw, generate: Generate) -> list[Trajectory]:
        """All rows of `draw`, sample by sample. Raises ImageError if an image of the prompt is damaged."""
        self.images.store(draw.prompt.images)
        try:
            async with asyncio.TaskGroup() as group:
                samples = [self._sample(draw, k, generate) for k in range(self.samples_per_prompt)]
                tasks = [group.create_task(sample) for sample in samples]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [*chain.from_iterable(task.result() for task in tasks)]

    async def _sample(self, draw: Draw, sample: int, generate: Generate) -> list[Trajectory]:
        episode = self.start(draw, sample)
        try:
            await self.play(episode, generate)
        except EpisodeError as error:
            episode.failure = error.failure
        return await self.finish(episode)

    # The three phases of an episode. `purerl.rollouts.play` calls them too.

    def start(self, draw: Draw, sample: int) -> Episode:
        """The episode of a sample of `draw`, before anything has happened."""
        return Episode(draw, sample, self.messages(draw), self.images.ids(draw.prompt.tokens, draw.prompt.images))

    async def play(self, episode: Episode, generate: Generate) -> None:
        """Play `episode` to its end. Raises EpisodeError if it fails."""
        with ExitStack() as requests:
            generate_turn = requests.enter_context(self.open_requests(generate))
            async with opened(self.open_environment, episode, self.close_timeout) as environment:
                await self._take_turns(episode, environment, generate_turn)
                requests.close()  # before the environment closes, for which no other episode waits
        if not episode.turns:
            raise _invalid(episode, "the episode is over before its first turn, or its prompt is too long")
        if self.score is None and not episode.truncated and all(turn.reward is None for turn in episode.turns):
            raise _invalid(episode, "the episode is over without a reward, and there are no reward functions")

    async def finish(self, episode: Episode) -> list[Trajectory]:
        """Score `episode`, and return its rows."""
        results: Sequence[RewardResult] = ()
        players = [player for _, player in sorted(episode.players.items()) if player.turns]
        if self.score is not None and episode.failure is None:
            results = await self.score([self._reward_input(episode, player) for player in players])
        by_player = {player.number: result for player, result in zip(players, results, strict=False)}
        rows = self.players if self.history == "append" else self.max_turns
        layout = RowLayout(
            samples=self.samples_per_prompt,
            players=self.players,
            rows=rows,
            temperature=self.sampling.temperature,
            has_states=self.has_states,
            has_scores=self.has_scores,
            gives_rewards=self.gives_rewards,
        )
        return make_trajectories(episode, by_player, layout, self.fields(episode.draw))

    async def _take_turns(self, episode: Episode, environment: Environment, generate: Generate) -> None:
        seed = derive_seed(*episode.draw.seeds, episode.sample)
        with failures_of(ENVIRONMENT, episode):
            observation = await environment.reset(episode.draw.example, seed)
            episode.observe(observation, observation.player)
        tools = getattr(environment, "tools", None) or None
        while not (observation.done or observation.truncated):
            player = episode.player(observation.player)
            reason, text = "turns", ""
            if episode.num_turns == self.max_turns:
                break
            with failures_of(ENVIRONMENT, episode):
                added = self._render(player, tools)
            reason, max_tokens = "tokens", self._max_tokens(player, added.tokens)
            if max_tokens < 1:
                break
            turn = await self._take_turn(episode, player, observation.state, added, max_tokens, generate)
            reason, text = "length", turn.text
            if turn.completion.finish == "length":
                break
            with failures_of(ENVIRONMENT, episode):
                observation = await environment.step(turn.text, turn.calls)
                episode.observe(observation, player.number)
        else:
            episode.truncated = observation.truncated
            return
        episode.truncated = True
        await self._end(episode, environment, reason, text)

    async def _end(self, episode: Episode, environment: Environment, reason: EndReason, text: str) -> None:
        """Tell the environment that a limit has ended `episode`; its last turn gets what the environment returns."""
        if not isinstance(environment, SupportsEnd) or not episode.turns:
            return
        with failures_of(ENVIRONMENT, episode):
            observation = await environment.end(reason, text)
            if observation is not None:
                episode.observe(evolve(observation, messages=()), episode.last_player.number)

    def _render(self, player: Player, tools: Tools | None) -> _Added:
        """The tokens that follow the last turn in the row of `player`. A row that starts here has none."""
        if not player.rows:
            prompt = self.renderer.prompt(player.messages, tools)
            player.prompt_text = prompt.text
            return self._begin_row(player, self._with_ids(prompt.tokens, prompt.images))
        if self.history == "append":
            turn, before, new = player.last_turn
            tokens = self.renderer.following(before, turn.completion.tokens, new, tools)
            return self._with_ids(tokens, images_of(new))
        prompt, row = self.renderer.rerendered(player.messages, tools), player.rows[-1].tokens
        rendered = self._with_ids(prompt.tokens, prompt.images)
        if prompt.tokens[: len(row)] == row:
            return _Added(rendered.tokens[len(row) :], rendered.image[len(row) :])
        return self._begin_row(player, rendered)

    def _begin_row(self, player: Player, prompt: _Added) -> _Added:
        player.rows.append(Row(prompt.tokens, prompt_image=prompt.image))
        return _Added((), ())

    def _with_ids(self, tokens: Sequence[int], images: Sequence[Image]) -> _Added:
        """`tokens` with the content ids of `images`, which are stored."""
        self.images.store(images)
        return _Added(tokens, self.images.ids(tokens, images))

    def _max_tokens(self, player: Player, added: Sequence[int]) -> int:
        """The number of tokens that the next turn of `player` may have: 0 or less if there is no room for any."""
        limits = [self.sampling.max_tokens]
        if self.max_episode_tokens is not None:
            limits.append(self.max_episode_tokens - player.num_tokens - len(added))
        if self.max_sequence_length is not None:
            limits.append(self.max_sequence_length - len(player.rows[-1].tokens) - len(added))
        return min(limits)

    async def _take_turn(
        self,
        episode: Episode,
        player: Player,
        state: str | int | None,
        added: _Added,
        max_tokens: int,
        generate: Generate,
    ) -> SampledTurn:
        draw, number = episode.draw, episode.num_turns
        episode.num_turns += 1
        path = (episode.sample, number) if number else (episode.sample,)
        key, seed = f"{draw.key}/{'.'.join(map(str, path))}", derive_seed(*draw.seeds, *path)
        sampling = evolve(self.sampling, max_tokens=max_tokens)
        keep = self.history == "append" and episode.num_turns < self.max_turns
        tokens, image = [*player.rows[-1].tokens, *added.tokens], [*player.rows[-1].image, *added.image]
        [completion] = await generate([Request(key, tokens, sampling, seed, keep, image)])
        if completion.finish not in ("stop", "length"):
            error = EngineError(f"the generator failed on request {key!r}", got=completion.error or completion.finish)
            raise episode_error("generator", episode, error) from error
        turn = self.renderer.parse(completion.tokens, completion.finish, turn=number)
        sampled = SampledTurn(number, added.tokens, completion, turn.text, turn.calls, state, image=added.image)
        player.take(turn.message, sampled)
        return sampled

    def _reward_input(self, episode: Episode, player: Player) -> RewardInput:
        """The input of reward functions: the last turn of `player`, and its conversation."""
        draw = episode.draw
        player_key = (player.number,) if self.players > 1 else ()
        key = "/".join(map(str, (draw.key, episode.sample, *player_key)))
        # A limit may end the episode before the first turn of a row.
        row = next(row for row in reversed(player.rows) if row.turns)
        return RewardInput(
            row=key,
            completion=player.turns[-1].text,
            example=draw.example,
            seed=derive_seed(draw.seeds[0], "reward", key),
            messages=tuple(message for message, _ in player.conversation),
            tokens=row.tokens[len(row.prompt) :],
            truncated=episode.truncated,
            prompt=player.prompt_text or draw.prompt.text,
            step=max((version for turn in player.turns for version in turn.completion.version), default=0),
        )


def _invalid(episode: Episode, what: str) -> EpisodeError:
    text = f"{place(episode)}: {what}\n"
    return EpisodeError(Failure(ENVIRONMENT, "returned an invalid value", text, part="environment"))
