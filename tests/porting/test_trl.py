"""Single settings of TRL, and the settings of purerl that they become."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from purerl.config.aliases import LIBRARIES, read_library
from purerl.config.aliases.answers import answer, answers, defaults
from purerl.config.schema import RunConfig
from purerl.config.structure import from_dict
from purerl.errors import ConfigError
from purerl.porting.outcomes import FILL_IN, Translation
from purerl.porting.toml import table_of, write_toml
from purerl.porting.trl.importing import RULES, translate_trl
from tests.config.known_settings import is_setting

ARGUMENTS = {
    "GRPO": "model='m', reward_funcs=f, train_dataset=load_dataset('json', data_files='d.jsonl')",
    "SFT": "model='m', train_dataset=load_dataset('json', data_files='d.jsonl')",
}


def translated(tmp_path: Path, method: str, fields: str = "", arguments: str = "", before: str = "", **options: Any):
    """The translation of a script with these fields of the configuration and these arguments of the trainer."""
    script = tmp_path / "script.py"
    given = ARGUMENTS.get(method, ARGUMENTS["SFT"])
    script.write_text(
        f"from rewards import f\n{before}\nargs = {method}Config({fields})\n"
        f"trainer = {method}Trainer({given}, args=args, {arguments})\n"
    )
    return translate_trl(script, **options)


def values_of(found: Translation) -> dict[str, Any]:
    return {setting.key: setting.value for setting in found.settings}


# --- the tables ---------------------------------------------------------------------------------------------------


def test_every_setting_has_an_answer_and_every_pattern_a_setting() -> None:
    assert [name for name in defaults("trl") if answer("trl", name) is None] == []
    used = {(id(one), pattern) for name in defaults("trl") if (one := answer("trl", name)) for pattern in one.names}
    old = ("warmup_ratio", "max_prompt_length")
    unused = [pattern for one in answers("trl") for pattern in one.names if (id(one), pattern) not in used]
    assert [pattern for pattern in unused if pattern.rpartition(".")[2] not in old] == []


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_answer_is_of_one_kind(library: str) -> None:
    wrong = [one.names for one in answers(library) if [one.to, one.unneeded, one.missing].count("") + (not one.to) != 2]
    assert wrong == []
    assert [one.names for one in answers(library) if (one.values or one.rule) and not one.to] == []


@pytest.mark.parametrize("library", LIBRARIES)
def test_settings_of_every_answer_exist(library: str) -> None:
    settings = {text.partition("=")[0] for one in answers(library) for text in one.to}
    wrong = [setting for setting in settings if not is_setting(setting.partition(".kwargs.")[0])]
    assert [setting for setting in wrong if not setting.startswith("purerl.")] == []


def test_answers_agree_with_the_rows_of_the_page() -> None:
    """The rows of purerl/config/aliases/trl.toml explain the names that are used most."""
    wrong = []
    for row in read_library("trl").rows:
        for name in (text for text in row.names if row.kind == "setting" and "=" not in text):
            found = [answer("trl", full) for full in defaults("trl") if full.rpartition(".")[2] == name]
            to = {setting for one in found if one for setting in one.to}
            settings = [text.partition("=")[0] for text in row.settings]
            wrong += [(name, each) for each in settings if found and not any(_overlap(each, other) for other in to)]
    assert wrong == []


def _overlap(one: str, other: str) -> bool:
    """Whether one of the settings is the other, or below it."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def test_rules_are_those_that_the_answers_name() -> None:
    assert {one.rule for one in answers("trl") if one.rule} == RULES.keys()


@pytest.mark.parametrize("cls", ["GRPOConfig", "SFTConfig", "DPOConfig", "LoraConfig"])
def test_fields_of_the_classes_are_answered_one_by_one(cls: str) -> None:
    """No pattern stands for several fields."""
    patterns = {pattern for name in defaults("trl") if name.startswith(cls) for pattern in answer("trl", name).names}
    assert [pattern for pattern in patterns if "*" in pattern.rpartition(".")[2]] == []


