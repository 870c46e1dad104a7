"""An episode while it runs: the conversation and the rows of each player."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, takewhile

from attrs import define, field

from purerl.data.chat import Messages
from purerl.data.row_images import placed
from purerl.envs.protocol import Message, Observation, ToolCall
from purerl.protocols import Completion
from purerl.rewards.outcomes import Failure
from purerl.rollouts.types import Draw

__all__ = ["Episode", "Player", "Row", "SampledTurn"]


@define
class SampledTurn:
    """A turn of a player.

    number      of the turn in the episode, which all players count together
    added       tokens of the row between the player's turn before and this one
    image       for each of these, the content id of its image; empty in a run without images
    completion  the sampled tokens
    text        their text
    calls       the tool calls in it
    state       label of the state in which it started, or None
    reward      what the environment has given for it; None: nothing
    components  parts of the reward, summed
    progress    the change of the score of the state, from before the turn to after it
    """

    number: int
    added: Sequence[int]
    completion: Completion
    text: str
    calls: Sequence[ToolCall]
    state: str | int | None
    reward: float | None = None
    components: dict[str, float] = field(factory=dict)
    image: Sequence[int] = ()
    progress: float = 0.0


@define
class Row:
    """A row of a batch: the prompt, then for each turn the tokens before it and its sampled tokens.

    `prompt_image` has the content id of the image of each token of the prompt; it is empty in a run without images.
    """

    prompt: Sequence[int]
    turns: list[SampledTurn] = field(factory=list)
    prompt_image: Sequence[int] = ()

    @property
    def tokens(self) -> list[int]:
        """All tokens, up to the last sampled one."""
        return [*self.prompt, *chain.from_iterable((*t.added, *t.completion.tokens) for t in self.turns)]

    @property
    def image(self) -> list[int]:
        """The content id of the image of each of `tokens`; empty in a run without images."""
        if not self.prompt_image:
            return []
        return [
            *self.prompt_image,
            *chain.from_iterable((*t.image, *[0] * len(t.completion.tokens)) for t in self.turns),
        ]


@define
class Player:
    """The view and the turns of one player.

    number        of the player
    prompt        messages of the example's prompt
    prompt_text   the prompt of its first turn as text; None before that
    conversation  the messages after the prompt, each with the turn that it is, or None if the environment gave it
    rows          its rows; one, unless its conversation is rendered again in each turn
    reward        what it got before its first turn
    score         the last score of the state
    """

    number: int
    prompt: Messages
    prompt_text: str | None = None
    conversation: list[tuple[Message, SampledTurn | None]] = field(factory=list)
    rows: list[Row] = field(factory=list)
    reward: float | None = None
    score: float = 0.0

    @property
    def messages(self) -> list[Message]:
        """All messages, from the prompt on."""
        return [*self.prompt, *(message for message, _ in self.conversation)]

    @property
    def turns(self) -> list[SampledTurn]:
        """Its turns, in order."""
        return [turn for row in self.rows for turn in row.turns]

    @property
    def num_tokens(self) -> int:
        """Number of tokens of its rows after their prompts."""
        return sum(len(turn.added) + len(turn.completion.tokens) for turn in self.turns)

    @property
    def last_turn(self) -> tuple[SampledTurn, list[Message], list[Message]]:
        """Its last turn, the messages before it, and those after it."""
        count = sum(1 for _ in takewhile(lambda entry: entry[1] is None, reversed(self.conversation)))
        messages = self.messages
        end = len(messages) - count
        return self.rows[-1].turns[-1], messages[: end - 1], messages[end:]

    def take(self, message: Message, turn: SampledTurn) -> None:
        """Add its `turn`, which is `message` in the conversation."""
        self.rows[-1].turns.append(turn)
        turn.reward, self.reward = self.reward, None
        self.conversation.append((message, turn))

    def receive(self, messages: Messages) -> None:
        """Add `messages` of the environment to the conversation."""
        self.conversation += [(message, None) for message in messages]

    def reach(self, score: float) -> None:
        """Add the change of the score of the state to its last turn, if there is one."""
        for turn in self.turns[-1:]:
            turn.progress += score - self.score
        self.score = score

    def earn(self, reward: float) -> None:
        """Add `reward` to its last turn, or to its first one if there is none yet."""
        earner = self.turns[-1] if self.turns else self
        earner.reward = reward + (earner.reward or 0.0)


@define
class Episode:
    """Sample `sample` of `draw`, as far as it has come.

    prompt      messages of the example's prompt
    image       the content id of the image of each token of the draw's prompt; empty in a run without images
    players     the players that have appeared, by number
    num_turns   turns taken by all players
    truncated   the episode is over because of a limit
    failure     why it has no reward
    """

    draw: Draw
    sample: int
    prompt: Messages
    image: Sequence[int] = ()
    players: dict[int, Player] = field(factory=dict)
    num_turns: int = 0
    truncated: bool = False
    failure: Failure | None = None

    def player(self, number: int) -> Player:
        """The player `number`, whose conversation starts with the prompt."""
        if number not in self.players:
            self.players[number] = Player(number, self.prompt)
        return self.players[number]

    @property
    def turns(self) -> list[SampledTurn]:
        """The turns of all players."""
        return [turn for player in self.players.values() for turn in player.turns]

    @property
    def last_player(self) -> Player:
        """The player of the last turn."""
        return max(self.players.values(), key=lambda player: player.turns[-1].number if player.turns else -1)

    def observe(self, observation: Observation, player: int) -> None:
        """Give the rewards of `observation`, the answer to a turn of `player`, and the messages to who is next."""
        rewards = observation.reward if isinstance(observation.reward, Mapping) else {player: observation.reward}
        for number, reward in rewards.items():
            if reward is not None:
                self.player(number).earn(float(reward))
        if observation.score is not None:
            self.player(player).reach(float(observation.score))
        for turn in self.player(player).turns[-1:]:
            for name, value in observation.components.items():
                turn.components[name] = turn.components.get(name, 0.0) + float(value)
        self.player(observation.player).receive(placed(observation.messages, observation.images))
