"""Commands, scripts and configurations of verl as TOML files of purerl."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from purerl.config.aliases.answers import answer, defaults, known, other_defaults
from purerl.config.check import check_settings
from purerl.config.schema import RunConfig
from purerl.config.structure import from_dict, to_dict
from purerl.config.tables import flat
from purerl.errors import ConfigError
from purerl.porting.outcomes import FILL_IN, Unknown
from purerl.porting.toml import table_of
from purerl.porting.verl.importing import import_verl, translate_verl
from purerl.porting.verl.rules import RULES

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.sh"))
COMMAND = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo trainer.experiment_name=x "


def settings(source: str) -> dict[str, Any]:
    """The settings of `source`, by dotted key, as the TOML has them."""
    return flat(tomllib.loads(import_verl(source)))


def command(*overrides: str, program: str = COMMAND) -> dict[str, Any]:
    """The settings of a command with `overrides`."""
    return settings(program + " ".join(overrides))


# --- scripts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_becomes_a_configuration_that_passes_the_checks(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of the user that it names are there: functions of rewards and of tools."""
    monkeypatch.chdir(tmp_path)
    score = "def compute_score(data_source, solution_str, ground_truth): return 1.0\n"
    (tmp_path / "verl_rewards.py").write_text(score)
    (tmp_path / "tools.py").write_text("def FUNCTION(text: str) -> str:\n    'Answers.'\n    return text\n")
    text = import_verl(str(script)).replace("/data/code/rewards.py", "verl_rewards.py")
    config = from_dict(RunConfig, tomllib.loads(text))
    check_settings(config)
    assert "need" not in text.partition("# --- Translated")[0].partition("name = ")[0]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_override_of_a_script_is_in_one_list(script: Path) -> None:
    found = translate_verl(str(script))
    names = [*found.translated, *found.unneeded, *found.missing]
    assert len({*names}) == len(names)
    text = script.read_text()
    assert len(names) >= text.count("actor_rollout_ref.") // 2


def test_a_script_of_grpo() -> None:
    found = settings(str(SCRIPTS[1]))
    assert SCRIPTS[1].stem == "grpo"
    expected = {
        "name": "qwen3_4b_grpo",
        "num_epochs": 10.0,
        "batch_size": 512,
        "minibatch_size": 128,
        "model.path": "Qwen/Qwen3-4B",
        "data.files": ["/home/me/data/gsm8k/train.parquet", "/home/me/data/math/train.parquet"],
        "data.truncation": "drop",
        "algorithm.kind": "grpo@verl",
        "algorithm.kl_loss.estimator": "k3",
        "algorithm.kl_loss.coef": 0.002,
        "trainer.lr": 2e-6,
        "trainer.max_rows_per_microbatch": 8,
        "trainer.mixed_precision": "bfloat16",
        "trainer.weight_decay": 0.01,
        "trainer.mesh.shard": 8,
        "roles.reference.trainer.max_rows_per_microbatch": 16,
        "roles.reference.trainer.cpu_offload": True,
        "generator.kind": "vllm",
        "generator.server.number": 4,
        "generator.server.gpu_memory_utilization": 0.6,
        "rollout.samples_per_prompt": 8,
        "rollout.max_tokens": 2048,
        "evaluate.every": 5,
        "evaluate.data.math_test": "/home/me/data/math/test.parquet",
        "checkpoint.every": 25,
        "placement.ranks": 8,
    }
    assert {key: found.get(key) for key in expected} == expected


def test_a_script_of_ppo_has_a_critic_of_its_own() -> None:
    found = settings(str(Path(SCRIPTS[0].parent, "ppo.sh")))
    expected = {
        "algorithm.lambda_": 0.95,
        "algorithm.value_clip": 0.3,
        "algorithm.kl_reward.coef": 0.005,
        "algorithm.kl_reward.estimator": "k1",
        "critic_warmup": 10,
        "roles.critic.model": "Qwen/Qwen2.5-1.5B-Instruct",
        "roles.critic.trainer.lr": 1e-5,
        "roles.critic.trainer.recompute": "none",
        "roles.critic.trainer.max_tokens_per_microbatch": 2 * 98304,
        "trainer.mesh.shard": 8,
        "trainer.mesh.sequence": 2,
        "generator.kind": "sglang",
    }
    assert {key: found.get(key) for key in expected} == expected


