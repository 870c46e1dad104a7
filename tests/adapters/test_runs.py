"""Every adapter in a run: one step of training, with a small random model or a generator that writes given texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import purerl
from purerl.algos import grpo, rae
from purerl.backends.hf import generator, trainer
from purerl.config.schema import RunConfig
from purerl.envs.settings import EnvironmentSettings
from purerl.evaluation.settings import Evaluate
from purerl.rollouts.settings import Rollout, WorkflowSettings
from purerl.store.rollouts import read_rollouts
from tests.adapters import scripted
from tests.backends.tiny import write_model
from tests.data.made import user, write
from tests.envs.families import QWEN, tokenizer
from tests.loop.runs import failures, records

MODULE = "tests.adapters.trl_environments"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small random model with a tokenizer whose chat template shows tools."""
    vocabulary = tokenizer(QWEN, eos="<|im_end|>")
    path = write_model(tmp_path_factory.mktemp("model"), vocab_size=len(vocabulary), max_position_embeddings=4096)
    vocabulary.save_pretrained(path)
    return path


class Ran:
    """A finished run: the metrics of its step, its rows, and what failed."""

    def __init__(self, directory: Path) -> None:
        self.metrics, self.rows = records(directory)[-1], read_rollouts(directory / "rollouts", 1)
        self.failures = failures(directory)

    @property
    def conversations(self) -> list[list[Mapping[str, Any]]]:
        return [json.loads(row["messages"]) for row in self.rows]

    def total(self, name: str) -> float:
        return self.metrics[name]


def run(folder: Path, model: str, examples: Sequence[Mapping[str, Any]] | None, **changes: Any) -> Ran:
    data = write(folder / "data.jsonl", examples) if examples is not None else str(folder / "data.parquet")
    settings: dict[str, Any] = {
        "name": "adapter",
        "model": model,
        "data": data,
        "algorithm": grpo.Config(),
        "max_steps": 1,
        "batch_size": 2,
        "trainer": trainer.Config(lr=1e-3),
        "generator": generator.Config(),
        "rollout": Rollout(samples_per_prompt=2, max_tokens=12),
    }
    purerl.train(RunConfig(**settings | changes), directory=folder / "run")
    return Ran(folder / "run")


def environment(factory: str, **changes: Any) -> EnvironmentSettings:
    return EnvironmentSettings(factory=f"purerl.adapters.{factory}", **{"num_workers": 1, "max_turns": 4} | changes)


def says(*texts: str) -> scripted.Config:
    return scripted.Config(texts)


