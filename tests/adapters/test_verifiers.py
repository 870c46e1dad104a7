"""Environments of verifiers as a workflow: tokens, branches, failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from purerl.adapters.verifiers import VerifiersWorkflow, write_tasks
from purerl.adapters.verifiers_rows import Labels, rows_of
from purerl.backends.hf.generator import Config, build
from purerl.data.chat import Prompt
from purerl.data.files import read_table
from purerl.errors import ConfigError, EngineError
from purerl.protocols import Completion, Request, Sampling, generate
from purerl.rollouts.types import Draw, Generate, Trajectory
from purerl.settings import Model
from tests.backends.tiny import write_model
from tests.data.made import CHATML, tokenizer

pytest.importorskip("verifiers")

ENVIRONMENT = {"taskset": {"id": "spelling-tasks"}, "agent": {"runtime": {"type": "subprocess"}}}
SAMPLING = Sampling(temperature=1.0, max_tokens=6)


@pytest.fixture(autouse=True)
def _tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent / "verifiers_tasks")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small random model with a character tokenizer that has a chat template."""
    vocabulary = tokenizer(CHATML, eos="<|im_end|>")
    path = write_model(tmp_path_factory.mktemp("model"), vocab_size=len(vocabulary), max_position_embeddings=512)
    vocabulary.save_pretrained(path)
    return path


def _draw(number: int = 3, **data: Any) -> Draw:
    example = {"verifiers": json.dumps({"word": "a", "prompt": "Spell a.", "system_prompt": "Be brief.", **data})}
    return Draw(number, 5, example, Prompt("Spell a.", [10, 11]), f"draw {number}", (0, "train", number))


def _run(workflow: VerifiersWorkflow, draws: Sequence[Draw], generate: Generate) -> list[list[Trajectory]]:
    async def main() -> list[list[Trajectory]]:
        try:
            return await asyncio.gather(*(workflow(draw, generate) for draw in draws))
        finally:
            await workflow.close()

    return asyncio.run(main())


class Engine:
    """Answers each request with a text: its letter depends on the key of the request."""

    def __init__(self, model: str, texts: Sequence[str] = ("a", "b")):
        self.tokenizer, self.texts, self.requests = tokenizer(CHATML, eos="<|im_end|>"), texts, list[Request]()

    async def __call__(self, requests: Sequence[Request]) -> list[Completion]:
        self.requests += requests
        return [self._complete(request) for request in requests]

    def _complete(self, request: Request) -> Completion:
        text = self.texts[len(self.requests) % len(self.texts)]
        tokens = self.tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False)
        logp = [-0.1 * (k + 1) - 0.001 * len(self.requests) for k in range(len(tokens))]
        return Completion(request.key, tokens, logp, [7] * len(tokens), "stop")


def _workflow(model: str, samples: int = 1, **changes: Any) -> VerifiersWorkflow:
    return VerifiersWorkflow(ENVIRONMENT, tokenizer=model, sampling=SAMPLING, samples=samples, **changes)


def test_tasks_become_a_data_set(tmp_path: Path, model: str) -> None:
    path = tmp_path / "tasks.parquet"
    write_tasks(path, ENVIRONMENT, limit=2)
    rows = read_table(path).to_pylist()
    assert [message["content"] for message in rows[0]["prompt"]] == ["Be brief.", "Spell a."]
    write_tasks(path, ENVIRONMENT)
    rows = read_table(path).to_pylist()
    assert len(rows) == 3
    draw = Draw(0, 0, rows[1], Prompt("", [1]), "key", (0,))
    [[trajectory]] = _run(_workflow(model), [draw], Engine(model, ["b"]))
    assert trajectory.result.reward == 2.0


