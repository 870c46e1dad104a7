"""Opening engines: those that are open are closed when a later one fails, and in the reverse order at the end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, cast

import pytest
from attrs import define, evolve, field, frozen

from purerl.algos import ppo
from purerl.backends.fake import generator as fake_generator
from purerl.config.requirements import requirements_of
from purerl.config.schema import Role
from purerl.data.chat import open_chat
from purerl.errors import ConfigError, EngineError
from purerl.opening import engines as opening
from purerl.opening.engines import open_engines, preview_engines
from purerl.opening.task import open_runner
from purerl.placement.join import RankContext
from purerl.protocols import Capabilities
from purerl.rewards.judges.settings import Judge
from purerl.rewards.settings import RewardWorkers
from purerl.rollouts.opened import EngineCapabilities, Engines, Task
from purerl.rollouts.runtime import Runtime
from purerl.settings import Model
from tests.data.made import tokenizer
from tests.loop.small import fake

JUDGE = Role(model=Model("judge"), judge=Judge(), generator=fake_generator.Config())


@frozen
class _Engine:
    """A trainer or a generator that only says when it is closed."""

    name: str
    log: list[str]
    capabilities: Capabilities = Capabilities(outputs=frozenset({"logp", "entropy", "value"}), max_sequence_length=8)

    def close(self) -> None:
        self.log.append(f"close {self.name}")


@define
class _Processes:
    """Processes in which the engine `failing` cannot be built, and `incapable` has no outputs."""

    failing: str = ""
    incapable: str = ""
    log: list[str] = field(factory=list)

    def trainer(self, name: str, build: Callable[[], Any]) -> Any:
        self.log.append(f"open {name}")
        if name == self.failing:
            raise EngineError(f"{name} cannot be opened")
        return _Engine(name, self.log, *([Capabilities()] if name == self.incapable else []))

    generator = trainer


@define
class _Runtime:
    """A runtime that only says when it is closed."""

    log: list[str]

    def attach(self, generator: object, *, background: bool = False) -> None:
        self.log.append("attach")

    def close(self) -> None:
        self.log.append("close runtime")


def _open(processes: _Processes, stack: ExitStack) -> Engines:
    """The engines of a run of PPO with a judge."""
    chat = open_chat(tokenizer(), "text")
    task = Task(chat, {}, open_runner((), (), RewardWorkers()), readers={"quality": chat})
    return open_engines(
        requirements_of(fake(algorithm=ppo.Config())).models,
        task,
        cast("Runtime", _Runtime(processes.log)),
        stack,
        generator=(fake_generator.Config(), Model("m")),
        judges={"rewards.quality": JUDGE},
        seed=0,
        context=RankContext(processes=processes),
    )


@pytest.fixture(autouse=True)
def _without_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "check_updates", lambda *args, **kwargs: 0.5)


def test_engines_are_opened_in_one_order_and_closed_in_the_reverse_one() -> None:
    processes = _Processes()
    with ExitStack() as stack:
        engines = _open(processes, stack)
        assert processes.log == ["open policy", "open critic", "open rewards.quality", "open generator", "attach"]
        assert engines.trainers.keys() == {"policy", "critic"}
        assert [*engines.scorers.models] == ["quality"]
        assert engines.mismatch_level == 0.5
        processes.log.clear()
    closed = ["runtime", "generator", "rewards.quality", "critic", "policy"]
    assert processes.log == [f"close {name}" for name in closed]


@pytest.mark.parametrize(
    ("failing", "closed"),
    [
        ("policy", []),
        ("critic", ["policy"]),
        ("rewards.quality", ["critic", "policy"]),
        ("generator", ["rewards.quality", "critic", "policy"]),
    ],
)
def test_engines_that_are_open_are_closed_if_a_later_one_fails(failing: str, closed: list[str]) -> None:
    processes = _Processes(failing)
    with pytest.raises(EngineError, match=f"{failing} cannot be opened"), ExitStack() as stack:
        _open(processes, stack)
    assert [line for line in processes.log if line.startswith("close")] == [f"close {name}" for name in closed]


def test_trainer_without_an_output_that_is_needed_is_closed_too() -> None:
    processes = _Processes(incapable="critic")
    with pytest.raises(ConfigError, match="trainer of the critic"), ExitStack() as stack:
        _open(processes, stack)
    assert [line for line in processes.log if line.startswith("close")] == ["close critic", "close policy"]


def test_engines_are_closed_if_the_generator_does_not_use_new_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise EngineError("old weights")

    monkeypatch.setattr(opening, "check_updates", refuse)
    processes = _Processes()
    with pytest.raises(EngineError, match="old weights"), ExitStack() as stack:
        _open(processes, stack)
    assert "attach" not in processes.log
    closed = ["runtime", "generator", "rewards.quality", "critic", "policy"]
    assert processes.log[-len(closed) :] == [f"close {name}" for name in closed]


def test_capabilities_are_those_of_rows_that_are_trained_and_sampled() -> None:
    policy, classifier, generator = (Capabilities(max_sequence_length=length) for length in (1, 2, 3))
    capabilities = EngineCapabilities({"policy": policy, "rewards.a": classifier}, generator)
    assert capabilities.trained == [policy]
    assert capabilities.sampling == [generator]
    names = ["trainer of the policy", "trainer of the rewards.a", "generator"]
    assert [*capabilities.all] == names
    assert [*evolve(capabilities, generator=None).all] == names[:-1]


def test_preview_leaves_out_models_that_cannot_be_read_and_engines_that_cannot_tell() -> None:
    """The fake generator can tell, and the fake trainer cannot."""
    needs, generator = requirements_of(fake()), (fake_generator.Config(), Model("m"))
    previewed = EngineCapabilities(generator=fake_generator.preview(generator[0], model=generator[1]))
    assert preview_engines(needs, generator) == previewed
    assert preview_engines(needs, generator, unreadable=[Model("m")]) == EngineCapabilities()
