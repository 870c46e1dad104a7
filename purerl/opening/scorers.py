"""The models of `roles.rewards`, whose scores are rewards: how they read, and what they score with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from purerl.config.schema import Role
from purerl.data.chat import Chat, check_settings, open_chat
from purerl.data.columns import PromptFormat
from purerl.data.examples import DataSet
from purerl.data.settings import SpecialTokens
from purerl.errors import ConfigError
from purerl.models.tokenizer import declared_pad_token, end_tokens, load_tokenizer
from purerl.protocols import Generator, Trainer
from purerl.ranks import Ranks
from purerl.rewards.judges.question import Question
from purerl.rewards.sources import as_alternatives, check_columns
from purerl.rollouts.opened import Task
from purerl.rollouts.scoring.classifier import Classifier
from purerl.rollouts.scoring.judge import ModelJudge
from purerl.rollouts.scoring.rows import ScoringModel
from purerl.settings import in_section

__all__ = ["check_questions", "open_readers", "scorer_of"]


def open_readers(scorers: Mapping[str, Role], policy: Chat, special_tokens: SpecialTokens) -> dict[str, Chat]:
    """The chat by which each of `scorers`, the models of `roles.rewards` by name, reads.

    `policy` is how the policy reads, and `special_tokens` that of the data. For a classifier, the conversations have
    the same format and system prompt. The questions to a judge are messages if its tokenizer has a chat template, and
    otherwise text.

    Raises: ConfigError if a model has no tokenizer, or no chat template where it reads messages.
    """
    readers = {}
    for name, role in scorers.items():
        with in_section(f"roles.rewards.{name}", Role):
            if role.judge is not None:
                readers[name] = _chat_of_judge(role)
            else:
                tokenizer, prompt = load_tokenizer(role.model), policy.system_prompt
                options = {"system_prompt": prompt, "special_tokens": special_tokens}
                readers[name] = open_chat(tokenizer, policy.prompt_format, **options)
    return readers


def _chat_of_judge(role: Role) -> Chat:
    tokenizer = load_tokenizer(role.model)
    prompt_format: PromptFormat = "messages" if tokenizer.chat_template else "text"
    with in_section("judge", type(role.judge)):
        check_settings(prompt_format, system_prompt=role.judge.system_prompt, chat_template_kwargs={})
    return open_chat(tokenizer, prompt_format, extra_stop_tokens=end_tokens(role.model), special_tokens="escape")


def check_questions(scorers: Mapping[str, Role], data: Iterable[DataSet]) -> None:
    """Raise ConfigError if the template of a judge among `scorers` reads a column that `data` does not have.

    Models in `roles.rewards` read no images, so a classifier is refused if `data` has any, and so is a judge that is
    shown the prompt.
    """
    data = [*data]
    has_images = any(each.example_format.has_images for each in data)
    for name, role in scorers.items() if has_images else ():
        if role.judge is None:
            got, need = "a classifier, and prompts with images", "a model that need not see them: it reads only text"
            do = "use a judge that compares with the correct answer, or a reward function"
            raise ConfigError(f"roles.rewards.{name}", got=got, need=need, do=do)
        with in_section(f"roles.rewards.{name}.judge", type(role.judge)):
            Question(role.judge).check_images()
    tables = [table for each in data for table in each.tables]
    for name, role in scorers.items():
        if role.judge is not None:
            needed = as_alternatives(Question(role.judge).columns())
            for table in tables:
                check_columns(f"roles.rewards.{name}", needed, table.column_names)


def scorer_of(
    name: str, role: Role, engine: Trainer | Generator, task: Task, *, seed: int, ranks: Ranks
) -> ScoringModel:
    """The model `name` of `roles.rewards`, whose `engine` is open: a generator of a judge, a trainer of others.

    `seed` is that of the run.
    """
    reader = task.readers[name]
    if role.judge is not None:
        return ModelJudge(name, Question(role.judge), cast("Generator", engine), reader, seed, ranks)
    pad_token = declared_pad_token(role.model)
    return Classifier(name, cast("Trainer", engine), reader, task.chat.tokenizer, pad_token, role.steps)