# --- values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ("", {"batch_size": 1, "num_epochs": 3.0, "algorithm.kind": "grpo@trl", "trainer.lr_scheduler": "linear"}),
        ("max_steps=10, num_iterations=2", {"max_steps": 5, "ppo_epochs": 2, "checkpoint.every": 250}),
        ("generation_batch_size=32, gradient_accumulation_steps=2", {"batch_size": 4, "num_minibatches": 2}),
        ("steps_per_generation=1, gradient_accumulation_steps=4", {"batch_size": 4}),
        ("loss_type='grpo', importance_sampling_level='sequence', epsilon=3e-4", {"algorithm.clip_low": 3e-4}),
        ("loss_type='dapo', importance_sampling_level='sequence'", {"algorithm.reduction.by": "token_mean"}),
        ("loss_type='dr_grpo', scale_rewards=False", {"algorithm.reduction.length": 512.0}),
        ("loss_type='cispo', epsilon_high=5", {"algorithm.kind": "cispo@trl", "algorithm.clip_high": 4.0}),
        ("loss_type='sapo', sapo_temperature_neg=2.0", {"algorithm.gate_negative": 2.0}),
        ("scale_rewards='batch'", {"algorithm.advantage_scale.by": "batch_std"}),
        ("delta=4.0, mask_truncated_completions=True", {"algorithm.dual_clip.ratio": 4.0}),
        ("top_entropy_quantile=0.2", {"algorithm.high_entropy_tokens": 0.2}),
        ("beta=0.01, use_bias_correction_kl=False", {"algorithm.kl_loss.estimator": "k3"}),
        ("beta=0.01, sync_ref_model=True, ref_model_sync_steps=64", {"roles.reference.update_every": 64}),
        ("entropy_coef=0.01", {"algorithm.entropy_bonus.coef": 0.01}),
        ("multi_objective_aggregation='normalize_then_sum'", {"algorithm.component_normalization.by": "group"}),
        (
            "use_vllm=True, vllm_importance_sampling_mode='token_truncate'",
            {"algorithm.importance_weight.how": "truncate"},
        ),
        ("use_vllm=True, vllm_mode='server'", {"generator.server.urls": ["http://127.0.0.1:8000"]}),
        ("warmup_steps=10, lr_scheduler_type='cosine'", {"trainer.warmup_steps": 10, "trainer.lr_scheduler": "cosine"}),
        ("warmup_ratio=0.1", {"trainer.warmup_ratio": 0.1}),
        (
            "lr_scheduler_type='cosine_with_min_lr', lr_scheduler_kwargs=dict(min_lr_rate=0.1)",
            {"trainer.lr_scheduler": "cosine", "trainer.min_lr_ratio": 0.1},
        ),
        ("optim='sgd', optim_args='momentum=0.9'", {"trainer.optimizer.kwargs.momentum": 0.9}),
        ("gradient_checkpointing=False, bf16=False", {"seed": 42}),
        ("save_strategy='no'", {"seed": 42}),
        ("data_seed=3", {"data.seed": 3}),
        ("shuffle_dataset=False", {"data.order": "sequential"}),
        ("report_to='trackio', project='p'", {"trackers": [{"kind": "trackio", "project": "p"}]}),
        ("run_name='a/b'", {"name": "a-b"}),
        ("learning_rate=2 * 1e-6", {"trainer.lr": 2e-6}),
    ],
)
def test_fields_of_grpo(tmp_path: Path, fields: str, settings: dict[str, Any]) -> None:
    found = translated(tmp_path, "GRPO", fields)
    assert {key: values_of(found).get(key) for key in settings} == settings
    from_dict(RunConfig, table_of(found.settings))
    assert "purerl needs further settings" not in write_toml(found, "script.py")


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ("loss_type='ipo'", {"algorithm.kind": "ipo@trl", "batch_size": 8}),
        ("loss_type=['sigmoid', 'hinge'], loss_weights=[1, 2]", {"algorithm.weights": [1.0, 2.0]}),
        ("loss_type='robust', label_smoothing=0.1", {"algorithm.label_smoothing.robust": True}),
        ("loss_type='aot_unpaired'", {"algorithm.rank_matching.of": "completions"}),
        ("loss_type='sigmoid_norm'", {"algorithm.length_normalization": True}),
        ("loss_type='discopop', discopop_tau=0.1", {"algorithm.discopop_tau": 0.1}),
        ("loss_type='exo_pair', label_smoothing=0.01", {"algorithm.exo_smoothing": 0.01}),
        ("sync_ref_model=True, ref_model_sync_steps=64", {"roles.reference.update_every": 64}),
        ("precompute_ref_log_probs=True", {"roles.reference.precompute": True}),
        ("padding_free=True, truncation_mode='keep_end'", {"trainer.packing": True, "data.truncation": "left"}),
    ],
)
def test_fields_of_dpo(tmp_path: Path, fields: str, settings: dict[str, Any]) -> None:
    found = translated(tmp_path, "DPO", fields)
    assert {key: values_of(found).get(key) for key in settings} == settings
    from_dict(RunConfig, table_of(found.settings))


