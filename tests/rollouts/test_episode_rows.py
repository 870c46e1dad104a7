"""Laws of the rows of episodes, on episodes that Hypothesis makes and that real generators sample.

Every row is exactly its prompt, sampled tokens and what the environment added, and a forward pass reproduces the
recorded log-probabilities, also if the weights change between turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import frozen
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from purerl.algos import gigpo, rae
from purerl.backends.fake import generator as fake
from purerl.batch import check_batch, collate
from purerl.envs.protocol import Observation
from purerl.protocols import Generator
from purerl.rewards.results import RewardResult
from purerl.rollouts.types import Trajectory
from purerl.settings import Model
from tests.backends.generators import (
    fake_score,
    fake_weights,
    make_generator,
    reference_score,
    tiny_model,
    weights_in_files,
)
from tests.backends.tiny import VOCAB_SIZE
from tests.rollouts.episodes import Recorded, Scripted, draw, result, spans, tokens_of, user, workflow

MAX_LENGTH = 60  # positions of the tiny model
PLAYERS = 2


@frozen
class InMemory:
    """Weights for `Generator.load_weights`."""

    tensors: Mapping[str, Tensor]
    adapter = None

    @property
    def metadata(self) -> Any:
        return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in self.tensors.items()}

    def __iter__(self) -> Any:
        return iter(self.tensors.items())


@frozen
class Engine:
    """A generator, weights for it, and an independent computation of log-probabilities with them."""

    generator: Generator
    weights: Sequence[Mapping[str, Tensor]]
    score: Callable[[Mapping[str, Tensor], Sequence[int], float], Sequence[float]]


@pytest.fixture(scope="module")
def fake_engine() -> Engine:
    generator = fake.build(fake.Config(vocab_size=VOCAB_SIZE), model=Model("nowhere"), seed=3)
    return Engine(generator, [fake_weights(0), fake_weights(1)], fake_score)


@pytest.fixture(scope="module")
def hf_engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    model = tiny_model(Path(tmp_path_factory.mktemp("model")))
    first = weights_in_files(model)
    rng = torch.Generator().manual_seed(0)
    second = {name: w + 0.1 * torch.randn(w.shape, generator=rng, dtype=w.dtype) for name, w in first.items()}
    return Engine(make_generator(model), [first, second], reference_score(model))


# --- episodes ----------------------------------------------------------------------------------------------------

texts = st.text("fgijk", max_size=4)
numbers = st.sampled_from([-1.0, 0.0, 0.25, 1.0])
rewards = st.none() | numbers | st.dictionaries(st.integers(0, PLAYERS - 1), numbers)


@st.composite
def observations(draw_from: Any) -> Observation:
    return Observation(
        messages=[user(text) for text in draw_from(st.lists(texts, max_size=2))],
        reward=draw_from(rewards),
        done=draw_from(st.integers(0, 5)) == 0,
        state=draw_from(st.sampled_from(["x", "y", 3])),
        components=draw_from(st.dictionaries(st.sampled_from("uv"), numbers)),
        player=draw_from(st.integers(0, PLAYERS - 1)),
    )


@frozen
class Plan:
    """A group of episodes: the script of each of them, and the settings of the workflow."""

    scripts: Sequence[Sequence[Observation | Exception]]
    delays: Sequence[int]
    history: str
    max_turns: int
    max_episode_tokens: int | None
    max_sequence_length: int
    scored: Sequence[RewardResult]
    changes: Sequence[int]  # numbers of the requests before which the weights change


@st.composite
def plans(draw_from: Any) -> Plan:
    samples = draw_from(st.integers(1, 3))
    answer = st.one_of(*[observations()] * 9, st.just(ValueError("x")))
    return Plan(
        [draw_from(st.lists(answer, min_size=1, max_size=5)) for _ in range(samples)],
        [draw_from(st.integers(0, 3)) for _ in range(samples)],
        draw_from(st.sampled_from(["append", "rerender"])),
        draw_from(st.integers(1, 4)),
        draw_from(st.none() | st.integers(1, 20)),
        draw_from(st.sampled_from([10, 20, MAX_LENGTH])),
        draw_from(st.lists(st.sampled_from([result(f=1.0), result(f=0.5), RewardResult()]), min_size=6, max_size=6)),
        draw_from(st.lists(st.integers(0, 8), max_size=3)),
    )


class Played:
    """The rows of a plan, with everything that was requested, answered and scored."""

    def __init__(self, plan: Plan, engine: Engine) -> None:
        self.version, self.count, self.plan, self.engine = 0, 0, plan, engine
        self.load()
        self.recorded = Recorded(engine.generator, self.before)
        self.scored: dict[str, RewardResult] = {}
        remaining = list(plan.scored)

        async def score(inputs: Sequence[Any]) -> list[RewardResult]:
            self.scored |= {item.row: remaining.pop() for item in inputs}
            return [self.scored[item.row] for item in inputs]

        made, self.environments = workflow(
            lambda k: Scripted(plan.scripts[k], plan.delays[k]),
            samples_per_prompt=len(plan.scripts),
            history=plan.history,
            max_turns=plan.max_turns,
            max_episode_tokens=plan.max_episode_tokens,
            max_sequence_length=plan.max_sequence_length,
            players=PLAYERS,
            has_states=True,
            score=score,
        )
        self.renderer: Any = made.renderer
        self.rows: list[Trajectory] = asyncio.run(made(draw(), self.recorded))

    def load(self) -> None:
        weights = self.engine.weights[self.version % 2]
        self.engine.generator.load_weights(InMemory(weights), version=self.version)

    def before(self) -> None:
        if self.count in self.plan.changes:
            self.version += 1
            self.load()
        self.count += 1

    def key(self, row: Trajectory, turn: int) -> str:
        sample = row.fields["episode"] // PLAYERS - 3 * len(self.plan.scripts)
        return f"3/{sample}.{turn}" if turn else f"3/{sample}"


def check_rows(played: Played) -> None:
    for row in played.rows:
        check_row(played, row)
    fields = [row.fields for row in played.rows]
    turns = [(f["episode"] // PLAYERS, turn) for f in fields for turn in spans(f)]
    assert len(set(turns)) == len(turns), "a turn is in one row"
    assert len(turns) <= len(played.recorded.requests)
    labels = [f["row"] for f in fields]
    assert labels == sorted(set(labels))
    assert [f["episode"] for f in fields] == sorted(f["episode"] for f in fields)
    for label in {f["episode"] for f in fields if played.plan.max_episode_tokens is not None}:
        lengths = [
            len(f["tokens"]) - f["action"].index(True) for f in fields if f["episode"] == label and any(f["action"])
        ]
        # A row starts with a sampled token after its prompt.
        assert sum(lengths) <= (played.plan.max_episode_tokens or 0)
    check_batch(collate(fields), (*gigpo.algorithm().reads, *rae.algorithm().reads))
    assert [environment.closed for environment in played.environments.values()] == [1] * len(played.plan.scripts)


def check_row(played: Played, row: Trajectory) -> None:
    """The row is what was requested, what was sampled, and nothing else; and the model agrees."""
    fields, tokens = row.fields, row.fields["tokens"]
    assert {len(value) for value in fields.values() if isinstance(value, list)} == {len(tokens)}
    assert fields["turn"] == sorted(fields["turn"])
    assert len(tokens) <= played.plan.max_sequence_length or not any(fields["action"])
    end = 0
    for turn, span in spans(fields).items():
        request = played.recorded.requests[played.key(row, turn)]
        completion = played.recorded.completions[request.key]
        assert tokens[: span.start] == list(request.tokens), "what was requested, and nothing that was added later"
        assert tokens[span] == list(completion.tokens)
        assert fields["rollout_logp"][span] == list(completion.logp)
        assert fields["version"][span] == list(completion.version)
        end = span.stop
        for version in set(completion.version):
            expected = played.engine.score(played.engine.weights[version % 2], tokens[:end], fields["temperature"])
            for k in range(span.start, span.stop):
                assert fields["version"][k] != version or abs(expected[k] - fields["rollout_logp"][k]) < 1e-4
    assert end in (0, len(tokens)), "a row ends with a sampled token, or is a prompt"
    outside = [k for k, is_action in enumerate(fields["action"]) if not is_action]
    assert not any(fields[name][k] for name in ("mask", "reward", "rollout_logp", "version") for k in outside)
    assert fields["mask"] == [action and row.result.reward is not None for action in fields["action"]]
    assert sum(fields["reward"]) == pytest.approx(row.result.reward or 0.0)


def check_rewards(played: Played) -> None:
    """The rewards of a player's rows are what the environment and the reward functions gave to the player."""
    for sample, environment in played.environments.items():
        for player in range(PLAYERS):
            label = (3 * len(played.plan.scripts) + sample) * PLAYERS + player
            rows = [row for row in played.rows if row.fields["episode"] == label and any(row.fields["action"])]
            if rows and all(row.result.reward is not None for row in rows):
                scored = played.scored[f"3/{sample}/{player}"].reward or 0.0
                total = sum(sum(row.fields["reward"]) for row in rows)
                assert total == pytest.approx(given_to(environment, player) + scored)


