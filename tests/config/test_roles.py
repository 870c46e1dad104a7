"""The table `roles`: how it is written, what its models inherit, and which roles are refused."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from attrs import evolve

from purerl.config.check import check
from purerl.config.overrides import apply
from purerl.config.requirements import requirements_of
from purerl.config.schema import Role, RunConfig
from purerl.config.structure import dumps, from_dict, read_toml
from purerl.errors import ConfigError
from purerl.recipes import resolve
from purerl.recipes.addition import addition
from purerl.rewards.judges.settings import Answer, Judge
from purerl.rewards.steps import Steps
from purerl.settings import Model

from .test_check import error_of

PPO, OPD = "algorithm.kind=ppo", "algorithm.kind=opd"
KL = ("algorithm.kind=grpo", "algorithm.kl_loss=0.1")

TABLE = """
[roles.teachers.math]
model = "m"
update_every = 2
update_mix = 0.5

[roles.teachers.code]
model = {path = "c", dtype = "bfloat16"}

[roles.teachers.code.trainer]
max_tokens_per_microbatch = 64
"""
TEACHERS = {
    "math": Role(model=Model("m"), update_every=2, update_mix=0.5),
    "code": Role(model=Model("c", dtype="bfloat16"), trainer=evolve(addition().trainer, max_tokens_per_microbatch=64)),
}


def _with_table(text: str) -> RunConfig:
    table = tomllib.loads(dumps(apply(addition(), [OPD])))
    return from_dict(RunConfig, table | tomllib.loads(text))


def test_several_teachers_are_nested_tables() -> None:
    config = _with_table(TABLE)
    assert config.roles == {"teachers": TEACHERS}
    assert requirements_of(config).teachers == ("math", "code")
    check(config)


def test_settings_give_the_same_roles_as_a_table() -> None:
    settings = [
        OPD,
        "roles.teachers.math={model = 'm', update_every = 2}",
        "roles.teachers.math.update_mix=0.5",
        "roles.teachers.code.model=c",
        "roles.teachers.code.model.dtype=bfloat16",
        "roles.teachers.code.trainer.max_tokens_per_microbatch=64",
    ]
    assert apply(addition(), settings) == _with_table(TABLE)
    assert apply(addition(), settings[::-1]).roles == {"teachers": TEACHERS}


def test_toml_gives_the_same_roles(tmp_path: Path) -> None:
    for settings in ([OPD, "roles.teacher.model=t"], [PPO, "roles.critic.trainer.lr=1e-5", "roles.critic.model=m"]):
        config = apply(addition(), settings)
        (tmp_path / "run.toml").write_text(dumps(config))
        assert read_toml(tmp_path / "run.toml", RunConfig) == config
    (tmp_path / "run.toml").write_text(dumps(_with_table(TABLE)))
    assert read_toml(tmp_path / "run.toml", RunConfig) == _with_table(TABLE)


def test_a_trainer_inherits_the_missing_settings_of_the_run() -> None:
    config = apply(addition(), [PPO, "roles.critic.trainer.lr=1e-5", "trainer.max_grad_norm=0.7"])
    assert config.roles["critic"].trainer == evolve(addition().trainer, lr=1e-5, max_grad_norm=0.7)
    inner = resolve("addition", ["initial_run.algorithm.kind=opd", "initial_run.roles.teacher.trainer.lr=1e-5"])
    assert inner.initial_run.roles["teacher"].trainer == evolve(addition().initial_run.trainer, lr=1e-5)


def test_a_trainer_with_a_kind_inherits_nothing() -> None:
    config = apply(addition(), [PPO, "roles.critic.trainer={kind = 'hf', lr = 1e-5}"])
    assert config.roles["critic"].trainer == type(config.trainer)(lr=1e-5)


def test_a_setting_of_a_role_may_return_to_its_default() -> None:
    settings = [PPO, "roles.critic.trainer.warmup_ratio=", "roles.critic.trainer.warmup_steps=3"]
    trainer = apply(addition(), settings).roles["critic"].trainer
    assert (trainer.warmup_ratio, trainer.warmup_steps) == (type(trainer)(lr=1.0).warmup_ratio, 3)


@pytest.mark.parametrize("value", [0, 3])
def test_a_setting_of_a_role_replaces_the_inherited_alternative(value: int) -> None:
    trainer = apply(addition(), [PPO, f"roles.critic.trainer.warmup_steps={value}"]).roles["critic"].trainer
    assert (trainer.warmup_steps, trainer.warmup_ratio, trainer.warmup(100)) == (value, None, value)


def test_roles_that_are_not_set_are_those_of_the_run() -> None:
    config = apply(addition(), [PPO, "algorithm.kl_reward=0.1", "roles.critic.model=c"])
    roles = requirements_of(config).models
    assert {name: role.settings.model.path for name, role in roles.items()} == {
        "critic": "c", "policy": config.model.path, "reference": config.model.path,
    }  # fmt: skip
    assert all(role.settings.trainer is config.trainer for role in roles.values())
    assert {name for name, role in roles.items() if role.is_trained} == {"policy", "critic"}
    assert (roles["critic"].outputs, roles["reference"].outputs) == (("value",), ("logp",))


def test_every_teacher_is_a_model_of_the_run() -> None:
    config = _with_table(TABLE)
    roles = requirements_of(config).models
    assert sorted(roles) == ["policy", "teachers.code", "teachers.math"]
    assert roles["teachers.math"].settings == evolve(TEACHERS["math"], trainer=config.trainer)
    assert roles["teachers.code"].outputs == ("logp",)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            (PPO, "roles.critc.model=m"),
            "roles.critc has no effect\n  need: a model that ppo uses\n  do:   did you mean 'c",
        ),
        (
            ("roles.critic.model=m",),
            "roles.critic has no effect\n  need: an algorithm that uses it; dapo uses only the",
        ),
        (("roles.reference.update_every=2",), "roles.reference has no effect\n"),
        ((PPO, "roles.teachers.a.model=m"), "roles.teachers has no effect\n"),
        (
            (PPO, "roles.policy.model=m"),
            "roles.policy\n  got:  settings of the policy\n  need: other models",
        ),
        ((PPO, "roles.policy.trainer.lr=1"), "roles.policy\n  got:  settings of the policy\n"),
        ((OPD,), "roles.teacher.model is missing\n  need: a model other than the policy: opd learns from it\n"),
        ((OPD, "roles.teacher.trainer.lr=1"), "roles.teacher.model is missing\n"),
        (
            (OPD, "roles.teachers.a.model=m", "roles.teachers.b.trainer.lr=1"),
            (
                "roles.teachers.b.model is missing\n  need: a model other than the policy: opd learns from it\n"
                "  do:   set roles.teachers.b.model"
            ),
        ),
        (
            (OPD, "roles.teacher.model=m", "roles.teachers.a.model=m"),
            "roles.teacher and roles.teachers\n  got:  both\n",
        ),
        ((OPD, "roles.teachers={}"), "roles.teachers\n  got:  no names\n  need: teachers by name\n"),
        ((OPD, "roles.teachers.model=m"), "roles.teachers\n  got:  no names\n  need: teachers by name\n"),
        ((OPD, "roles.teacher.a.model=m"), "roles.teacher\n  got:  several models: a\n  need: one model"),
        (
            (PPO, "roles.critic.update_every=2"),
            "roles.critic.update_every has no effect\n  got:  2\n  need: a model that",
        ),
        ((*KL, "roles.reference.update_mix=0.5"), "roles.reference.update_mix has no effect\n  got:  0.5\n"),
        (
            (*KL, "roles.reference.update_every=0"),
            "roles.reference.update_every\n  got:  0\n  need: an integer, at leas",
        ),
        (
            (*KL, "roles.reference={update_every = 2, update_mix = 1.5}"),
            "roles.reference.update_mix\n  got:  1.5\n  need: above 0 and at most 1",
        ),
        (
            (PPO, "roles.critic.trainer={kind = 'hf', lr = 1e-3, warmup_steps = 5000}"),
            "roles.critic.trainer.warmup_steps\n  got:  5000\n  need: less than",
        ),
        (
            (PPO, "roles.critic.trainer.kind=hff"),
            "roles.critic.trainer.kind: unknown trainer 'hff'\n  do:   did you mean",
        ),
        ((PPO, "roles.critic.trainer.llr=1"), "roles.critic.trainer.llr\n  got:  no such setting\n"),
        (
            (PPO, "roles.critic.modl=m"),
            "roles.critic.modl\n  got:  no such setting\n  need: one that `purerl config` lis",
        ),
        (
            (PPO, "roles.critic.judge.max_tokens=2"),
            "roles.critic.judge has no effect\n  got:  Judge(",
        ),
        (
            (PPO, "roles.critic.steps.aggregate=min"),
            "roles.critic.steps has no effect\n  got:  Steps(separator='\\n\\n', marker=None, aggregate='min')\n",
        ),
        (("roles.rewards={}",), "roles.rewards\n  got:  no names\n  need: models by name\n"),
        (("roles.rewards.model=m",), "roles.rewards\n  got:  no names\n  need: models by name\n"),
        (
            ("roles.rewards.good.steps.aggregate=min",),
            "roles.rewards.good.model is missing\n  need: a classifier, such as purerl train reward_model",
        ),
        (
            ("roles.rewards.good={model = 'm', update_every = 2}",),
            "roles.rewards.good.update_every has no effect\n  got:  2\n  need: a model that may follow the policy",
        ),
        (
            ("roles.rewards.good.model=m",),
            "roles.rewards.good has no effect\n  need: a reward or a gate with this role\n  do:   add {role =",
        ),
        (
            ('rewards=[{role = "god"}]', "roles.rewards.good.model=m"),
            "role of the reward 'god'\n  got:  'god'\n  need: a model in roles.rewards\n  do:   did you mean 'good'?",
        ),
        (
            ('rewards=[{role = "good"}]',),
            "role of the reward 'good'\n  got:  'good'\n  need: a model in roles.rewards\n  do:   set roles",
        ),
        (
            ('rewards=[{role = "good"}, {kind = "format", name = "good"}]', "roles.rewards.good.model=m"),
            "rewards\n  got:  'good' 2 times\n  need: each function, kind or model once\n",
        ),
        (
            ('rewards=[{role = "good", kwargs = {a = 1}}]', "roles.rewards.good.model=m"),
            "rewards.kwargs has no effect\n  got:  {'a': 1}\n  need: a function; kinds and models have settings",
        ),
        (
            ("roles.rewards.mean.model=m",),
            "reward 'mean' would have the metric reward/mean\n  got:  another metric\n  need: a name that is not",
        ),
        (
            ('rewards=[{role = "good"}]', "roles.rewards.good={model = 'm', trainer = {warmup_steps = -1}}"),
            "roles.rewards.good.trainer.warmup_steps\n  got:  -1\n",
        ),
        ((PPO, "roles.critic=m"), 'roles.critic\n  got:  "m"\n  need: a section: keys and values'),
        (("roles=3",), "roles\n  got:  3\n  need: a section: keys and values"),
    ],
)
def test_invalid_roles_are_refused(settings: tuple[str, ...], message: str) -> None:
    assert error_of(*settings).startswith(message)


@pytest.mark.parametrize(
    "settings",
    [
        (PPO, "roles.critic.trainer.lr=1e-5"),
        (OPD, "roles.teacher.model=m"),
        (OPD, "roles.teacher.update_every=5"),
        (*KL, "roles.reference.model=m"),
        (*KL, "roles.reference={update_every = 2, update_mix = 0.6}"),
        (
            'rewards=["purerl.rewards.exact:exact_match", {role = "good", weight = 0.5}]',
            'gates=[{role = "short", at_least = -1.0}]',
            "roles.rewards.good.model=m",
            "roles.rewards.short.model=m2",
        ),
        ('rewards=[{role = "good"}]', "roles.rewards.good={model = 'm', steps = {marker = '<step>'}}"),
    ],
)
def test_roles_that_the_algorithm_uses_are_accepted(settings: tuple[str, ...]) -> None:
    check(resolve("addition", settings))


def test_models_whose_scores_are_rewards_are_models_of_the_run(tmp_path: Path) -> None:
    settings = ["roles.rewards.good.model=m", "roles.rewards.good.steps.aggregate=last", "roles.rewards.b.model=n"]
    config = apply(addition(), settings)
    roles = requirements_of(config).models
    assert list(roles) == ["policy", "rewards.good", "rewards.b"]
    assert roles["rewards.good"].settings == Role(
        model=Model("m"), steps=Steps(aggregate="last"), trainer=config.trainer
    )
    assert (roles["rewards.b"].outputs, roles["rewards.b"].is_trained) == (("classifier_score",), False)
    (tmp_path / "run.toml").write_text(dumps(config))
    assert read_toml(tmp_path / "run.toml", RunConfig) == config


def test_a_reward_may_have_the_name_of_a_setting(tmp_path: Path) -> None:
    settings = ("judge.model=m", "judge.judge.answer.maximum=5.0", "steps.model=m", "steps.steps.aggregate=last")
    config = apply(addition(), [f"roles.rewards.{setting}" for setting in settings])
    answer = Answer(maximum=5.0)
    assert config.roles["rewards"] == {
        "judge": Role(model="m", judge=Judge(answer=answer)),
        "steps": Role(model="m", steps=Steps(aggregate="last")),
    }
    (tmp_path / "run.toml").write_text(dumps(config))
    assert read_toml(tmp_path / "run.toml", RunConfig) == config


def test_a_run_that_samples_nothing_has_no_models_of_rewards() -> None:
    with pytest.raises(ConfigError, match="^roles.rewards has no effect\n  got:  'good'\n  need: rollout or evaluate"):
        check(resolve("chat", ["model=m", "data=d", "roles.rewards.good.model=m"]))


def test_a_role_may_be_a_model_object() -> None:
    config = evolve(apply(addition(), [OPD]), roles={"teacher": Role(model="t")})
    assert config.roles["teacher"].model == Model("t")
    with pytest.raises(ConfigError, match=r"^update_mix has no effect"):
        Role(update_mix=0.5)