@pytest.mark.parametrize(
    ("method", "fields", "names"),
    [
        ("GRPO", "loss_type='luspo'", ["GRPOConfig.loss_type"]),
        ("GRPO", "loss_type='cispo'", ["GRPOConfig.epsilon_high"]),
        ("GRPO", "top_p=0.9, repetition_penalty=1.0", ["GRPOConfig.top_p"]),
        ("GRPO", "fp16=True", ["GRPOConfig.fp16"]),
        ("GRPO", "lr_scheduler_type='greedy'", ["GRPOConfig.lr_scheduler_type"]),
        ("GRPO", "optim='lomo'", ["GRPOConfig.optim"]),
        ("GRPO", "report_to=['wandb', 'neptune']", ["GRPOConfig.report_to"]),
        ("GRPO", "save_strategy='epoch'", ["GRPOConfig.save_strategy"]),
        ("DPO", "loss_type=['ipo', 'hinge']", ["DPOConfig.loss_type"]),
        ("DPO", "f_divergence_type='js_divergence', use_weighting=False", ["DPOConfig.f_divergence_type"]),
        ("SFT", "neftune_noise_alpha=5", ["SFTConfig.assistant_only_loss", "SFTConfig.neftune_noise_alpha"]),
        ("KTO", "loss_type='apo_zero_unpaired'", ["KTOConfig.loss_type"]),
    ],
)
def test_values_without_a_counterpart_are_not_there(tmp_path: Path, method: str, fields: str, names: list[str]) -> None:
    assert sorted(translated(tmp_path, method, fields).missing) == names


def test_a_default_of_trl_is_written_if_it_differs(tmp_path: Path) -> None:
    comments = {setting.key: setting.comment for setting in translated(tmp_path, "SFT").settings}
    assert (comments["trainer.lr"], comments["seed"]) == ("TRL's default", "TRL's default")
    assert not {"trainer.betas", "trainer.weight_decay", "trainer.max_grad_norm"} & comments.keys()


def test_batches_are_those_of_all_processes(tmp_path: Path) -> None:
    found = translated(tmp_path, "GRPO", "num_generations=16, fsdp='full_shard'", processes=4)
    expected = {"batch_size": 2, "trainer.mesh.shard": 4, "placement.ranks": 4}
    assert {key: values_of(found)[key] for key in expected} == expected
    assert values_of(translated(tmp_path, "GRPO", "num_generations=16"))["batch_size"] == FILL_IN


def test_norms_are_not_clipped_if_trl_does_not_clip_them(tmp_path: Path) -> None:
    assert values_of(translated(tmp_path, "SFT", "max_grad_norm=0"))["trainer.max_grad_norm"] == math.inf


def test_a_lora_config_without_modules_has_those_of_peft(tmp_path: Path) -> None:
    found = translated(tmp_path, "SFT", arguments="peft_config=LoraConfig(r=4, use_rslora=True, use_dora=True)")
    values = values_of(found)
    assert values["trainer.lora.target_modules"] == ["q_proj", "v_proj"]
    assert (values["trainer.lora.rank"], values["trainer.lora.rank_stabilized"]) == (4, True)
    assert found.missing["LoraConfig.use_dora"] == "there is no DoRA"


