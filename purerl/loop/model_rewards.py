"""Rewards that models compute: classifiers in this process, which score all completions of a step together.

The models of `roles.rewards` are trainers that are not trained. Each reads the whole conversation as its own tokenizer
renders it, and its score becomes a component of the reward, before rows are selected and advantages are computed. Every
rank has all groups of a step, so a trainer that is divided over ranks scores them like a reference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import accumulate
from typing import Any, TypeGuard

from attrs import evolve, frozen

from purerl.backends.tokenizer import declared_pad_token, load_tokenizer
from purerl.batch import collate
from purerl.config.check import algorithm_of
from purerl.config.roles import model_roles, reward_roles, reward_weights
from purerl.config.schema import Role, RunConfig
from purerl.data.chat import Chat, Messages, TextOrMessages, open_chat
from purerl.data.conversations import ReadConversation, read_conversation, read_steps
from purerl.data.examples import DataSet, extract_prompt, rows_at
from purerl.data.special_tokens import mark
from purerl.errors import DataError
from purerl.loop.failures import MissingSample
from purerl.loop.trainers import open_trainer
from purerl.protocols import Trainer
from purerl.rewards.components import is_valid_number
from purerl.rewards.outcomes import Failure
from purerl.rewards.runner import RewardResult
from purerl.rewards.steps import Steps, aggregate, split_steps
from purerl.rollouts.rows import episodes_of
from purerl.rollouts.step_ends import step_ends
from purerl.rollouts.types import Group, Trajectory
from purerl.settings import in_section

__all__ = ["ModelRewards", "OnMissing", "ScoringModel", "model_rewards_of", "open_model_rewards", "reward_chats"]

_ROWS = 1024  # that one call of a trainer scores
_SCORE = "classifier_score"

OnMissing = Callable[[MissingSample], object]
"""Called with each sample that a model could not score."""


@frozen
class ScoringModel:
    """A classifier whose score is a reward.

    name       of the component
    weight     factor of the score in the weighted sum
    chat       how it reads conversations
    pad_token  is no end of a conversation; None: every token may be one
    steps      how the last turn is divided, if each step has a score
    """

    name: str
    weight: float
    trainer: Trainer
    chat: Chat
    pad_token: int | None
    steps: Steps | None = None

    def read(self, prompt: TextOrMessages, answer: Messages, completion: str) -> ReadConversation | Failure:
        """The tokens of a conversation that ends with `completion`; a failure if they cannot be scored."""
        try:
            if self.steps is None:
                read = read_conversation(self.chat, prompt, answer, pad_token=self.pad_token)
            else:
                content, ends = _with_markers(self.chat, completion, self.steps)
                read = read_steps(self.chat, prompt, [*answer[:-1], {**answer[-1], "content": content}], ends=ends)
        except DataError as error:
            return Failure(self.name, "raised", f"{error}\n")
        limit = self.trainer.capabilities.max_sequence_length
        if limit is not None and len(read.tokens) > limit:
            text = f"the conversation has {len(read.tokens):,} tokens, and the model reads at most {limit:,}\n"
            return Failure(self.name, "failed", text)
        if read.ends[0] < 1:
            return Failure(self.name, "failed", "the conversation has no token before the one that is scored\n")
        return read

    def scores(self, conversations: Sequence[ReadConversation], groups: Sequence[int]) -> list[list[float]]:
        """The scores of each conversation at its ends. Those with the same number in `groups` have the same prompt."""
        return [
            row
            for first in range(0, len(conversations), _ROWS)
            for row in self._scores(conversations[first : first + _ROWS], groups[first : first + _ROWS])
        ]

    def _scores(self, conversations: Sequence[ReadConversation], groups: Sequence[int]) -> Iterator[list[float]]:
        batch = collate(
            [
                {
                    "tokens": read.tokens,
                    "action": _at(read.ends, len(read.tokens)),
                    "row": row,
                    "group": group,
                    "temperature": 1.0,
                }
                for row, (read, group) in enumerate(zip(conversations, groups, strict=True))
            ]
        )
        scores = self.trainer.score(batch, (_SCORE,))[_SCORE]
        for row, read in enumerate(conversations):
            yield scores[row, read.ends].tolist()


def _with_markers(chat: Chat, completion: str, steps: Steps) -> tuple[str, list[int]]:
    """`completion` with the marker after each step, and the positions of the ends of the markers."""
    marker = steps.separator if steps.marker is None else steps.marker
    parts = [mark(chat.tokenizer, step.text) + marker for step in split_steps(completion, steps.separator)]
    return "".join(parts), [*accumulate(map(len, parts))]


def _at(positions: Sequence[int], length: int) -> list[bool]:
    chosen = {*positions}
    return [position in chosen for position in range(length)]


@frozen
class ModelRewards:
    """Adds the scores of `models` to the rewards of groups.

    policy         the tokenizer of the policy
    gates          names of the reward functions that must return at least 1
    has_functions  whether something else gives rewards: then a row without one is not scored
    """

    models: Sequence[ScoringModel] = ()
    policy: Any = None
    gates: Collection[str] = ()
    has_functions: bool = True

    def __call__(self, groups: Sequence[Group], data: DataSet, on_missing: OnMissing) -> list[Group]:
        """`groups`, whose examples are rows of `data`, with the scores of all models. Collective.

        Of several rows of an episode the last one is scored, which has the whole conversation. A row that a model
        cannot score has no reward, and is masked out.
        """
        if not self.models or not groups:
            return [*groups]
        rows = [row for group in groups for row in group.trajectories]
        scored = {id(row): row for row in rows}
        episodes = [episode for episode in episodes_of(rows) if self._is_scored(episode[-1])]
        for model in self.models:
            current = [[scored[id(row)] for row in episode] for episode in episodes]
            for episode, new in zip(episodes, self._with_scores(model, current, data), strict=True):
                scored.update((id(old), row) for old, row in zip(episode, new, strict=True))
        after = [evolve(g, trajectories=tuple(scored[id(row)] for row in g.trajectories)) for g in groups]
        for name, old, new in _pairs(groups, after):
            if new.result.failure is not None and old.result.failure is None:
                on_missing(MissingSample(name, new.result.failure, new.texts["completion"]))
        return after

    def _is_scored(self, row: Trajectory) -> bool:
        """Whether there is something to score, and no function has failed on it or returned that it has no reward."""
        result, is_action = row.result, row.fields["action"]
        has_reward = result.reward is not None or bool(result.by_function) or not self.has_functions
        return any(is_action) and result.failure is None and has_reward

    def _with_scores(
        self, model: ScoringModel, episodes: Sequence[Sequence[Trajectory]], data: DataSet
    ) -> Iterator[list[Trajectory]]:
        last = [episode[-1] for episode in episodes]
        examples = rows_at(data, [row.fields["example"] for row in last])
        reads: list[ReadConversation | Failure] = [
            row.result.failure
            or model.read(
                *_conversation(model.chat, extract_prompt(data.example_format, each), row), row.texts["completion"]
            )
            for row, each in zip(last, examples, strict=True)
        ]
        pairs = [(read, row.fields["group"]) for read, row in zip(reads, last, strict=True) if _is_read(read)]
        scores = iter(model.scores([read for read, _ in pairs], [group for _, group in pairs]))
        for episode, read in zip(episodes, reads, strict=True):
            values = next(scores) if _is_read(read) else []
            failure = read if isinstance(read, Failure) else _invalid(model.name, values)
            yield [_failed(row, failure) for row in episode] if failure else self._added(model, episode, values)

    def _added(self, model: ScoringModel, episode: Sequence[Trajectory], values: Sequence[float]) -> list[Trajectory]:
        *others, last = episode
        weight = 0.0 if _is_blocked(last.result, self.gates) else model.weight
        kept = [_with_component(row, model.name, {}, 0.0) for row in others]
        return [*kept, _with_component(last, model.name, self._placed(model.steps, last, values), weight)]

    def _placed(self, steps: Steps | None, row: Trajectory, values: Sequence[float]) -> dict[int, float]:
        """The rewards of tokens of `row`, by their positions."""
        end = max(k for k, action in enumerate(row.fields["action"]) if action)
        if steps is None:
            return {end: values[0]}
        if steps.aggregate != "none":
            return {end: aggregate(values, steps.aggregate)}
        placed = dict[int, float]()
        for position, value in zip(step_ends(self.policy, row, steps.separator), values, strict=True):
            placed[position] = placed.get(position, 0.0) + value
        return placed


def _is_read(read: ReadConversation | Failure) -> TypeGuard[ReadConversation]:
    return isinstance(read, ReadConversation)


def _pairs(before: Sequence[Group], after: Sequence[Group]) -> Iterator[tuple[str, Trajectory, Trajectory]]:
    """The name of each sample, with its row before and after."""
    for old, new in zip(before, after, strict=True):
        for k, pair in enumerate(zip(old.trajectories, new.trajectories, strict=True)):
            yield f"{old.draw}/{k}", *pair


# --- opening -------------------------------------------------------------------------------------------------------


def reward_chats(config: RunConfig, policy: Chat) -> dict[str, Chat]:
    """How each model of `roles.rewards` reads conversations, by the name of the reward.

    `policy` is how the policy reads them: whether they are messages or text, and their system prompt, are the same.

    Raises: ConfigError if a model has no tokenizer, or no chat template and the prompts are messages.
    """
    chats = {}
    for name, role in reward_roles(config).items():
        with in_section(f"roles.rewards.{name}", Role):
            chats[name] = open_chat(
                load_tokenizer(role.model),
                policy.prompt_format,
                system_prompt=policy.system_prompt,
                special_tokens=config.data.special_tokens,
            )
    return chats


def open_model_rewards(
    config: RunConfig, policy: Chat, chats: Mapping[str, Chat], trainers: Mapping[str, Trainer]
) -> ModelRewards:
    """What adds the scores of the models of `roles.rewards`; `chats` are those of `reward_chats`."""
    weights, roles = reward_weights(config), reward_roles(config)
    models = [
        ScoringModel(
            name,
            weights[name],
            trainers[f"rewards.{name}"],
            chat,
            declared_pad_token(roles[name].model),
            roles[name].steps,
        )
        for name, chat in chats.items()
    ]
    workflow, environment = config.rollout and config.rollout.workflow, config.environment
    gives_rewards = bool(workflow) or (environment is not None and environment.gives_rewards)
    gates = tuple(gate.full_name for gate in config.gates)
    return ModelRewards(models, policy.tokenizer, gates, bool(config.rewards or gates or gives_rewards))


@contextmanager
def model_rewards_of(config: RunConfig, policy: Chat, chats: Mapping[str, Chat]) -> Iterator[ModelRewards]:
    """The same, with trainers that are opened here, and closed at the end of the block."""
    roles = model_roles(config, algorithm_of(config))
    with ExitStack() as stack:
        trainers = {
            name: stack.enter_context(closing(open_trainer(config, name, roles[name], 0)))
            for name in (f"rewards.{reward}" for reward in chats)
        }
        yield open_model_rewards(config, policy, chats, trainers)


# --- conversations -------------------------------------------------------------------------------------------------


def _conversation(chat: Chat, prompt: TextOrMessages, row: Trajectory) -> tuple[TextOrMessages, Messages]:
    """The prompt of `row`, and the messages after it up to the last one of the policy, whose text is marked."""
    if "messages" not in row.texts:
        return prompt, [{"role": "assistant", "content": mark(chat.tokenizer, row.texts["completion"])}]
    messages = [_plain(chat, message) for message in json.loads(row.texts["messages"])]
    while messages[-1]["role"] != "assistant":
        messages.pop()
    if isinstance(prompt, str) and chat.prompt_format == "text":
        return prompt, messages[1:]
    count = 1 if isinstance(prompt, str) else len(prompt)
    return messages[:count], messages[count:]


def _plain(chat: Chat, message: Mapping[str, Any]) -> dict[str, Any]:
    """A stored message without what purerl has added to it, marked if it is the policy's."""
    plain = {key: value for key, value in message.items() if key not in ("reward", "player")}
    content = plain.get("content")
    if message["role"] == "assistant" and isinstance(content, str):
        plain["content"] = mark(chat.tokenizer, content)
    return plain


