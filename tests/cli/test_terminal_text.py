"""Text of models, servers, files and errors in a terminal: no control code of it gets there. Colors of purerl do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from purerl.errors import EngineError
from purerl.system.terminal import escape
from tests.forks import PROGRAMS

from .terminal import purerl_in_terminal, run_in_terminal

CODES = {
    "title": "\x1b]0;x\x07",
    "color": "\x1b[35;4m",
    "C1 color": "\x9b35m",
    "C1 title": "\x9d0;x\x9c",
    "right to left": "\u202e",
    "isolate": "\u2067",
    "mark": "\u200f",
    "Arabic mark": "\u061c",
    "carriage return": "a\rb",
    "backspace": "a\bb",
    "null": "a\x00b",
    "delete": "a\x7fb",
    "tag": "\U000e0041",
    "line separator": "\u2028",
}
BAD = " ".join(CODES.values()) + " [red]r[/red] [/] [link=http://l]"
SURROGATE = "\ud800"  # it cannot be in a file in UTF-8

_OF_RICH = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[[0-9]*[AK]|\r(?=\x1b\[|$)")
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f]")


def check(output: str, *, has_text: bool = True) -> None:
    """Check that `output` has the text of `BAD`, if `has_text`, and that nothing of it is a code."""
    assert "\x1b[35;4m" not in output
    assert _UNSAFE.findall(_OF_RICH.sub("", output)) == []
    if has_text:
        plain = re.sub(r"\s", "", _OF_RICH.sub("", output))
        assert "\\x1b]0;x\\x07" in plain
        assert "\\u202e" in plain
        assert "[red]r[/red]" in plain


def piped(*arguments: object) -> tuple[str, str]:
    """The output of ``purerl`` on stdout and stderr, if they are pipes. It is forked."""
    done = PROGRAMS.run([sys.executable, "-m", "purerl_cli", *map(str, arguments)], capture_output=True)
    return done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize("code", CODES.values(), ids=[*CODES])
def test_codes_are_escaped(code: str) -> None:
    assert _UNSAFE.findall(escape(f"before {code} after", newlines=False)) == []
    assert escape("a\n\tb") == "a\n\tb"
    assert escape("caf\u00e9 \u65e5\u672c\u3000\u8a9e \U0001f469\u200d\U0001f52c \u0645\u06cc\u200c") == (
        "caf\u00e9 \u65e5\u672c\u3000\u8a9e \U0001f469\u200d\U0001f52c \u0645\u06cc\u200c"
    )
    assert _UNSAFE.findall(str(EngineError(code, got=code, need=code, do=code)).replace("\n", "")) == []


def test_lone_surrogates_are_escaped() -> None:
    assert escape(f"a{SURROGATE}b\udcff") == "a\\ud800b\\udcff"


# --- errors and everything else that code prints -------------------------------------------------------------------

STATEMENTS = {
    "print": "print(text)",
    "write": "sys.stderr.write(text); sys.stdout.writelines([text])",
    "print without a line break": "print(text, end='', flush=True)",
    "warning": "warnings.warn(text)",
    "logging": "logging.getLogger('a').warning(text)",
    "logging to a handler": "logging.basicConfig(); logging.getLogger('a').error('%s', text)",
    "exception": "raise ValueError(text)",
    "cause": "exec('try: raise KeyError(text)\\nexcept KeyError as e: raise RuntimeError(2) from e')",
    "note": "error = ValueError(1); error.add_note(text); raise error",
    "exit": "sys.exit(text)",
    "exception of a thread": "t = threading.Thread(target=int, args=[text], name=text); t.start(); t.join(); int(text)",
    "exception of a task": "asyncio.run(fail())",
    "exception that is not raised": "class A:\n    def __del__(self): raise ValueError(text)\nA()",
    "error of purerl": "raise EngineError(text, got=text, need=text, do=text)",
    "error of a file": "open('/none/' + text.translate({0: '', 0xd800: ''}))",
    "name of a frame": "exec(compile('1/0', text.replace('\\0', ''), 'exec'))",
    "Rich": "rich.print(text.replace('[', '('), '[red]r[/red]'.replace('[', chr(92) + '['))",
}
RECIPE = f"""
import asyncio, logging, sys, threading, warnings
import rich
from purerl.errors import EngineError