def test_environments_and_tools_are_addresses(tmp_path: Path) -> None:
    arguments = "tools=[search], environment_factory=World"
    before = "class World:\n    pass\n\ndef search(query):\n    pass\n"
    found = translated(tmp_path, "GRPO", "max_tool_calling_iterations=3", arguments, before)
    values, file = values_of(found), (tmp_path / "script.py").as_posix()
    assert values["environment.factory"] == "purerl.adapters.trl:TRLEnvironment"
    assert values["environment.kwargs.factory"] == f"{file}:World"
    assert values["environment.kwargs.reward_functions"] == ["rewards:f"]
    assert (values["environment.tools"], values["environment.max_turns"]) == ([f"{file}:search"], 4)
    assert "rewards" not in values


def test_evaluations_of_grpo_sample_as_those_of_trl(tmp_path: Path) -> None:
    fields = "eval_strategy='steps', eval_steps=30, num_iterations=3, num_generations_eval=2, top_p=0.9"
    arguments = "eval_dataset=load_dataset('parquet', data_files='e.parquet')"
    values = values_of(translated(tmp_path, "GRPO", fields, arguments))
    evaluate = {key.removeprefix("evaluate."): value for key, value in values.items() if key.startswith("evaluate.")}
    assert evaluate == {
        "data": ["e.parquet"],
        "every": 10,
        "max_tokens": 512,
        "temperature": 1.0,
        "samples_per_prompt": 2,
        "before_training": False,
        "top_p": 0.9,
    }
    assert not any(key.startswith("evaluate") for key in values_of(translated(tmp_path, "GRPO", "", arguments)))


# --- scripts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "fields", "value"),
    [
        ("n = 4\nn = 8", "num_generations=n", 8),
        ("n, m = 4, 2", "num_generations=n * m", 8),
        ("options = {'num_generations': 8}", "**options", 8),
        ("sizes = [2, 8]", "num_generations=sizes[-1]", 8),
        ("if x:\n    n = 4", "num_generations=n", FILL_IN),
        ("for n in range(4):\n    pass", "num_generations=n", FILL_IN),
        ("n = 4\nn += 4", "num_generations=n", FILL_IN),
        ("", "num_generations=int(input())", FILL_IN),
        ("n = 9 ** 9 ** 9", "num_generations=n", FILL_IN),
    ],
)
def test_values_of_names_are_read_and_never_guessed(tmp_path: Path, before: str, fields: str, value: Any) -> None:
    found = translated(tmp_path, "GRPO", f"per_device_train_batch_size=8, {fields}", before=before)
    assert values_of(found)["rollout.samples_per_prompt"] == value


def test_defaults_of_argparse_are_values_and_are_noted(tmp_path: Path) -> None:
    before = "p = ArgumentParser()\np.add_argument('--learning-rate', '-l', type=float, default=2e-5)\n"
    before += (
        "p.add_argument('--pack', action='store_true')\np.add_argument('--epochs', required=True)\no = p.parse_args()"
    )
    fields = "learning_rate=o.learning_rate, packing=o.pack, num_train_epochs=o.epochs"
    found = translated(tmp_path, "SFT", fields, before=before)
    values, file = values_of(found), (tmp_path / "script.py").as_posix()
    assert (values["trainer.lr"], values["num_epochs"]) == (2e-5, FILL_IN)
    assert "trainer.packing" not in values
    [note] = found.notes
    assert note == (
        f"defaults of arguments of the command line: o.learning_rate = 2e-05 ({file}:3), o.pack = False ({file}:4)"
    )


def test_names_of_earlier_versions_and_names_that_no_version_has(tmp_path: Path) -> None:
    fields = "max_seq_length=64, evaluation_strategy='no', group_by_length=True, learning_rat=1"
    found = translated(tmp_path, "SFT", fields, "tokenizer=None, packing=True")
    values = values_of(found)
    assert (values["data.max_prompt_tokens"], values["trainer.packing"]) == (64, True)
    assert "same micro-batch" in found.unneeded["SFTConfig.group_by_length"]
    assert found.missing["SFTConfig.learning_rat"].startswith(
        "no such setting in TRL 1.16: did you mean 'SFTConfig.learning_rate'"
    )
    assert "SFTConfig.learning_rat" in write_toml(found, "x").partition("name =")[0]


