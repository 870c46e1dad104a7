"""Servers that release the memory of their devices while the trainer trains."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from attrs import evolve

from purerl.backends.serving.settings import ServerSettings
from purerl.backends.sglang import generator as sglang
from purerl.backends.vllm import generator as vllm
from purerl.backends.weights import TensorWeights
from purerl.config.check import check
from purerl.errors import ConfigError, EngineError
from purerl.protocols import SupportsSleep
from purerl.recipes.addition import addition
from purerl.rollouts.runtime import Runtime
from purerl.settings import Model
from tests.backends.tiny import write_model
from tests.serving.toys import WEIGHTS, Toy, ToyModel, completions, engines, requests, toys

URLS = ("http://host:1",)


def test_server_sleeps_until_it_has_new_weights(tmp_path: Path) -> None:
    """Memory beside the weights is allocated after they are loaded."""
    toy = Toy()
    with toys(tmp_path, toy, sleep_level=2) as generator:
        assert isinstance(generator, SupportsSleep)
        for version in (1, 2):
            generator.sleep()
            generator.submit(requests(4))
            assert generator.collect(timeout=0.3) == [], "requests wait"
            generator.load_weights(WEIGHTS, version=version)
            for completion in completions(generator, 4).values():
                assert completion.version == (version,) * 4
    rounds = [["sleep 2", f"wake weights, {n} loaded", f"wake kv_cache, {n + 1} loaded"] for n in (0, 1)]
    assert toy.memory == [*rounds[0], *rounds[1]]


def test_cancelled_requests_end_before_the_server_sleeps(tmp_path: Path) -> None:
    with toys(tmp_path, Toy(("--seconds", "0.05")), sleep_level=1) as generator:
        generator.submit(requests(3, tokens=900))
        time.sleep(0.2)
        generator.cancel(["0", "1", "2"])
        generator.sleep()
        found = completions(generator, 3)
        assert {completion.finish for completion in found.values()} == {"cancelled"}
        generator.load_weights(WEIGHTS, version=3)
        generator.submit(requests(1))
        assert completions(generator, 1)["0"].version == (3,) * 4


def test_server_that_ends_while_it_sleeps_is_started_again(tmp_path: Path) -> None:
    with toys(tmp_path, sleep_level=1) as generator:
        generator.sleep()
        for pid in engines():
            os.kill(pid, signal.SIGKILL)
        generator.load_weights(WEIGHTS, version=5)
        generator.submit(requests(2))
        assert {each.version for each in completions(generator, 2).values()} == {(5,) * 4}
        assert generator.servers[0].restarts == 1


def test_server_that_does_not_sleep_is_started_again_and_then_an_error(tmp_path: Path) -> None:
    toy = Toy(("--never-sleep",))
    with toys(tmp_path, toy, sleep_level=1, max_restarts=2) as generator:
        with pytest.raises(EngineError, match=r"twice with the same error\n  got:  it did not release its memory"):
            generator.sleep()
        assert generator.servers[0].restarts == 1
    assert toy.memory == ["sleep 1"] * 2


def test_servers_without_their_weights_need_all_of_them(tmp_path: Path) -> None:
    part = TensorWeights({"model.bias": torch.zeros(3)})
    with toys(tmp_path, sleep_level=2) as generator:
        words = r"no 'model.weight', and 0 others are missing\n.*sleep_level=2\)\n  do:   set server.sleep_level=1"
        with pytest.raises(EngineError, match=words):
            generator.load_weights(part, version=1)
    with toys(tmp_path, sleep_level=1) as generator:
        generator.load_weights(part, version=1)


@pytest.mark.parametrize("level", [0, 1])
def test_engine_sleeps_if_its_settings_say_so(tmp_path: Path, level: int) -> None:
    toy = Toy()
    with toys(tmp_path, toy, model=ToyModel(), sleep_level=level) as generator:
        runtime = Runtime(generator)
        runtime.sleep()
        runtime.load_weights(WEIGHTS, 1)
        runtime.close()
    assert toy.memory[:1] == ["sleep 1"] * level


@pytest.mark.parametrize("engine", [vllm, sglang])
@pytest.mark.parametrize("name", ["max_staleness", "num_extra_groups"])
def test_sampling_while_the_trainer_trains_is_refused(engine, name: str) -> None:
    config = addition()
    rollout = evolve(config.rollout, order="finished", **{name: 1})
    generator = engine.Config(server=ServerSettings(urls=URLS, sleep_level=1))
    with pytest.raises(ConfigError, match=rf"rollout.{name}\n  got:  1, and generator.server.sleep_level=1"):
        check(evolve(config, rollout=rollout, generator=generator))
    check(evolve(config, generator=generator))


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        (vllm, {0: set(), 1: {"--enable-sleep-mode"}, 2: {"--enable-sleep-mode"}}),
        (
            sglang,
            {0: set(), 1: {"--enable-memory-saver", "--enable-weights-cpu-backup"}, 2: {"--enable-memory-saver"}},
        ),
    ],
)
def test_options_of_engines(engine, flags: dict[int, set[str]], tmp_path: Path) -> None:
    model = Model(str(write_model(tmp_path / "model")))
    for level, expected in flags.items():
        config = engine.Config(server=ServerSettings(device="cpu", sleep_level=level))
        command = engine.command(config, model=model, host="127.0.0.1", port=1)
        found = {flag for flag in command.arguments if "sleep-mode" in flag or "saver" in flag or "backup" in flag}
        assert found == expected
        assert engine.preview(config, model=model).sleeps is (level > 0)


def test_servers_on_the_cpu_cannot_sleep() -> None:
    server = ServerSettings(python="python3", device="cpu", sleep_level=1)
    with pytest.raises(ConfigError, match=r"generator.server.sleep_level has no effect\n  got:  servers on the CPU"):
        check(evolve(addition(), generator=vllm.Config(server=server)))