def test_a_script_of_dapo() -> None:
    found = settings(str(SCRIPTS[0]))
    expected = {
        "algorithm.clip_high": 0.28,
        "algorithm.dual_clip": 10.0,
        "algorithm.group_filter": True,
        "rollout.gen_batch_size": 1536,
        "rollout.filter_metric": "acc",
        "rollout.max_resample_rounds": 9,
        "rollout.overlong.buffer": 4096,
        "rewards": [{"kind": "verl", "name": "acc"}],
        "trainer.warmup_steps": 10,
        "evaluate.top_p": 0.7,
        "evaluate.samples_per_prompt": 4,
        "generator.server.tensor_parallel_size": 4,
        "generator.server.arguments.max_num_batched_tokens": 10240,
    }
    assert {key: found.get(key) for key in expected} == expected


def test_a_script_of_sft() -> None:
    found = settings(str(Path(SCRIPTS[0].parent, "sft.sh")))
    expected = {
        "algorithm.kind": "sft",
        "data.columns.messages": "conversation",
        "trainer.lr_scheduler": "cosine",
        "trainer.warmup_ratio": 0.1,
        "trainer.mesh.shard": 8,
        "validation.every": 50,
        "checkpoint.keep": 3,
        "num_epochs": 2.0,
    }
    assert {key: found.get(key) for key in expected} == expected
    assert not {key for key in found if key.startswith(("rollout", "generator", "rewards", "evaluate"))}


def test_a_script_of_megatron() -> None:
    found = settings(str(Path(SCRIPTS[0].parent, "megatron.sh")))
    expected = {
        "trainer.kind": "megatron",
        "model.dtype": "bfloat16",
        "trainer.mesh.tensor": 2,
        "trainer.mesh.pipeline": 2,
        "trainer.mesh.expert": 4,
        "trainer.mesh.sequence_parallel": True,
        "trainer.recompute": "layers",
        "trainer.optimizer_offload": True,
        "trainer.replay_routes": "generator",
        "generator.return_routes": True,
        "algorithm.kind": "gspo@verl",
        "algorithm.clip_low": 3e-4,
    }
    assert {key: found.get(key) for key in expected} == expected


def test_a_configuration_that_is_not_there_is_in_the_notes() -> None:
    text = import_verl(str(Path(SCRIPTS[0].parent, "tools.sh")))
    assert "gsm8k_multiturn_grpo.yaml was not found at" in text


# --- values --------------------------------------------------------------------------------------------------------