def test_functions_with_a_name_are_addresses(tmp_path: Path) -> None:
    before = "short = lambda completions: 1\nclass R:\n    def good(completions):\n        pass\n"
    script = tmp_path / "script.py"
    script.write_text(f"{before}def main():\n    GRPOTrainer('m', [short, R.good, R(1), lambda c: 1])\n")
    file = script.as_posix()
    assert values_of(translate_trl(script))["rewards"] == [f"{file}:short", f"{file}:R.good", FILL_IN, FILL_IN]
    assert '# "FILL IN": 2 values are known' in write_toml(translate_trl(script), "x")  # rewards and data.files


def test_models_with_an_adapter_and_enumerations(tmp_path: Path) -> None:
    before = "from transformers import IntervalStrategy as I, SchedulerType\n"
    before += "m = AutoModelForCausalLM.from_pretrained('base', quantization_config=q)\n"
    before += "m = get_peft_model(prepare_model_for_kbit_training(m), LoraConfig(r=4))\n"
    fields = "save_strategy=I.STEPS, save_steps=7, lr_scheduler_type=SchedulerType.COSINE"
    script = tmp_path / "script.py"
    script.write_text(f"{before}SFTTrainer(m, SFTConfig({fields}))\n")
    found = translate_trl(script)
    expected = {"model.path": "base", "trainer.lora.rank": 4, "checkpoint.every": 7, "trainer.lr_scheduler": "cosine"}
    assert {key: values_of(found)[key] for key in expected} == expected


def test_a_value_that_depends_on_a_condition_has_its_text(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("c = SFTConfig()\nif debug:\n    c.max_steps = 100\nSFTTrainer('m', c)\n")
    assert str(translate_trl(script).unknown["SFTConfig.max_steps"]).startswith("100 (")


def test_a_part_of_a_data_set_has_a_file_name_without_other_characters(tmp_path: Path) -> None:
    arguments = "train_dataset=load_dataset('a/b', split='train[:1%]')"
    values = values_of(translated(tmp_path, "KTO", arguments=arguments.replace("train_dataset", "eval_dataset")))
    script = tmp_path / "other.py"
    script.write_text(f"SFTTrainer('m', SFTConfig(), {arguments})\n")
    assert values["data.files"] == ["d.jsonl"]
    assert values_of(translate_trl(script))["data.files"] == ["b-train__1__.parquet"]


def test_a_value_that_is_not_known_has_its_line(tmp_path: Path) -> None:
    found = translated(tmp_path, "SFT", "learning_rate=options.lr")
    assert str(found.unknown["SFTConfig.learning_rate"]) == f"options.lr ({(tmp_path / 'script.py').as_posix()}:3)"
    assert '# "FILL IN": one value is known only when the code runs.' in write_toml(found, "script.py")


def test_a_script_is_not_run(tmp_path: Path) -> None:
    before = f"open({str(tmp_path / 'made')!r}, 'w')"
    translated(tmp_path, "SFT", before=before)
    assert not (tmp_path / "made").exists()


def test_reward_functions_of_a_script_that_trains_when_it_is_imported(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("def f(completions):\n    pass\n\nGRPOTrainer(model='m', reward_funcs=[f, lambda x: x])\n")
    reward = next(setting for setting in translate_trl(script).settings if setting.key == "rewards")
    assert reward.value == [f"{script.as_posix()}:f", FILL_IN]
    assert "Importing f would start the training of the script" in reward.comment


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "trainers in .*\n  got:  none\n  need: a script that creates one of GRPOTrainer, SFTTrainer"),
        ("SFTTrainer(1)\nDPOTrainer(2)", "got:  SFTTrainer on line 1, DPOTrainer on line 2"),
        (
            "SFTTrainer(args=parse())",
            "got:  parse.. .*\n  need: a call of SFTConfig in the script\n  do:   assign SFTC",
        ),
        ("PPOTrainer(model=1)", "got:  PPOTrainer on line 1\n  need: a script that creates one of GRPOTrainer"),
        ("SFTTrainer(**options)", r"SFTTrainer.\*\*\n  got:  options"),
        ("SFTTrainer(", "cannot be read"),
    ],
)
def test_scripts_that_cannot_betranslated(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "script.py").write_text(text)
    with pytest.raises(ConfigError, match=message):
        translate_trl(tmp_path / "script.py")
