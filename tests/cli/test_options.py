"""The options of every command. They are an interface: a change of this list needs an entry in CHANGELOG.md."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

import purerl
from purerl_cli.main import app
from purerl_cli.options import RENAMED
from tests.calls import COMMAND, calls

EVALUATION_OPTIONS = {
    "model": ["model"],
    "run": ["--run"],
    "data": ["--data"],
    "reward": ["--reward"],
    "gate": ["--gate"],
    "max_examples": ["--max-examples"],
    "samples_per_prompt": ["--samples-per-prompt"],
    "temperature": ["--temperature"],
    "sampling": ["--sampling"],
    "max_tokens": ["--max-tokens"],
    "environment": ["--environment"],
    "tool": ["--tool"],
    "mcp": ["--mcp"],
    "max_turns": ["--max-turns"],
    "environment_settings": ["--environment-settings"],
    "generator_settings": ["--generator-settings"],
    "stop_string": ["--stop-string"],
    "system_prompt": ["--system-prompt"],
    "chat_template_kwargs": ["--chat-template-kwargs"],
    "dtype": ["--dtype"],
    "attention": ["--attention"],
    "device": ["--device"],
    "max_num_seqs": ["--max-num-seqs"],
    "seed": ["--seed"],
    "debug": ["--debug"],
}
OPTIONS = {
    "": {
        "version": ["--version"],
        "install_completion": ["--install-completion"],
        "show_completion": ["--show-completion"],
    },
    "train": {
        "recipe": ["recipe"],
        "assignments": ["assignments"],
        "settings": ["--set"],
        "directory": ["--directory"],
        "reward": ["--reward"],
        "fresh": ["--fresh"],
        "resume_from": ["--resume-from"],
        "accept_changed_code": ["--accept-changed-code"],
        "dry_run": ["--dry-run"],
        "check_code": ["--check-code"],
        "debug": ["--debug"],
    },
    "export": {
        "run": ["run"],
        "step": ["--step"],
        "output": ["--output"],
        "push_to_hub": ["--push-to-hub"],
        "private": ["--private"],
        "debug": ["--debug"],
    },
    "chat": {
        "models": ["models"],
        "system_prompt": ["--system-prompt"],
        "temperature": ["--temperature"],
        "max_tokens": ["--max-tokens"],
        "seed": ["--seed"],
        "chat_template_kwargs": ["--chat-template-kwargs"],
        "dtype": ["--dtype"],
        "device": ["--device"],
        "debug": ["--debug"],
    },
    "serve": {
        "model": ["model"],
        "step": ["--step"],
        "generator_settings": ["--generator-settings"],
        "dtype": ["--dtype"],
        "host": ["--host"],
        "port": ["--port"],
        "debug": ["--debug"],
    },
    "plan": {
        "recipe": ["recipe"],
        "assignments": ["assignments"],
        "settings": ["--set"],
        "memory": ["--memory"],
        "ranks": ["--ranks"],
        "prompt_tokens": ["--prompt-tokens"],
        "completion_tokens": ["--completion-tokens"],
        "device": ["--device"],
        "utilization": ["--utilization"],
        "bandwidth": ["--bandwidth"],
        "suggestions": ["--suggest"],
        "as_json": ["--json"],
        "debug": ["--debug"],
    },
    "recipes": {"debug": ["--debug"]},
    "config": {
        "recipe": ["recipe"],
        "assignments": ["assignments"],
        "settings": ["--set"],
        "toml": ["--toml"],
        "debug": ["--debug"],
    },
    "doctor": {"run": ["run"], "engine": ["--engine"], "again": ["--again"], "debug": ["--debug"]},
    "sandbox": {},
    "sandbox run": {
        "file": ["file"],
        "arguments": ["arguments"],
        "language": ["--language"],
        "stdin": ["--stdin"],
        "with_file": ["--with-file"],
        "timeout": ["--timeout"],
        "cpu_time": ["--cpu-time"],
        "max_memory": ["--max-memory"],
        "max_processes": ["--max-processes"],
        "max_output": ["--max-output"],
        "max_disk": ["--max-disk"],
        "python": ["--python"],
        "layers": ["--layers"],
        "debug": ["--debug"],
    },
    "eval": {
        **EVALUATION_OPTIONS,
        "pass_at_k": ["--pass-at-k"],
        "answer_extractor": ["--answer-extractor"],
        "accuracy_reward": ["--accuracy-reward"],
        "json": ["--json"],
    },
    "sample": {
        **EVALUATION_OPTIONS,
        "prompt": ["--prompt"],
        "image": ["--image"],
        "show_tokens": ["--show-tokens"],
    },
    "algo": {},
    "algo list": {"debug": ["--debug"]},
    "algo show": {
        "name": ["name"],
        "settings": ["--set"],
        "as_json": ["--json"],
        "cite": ["--cite"],
        "debug": ["--debug"],
    },
    "algo diff": {
        "first": ["first"],
        "second": ["second"],
        "run": ["--run"],
        "step": ["--step"],
        "batch": ["--batch"],
        "debug": ["--debug"],
    },
    "algo presets": {"debug": ["--debug"]},
    "algo modifiers": {"debug": ["--debug"]},
    "replay": {
        "run": ["run"],
        "algorithm": ["--algorithm"],
        "settings": ["--set"],
        "reward": ["--reward"],
        "steps": ["--steps"],
        "as_json": ["--json"],
        "debug": ["--debug"],
    },
    "laws": {
        "name": ["name"],
        "settings": ["--set"],
        "exempt": ["--exempt"],
        "law": ["--law"],
        "accumulate": ["--accumulate"],
        "unit": ["--unit"],
        "batches": ["--batches"],
        "seed": ["--seed"],
        "as_json": ["--json"],
        "debug": ["--debug"],
    },
    "data": {},
    "data inspect": {
        "file": ["file"],
        "model": ["--model"],
        "system_prompt": ["--system-prompt"],
        "chat_template_kwargs": ["--chat-template-kwargs"],
        "max_prompt_tokens": ["--max-prompt-tokens"],
        "special_tokens": ["--special-tokens"],
        "stop_string": ["--stop-string"],
        "columns": ["--columns"],
        "rows": ["--rows"],
        "templates": ["--templates"],
        "debug": ["--debug"],
    },
    "data convert": {
        "name": ["name"],
        "source": ["source"],
        "target": ["target"],
        "prompt_format": ["--prompt-format"],
        "debug": ["--debug"],
    },
    "data values": {
        "source": ["source"],
        "results": ["results"],
        "target": ["target"],
        "beta": ["--beta"],
        "data_set": ["--data-set"],
        "debug": ["--debug"],
    },
    "init": {
        "model": ["--model"],
        "data": ["--data"],
        "method": ["--method"],
        "output": ["--output"],
        "debug": ["--debug"],
    },
    "import": {},
    "import trl": {
        "source": ["source"],
        "output": ["--output"],
        "trainer": ["--trainer"],
        "processes": ["--processes"],
        "debug": ["--debug"],
    },
    "import verl": {"source": ["source"], "output": ["--output"], "debug": ["--debug"]},
    "report": {"runs": ["runs"], "output": ["--output"], "megabytes": ["--megabytes"], "debug": ["--debug"]},
    "stacks": {"run": ["run"], "timeout": ["--timeout"], "debug": ["--debug"]},
}


def test_commands_have_these_options() -> None:
    root = typer.main.get_command(app)
    groups = {name: command for name, command in root.commands.items() if hasattr(command, "commands")}
    nested = {f"{group} {name}": c for group, command in groups.items() for name, c in command.commands.items()}
    commands = {"": root, **root.commands, **nested}
    options = {name: {p.name: p.opts for p in command.params if p.name != "help"} for name, command in commands.items()}
    assert options == OPTIONS


@pytest.mark.parametrize(
    ("command", "renamed"),
    [
        ("eval model", "--samples --examples --pass-at --answer --system"),
        ("sample model", "--samples --rows --system"),
        ("data inspect rows.jsonl", "--system --template"),
        ("data convert gsm8k source target", "--form"),
    ],
)
def test_old_option_is_refused_with_its_new_name(command: str, renamed: str) -> None:
    for old in renamed.split():
        for arguments in ([old, "1"], [f"{old}=1"]):
            result = CliRunner().invoke(app, [*command.split(), *arguments], prog_name="purerl")
            name = " ".join(command.split()[: 2 if command.startswith("data") else 1])
            assert (result.exit_code, result.stdout) == (2, "")
            assert result.stderr == (
                f"error: {old}\n"
                "  got:  no such option\n"
                f"  need: an option that `purerl {name} --help` lists\n"
                f"  do:   it is called {RENAMED[old]} here\n"
            )


def test_option_that_another_command_renamed_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    result = CliRunner().invoke(app, ["data", "inspect", str(tmp_path / "rows.jsonl"), "--rows", "1"])
    assert result.exit_code == 0, result.output
    assert "1 rows" in result.stdout


def test_version_equals_that_of_the_package() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"purerl {purerl.__version__}\n"


def test_help_takes_little_longer_than_importing_its_libraries() -> None:
    """Calls are counted, and not seconds."""
    assert calls(COMMAND, "--help") < 4 * calls(_LIBRARIES)


_LIBRARIES = "import typer, rich.console, rich.table, rich.progress"


def test_console_script_is_installed() -> None:
    script = shutil.which("purerl", path=str(Path(sys.executable).parent))
    assert script is not None
    process = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert process.stdout == f"purerl {purerl.__version__}\n"


@pytest.mark.parametrize(("variables", "policy"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_threads_wait_passively_unless_the_environment_sets_a_policy(variables: dict[str, str], policy: str) -> None:
    code = "import os, purerl_cli.main as cli; cli.app = lambda: print(os.environ['OMP_WAIT_POLICY']); cli.main()"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | variables
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert process.stdout.strip() == policy


@pytest.mark.parametrize("command", [[], ["train"], ["plan"], ["algo"], ["algo", "show"], ["eval"], ["sandbox", "run"]])
def test_flags_are_shown_without_a_type(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "120"})
    assert "--help" in result.stdout
    assert "<bool>" not in result.stdout