def test_conversation_is_one_row_of_prompt_samples_and_additions(model: str) -> None:
    engine = Engine(model, ["xy", "a"])
    [[row]] = _run(_workflow(model), [_draw()], engine)
    first, second = engine.requests
    fields = row.fields
    tokens = engine.tokenizer.apply_chat_template(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Spell a."},
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": "Again."},
            {"role": "assistant", "content": "xy"},
        ],
        tokenize=True,
        return_dict=False,
    )
    assert fields["tokens"] == tokens[:-1], "without the line feed after the last turn"
    assert fields["tokens"][: len(first.tokens)] == list(first.tokens)
    assert fields["tokens"][: len(second.tokens)] == list(second.tokens)
    lengths = len(first.tokens), 2, len(second.tokens) - len(first.tokens) - 2, 3
    assert fields["action"] == [k % 2 == 1 for k, n in enumerate(lengths) for _ in range(n)]
    assert fields["turn"] == [k // 2 for k, n in enumerate(lengths) for _ in range(n)]
    assert fields["version"] == [7 * action for action in fields["action"]]
    assert fields["mask"] == fields["action"]
    assert [logp for logp in fields["rollout_logp"] if logp] == pytest.approx([-0.101, -0.201, -0.102, -0.202, -0.302])
    assert (fields["reward"][-1], sum(map(abs, fields["reward"]))) == (0.0, 0.0)
    assert (fields["group"], fields["example"], fields["row"], fields["episode"]) == (3, 5, 3 * 16, 3 * 16)
    assert (fields["truncated"], fields["temperature"]) == (False, 1.0)
    assert row.result.components == {"has_word": 0.0, "turns": 2.0}
    assert [message["role"] for message in json.loads(row.texts["messages"])] == [
        "system", "user", "assistant", "user", "assistant",
    ]  # fmt: skip


def test_requests_have_keys_seeds_and_stop_tokens(model: str) -> None:
    engine = Engine(model)
    _run(_workflow(model, samples=2), [_draw()], engine)
    assert sorted(request.key for request in engine.requests) == [
        "draw 3/0", "draw 3/0/1", "draw 3/1", "draw 3/1/1",
    ]  # fmt: skip
    assert len({request.seed for request in engine.requests}) == 4
    end = engine.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert all(end in request.sampling.stop_tokens for request in engine.requests)
    assert all(request.sampling.max_tokens == SAMPLING.max_tokens for request in engine.requests)


def test_each_branch_is_a_row_and_each_turn_is_trained_once(model: str) -> None:
    engine = Engine(model, ["x", "y", "a"])  # the third request gets "x"
    [[first, second]] = _run(_workflow(model), [_draw(branches=True, word="x")], engine)
    one, two, three = engine.requests
    assert first.fields["tokens"][: len(two.tokens)] == list(two.tokens)
    assert second.fields["tokens"][: len(three.tokens)] == list(three.tokens)
    assert sum(first.fields["action"]) == 4
    assert second.fields["action"] == [False] * len(three.tokens) + [True] * 2, "the shared turn is only context"
    assert [logp != 0 for logp in second.fields["rollout_logp"]] == second.fields["action"]
    assert first.fields["episode"] == second.fields["episode"]
    assert second.fields["row"] == first.fields["row"] + 1
    assert (sum(first.fields["reward"]), sum(second.fields["reward"])) == (0.0, 2.0)
    assert (first.result.reward, second.result.reward) == (0.0, 2.0)
    assert len(one.tokens) < len(two.tokens)


def test_failed_trace_is_masked_out(model: str) -> None:
    [[row]] = _run(_workflow(model), [_draw(fails=True)], Engine(model))
    assert any(row.fields["action"])
    assert not any(row.fields["mask"])
    assert row.result.reward is None
    assert "the program stops" in row.result.failure.traceback
    assert row.texts["finish"] == "error"


@pytest.mark.parametrize("setting", ["top_p", "temperature"])
def test_trace_without_a_turn_is_a_masked_prompt(model: str, setting: str) -> None:
    """An agent that samples in a way that purerl does not support has no turn."""
    agent = {**ENVIRONMENT["agent"], "sampling": {setting: 0.5}}
    workflow = VerifiersWorkflow({**ENVIRONMENT, "agent": agent}, tokenizer=model, sampling=SAMPLING, samples=1)
    [[row]] = _run(workflow, [_draw()], Engine(model))
    assert row.fields["tokens"] == [10, 11]
    assert not any(row.fields["action"])
    assert row.result.reward is None
    assert setting in row.result.failure.traceback


def test_rows_of_a_sample_without_a_trace_have_the_fields_of_the_others() -> None:
    episode = SimpleNamespace(traces=[], errors=[], is_timeout=False, ok=False)
    for agents, fields in ((["one"], set()), (["one", "two"], {"role"})):
        [row] = rows_of(_draw(), episode, [], agents, Labels(0, 4, 1.0))
        assert row.fields.keys() & {"role", "episode"} == {"episode", *fields}


def test_more_rows_than_allowed_are_a_failure(model: str) -> None:
    [[row]] = _run(_workflow(model, max_rows=1), [_draw(branches=True)], Engine(model))
    assert "2 rows, but max_rows is 1" in row.result.failure.traceback
    assert not any(row.fields["mask"])


def test_failure_of_the_engine_is_raised(model: str) -> None:
    async def broken(requests: Sequence[Request]) -> list[Completion]:
        raise EngineError("a generator has lost requests")

    with pytest.raises(EngineError, match="lost requests"):
        _run(_workflow(model), [_draw()], broken)


def test_request_on_which_the_engine_failed_is_a_failed_trace(model: str) -> None:
    async def failing(requests: Sequence[Request]) -> list[Completion]:
        return [Completion(request.key, [], [], [], "error", "out of memory") for request in requests]

    [[row]] = _run(_workflow(model), [_draw()], failing)
    assert "out of memory" in row.result.failure.traceback


def test_tokens_of_a_trace_that_were_not_sampled_are_masked_out(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from verifiers.v1 import trace

    original = trace.Trace.branches.fget

    def changed(self: Any) -> Any:
        branches = original(self)
        branches[0].nodes[0].token_ids = [0, *branches[0].nodes[0].token_ids]
        branches[0].nodes[0].mask = [False, *branches[0].nodes[0].mask]
        return branches

    monkeypatch.setattr(trace.Trace, "branches", property(changed))
    [[row]] = _run(_workflow(model), [_draw()], Engine(model))
    assert row.result.reward is None
    assert "not sampled here" in row.result.failure.traceback


def test_forward_pass_gives_the_recorded_log_probabilities(model: str) -> None:
    from transformers import AutoModelForCausalLM

    generator = build(Config(), model=Model(model), seed=0)

    async def sample(requests: Sequence[Request]) -> list[Completion]:
        return generate(generator, requests)

    groups = _run(_workflow(model, samples=3), [_draw(branches=True), _draw(4)], sample)
    network = AutoModelForCausalLM.from_pretrained(model)
    trajectories = [trajectory for group in groups for trajectory in group]
    assert len(trajectories) >= 9
    for trajectory in trajectories:
        tokens = torch.tensor(trajectory.fields["tokens"])
        action = torch.tensor(trajectory.fields["action"])
        with torch.no_grad():
            logp = network(tokens[None]).logits[0].double().log_softmax(-1)
        expected = logp[:-1].gather(1, tokens[1:, None])[:, 0]
        recorded = torch.tensor(trajectory.fields["rollout_logp"], dtype=torch.float64)
        assert trajectory.result.failure is None
        assert action.sum() > 0
        torch.testing.assert_close(recorded[1:][action[1:]], expected[action[1:]], atol=1e-5, rtol=0)
    generator.close()


def test_workflows_run_in_several_event_loops_of_a_process(model: str) -> None:
    """The training and the evaluation of a run have an event loop each."""
    for number in range(3):
        [rows] = _run(_workflow(model, samples=8), [_draw(number)], Engine(model))
        assert [row.result.failure for row in rows] == [None] * 8


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"taskset": {"id": "no-such-tasks"}}, "no-such-tasks"),
        ({"taskset": {"id": "spelling-tasks"}, "agents": {}}, "agents"),
        ({}, "taskset"),
    ],
)
def test_environment_that_verifiers_refuses_is_a_config_error(environment: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        VerifiersWorkflow(environment, tokenizer="none", sampling=SAMPLING, samples=1)