def call(name: str, **arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


EXAMPLES = [{"prompt": [user("Count.")], "target": target} for target in (5, 6)]


def test_class_for_trl_with_tools(tmp_path: Path, model: str) -> None:
    kwargs = {"factory": f"{MODULE}:Counter", "reward_functions": [f"{MODULE}:turns"], "reward_weights": [0.25]}
    ran = run(
        tmp_path,
        model,
        EXAMPLES,
        environment=environment("trl:TRLEnvironment", kwargs=kwargs),
        generator=says(call("add", number=5), "It is 5."),
        rollout=Rollout(samples_per_prompt=2, max_tokens=200),
    )
    assert not ran.failures
    assert ran.total("environment/turns") == 2
    assert ran.total("environment/tool_calls") == 1
    assert ran.total("reward/Counter") == 0.5, "the sum is the target of one of the two examples"
    assert ran.total("reward/turns") == 2.0
    assert ran.total("reward/mean") == 0.5 + 0.25 * 2
    assert [message["content"] for message in ran.conversations[0] if message["role"] == "tool"] == ["5"]


@pytest.mark.parametrize(
    ("texts", "max_turns", "max_tokens", "turns"),
    [((call("add", number=5), call("add", number=0)), 2, 200, 2.0), ((call("add", number=5), "so" * 50), 4, 60, 2.0)],
    ids=["max_turns", "max_tokens"],
)
def test_class_for_trl_gives_its_reward_when_a_limit_ends_the_episode(
    texts: Sequence[str], max_turns: int, max_tokens: int, turns: float, tmp_path: Path, model: str
) -> None:
    kwargs = {"factory": f"{MODULE}:Counter", "reward_functions": [f"{MODULE}:turns"]}
    ran = run(
        tmp_path,
        model,
        EXAMPLES,
        environment=environment("trl:TRLEnvironment", kwargs=kwargs, max_turns=max_turns),
        generator=says(*texts),
        rollout=Rollout(samples_per_prompt=2, max_tokens=max_tokens),
    )
    assert not ran.failures
    assert ran.total("environment/truncated") == 1.0
    assert ran.total("reward/Counter") == 0.5
    assert ran.total("reward/turns") == turns


def test_tools_in_the_style_of_openai(tmp_path: Path, model: str) -> None:
    ran = run(
        tmp_path,
        model,
        EXAMPLES,
        environment=environment("openai_tools:OpenAITools", kwargs={"tools": "tests.adapters.tools:TOOLS"}),
        generator=says(call("add", a=2, b=3) + "\n" + call("now"), call("sub"), "5"),
        rollout=Rollout(samples_per_prompt=2, max_tokens=200),
        rewards=("tests.adapters.tools:is_target",),
    )
    assert not ran.failures
    assert (ran.total("environment/turns"), ran.total("environment/tool_calls")) == (3, 3)
    assert ran.total("reward/is_target") == 0.5
    assert [m["content"] for m in ran.conversations[0] if m["role"] == "tool"][:2] == ["5", "noon"]


def test_gymnasium_style_environment(tmp_path: Path, model: str) -> None:
    kwargs = {"environment": "tests.adapters.gymnasium_environments:Guess", "arguments": {"limit": 3}}
    examples = [{"prompt": [user("Play.")], "options": {"number": number}} for number in (4, 6)]
    ran = run(
        tmp_path,
        model,
        examples,
        environment=environment("gymnasium:GymnasiumEnvironment", kwargs=kwargs),
        generator=says("5", "4", "3"),
    )
    assert not ran.failures
    assert ran.total("environment/turns") == 2.5
    assert (ran.total("reward/mean"), ran.total("environment/truncated")) == (0.5, 0.5)
    read = {tuple(m["content"] for m in messages[2:] if m["role"] == "user") for messages in ran.conversations}
    assert read == {("lower", "right"), ("higher", "higher", "higher")}


def test_game_of_textarena_for_two_players(tmp_path: Path, model: str) -> None:
    """Both players write the same. A field that is taken is an invalid move, which is repeated."""
    pytest.importorskip("textarena")
    ran = run(
        tmp_path,
        model,
        [{"prompt": [user("Play.")], "seed": seed} for seed in range(2)],
        algorithm=rae.Config(),
        environment=environment(
            "textarena:TextArenaEnvironment",
            kwargs={"game": "TicTacToe-v0", "num_players": 2},
            players=2,
            max_turns=18,
        ),
        generator=says(*(f"I take [{field}]" for field in range(9))),
    )
    assert not ran.failures
    assert ran.total("environment/truncated") == 0.0
    assert sorted(sum(row["reward"]) for row in ran.rows) == [-1.0] * 4 + [1.0] * 4, "player 0 has 2, 4 and 6"
    texts = [" ".join(message["content"] for message in messages) for messages in ran.conversations]
    assert sum("[Player 0] I take [0]" in text for text in texts) == 4, "player 1 reads what player 0 has written"


def test_problems_of_reasoning_gym(tmp_path: Path, model: str) -> None:
    pytest.importorskip("reasoning_gym")
    from purerl.adapters.reasoning_gym import write as write_problems

    write_problems(tmp_path / "data.parquet", {"gcd": {}, "leg_counting": {"max_animals": 4}}, size=2, seed=1)
    ran = run(
        tmp_path,
        model,
        None,
        batch_size=4,
        generator=says("<answer>2</answer>"),
        rollout=Rollout(samples_per_prompt=2, max_tokens=60),
        rewards=("purerl.adapters.reasoning_gym:score",),
        evaluate=Evaluate(data=str(tmp_path / "data.parquet"), max_tokens=60),
    )
    assert not ran.failures
    assert ran.total("reward/score") == 0.25, "the answer to one of the four problems"
    assert ran.total("eval/accuracy") == 0.25


def test_environment_of_verifiers(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("verifiers")
    from purerl.adapters.verifiers import write_tasks

    monkeypatch.syspath_prepend(Path(__file__).parent / "verifiers_tasks")
    settings = {"taskset": {"id": "spelling-tasks"}, "agent": {"runtime": {"type": "subprocess"}}}
    write_tasks(tmp_path / "data.parquet", settings)
    workflow = WorkflowSettings("purerl.adapters.verifiers:workflow", {"environment": settings}, ("turn", "episode"))
    ran = run(
        tmp_path,
        model,
        None,
        generator=says("b", "abc"),
        rollout=Rollout(samples_per_prompt=2, max_tokens=60, workflow=workflow),
        evaluate=Evaluate(data=str(tmp_path / "data.parquet"), max_tokens=60),
    )
    assert not ran.failures
    assert ran.total("reward/has_word") == 1.0
    assert ran.total("reward/mean") == 2.0, "the weight is 2"
    assert ran.total("reward/turns") == 2.0
    assert ran.total("eval/accuracy") == 1.0
    assert all(len(messages) == 5 for messages in ran.conversations)