text = {BAD + SURROGATE!a}

async def fail():
    asyncio.get_running_loop().create_future().set_exception(ValueError(text))
    await asyncio.sleep(0)

def recipe():
    {{statement}}
    {{end}}
"""
ENDS = {"print": "from purerl.recipes.addition import addition; return addition()"}  # the others need no table


def arguments_with(name: str, folder: Path) -> list[str]:
    """Those of a command that executes one of `STATEMENTS`."""
    path, statement = folder / "own_recipe.py", STATEMENTS[name].replace("\n", "\n    ")
    end = ENDS.get(name, "raise SystemExit(0)")
    path.write_text(RECIPE.replace("{statement}", statement).replace("{end}", end), encoding="utf-8")
    return ["config", f"{path}:recipe", "--debug"]


@pytest.mark.parametrize("name", STATEMENTS)
def test_what_code_prints_and_raises_is_escaped(name: str, tmp_path: Path) -> None:
    output, _ = purerl_in_terminal(*arguments_with(name, tmp_path))
    check(output, has_text=name != "Rich")


@pytest.mark.parametrize("name", ["print", "exception", "exit"])
def test_output_to_a_pipe_which_may_end_in_a_terminal_is_escaped_too(name: str, tmp_path: Path) -> None:
    check("".join(piped(*arguments_with(name, tmp_path))))


def test_output_in_ascii_is_escaped_too() -> None:
    """A process that is started: the interpreter reads the variable."""
    command = [sys.executable, "-m", "purerl_cli", "config", BAD.replace("\0", "")]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    output = subprocess.run(command, env=environment, capture_output=True, check=False)
    check((output.stdout + output.stderr).decode(errors="replace"))


# --- commands ------------------------------------------------------------------------------------------------------


COMMANDS = [
    ("data", "inspect", BAD),
    ("config", f"--{BAD}"),
    ("config", "addition", "--set", f"name={BAD}"),
    ("config", "addition", "--set", f"{BAD}=1"),
    ("config", "addition", "--set", f'environment.url="{BAD}"'),
    ("config", BAD),
    ("train", f"{BAD}.toml"),
    ("train", "addition", "--dry-run", "--reward", BAD),
    ("plan", BAD),
    ("algo", "show", BAD),
    ("algo", "diff", BAD, "grpo"),
    ("laws", BAD),
    ("eval", "model", "--data", "a", "--reward", BAD),
    ("sample", "model", "--data", BAD),
    ("report", BAD),
    ("replay", BAD),
    ("export", BAD),
    ("stacks", BAD),
    ("doctor", BAD),
    ("sandbox", "run", BAD),
    ("data", BAD),
    (BAD,),
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: " ".join(arguments)[:12])
def test_names_that_a_command_repeats_are_escaped(arguments: tuple[str, ...]) -> None:
    output, status = purerl_in_terminal(*(argument.replace("\x00", "") for argument in arguments))
    assert status not in (0, -11)
    check(output, has_text=False)
    assert "\\u202e" in re.sub(r"\s|\u2502", "", _OF_RICH.sub("", output))


def test_rows_of_a_file_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / f"a{BAD.replace('/', '').replace(chr(0), '')}.jsonl"
    path.write_text(json.dumps({"prompt": BAD, "answer": BAD, BAD: BAD, "data_source": BAD}) + "\n", encoding="utf-8")
    output, status = purerl_in_terminal("data", "inspect", path)
    assert status == 0, output
    check(output.replace("[red]r[red]", "[red]r[/red]"))


_PROGRAM = f"import sys; text = {BAD.replace(SURROGATE, '')!a}; print(text); print(text, file=sys.stderr)"


def test_output_of_a_program_is_escaped_in_a_terminal_and_unchanged_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(_PROGRAM, encoding="utf-8")
    output, status = purerl_in_terminal("sandbox", "run", path, "--layers", "none")
    assert status == 0, output
    check(output)
    assert piped("sandbox", "run", path, "--layers", "none")[0] == f"{BAD}\n"


def test_toml_for_programs_has_the_same_values() -> None:
    name = "\x1b]0;x\x07 \x9b35m \u202e \U000e0041"
    output, _ = piped("config", "addition", "--toml", "--set", f"data.system_prompt={name}")
    assert tomllib.loads(output)["data"]["system_prompt"] == name
    check(output, has_text=False)


def test_help_and_tables_have_colors() -> None:
    """The first is a process that is started, in a terminal."""
    for command, start in (("--help", subprocess.Popen), ("algo list", PROGRAMS.Popen)):
        output, status = run_in_terminal([sys.executable, "-m", "purerl_cli", *command.split()], start=start)
        assert status == 0
        assert "\x1b[1m" in output
        assert "\\x1b" not in output


# --- parts of commands that need a model, a run or a server -------------------------------------------------------

PARTS = {
    "completions": """