CORRECTION = "algorithm.rollout_correction."


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ("algorithm.adv_estimator=gae", {"algorithm.kind": "ppo@verl"}),
        ("algorithm.adv_estimator=rloo", {"algorithm.kind": "rloo@verl"}),
        ("algorithm.adv_estimator=purerl:opo", {"algorithm.kind": "opo"}),
        ("algorithm.norm_adv_by_std_in_grpo=False", {"algorithm.kind": "dr_grpo@verl"}),
        ("ACTOR.policy_loss.loss_mode=sapo", {"algorithm.kind": "sapo@verl"}),
        ("ACTOR.loss_agg_mode=seq-mean-token-mean", {"algorithm.reduction": "sequence_mean_of_token_mean"}),
        ("ACTOR.use_kl_loss=True ACTOR.kl_loss_type=k3+", {"algorithm.kl_loss.estimator": "straight_through"}),
        ("ACTOR.ppo_mini_batch_size=300", {"num_minibatches": 3}),
        (f"{CORRECTION}rollout_is=token", {"algorithm.importance_weight.max_ratio": 2.0}),
        (
            f"{CORRECTION}rollout_is=sequence {CORRECTION}rollout_is_threshold=0.5_5.0",
            {"algorithm.importance_weight.how": "band", "algorithm.importance_weight.min_ratio": 0.5},
        ),
        (
            f"{CORRECTION}rollout_rs=seq_mean_k3 {CORRECTION}rollout_rs_threshold=0.01",
            {"algorithm.rejection.level": "row_mean", "algorithm.rejection.max_value": 0.01},
        ),
        (
            f"{CORRECTION}rollout_rs=token_k1 {CORRECTION}rollout_rs_threshold=0.5_4.0",
            {"algorithm.rejection.min_value": -1.386294, "algorithm.rejection.max_value": 0.693147},
        ),
        (f"{CORRECTION}bypass_mode=True", {"algorithm.bypass": True}),
        ("trainer.total_training_steps=7", {"max_steps": 7, "num_epochs": None}),
        ("trainer.test_freq=-1 trainer.val_before_train=False", {"evaluate.every": None}),
        (
            "trainer.logger=[console,mlflow] trainer.project_name=p",
            {"trackers": [{"kind": "mlflow", "experiment": "p"}]},
        ),
        (
            "ACTOR.optim.optimizer=AdamW8bit ACTOR.optim.optimizer_impl=bitsandbytes.optim",
            {"trainer.optimizer.factory": "bitsandbytes.optim:AdamW8bit"},
        ),
        ("ACTOR.fsdp_config.fsdp_size=2", {"trainer.mesh.shard": 2}),
        (
            "reward_model.enable=True reward_model.model.path=/rm",
            {"roles.rewards.reward_model.model": "/rm", "rewards": [{"role": "reward_model"}]},
        ),
        (
            "custom_reward_function.path=r.py +custom_reward_function.reward_kwargs.a=1",
            {"rewards": [{"function": "r.py:compute_score", "kwargs": {"a": 1}}]},
        ),
        ("algorithm.adv_estimator=gae critic.ppo_epochs=3", {"roles.critic.ppo_epochs": 3}),
    ],
)
def test_values_are_translated(overrides: str, expected: dict[str, Any]) -> None:
    found = command(overrides.replace("ACTOR.", "actor_rollout_ref.actor."))
    assert {key: found.get(key) for key in expected} == expected


def test_an_unknown_key_is_named_with_the_nearest_and_the_others_are_answered() -> None:
    found = translate_verl(COMMAND + "data.trian_batch_size=4 data.train_batch_size=8 trainer.no_such=1")
    assert found.missing["data.trian_batch_size"].startswith(
        "no such setting in verl 0.9: did you mean 'data.train_batch"
    )
    assert found.translated["data.train_batch_size"] == ("batch_size",)
    assert "trainer.no_such" in found.missing


def test_a_value_that_is_not_known_is_to_be_filled_in_with_its_line() -> None:
    found = translate_verl(COMMAND + "actor_rollout_ref.model.path=$NO_SUCH/x trainer.nnodes=$(hosts) $EXTRA")
    assert found.unknown["actor_rollout_ref.model.path"] == Unknown("$NO_SUCH/x", "the command:1")
    by_key = {setting.key: setting for setting in found.settings}
    assert (by_key["model.path"].value, by_key["model.path"].comment) == (FILL_IN, "path = $NO_SUCH/x (the command:1)")
    assert found.notes == ("the command:1: $EXTRA is not known, and nothing of it is translated",)


