"""Scripts of verl as people write them: comments inside of commands, here-documents, values that are not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from purerl.porting.outcomes import FILL_IN
from purerl.porting.translation import unknown_names
from purerl.porting.verl.importing import translate_verl

from .test_import import COMMAND, command, settings


def script(tmp_path: Path, text: str) -> Path:
    """A file with the script `text`."""
    path = tmp_path / "run.sh"
    path.write_text(text)
    return path


def test_settings_after_a_comment_inside_of_the_command_are_translated_with_a_note(tmp_path: Path) -> None:
    """bash ends the command at the comment, so verl never sees what follows, and nobody notices."""
    lines = ["data.train_batch_size=64 \\", "    # experts", "+data.seed=3 \\", "trainer.total_epochs=2"]
    found = translate_verl(str(script(tmp_path, f"{COMMAND}\\\n" + "\n".join(lines) + "\n\necho data.seed=4\n")))
    values = {setting.key: setting.value for setting in found.settings}
    assert (values["batch_size"], values["data.seed"], values["num_epochs"]) == (64, 3, 2.0)
    [note] = found.notes
    assert note.startswith("run.sh:4: bash ends the command before this line")
    assert note.endswith("they are translated: +data.seed, trainer.total_epochs")


def test_a_command_in_a_here_document_is_found(tmp_path: Path) -> None:
    """It may be given to sbatch or bash. The longest of several is the command."""
    text = f"BATCH=32\ncat > a.txt <<EOF\nkey=value\nEOF\nsbatch <<END\n{COMMAND} data.train_batch_size=$BATCH\nEND\n"
    assert settings(str(script(tmp_path, text)))["batch_size"] == 32


def test_other_programs_of_the_script_are_in_the_notes_once_for_each_line(tmp_path: Path) -> None:
    loop = f"for lr in 1 2 3; do\n{COMMAND} actor_rollout_ref.actor.optim.lr=$lr data.seed=1\ndone\n"
    found = translate_verl(str(script(tmp_path, f"python prepare.py\n{loop}python -m verl.model_merger merge\n")))
    assert {setting.key: setting.value for setting in found.settings}["trainer.lr"] == 1.0
    assert found.notes[-3:] == (
        "run.sh:1: prepare.py is started, too; that is not translated",
        "run.sh:3: verl.trainer.main_ppo is started, too, 2 times; that is not translated",
        "run.sh:5: verl.model_merger is started, too; that is not translated",
    )


def test_settings_that_follow_from_a_value_that_is_not_known_have_the_default() -> None:
    """verl's `rollout.n_gpus_per_node` is that of the trainer, which is known only on the cluster."""
    found = translate_verl(COMMAND + "trainer.n_gpus_per_node=$NO_SUCH_GPUS trainer.experiment_name=a_$(date)")
    values = {setting.key: setting.value for setting in found.settings}
    assert (values["placement.ranks"], values["generator.server.tensor_parallel_size"]) == (FILL_IN, 2)
    assert values["name"] == "a"
    assert found.notes == (
        "the command:1: the part of trainer.experiment_name=a_$(date) that is not known is left out",
    )


def test_groups_of_hydra_and_lists_in_quotes_of_sft() -> None:
    program = "torchrun --nproc_per_node=2 -m verl.trainer.sft_trainer engine=megatron optim=megatron "
    found = command("optim.betas=\"'[0.8,0.95]'\" engine.tensor_model_parallel_size=2", program=program)
    assert found["trainer.kind"] == "megatron"
    assert (found["trainer.betas"], found["trainer.mesh.tensor"]) == ([0.8, 0.95], 2)


@pytest.mark.parametrize("program", ["verl.trainer.sft_trainer", "verl.trainer.main_ppo algorithm.adv_estimator=grpo"])
def test_intervals_of_epochs_are_not_there(program: str) -> None:
    each = "trainer.save_freq=after_each_epoch trainer.test_freq=after_each_epoch"
    found = translate_verl(f"python -m {program} data.val_files=v.parquet {each}")
    assert {"trainer.save_freq", "trainer.test_freq"} <= found.missing.keys()
    section = "validation" if "sft" in program else "evaluate"
    keys = {setting.key for setting in found.settings}
    assert f"{section}.data" in keys
    assert not keys & {f"{section}.every", "checkpoint.every"}


def test_servers_of_asynchronous_training_have_devices_of_their_own() -> None:
    program = "python -m verl.experimental.fully_async_policy.fully_async_main algorithm.adv_estimator=grpo "
    found = command("rollout.nnodes=1 rollout.n_gpus_per_node=4 trainer.n_gpus_per_node=2", program=program)
    assert found["generator.server.number"] == 2
    assert "generator.server.sleep_level" not in found


def test_routes_are_only_replayed_in_a_pass_before_several_optimizer_steps() -> None:
    routes = "actor_rollout_ref.actor.router_replay.mode=R2 data.train_batch_size=8"
    assert "trainer.replay_routes" not in command(f"{routes} actor_rollout_ref.actor.ppo_mini_batch_size=8")
    assert command(f"{routes} actor_rollout_ref.actor.ppo_mini_batch_size=4")["trainer.replay_routes"] == "old_logp"


def test_names_below_sections_that_are_not_needed_or_old_are_known_and_others_are_not() -> None:
    names = ["ray_kwargs.ray_init.runtime_env.env_vars.A", "reward_model.overlong_buffer.enable"]
    assert unknown_names(names, "verl") == {}
    assert {*unknown_names(["critic.optim.lrr", "trainer.x.y"], "verl")} == {"critic.optim.lrr", "trainer.x.y"}


def test_a_configuration_in_a_directory_that_is_not_known_is_named() -> None:
    found = translate_verl(
        COMMAND + "--config-path=$NO_SUCH --config-name=my.yaml actor_rollout_ref.rollout.name=sglang_async"
    )
    assert found.notes[0] == (
        "the command:1: my.yaml is in a directory that is not known: its settings are not translated"
    )
    assert {setting.key: setting.value for setting in found.settings}["generator.kind"] == "sglang"
    assert found.notes == (found.notes[0],)
    assert translate_verl(COMMAND + "-cn ppo_megatron_trainer").notes == ()