from purerl.evaluation.problem_results import Attempt, Problem
from purerl.rewards.outcomes import Failure
from purerl.rewards.results import RewardResult
from purerl_cli.results import show_completions
failure = Failure(text, "raised", text)
messages = json.dumps([{"role": text, "content": text, "tool_calls": [{"name": text, "arguments": text}]}])
good, bad = RewardResult({text: 1.0}, {text: 1.0}), RewardResult(failure=failure)
attempts = (Attempt(text, 1, "stop", None, good), Attempt(text, 1, text, None, bad),
            Attempt(text, 1, "stop", text, good, messages=messages))
show_completions({text: [Problem(0, text, attempts)]})
""",
    "table": "from purerl_cli.tables import show\nshow(text, 'b', rows=[[text, text]])",
    "table of a pipe": "from purerl_cli.tables import show\nshow(text, 'b', rows=[[text * 9, text]], wrap=False)",
    "findings": """
from purerl.doctor import Finding
from purerl_cli.tables import show_findings
show_findings([Finding(text, text, "bad", text, text)])
""",
    "progress": """
from types import SimpleNamespace
from purerl_cli.progress import EvaluationProgress
with EvaluationProgress({text: 2}) as progress:
    print(text)
    print(text, end="", flush=True)
    progress(text, SimpleNamespace(trajectories=()))
    warnings.warn(text)
""",
    "live view": """
from purerl.monitoring.console.live import Console
console = Console(text, 9, title=text, note=text)
console.log({"step": 1, "reward/mean": 0.5})
console.completions(1, [{"prompt": text, "completion": text, "reward": 1.0}])
console.warn(1, text, text)
print(text)
print(text, end="", flush=True)
sys.stderr.write(text)
warnings.warn(text)
logging.getLogger("a").warning(text)
time.sleep(1.2)
console.close(failed=False)
""",
    "progress bar": """
from tqdm import tqdm
for _ in tqdm(range(3), desc=text, position=1): print(text, file=sys.stderr)
tqdm.write(text)
""",
    "worker": """
from purerl.rewards.adapters import RewardInput
from purerl.rewards.runner import RewardRunner
with RewardRunner(["tests.cli.rewards:prints_the_example"], functions={}, timeout=60.0, num_workers=1) as runner:
    print(runner.run([RewardInput("a", "b", {"text": text})]))
""",
}
PRELUDE = f"""
import json, logging, sys, time, warnings
from purerl.system.terminal import escape_output
from purerl.monitoring.console.rich_text import escape_consoles
escape_output()
escape_consoles()
text = {BAD!a}
"""


@pytest.mark.parametrize("part", PARTS.values(), ids=[*PARTS])
def test_parts_of_commands_escape(part: str) -> None:
    output, status = run_in_terminal([sys.executable, "-c", PRELUDE + part])
    assert status == 0, output
    check(output.replace("\ufffd", "?"))
