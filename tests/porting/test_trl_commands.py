"""YAML files of TRL's command, and commands that start TRL or a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from purerl.errors import ConfigError
from purerl.porting.outcomes import FILL_IN
from purerl.porting.trl.importing import translate_trl

from .test_trl import values_of

# --- YAML ---------------------------------------------------------------------------------------------------------


def test_a_yaml_file_needs_fields_of_one_trainer(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("model_name_or_path: m\ndataset_name: d\nlearning_rate: 1e-5\n")
    with pytest.raises(ConfigError, match="got:  one of SFT, DPO, KTO, Reward|one of GRPO, SFT, DPO, KTO, Reward"):
        translate_trl(file)
    values = values_of(translate_trl(file, trainer="dpo"))
    assert (values["algorithm.kind"], values["trainer.lr"]) == ("dpo@trl", 1e-5)
    file.write_text("learning_rat: 1e-5\n")
    with pytest.raises(ConfigError, match="got:  learning_rat\n  need: fields of one trainer"):
        translate_trl(file)


def test_a_yaml_file_of_an_earlier_version_istranslated(tmp_path: Path) -> None:
    """The fields that any trainer has decide whose file it is."""
    file = tmp_path / "run.yaml"
    fields = {"torch_dtype": "bfloat16", "evaluation_strategy": "steps", "eval_steps": 5, "overwrite_output_dir": True}
    fields |= {"num_generations": 4, "max_prompt_length": 64, "warmup_ratio": 0.1, "vllm_dtype": "auto"}
    file.write_text("".join(f"{name}: {value}\n" for name, value in fields.items()))
    found = translate_trl(file)
    expected = {"model.dtype": "bfloat16", "data.max_prompt_tokens": 64, "trainer.warmup_ratio": 0.1}
    assert {key: values_of(found)[key] for key in expected} == expected
    assert "fresh" in found.unneeded["GRPOConfig.overwrite_output_dir"]
    assert found.missing["GRPOConfig.vllm_dtype"].startswith("no such setting in TRL 1.16: did you mean 'GRPOConfig.v")
    assert found.notes == ("TRL 1.16 does not have, so that nothing is translated: GRPOConfig.vllm_dtype",)


# --- commands -----------------------------------------------------------------------------------------------------

PARSED = """
from trl import DPOConfig, DPOTrainer, ModelConfig, ScriptArguments, TrlParser, get_peft_config
def main():
    parser = TrlParser((ScriptArguments, DPOConfig, ModelConfig))
    script_args, training_args, model_args = parser.parse_args_and_config()
    dataset = load_dataset(script_args.dataset_name)
    trainer = DPOTrainer(
        model=model_args.model_name_or_path,
        args=training_args,
        train_dataset=dataset[script_args.dataset_train_split],
        peft_config=get_peft_config(model_args),
    )
"""


def test_a_command_of_trl_has_its_flags_as_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sft.yaml").write_text("learning_rate: 1e-4\nmax_length: 128\n")
    command = "trl sft --model_name_or_path m --dataset_name a/b --config sft.yaml --learning-rate=1e-5 --packing"
    values = values_of(
        translate_trl(f"{command} --use_peft --lora_target_modules q_proj k_proj --max_steps $STEPS_OF_ME")
    )
    assert values["algorithm.kind"] == "sft"
    expected = {
        "model.path": "m",
        "data.files": ["b-train.parquet"],
        "trainer.lr": 1e-5,
        "data.max_prompt_tokens": 128,
        "trainer.packing": True,
        "trainer.lora.target_modules": ["q_proj", "k_proj"],
        "num_epochs": FILL_IN,
    }
    assert {key: values[key] for key in expected} == expected


def test_a_script_whose_configuration_is_parsed_is_read_with_the_arguments_of_its_command(tmp_path: Path) -> None:
    script, shell = tmp_path / "train.py", tmp_path / "run.sh"
    script.write_text(PARSED)
    alone = translate_trl(script)
    assert values_of(alone)["model.path"] == FILL_IN
    assert alone.notes[0].startswith("train.py takes its configuration from the command line")
    launch = "accelerate launch --num_processes 2 --config_file z.yaml"
    fields = "--model_name_or_path m --dataset_name a/b --beta 0.2 --use_peft --lora_r 4 --own 3"
    shell.write_text(f"#!/bin/bash\nM=1\n{launch} train.py {fields}\n")
    found = translate_trl(shell)
    expected = {"model.path": "m", "data.files": ["b-train.parquet"], "algorithm.beta": 0.2, "placement.ranks": 2}
    expected |= {"trainer.lora.rank": 4, "batch_size": 16}
    assert {key: values_of(found)[key] for key in expected} == expected
    assert "DPOConfig.own" in found.missing


def test_arguments_of_a_script_that_parses_none_of_them_are_in_the_notes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("SFTTrainer('m', SFTConfig(seed=3))\n")
    (tmp_path / "run.sh").write_text("python train.py --seed 4\n")
    found = translate_trl(tmp_path / "run.sh")
    assert values_of(found)["seed"] == 3
    assert found.notes == ("arguments of train.py are not translated: seed",)


@pytest.mark.parametrize("text", ["ls -l", "trl vllm-serve --model m"])
def test_a_command_that_trains_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="the command in 'the command'\n  got:  no such command"):
        translate_trl(text)
