"""Requests to servers: balance, groups, cancellation, errors, and weights in flight."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from attrs import evolve

from purerl.backends.weights import TensorWeights
from purerl.errors import EngineError
from purerl.protocols import Request, Sampling
from tests.rollouts.runtimes import wait_until
from tests.serving.toys import WEIGHTS, Toy, completions, requests, sampled, toys


def test_requests_with_the_same_prompt_go_to_one_server_and_all_servers_have_work(tmp_path: Path) -> None:
    with toys(tmp_path, Toy(("--limit", "1")), number=2) as generator:
        generator.submit(requests(32, prompts=8, tokens=2))
        wait_until(lambda: len(generator.in_flight) == 32)
        assert [server.load for server in generator.servers] == [16, 16]
        groups: dict[int, set[int]] = {}
        for key, (server, _) in generator.in_flight.items():
            groups.setdefault(int(key) % 8, set()).add(generator.servers.index(server))
        assert all(len(servers) == 1 for servers in groups.values())
        wait_until(lambda: sampled(generator) == 32)
        generator.load_weights(WEIGHTS, version=1)
        completions(generator, 32)
        assert [server.load for server in generator.servers] == [0, 0]


def test_cancelled_requests_return_what_they_have(tmp_path: Path) -> None:
    with toys(tmp_path, Toy(("--limit", "3"))) as generator:
        generator.submit(requests(6, tokens=5))
        wait_until(lambda: sampled(generator) == 6 * 3)
        generator.cancel(["0", "2", "no such key"])
        found = completions(generator, 2)
        assert {key: completion.finish for key, completion in found.items()} == dict.fromkeys("02", "cancelled")
        assert [len(completion.tokens) for completion in found.values()] == [3, 3], "the tokens so far"
        generator.load_weights(WEIGHTS, version=1)
        assert [len(completion.tokens) for completion in completions(generator, 4).values()] == [5] * 4
        generator.cancel(["0"])
        generator.submit(requests(1, tokens=3))
        assert completions(generator, 1)["0"].finish == "length", "a key can be used again"


def test_request_that_waits_for_a_connection_can_be_cancelled(tmp_path: Path) -> None:
    with toys(tmp_path, Toy(("--seconds", "0.05")), connections=1) as generator:
        generator.submit(requests(3, tokens=10))
        generator.cancel(["2"])
        assert completions(generator, 3)["2"].finish == "cancelled"


def test_refused_request_is_an_error_of_this_request(tmp_path: Path) -> None:
    with toys(tmp_path) as generator:
        generator.submit([Request("bad", [13], Sampling(max_tokens=2), 0), *requests(2)])
        found = completions(generator, 3)
        assert found["bad"].finish == "error"
        assert "/generate: 400" in found["bad"].error
        assert found["0"].finish == "length"


def test_answer_that_cannot_be_read_is_an_error_of_this_request(tmp_path: Path) -> None:
    class Garbled(Toy):
        def answer(self, response, pending):
            raise KeyError("token_ids")

    with toys(tmp_path, Garbled()) as generator:
        generator.submit(requests(1))
        assert "cannot be read: KeyError('token_ids')" in completions(generator, 1)["0"].error


def test_stop_token_at_the_maximum_length_is_a_stop(tmp_path: Path) -> None:
    with toys(tmp_path) as generator:
        [request] = requests(1)
        generator.submit([evolve(request, sampling=Sampling(max_tokens=4, stop_tokens=(4,)))])
        assert completions(generator, 1)["0"].finish == "stop"


_LOADED = {
    "shared_memory": ["model.weight", "model.bias"],
    "gloo": ["model.weight", "model.bias"],
    "cuda_ipc": ["model.weight", "model.bias"],
    "nccl": ["model.weight", "model.bias"],
    "directory": ["model-00000.safetensors", "model.safetensors.index.json"],
}


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("weight_transfer", _LOADED)
def test_weights_change_while_requests_run(
    tmp_path: Path, keeps: bool, weight_transfer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By cuda_ipc and nccl with the CPU as the device. A request gets at most 20 tokens of each version."""
    monkeypatch.setattr("purerl.backends.serving.generator.current_device", lambda: torch.device("cpu"))
    toy = Toy(("--seconds", "0.002", "--limit", "20"), keeps=keeps)
    with toys(tmp_path, toy, weight_transfer=weight_transfer) as generator:
        generator.load_weights(WEIGHTS, version=1)
        generator.submit(requests(4, tokens=90))
        last = 1
        while last == 1 or generator.in_flight:
            time.sleep(0.03)
            last += 1
            generator.load_weights(WEIGHTS, version=last)
        for completion in completions(generator, 4).values():
            assert len(set(completion.version)) >= 5
            assert list(completion.version) == sorted(completion.version)
            assert completion.tokens == tuple(range(1, 91)), "every part continues the part before"
        assert generator._buckets is None or generator._buckets.staging is None, "the memory of the device is free"
    assert toy.loaded == [_LOADED[weight_transfer]] * last
    assert not list(tmp_path.glob("weights/*")), "no file is left"


def test_broadcast_to_the_device_of_the_trainer_ends_the_run_without_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("sender", "engine.purerl_receiver"):
        monkeypatch.setattr(f"purerl.backends.transfer.{module}.identity_of", lambda device: "cuda GPU-a")
    monkeypatch.setattr("purerl.backends.serving.generator.current_device", lambda: torch.device("cpu"))
    with toys(tmp_path, weight_transfer="nccl") as generator:
        with pytest.raises(EngineError, match=r"server.weight_transfer\n  got:  nccl: the trainer has cuda GPU-a"):
            generator.load_weights(WEIGHTS, version=1)
        assert generator.servers[0].restarts == 0


def test_only_the_last_files_are_kept(tmp_path: Path) -> None:
    with toys(tmp_path, weight_transfer="directory") as generator:
        for version in (7, 7, 8):
            generator.load_weights(WEIGHTS, version=version)
        [directory] = (tmp_path / "weights").iterdir()
        assert [path.name for path in directory.glob("[!.]*")] == ["2-version-8"]


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"model.wieght": torch.zeros(2, 3)}, r"unknown weight 'model.wieght'[\s\S]*did you mean 'model.weight'"),
        ({"model.bias": torch.zeros(4)}, r"weight 'model.bias'\n  got:  shape \[4\]\n  need: \[3\]"),
        ({}, "no weights"),
    ],
)
def test_weights_of_another_model_are_refused(tmp_path: Path, tensors: dict[str, torch.Tensor], words: str) -> None:
    with toys(tmp_path) as generator, pytest.raises(EngineError, match=words):
        generator.load_weights(TensorWeights(tensors), version=1)


def test_adapter_is_refused_by_an_engine_without_adapters(tmp_path: Path) -> None:
    with toys(tmp_path) as generator, pytest.raises(EngineError, match="does not support adapters"):
        generator.load_weights(TensorWeights({"a": torch.zeros(1)}, adapter={"r": 1}), version=1)
