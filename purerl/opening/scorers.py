"""Opening the models of `roles.rewards`, whose scores are rewards: classifiers, and judges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager

from purerl.config.check import algorithm_of
from purerl.config.reward_roles import is_reward, judge_roles, reward_roles
from purerl.config.roles import model_roles
from purerl.config.schema import Role, RunConfig
from purerl.data.chat import Chat, check_settings, open_chat
from purerl.data.columns import PromptFormat
from purerl.data.examples import DataSet
from purerl.errors import ConfigError
from purerl.models.tokenizer import declared_pad_token, end_tokens, load_tokenizer
from purerl.opening.engines import open_generator, open_trainer
from purerl.placement.join import SINGLE_PROCESS, RankContext
from purerl.protocols import Trainer
from purerl.rewards.judges.question import Question
from purerl.rewards.sources import as_alternatives, check_columns
from purerl.rollouts.scoring.classifier import Classifier
from purerl.rollouts.scoring.judge import ModelJudge
from purerl.rollouts.scoring.models import ModelRewards
from purerl.rollouts.scoring.rows import ScoringModel
from purerl.settings import in_section

__all__ = ["check_questions", "model_rewards_of", "open_model_rewards", "reward_chats"]


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
                generator = open_generator(settings, role.model, config.seed, context.processes, role_name)
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
