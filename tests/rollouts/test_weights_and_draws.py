"""Weights that change while requests run, several workflows, and draws that are cancelled or fail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from purerl.backends.fake.model import BIGRAM
from purerl.backends.weights import TensorWeights
from purerl.errors import InputError
from purerl.protocols import Request, Sampling
from purerl.rollouts.rollouts import Rollouts
from purerl.rollouts.types import Draw, Generate, Trajectory
from tests.rollouts.runtimes import draw, fake_generator, one_turn, opened, request, row, scripted, wait_until

# --- weights, evaluation, notebooks ------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{"in_process": False, "seconds_per_token": 0.01}, {"seconds_per_token": 0.01}])
def test_requests_in_flight_continue_with_new_weights(settings: dict[str, Any]) -> None:
    async def long(draw: Draw, generate: Generate) -> list[Trajectory]:
        sampling = Sampling(temperature=1.0, max_tokens=60)
        return [row(c) for c in await generate([Request(f"{draw.key}/0", [1], sampling, 0)])]

    generator = fake_generator(**settings)
    with opened(generator, long, background=True) as rollouts:
        rollouts.submit([draw(0)])
        wait_until(lambda: bool(rollouts.runtime.engine and rollouts.runtime.engine.num_awaited))
        for version in range(1, 200):
            rollouts.runtime.load_weights(TensorWeights({BIGRAM: torch.zeros(16, 16)}), version)
            if groups := rollouts.collect(timeout=0.01):
                break
        [group] = groups
    generator.close()
    versions = group.trajectories[0].fields["version"][1:]
    assert len(versions) == 60
    assert versions == sorted(versions)
    assert len({*versions}) > 1, "weights have changed while the request was in flight"


def test_two_workflows_share_a_runtime() -> None:
    generator = scripted(order=0)
    with opened(generator) as training:
        evaluation = Rollouts(training.runtime, one_turn)
        generator.limit = 0
        training.submit([draw(k) for k in range(3)])
        assert training.collect(timeout=0.05) == []
        generator.limit = None
        evaluation.submit([draw(k, key=f"eval/{k}") for k in range(4)])
        assert {group.draw for group in evaluation.collect(draws=range(4))} == {0, 1, 2, 3}
        assert evaluation.in_flight == []
        assert sorted(training.in_flight) == [0, 1, 2], "the groups of training wait for their own collect"
        assert {group.draw for group in training.collect(draws=range(3))} == {0, 1, 2}


def test_engine_decodes_for_those_who_hold_what_others_wait_for() -> None:
    """An evaluation waits for a slot that an episode of training has, which waits for its next turn."""
    generator = scripted()
    with opened(generator) as training:
        slot = asyncio.Semaphore(1)

        async def episode(draw: Draw, generate: Generate) -> list[Trajectory]:
            async with slot:
                return await one_turn(draw, generate)

        training.workflow = episode
        evaluation = Rollouts(training.runtime, episode)
        generator.limit = 0
        training.submit([draw(0)])
        assert training.collect(timeout=0.05) == []
        generator.limit = None
        evaluation.submit([draw(0, key="eval/0")])
        assert len(evaluation.collect(timeout=20.0)) == 1


def test_runs_inside_of_a_running_event_loop() -> None:
    async def notebook_cell() -> int:
        with opened(scripted()) as rollouts:
            rollouts.submit([draw(0)])
            return len(rollouts.collect())

    assert asyncio.run(notebook_cell()) == 1


# --- draws -------------------------------------------------------------------------------------------------------


def test_cancelled_request_that_was_not_submitted_yet_is_not_sampled() -> None:
    generator = scripted()

    async def workflow(draw: Draw, generate: Generate) -> list[Trajectory]:
        task = asyncio.ensure_future(generate([request(f"{draw.key}/0")]))
        await asyncio.sleep(0)
        task.cancel()
        return [row(completion) for completion in await generate([request(f"{draw.key}/1")])]

    with opened(generator, workflow) as rollouts:
        rollouts.submit([draw(0)])
        assert len(rollouts.collect()) == 1
    assert [*generator.completions] == ["0/1"]
    assert generator.cancelled == ["0/0"]


def test_workflow_that_fails_leaves_no_requests() -> None:
    generator = scripted()
    generator.limit = 0

    async def workflow(draw: Draw, generate: Generate) -> list[Trajectory]:
        task = asyncio.ensure_future(generate([request(f"{draw.key}/0")]))
        await asyncio.sleep(0)
        raise ValueError(f"{task!r:.0}")

    with opened(generator, workflow) as rollouts:
        rollouts.submit([draw(0)])
        [group] = rollouts.collect()
        assert group.failure is not None
        rollouts.collect(timeout=0.01)
        rollouts.runtime.drive(lambda: True, waits_for=lambda: "")
    assert generator.cancelled == ["0/0"]


def test_number_can_be_used_again_after_its_draw_was_cancelled() -> None:
    generator = scripted()
    with opened(generator) as rollouts:
        generator.limit = 0
        rollouts.submit([draw(0)])
        assert rollouts.collect(timeout=0.05) == []
        with pytest.raises(InputError, match="draw 0: got a number that is in flight|a number that is in flight"):
            rollouts.submit([draw(0)])
        rollouts.cancel([0])
        generator.limit = None
        rollouts.submit([draw(0, key="again")])
        [group] = rollouts.collect()
        assert group.draw == 0
        assert [*generator.completions] == ["again/0"]
        assert rollouts.progress() == (2, 2)
        assert rollouts.collect() == []


def test_groups_survive_an_interrupted_collect() -> None:
    generator = scripted()

    async def workflow(draw: Draw, generate: Generate) -> list[Trajectory]:
        rows = await one_turn(draw, generate)
        if draw.number == 1 and interrupt:
            await made.run_here(_interrupt)
        return rows

    interrupt = True
    with opened(generator, workflow) as rollouts:
        made = rollouts.runtime
        rollouts.submit([draw(0), draw(1)])
        with pytest.raises(KeyboardInterrupt):
            rollouts.collect(draws=[0, 1])
        assert sorted(rollouts.in_flight) == [0, 1]
        assert sorted(group.draw for group in rollouts.collect(draws=[0, 1])) == [0, 1]


def _interrupt() -> None:
    raise KeyboardInterrupt