def given_to(environment: Scripted, player: int) -> float:
    movers = [observation.player for observation in environment.given]
    total = 0.0
    for mover, observation in zip([movers[0], *movers], environment.given, strict=False):
        reward = observation.reward
        share = reward.get(player) if isinstance(reward, Mapping) else reward if mover == player else None
        total += share or 0.0
    return total


def check_additions(played: Played) -> None:
    """With history "append", what is between two turns of a player are the messages of the environment."""
    for row in played.rows:
        sample = row.fields["episode"] // PLAYERS - 3 * len(played.plan.scripts)
        given = played.environments[sample].given
        pieces = [piece for k, piece in enumerate(given) if piece.player == row.fields["role"]]
        expected = ["".join(message["content"] for message in piece.messages) + "a" for piece in pieces]
        found = _outside(row.fields)
        if found:
            expected[0] = "cc" + expected[0]
            assert found == [tokens_of(text) for text in expected[: len(found)]]


def _outside(fields: Mapping[str, Any]) -> list[list[int]]:
    """The tokens before each turn that are not part of the turn before it."""
    starts = [0, *(span.stop for span in spans(fields).values())]
    return [fields["tokens"][start : span.start] for start, span in zip(starts, spans(fields).values(), strict=False)]


@settings(max_examples=150, deadline=None)
@given(plans())
def test_rows_are_what_was_sampled(fake_engine: Engine, plan: Plan) -> None:
    played = Played(plan, fake_engine)
    check_rows(played)
    check_rewards(played)
    if plan.history == "append":
        check_additions(played)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plans())
def test_forward_pass_of_a_transformer_reproduces_log_probabilities(hf_engine: Engine, plan: Plan) -> None:
    check_rows(Played(plan, hf_engine))


@pytest.mark.parametrize("history", ["append", "rerender"])
def test_order_of_episodes_and_of_requests_does_not_matter(fake_engine: Engine, history: str) -> None:
    scripts = [[Observation(messages=[user("f" * k)], reward=k, state="x") for k in range(1, 5)]] * 3
    plans = [Plan(scripts, delays, history, 4, None, 60, [result(f=1.0)] * 3, ()) for delays in ([0] * 3, [5, 0, 2])]
    first, second = (Played(plan, fake_engine).rows for plan in plans)
    assert first == second


def test_weights_change_between_turns_of_a_row(fake_engine: Engine) -> None:
    script = [Observation(messages=[user("f")], reward=1.0, state="x")]
    plan = Plan([script], [0], "append", 4, None, 60, [result(f=1.0)], (1, 2))
    [row] = Played(plan, fake_engine).rows
    assert {0, 1} <= set(row.fields["version"])