# --- results -------------------------------------------------------------------------------------------------------


def _is_blocked(result: RewardResult, gates: Collection[str]) -> bool:
    """Whether one of `gates` has returned less than 1."""
    return any(value < 1 for gate in gates for value in result.by_function.get(gate, {}).values())


def _invalid(name: str, values: Sequence[float]) -> Failure | None:
    wrong = [value for value in values if not is_valid_number(value)]
    return Failure(name, "returned an invalid value", f"the score is {wrong[0]}\n") if wrong else None


def _failed(row: Trajectory, failure: Failure) -> Trajectory:
    length = len(row.fields["tokens"])
    fields = {**row.fields, "mask": [False] * length, "reward": [0.0] * length}
    return evolve(row, fields=fields, result=RewardResult(failure=failure))


def _with_component(row: Trajectory, name: str, scores: Mapping[int, float], weight: float) -> Trajectory:
    """`row` with the component `name`: the sum of `scores`, which are rewards of the tokens at these positions.

    A row that is not the last one of its episode has no scores, and the component has only the weighted value 0.
    """
    old, value = row.result, sum(scores.values())
    own = {name: value} if scores else {}
    result = evolve(
        old,
        components={**old.components, **{n: old.components.get(n, 0.0) + v for n, v in own.items()}},
        weighted_components={
            **old.weighted_components,
            name: old.weighted_components.get(name, 0.0) + weight * value,
        },
        by_function={**old.by_function, **({name: own} if own else {})},
    )
    reward = [value + weight * scores.get(k, 0.0) for k, value in enumerate(row.fields["reward"])]
    mask = row.fields["mask"] if old.reward is not None else row.fields["action"]
    return evolve(row, fields={**row.fields, "reward": reward, "mask": [*mask]}, result=result)
