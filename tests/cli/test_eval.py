"""`purerl eval` and `purerl sample`: printed tables and completions, the JSON file, progress, and error messages."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from purerl.evaluation.problem_results import Attempt, Problem
from purerl.loop.train import train
from purerl.recipes.addition import addition, prepare
from purerl.rewards.outcomes import Failure
from purerl.rewards.results import RewardResult
from purerl.rollouts.types import Group, Trajectory
from purerl_cli.main import app
from purerl_cli.progress import EvaluationProgress
from purerl_cli.results import format_completions
from tests.loop.small import fake, small_real
from tests.recipes.made import write_model
from tests.rewards.servers import answer, serve

from .terminal import run_in_terminal

SMALL_DIGIT = "tests.cli.rewards:starts_with_small_digit"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model that has random weights, and two files of problems."""
    folder = tmp_path_factory.mktemp("prepared")
    prepare(folder, seed=0)
    return folder


def _purerl(*arguments: object, columns: int = 160) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": str(columns)})


# --- results -----------------------------------------------------------------------------------------------------


def test_eval_prints_a_row_per_data_set_and_writes_json(prepared: Path, tmp_path: Path) -> None:
    result = _purerl(
        "eval", prepared / "model", "--data", prepared / "held_out.parquet", "--data", f"old={prepared}/train.parquet",
        "--reward", SMALL_DIGIT, "--samples-per-prompt", 4, "--temperature", 1.5, "--max-tokens", 4,
        "--pass-at-k", "1,2", "--answer-extractor", "tests.cli.rewards:first_two_characters", "--max-examples", 5,
        "--json", tmp_path / "all.json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0].startswith("accuracy: a completion is correct if ")
    _, head, _, new, old = [line.split("  ") for line in result.stdout.splitlines() if line.strip()]
    labels = [label.strip() for label in head if label.strip()]
    assert labels == [
        "data set", "problems", "mean@4", "95% interval", "pass@1", "pass@2", "maj@4", "reward", "length",
        "truncated", "valid_fraction", "failed",
    ]  # fmt: skip
    written = json.loads((tmp_path / "all.json").read_text())
    for row, name in ((new, "held_out"), (old, "old")):
        cells = [cell.strip() for cell in row if cell.strip()]
        metrics = written["data"][name]["metrics"]
        interval = f"{metrics['accuracy_low']:.3f} to {metrics['accuracy_high']:.3f}"
        assert cells[:4] == [name, "5", f"{metrics['accuracy']:.3f}", interval]
        assert cells[4:7] == [f"{metrics[key]:.3f}" for key in ("pass@1", "pass@2", "maj@4")]
        assert len(written["data"][name]["problems"]) == 5


def test_a_judge_gives_the_reward_and_its_cost_is_a_column(prepared: Path, tmp_path: Path) -> None:
    with serve(answer("Score: 4", prompt=30, completion=3)) as server:
        judge = f'{{kind = "judge", endpoint = {{url = "{server.url}", model = "m", input_price = 1e5}}}}'
        result = _purerl(
            "eval", prepared / "model", "--data", prepared / "held_out.parquet", "--reward", judge, "--max-tokens", 4,
            "--max-examples", 8, "--json", tmp_path / "all.json",
        )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert re.search(r"reward +length +truncated +valid_fraction +failed +reward/judge/cost", result.stdout)
    metrics = json.loads((tmp_path / "all.json").read_text())["data"]["held_out"]["metrics"]
    assert metrics["reward/judge"] == pytest.approx(1 / 3)
    assert (metrics["reward/judge/requests"], metrics["reward/judge/cost"]) == (8, 24)


def test_one_reward_decides_what_is_correct_and_every_component_is_a_column(prepared: Path, tmp_path: Path) -> None:
    def metrics(*options: object) -> dict[str, float]:
        result = _purerl(
            "eval", prepared / "model", "--data", prepared / "held_out.parquet", "--reward", SMALL_DIGIT,
            "--reward", "tests.cli.rewards:brevity", "--max-tokens", 4, "--max-examples", 20,
            "--json", tmp_path / "all.json", *options,
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        assert re.search(r"reward +reward/starts_with_small_digit +reward/brevity +length", result.stdout)
        written = json.loads((tmp_path / "all.json").read_text())
        return written["data"]["held_out"]["metrics"] | {"name": written["accuracy_reward"]}

    default = metrics()
    assert 0 < default["accuracy"] == default["reward/starts_with_small_digit"] < 1
    assert default["reward/brevity"] == 0.5
    assert default["reward"] == pytest.approx(default["accuracy"] + 0.5)
    assert default.pop("name") == [SMALL_DIGIT, "tests.cli.rewards:brevity"], "the first one that applies"
    assert metrics("--accuracy-reward", "starts_with_small_digit") == default | {"name": SMALL_DIGIT}
    other = metrics("--accuracy-reward", "tests.cli.rewards:brevity")
    assert (other["accuracy"], other["name"]) == (0, "tests.cli.rewards:brevity")


def test_a_kind_of_reward_is_written_as_a_table(prepared: Path, tmp_path: Path) -> None:
    result = _purerl(
        "eval", prepared / "model", "--data", prepared / "held_out.parquet", "--max-tokens", 4, "--max-examples", 20,
        "--reward", '{kind = "format", pattern = "[0-4].*", weight = 2.0}', "--reward", SMALL_DIGIT,
        "--gate", '{kind = "format", name = "short", pattern = ".{0,3}"}', "--accuracy-reward", "format",
        "--json", tmp_path / "all.json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    metrics = json.loads((tmp_path / "all.json").read_text())["data"]["held_out"]["metrics"]
    assert metrics["accuracy"] == metrics["reward/format"] == metrics["reward/starts_with_small_digit"] > 0
    assert metrics["reward"] <= 3 * metrics["accuracy"]
    assert "reward/short" in metrics


def test_sample_prints_completions_with_their_rewards(prepared: Path) -> None:
    data = prepared / "held_out.parquet"
    result = _purerl(
        "sample", prepared / "model", "--data", data, "--reward", SMALL_DIGIT, "--max-examples", 2,
        "--samples-per-prompt", 2, "--temperature", 1, "--max-tokens", 3,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.stdout.count("held_out, problem ") == 2
    assert result.stdout.count("attempt 1: reward ") == result.stdout.count("attempt 2: reward ") == 2
    assert "(starts_with_small_digit " in result.stdout


def test_parameters_of_the_sampling(prepared: Path, tmp_path: Path) -> None:
    """With top_k=1 all samples are those of greedy decoding."""
    command = ("eval", prepared / "model", "--data", prepared / "held_out.parquet", "--reward", SMALL_DIGIT)
    options = ("--max-examples", 3, "--max-tokens", 4)
    greedy = _purerl(*command, *options, "--json", tmp_path / "greedy.json")
    sampled = ("--temperature", 1, "--samples-per-prompt", 3, "--sampling", "top_k=1", "--sampling", "min_tokens=2")
    result = _purerl(*command, *options, *sampled, "--json", tmp_path / "sampled.json")
    assert (greedy.exit_code, result.exit_code) == (0, 0), result.output
    expected, actual = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("greedy", "sampled"))
    assert (actual["settings"]["top_k"], actual["settings"]["min_tokens"]) == (1, 2)
    problems = (results["data"]["held_out"]["problems"] for results in (actual, expected))
    for problem, greedy_problem in zip(*problems, strict=True):
        [text] = {attempt["completion"] for attempt in problem["attempts"]}
        assert text.startswith(greedy_problem["attempts"][0]["completion"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["top_q=0.9"], "--sampling\n  got:  'top_q'\n  need: KEY=VALUE with one of: top_p, top_k, min_p, "),
        (["top_p=0.9"], "top_p has no effect\n  got:  0.9\n  need: a temperature above 0"),
        (["top_k=many"], 'top_k\n  got:  "many"\n  need: an integer'),
        (["regex=[0-9]+"], "regex\n  got:  [0-9]+\n  need: a sampling parameter of the generator 'hf': min_p, "),
    ],
)
def test_invalid_parameters_of_the_sampling_are_refused(prepared: Path, options: list[str], message: str) -> None:
    arguments = [argument for option in options for argument in ("--sampling", option)]
    result = _purerl("sample", prepared / "model", "--prompt", "1+1=", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_sample_needs_no_reward_function(prepared: Path) -> None:
    data = prepared / "held_out.parquet"
    result = _purerl("sample", prepared / "model", "--data", data, "--max-examples", 1, "--max-tokens", 3)
    assert (result.exit_code, result.stdout.count("attempt 1: 3 tokens, ended by length")) == (0, 1), result.output


def test_sample_prints_a_failure_below_its_completion(prepared: Path) -> None:
    data = ("--data", prepared / "train.parquet", "--max-tokens", 1)
    result = _purerl("sample", prepared / "model", *data, "--reward", "tests.cli.rewards:raises_key_error")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("raises_key_error raised; 1 tokens") == 3
    assert result.stdout.count("    KeyError: 'index'") == 3


def test_sample_of_prompts_needs_no_file(prepared: Path) -> None:
    options = ("--max-tokens", 3, "--dtype", "float64", "--attention", "eager", "--device", "cpu", "--max-num-seqs", 1)
    arguments = ("sample", prepared / "model", "--prompt", "1+1=", "--prompt", "-", *options)
    result = CliRunner().invoke(app, [*map(str, arguments)], input="2+2=\n")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("attempt 1: 3 tokens, ended by length") == 2
    assert result.stdout.startswith("prompt, problem 0\n  | 1+1=\nattempt 1: ")
    assert "prompt, problem 1\n  | 2+2=\nattempt 1: " in result.stdout


def test_prompt_is_a_message_if_the_tokenizer_has_a_chat_template(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    arguments = ("sample", model, "--prompt", "1+1?", "--max-tokens", 2, "--system-prompt", "Add.")
    result = _purerl(*arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout.index("Add.") < result.stdout.index("1+1?")
    assert result.stdout.splitlines()[1] == "  | <|im_start|>system", "the template is applied"
    refused = _purerl(*arguments, "--chat-template-kwargs", "no_such_argument=true")
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error: chat_template_kwargs"), refused.stderr


def test_prompt_replaces_the_problems_of_a_run(tmp_path: Path) -> None:
    train(small_real(max_steps=1, trainer=addition().trainer), directory=tmp_path / "run")
    run = ("sample", "--run", tmp_path / "run", "--prompt", "1+1=")
    result = _purerl(*run, "--max-num-seqs", 1, "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("prompt, problem 0\n  | 1+1=\nattempt 1: "), "the data of the run are plain text"
    assert "reward" not in result.stdout
    train(fake(max_steps=1), directory=tmp_path / "fake")
    refused = _purerl("sample", "--run", tmp_path / "fake", "--prompt", "1+1=", "--device", "cpu")
    assert refused.stderr.startswith("error: generator.device has no effect\n"), refused.output


def test_settings_of_the_generator(prepared: Path, tmp_path: Path) -> None:
    model = ("sample", prepared / "model", "--prompt", "1+1=", "--max-tokens", 2)
    result = _purerl(*model, "--generator-settings", "max_num_seqs=1", "--device", "cpu")
    assert result.exit_code == 0, result.output
    for setting, words in {
        "max_num_seq=1": "did you mean 'max_num_seqs'?",
        "kind=vllm": "vllm is not installed in the environment of purerl",
        "max_num_seqs=0": "generator.max_num_seqs",
    }.items():
        refused = _purerl(*model, "--generator-settings", setting)
        assert (refused.exit_code, words in refused.stderr) == (2, True), refused.output
    train(fake(max_steps=1), directory=tmp_path / "fake")
    run = ("sample", "--run", tmp_path / "fake", "--prompt", "1+1=")
    result = _purerl(*run, "--generator-settings", "kind=fake", "--generator-settings", "in_process=false")
    assert result.exit_code == 0, result.output


def test_stop_string_ends_a_completion(prepared: Path) -> None:
    digits = [part for digit in "0123456789+=" for part in ("--stop-string", digit)]
    arguments = ("sample", prepared / "model", "--prompt", "1+1=", "--max-tokens", 4, "--temperature", 1)
    free, stopped = _purerl(*arguments), _purerl(*arguments, *digits)
    assert "4 tokens, ended by length" in free.stdout, free.output
    assert re.search("attempt 1: [12] tokens, ended by stop", stopped.stdout), stopped.output


def test_eval_never_wraps_numbers(prepared: Path) -> None:
    data = ("--data", prepared / "train.parquet", "--max-tokens", 1, "--max-examples", 2)
    result = _purerl("eval", prepared / "model", *data, "--reward", SMALL_DIGIT, columns=20)
    assert re.search(r"train +2 +[01]\.\d{3} +0\.\d{3} to [01]\.\d{3} ", result.stdout), result.stdout


def test_control_characters_in_completions_are_escaped() -> None:
    failed = RewardResult(failure=Failure("m:f", "raised", ""))
    attempts = (
        Attempt("\x1b]0;owned\x07 [bold]x[/bold]\nattempt 9: reward 1\r\u202e\ud800", 3, "stop", None, failed),
        Attempt("", 0, "stop", None, RewardResult({"\x1b[2J": 0.5}, {"\x1b[2J": 0.25})),
    )
    assert format_completions({"a": [Problem(7, "1 +\n1 =", attempts)]}).plain == (
        "a, problem 7\n"
        "  | 1 +\n"
        "  | 1 =\n"
        "attempt 1: m:f raised; 3 tokens, ended by stop\n"
        "  | \\x1b]0;owned\\x07 [bold]x[/bold]\n"
        "  | attempt 9: reward 1\\r\\u202e\\ud800\n"
        "attempt 2: reward 0.25 (\\x1b[2J 0.5); 0 tokens, ended by stop\n"
        "\n"
        "\n"
    )


def test_episode_of_several_turns_is_printed_turn_by_turn() -> None:
    messages = [
        {"role": "user", "content": "How warm is it in \x1b[2JOslo?"},
        {
            "role": "assistant",
            "content": "I look it up.\n",
            "tool_calls": [
                {"name": "weather", "arguments": {"city": "Oslo"}, "id": "a"},
                {"name": "", "arguments": {}, "id": "b", "error": "invalid JSON\x07"},
            ],
            "reward": 0.25,
        },
        {"role": "tool", "name": "weather", "tool_call_id": "a", "content": "-3\n[bold]degrees"},
        {"role": "assistant", "content": "-3", "player": 1},
    ]
    result = RewardResult({"exact": 1.0}, {"exact": 1.0})
    episode = Attempt("-3", 9, "stop", None, result, messages=json.dumps(messages))
    single = Attempt("warm", 1, "stop", None, result)
    conversation = (
        "attempt {}: reward 1 (exact 1); 9 tokens, ended by stop\n"
        "  user\n"
        "    | How warm is it in \\x1b[2JOslo?\n"
        "  assistant, reward 0.250\n"
        "    | I look it up.\n"
        '    | call weather {{"city": "Oslo"}}\n'
        "    | call  {{}} (error: invalid JSON\\x07)\n"
        "  tool weather\n"
        "    | -3\n"
        "    | [bold]degrees\n"
        "  assistant, player 1\n"
        "    | -3\n"
    ).format
    text = format_completions({"a": [Problem(7, "<prompt>", (episode, episode)), Problem(8, "<prompt>", (single,))]})
    expected = f"a, problem 7\n{conversation(1)}{conversation(2)}\na, problem 8\n  | <prompt>\nattempt 1: "
    assert text.plain.startswith(expected), "the conversation starts with the prompt, which is not printed twice"
    mixed = format_completions({"a": [Problem(7, "<prompt>", (single, episode))]})
    assert mixed.plain.startswith("a, problem 7\n  | <prompt>\nattempt 1: reward 1 (exact 1); 1 tokens")
    assert mixed.plain.endswith(conversation(2) + "\n")


# --- progress ----------------------------------------------------------------------------------------------------


def _group(*tokens: int) -> Group:
    """A group with a completion of each number of tokens."""
    return Group(0, tuple(Trajectory({"action": [False, *[True] * count]}) for count in tokens))


def test_progress_is_a_line_every_30_seconds_if_stderr_is_not_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 15.0, 40.0, 41.0])
    monkeypatch.setattr("purerl_cli.progress.time.monotonic", lambda: next(clock))
    console = Console(file=io.StringIO())
    with EvaluationProgress({"a": 2, "b": 1}, console=console) as progress:  # at 10 s
        progress("a", _group(30, 15))  # at 15 s
        progress("a", _group(10, 5))  # at 40 s
        progress("b", _group(1, 1))  # at 41 s
    assert console.file.getvalue() == "a: 2 of 2 problems, 2 tokens/s\n"


@pytest.mark.slow
def test_progress_in_a_terminal_is_a_bar_that_is_erased_at_the_end(prepared: Path) -> None:
    command = [
        sys.executable, "-m", "purerl_cli", "sample", prepared / "model", "--data", prepared / "held_out.parquet",
        "--max-examples", "300", "--max-tokens", "16",
    ]  # fmt: skip
    output, status = run_in_terminal([*map(str, command)])
    assert status == 0, output
    assert output.count("\x1b[?25l") == output.count("\x1b[?25h") == 1
    bar, results = output.split("\x1b[?25h")
    assert re.search(r"held_out .*\d+/300.* tokens/s", bar)
    assert results.startswith("\r\x1b[1A\x1b[2K"), "the bar is not erased"
    assert (results.count("held_out, problem "), results.count("tokens/s")) == (300, 0)


# --- errors ------------------------------------------------------------------------------------------------------


def test_invalid_arguments_are_refused_before_a_model_is_loaded(prepared: Path, tmp_path: Path) -> None:
    model, data, run = prepared / "model", ("--data", prepared / "train.parquet"), ("--run", tmp_path)
    pipe, started = tmp_path / "pipe", tmp_path / "started"
    os.mkfifo(pipe)
    train(fake(max_steps=1, evaluate=None), directory=started)
    evaluation = ("eval", model, *data, "--reward", SMALL_DIGIT)
    for arguments, message in (
        (["eval", model, *data], "--reward is missing\n  need: a function that scores completions"),
        (["eval", model, *data, "--reward", "{kind}"], "--reward '{kind}'\n  got:  Expected '=' after a key"),
        (["eval", model, *data, "--reward", '{kind="fromat"}'], "--reward.kind: unknown reward 'fromat'\n  do:   did"),
        (["eval", *data, "--reward", SMALL_DIGIT], "what to evaluate\n  got:  nothing\n  need: MODEL, or --run DIR"),
        (["eval", model, *run], "what to evaluate\n  got:  both\n"),
        (["eval", *run, "--reward", SMALL_DIGIT], "--reward has no effect\n  got:  --run, which determines it\n"),
        (["sample", *run, "--system-prompt", "x"], "--system-prompt has no effect\n  got:  --run, which determines"),
        (["eval", *run, "--seed", 1, "--gate", "m:f"], "--gate, --seed has no effect\n  got:  --run, which determines"),
        (["eval", *run], f"run directory '{tmp_path}'\n  got:  no config.toml\n"),
        ([*evaluation, "--samples-per-prompt", 4], "samples_per_prompt has no effect\n"),
        ([*evaluation, "--pass-at-k", "a"], "--pass-at-k\n  got:  'a'\n  need: integers separated by commas"),
        (
            [*evaluation, "--data", "none.jsonl", "--accuracy-reward", "starts_with_smal_digit"],
            "evaluate.accuracy_reward\n  got:  'starts_with_smal_digit'\n  need: one of the reward functions or gates",
        ),
        ([*evaluation, "--json", tmp_path], f"--json '{tmp_path}'\n  got:  a directory\n  need: a file"),
        ([*evaluation, "--json", pipe], f"--json '{pipe}'\n  got:  a link, a pipe or a device\n"),
        (
            [*evaluation, "--json", data[1]],
            f"--json '{data[1]}'\n  got:  a file of --data\n",
        ),
        (
            [*evaluation, "--json", started / "metrics.jsonl"],
            f"--json '{started}/metrics.jsonl'\n  got:  a file of a run",
        ),
        ([*evaluation, "--json", tmp_path / "no" / "f"], f"--json '{tmp_path}/no/f'\n  got:  no such directory\n"),
        (
            ["eval", model, "--data", "none.jsonl", "--reward", SMALL_DIGIT],
            "data set 'none.jsonl'\n  got:  no such file\n",
        ),
        (
            ["sample", *run, "--dtype", "bfloat16", "--chat-template-kwargs", "a=1"],
            "--dtype, --chat-template-kwargs has ",
        ),
        (["sample", model, "--prompt", "-", "--prompt", "-"], "--prompt -\n  got:  2 times\n"),
        (["sample", model, "--prompt", "-"], "--prompt -\n  got:  nothing on standard input\n"),
        (["sample", model, "--prompt", ""], "a prompt\n  got:  an empty text\n"),
        (
            ["sample", model],
            f"what to complete\n  got:  nothing\n  need: --prompt TEXT, or problems\n  do:   purerl sample {model}",
        ),
        (["sample", tmp_path / "none", *data], f"the model {str(tmp_path / 'none')!r} is missing\n  got:  no such"),
    ):
        result = _purerl(*arguments)
        assert (result.exit_code, result.stdout) == (2 if "config.toml" not in message else 1, ""), result.output
        assert result.stderr.startswith(f"error: {message}"), result.stderr