@pytest.mark.parametrize("value", ["abc", "[1]"])
def test_a_value_that_is_no_number_is_refused_with_its_key(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^trainer\.nnodes\n  got:  .*\n  need: a number"):
        translate_verl(COMMAND + f"trainer.nnodes={value}")


def test_a_program_that_does_not_train_has_lists_only() -> None:
    found = translate_verl("python3 -m verl.trainer.main_generation data.path=a rollout.temperature=1 model.path=m")
    assert found.settings == ()
    assert {*found.missing} == {"data.path", "rollout.temperature", "model.path"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("no_such.sh", "'no_such.sh'\n  got:  no such file"),
        ("echo a=b is no command", None),
        ("ls -l /tmp", "the command\n  got:  no such command"),
    ],
)
def test_a_source_without_settings_is_refused(source: str, message: str | None) -> None:
    if message is None:
        source, message = "python train.py", "the command\n  got:  no such command"
    with pytest.raises(ConfigError) as error:
        translate_verl(source)
    assert str(error.value).startswith(message)


# --- YAML ----------------------------------------------------------------------------------------------------------


def test_a_composed_configuration_is_translated_as_the_command(tmp_path: Path) -> None:
    import yaml

    tree: dict[str, Any] = {}
    for name, value in {**defaults("verl"), "algorithm.adv_estimator": "grpo", "data.train_batch_size": 64}.items():
        *above, last = name.split(".")
        inner = tree
        for part in above:
            inner = inner.setdefault(part, {})
        inner[last] = value
    file = tmp_path / "composed.yaml"
    file.write_text(yaml.safe_dump(tree))
    found = translate_verl(str(file))
    assert len({*found.translated, *found.unneeded, *found.missing}) == len(defaults("verl"))
    table, own = table_of(found.settings), command("data.train_batch_size=64")
    assert (table["algorithm"]["kind"], table["batch_size"]) == (own["algorithm.kind"], own["batch_size"])
    from_dict(RunConfig, table)


def test_an_interpolation_that_cannot_be_resolved_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("data:\n  train_files: ${no.such}\nalgorithm:\n  adv_estimator: grpo\n")
    with pytest.raises(ConfigError) as error:
        translate_verl(str(tmp_path / "c.yaml"))
    assert str(error.value).startswith("data.train_files\n  got:  ${no.such}, and there is no no.such")


# --- every rule ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trainer", ["dp", "megatron", "sft", "sft_megatron"])
@pytest.mark.parametrize("name", RULES)
def test_rules_read_any_trainer_and_missing_values(trainer: str, name: str) -> None:
    from purerl.porting.verl.interpolation import resolve

    values = defaults("verl") if trainer == "dp" else other_defaults("verl")[trainer]
    outcomes = [*RULES[name](resolve(values))]
    found = [one for setting in known("verl") if (one := answer("verl", setting)) is not None and one.rule == name]
    covered = {text for one in found for text in one.to}
    for outcome in outcomes:
        key = getattr(outcome, "key", None)
        is_constant = key in ("trainer.skip_zero_gradients", "evaluate.max_tokens", "generator.max_sequence_length")
        assert key is None or is_constant or any(key == text or key.startswith(f"{text}.") for text in covered), outcome


def test_a_translation_of_the_defaults_is_a_configuration() -> None:
    text = import_verl(COMMAND + "actor_rollout_ref.rollout.name=vllm")
    assert to_dict(from_dict(RunConfig, tomllib.loads(text)))["batch_size"] == 1024


@pytest.mark.parametrize("trainer", ["dp", "megatron", "sft"])
@pytest.mark.parametrize("name", RULES)
def test_a_rule_refuses_odd_values_with_their_key(trainer: str, name: str) -> None:
    from purerl.porting.verl.interpolation import resolve

    values = resolve(defaults("verl") if trainer == "dp" else other_defaults("verl")[trainer])
    values |= {"distillation.enabled": False} if trainer == "dp" else {}
    keys = [key for key in known("verl") if (one := answer("verl", key)) is not None and one.rule == name]
    errors = []
    for key in keys:
        for odd in (None, "text", -1, 0, 0.5, True, [], ["a"], {"a": 1}, "1_2", "megatron"):
            try:
                assert all(outcome for outcome in RULES[name](values | {key: odd}))
            except ConfigError as error:
                errors.append((key, str(error)))
    assert [key for key, text in errors if key.rpartition(".")[2] not in text and text.split()[0] not in keys] == []
