"""Rewards that models compute in the processes of a run: classifiers, and judges.

The models of `roles.rewards` score all completions of a step together, before rows are selected and advantages are
computed. The score of each is a component of the reward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager

from attrs import evolve, field, frozen

from purerl.config.check import algorithm_of
from purerl.config.reward_roles import is_reward, judge_roles, reward_roles
from purerl.config.roles import model_roles
from purerl.config.schema import Role, RunConfig
from purerl.data.chat import Chat, check_settings, open_chat
from purerl.data.columns import PromptFormat
from purerl.data.examples import DataSet
from purerl.errors import ConfigError
from purerl.loop.failures import MissingSample, missing_samples
from purerl.loop.generators import open_generator
from purerl.models.tokenizer import declared_pad_token, end_tokens, load_tokenizer
from purerl.opening.engines import open_trainer
from purerl.placement.join import SINGLE_PROCESS, RankContext
from purerl.protocols import Trainer
from purerl.rewards.judges.question import Question
from purerl.rewards.outcomes import Failure
from purerl.rewards.routing import applies, routes_of
from purerl.rewards.settings import Gate, Reward, by_name
from purerl.rewards.sources import as_alternatives, check_columns
from purerl.rollouts.episode_rows import episodes_of
from purerl.rollouts.scoring.classifier import Classifier
from purerl.rollouts.scoring.judge import ModelJudge
from purerl.rollouts.scoring.rows import Scores, ScoringModel, failed, open_rows, with_scores
from purerl.rollouts.types import Group, Trajectory
from purerl.settings import in_section

__all__ = ["ModelRewards", "OnMissing", "check_questions", "model_rewards_of", "open_model_rewards", "reward_chats"]

OnMissing = Callable[[MissingSample], object]
"""Called with each sample that a model could not score."""


@frozen
class ModelRewards:
    """Adds the scores of `models` to the rewards of groups.

    models         by their names in `roles.rewards`
    rewards        all rewards of the run: functions, and models
    gates          all gates of the run
    prompt_format  of the data, as the policy reads it
    """

    models: Mapping[str, ScoringModel] = field(factory=dict)
    rewards: Sequence[Reward] = ()
    gates: Sequence[Gate] = ()
    prompt_format: PromptFormat = "text"

    def __call__(self, groups: Sequence[Group], data: DataSet, samples: int, on_missing: OnMissing) -> list[Group]:
        """`groups` of `samples` each, whose examples are rows of `data`, with the scores of all models. Collective.

        A model scores the rows that one of its rewards or gates applies to. Of several rows of an episode the last one
        is scored, which has the whole conversation. A row that a model cannot score has no reward, and is masked out.
        """
        if not self.models or not groups:
            return [*groups]
        rows = [row for group in groups for row in group.trajectories]
        scored = {id(row): row for row in rows}
        episodes = [episode for episode in episodes_of(rows) if _is_scored(episode[-1])]
        for episode, new in zip(episodes, self._with_scores(episodes, data), strict=True):
            scored.update((id(old), row) for old, row in zip(episode, new, strict=True))
        after = [evolve(g, trajectories=tuple(scored[id(row)] for row in g.trajectories)) for g in groups]
        for old, new in zip(groups, after, strict=True):
            known = {missing.name for missing in missing_samples(old, samples)}
            for missing in missing_samples(new, samples):
                if missing.name not in known:
                    on_missing(missing)
        return after

    def close(self) -> None:
        """Release what the models themselves have opened."""
        for model in self.models.values():
            model.close()

    def _with_scores(self, episodes: Sequence[Sequence[Trajectory]], data: DataSet) -> Iterator[list[Trajectory]]:
        """The rows of each of `episodes`."""
        opened = open_rows([episode[-1] for episode in episodes], data, self.prompt_format)
        scores: list[dict[str, Scores]] = [{} for _ in episodes]
        failures: dict[int, Failure] = {}
        for name, model in self.models.items():
            uses = [reward for reward in by_name(self.rewards, self.gates).values() if reward.role == name]
            readers = [[use for use in uses if applies(routes_of(use), row.example)] for row in opened]
            numbers = [k for k, used in enumerate(readers) if used and k not in failures]
            for k, result in zip(numbers, model([opened[k] for k in numbers]), strict=True):
                if isinstance(result, Failure):
                    failures[k] = result
                else:
                    scores[k] |= {use.full_name: result for use in readers[k]}
        rewards, gates = ({each.full_name: each for each in section} for section in (self.rewards, self.gates))
        for k, episode in enumerate(episodes):
            if k in failures:
                yield [failed(row, failures[k]) for row in episode]
            else:
                yield with_scores(episode, scores[k], rewards, gates) if scores[k] else [*episode]


def _is_scored(row: Trajectory) -> bool:
    """Whether there is something to score, and no function has failed on it or returned that it has no reward."""
    has_reward = row.result.reward is not None or bool(row.result.by_function)
    return any(row.fields["action"]) and row.result.failure is None and has_reward


# --- opening -------------------------------------------------------------------------------------------------------


def reward_chats(config: RunConfig, policy: Chat) -> dict[str, Chat]:
    """How each model of `roles.rewards` reads, by the name of the reward.

    `policy` is how the policy reads. For a classifier, the conversations have the same format and system prompt. The
    questions to a judge are messages if its tokenizer has a chat template, and otherwise text.

    Raises: ConfigError if a model has no tokenizer, or no chat template where it reads messages.
    """
    chats = {}
    for name, role in reward_roles(config).items():
        with in_section(f"roles.rewards.{name}", Role):
            chats[name] = _chat_of_classifier(config, role, policy) if role.judge is None else _chat_of_judge(role)
    return chats


def _chat_of_classifier(config: RunConfig, role: Role, policy: Chat) -> Chat:
    return open_chat(
        load_tokenizer(role.model),
        policy.prompt_format,
        system_prompt=policy.system_prompt,
        special_tokens=config.data.special_tokens,
    )


def _chat_of_judge(role: Role) -> Chat:
    tokenizer = load_tokenizer(role.model)
    prompt_format: PromptFormat = "messages" if tokenizer.chat_template else "text"
    with in_section("judge", type(role.judge)):
        check_settings(prompt_format, system_prompt=role.judge.system_prompt, chat_template_kwargs={})
    return open_chat(tokenizer, prompt_format, extra_stop_tokens=end_tokens(role.model), special_tokens="escape")


def check_questions(config: RunConfig, data: Iterable[DataSet]) -> None:
    """Raise ConfigError if the template of a judge in `roles.rewards` reads a column that `data` does not have.

    Models in `roles.rewards` read no images, so a classifier is refused if `data` has any, and so is a judge that is
    shown the prompt.
    """
    data = [*data]
    if any(each.example_format.has_images for each in data):
        _check_images(config)
    tables = [table for each in data for table in each.tables]
    for name, role in judge_roles(config).items():
        needed = as_alternatives(Question(role.judge).columns())
        for table in tables:
            check_columns(f"roles.{name}", needed, table.column_names)


def _check_images(config: RunConfig) -> None:
    for name, role in reward_roles(config).items():
        if role.judge is None:
            got, need = "a classifier, and prompts with images", "a model that need not see them: it reads only text"
            do = "use a judge that compares with the correct answer, or a reward function"
            raise ConfigError(f"roles.rewards.{name}", got=got, need=need, do=do)
        with in_section(f"roles.rewards.{name}.judge", type(role.judge)):
            Question(role.judge).check_images()


def open_model_rewards(
    config: RunConfig,
    policy: Chat,
    chats: Mapping[str, Chat],
    trainers: Mapping[str, Trainer],
    context: RankContext = SINGLE_PROCESS,
) -> ModelRewards:
    """What adds the scores of the models of `roles.rewards`; `chats` are those of `reward_chats`.

    `trainers` has those of the classifiers. The generators of judges are opened here.
    """
    roles, judges = reward_roles(config), judge_roles(config)
    models = dict[str, ScoringModel]()
    with ExitStack() as on_error:
        for name, chat in chats.items():
            role, role_name = roles[name], f"rewards.{name}"
            if role_name in judges:
                settings = judges[role_name].generator
                generator = open_generator(settings, role.model, config.seed, context.engines, role_name)
                question = Question(role.judge)
                models[name] = ModelJudge(name, question, generator, chat, config.seed, context.ranks)
            else:
                pad_token = declared_pad_token(role.model)
                trainer = trainers[role_name]
                models[name] = Classifier(name, trainer, chat, policy.tokenizer, pad_token, role.steps)
            on_error.callback(models[name].close)
        on_error.pop_all()
    return ModelRewards(models, config.rewards, config.gates, policy.prompt_format)


@contextmanager
def model_rewards_of(config: RunConfig, policy: Chat, chats: Mapping[str, Chat]) -> Iterator[ModelRewards]:
    """The same, with trainers that are opened here, and closed at the end of the block."""
    roles = {name: role for name, role in model_roles(config, algorithm_of(config)).items() if is_reward(name)}
    with ExitStack() as stack:
        trainers = {
            name: stack.enter_context(closing(open_trainer(config, name, role, 0))) for name, role in roles.items()
        }
        yield stack.enter_context(closing(open_model_rewards(config, policy, chats, trainers)))
