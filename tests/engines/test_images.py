"""Images with the real engine: its log-probabilities are those of transformers, also after new weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from attrs import evolve

from purerl.backends.serving.generator import ServedGenerator
from purerl.backends.serving.model import ServedModel
from purerl.loop.train import train
from purerl.protocols import Completion, Request, Sampling, generate
from purerl.settings import Model
from tests.backends.image_rows import (
    OTHER,
    PROMPTS,
    TALL,
    WIDE,
    chat_of,
    expected_logp,
    message,
    requests_for,
    store_of,
)
from tests.backends.vision import write_vision_model
from tests.engines.conftest import KIND, build, processes, settings
from tests.loop.image_runs import image_run, prepare
from tests.loop.runs import records

pytestmark = pytest.mark.skipif(KIND != "vllm", reason="only vLLM reads images")

FAMILY = ["qwen2_vl", pytest.param("qwen2_5_vl", marks=pytest.mark.soak)]


class Opened:
    """A server of a random model of `family`, which reads the pictures of the tests."""

    def __init__(self, family: str, folder: Path) -> None:
        self.paths = [write_vision_model(folder, family, seed=seed, dtype="float32", wide=True) for seed in (0, 1)]
        self.chat, self.store = chat_of(self.paths[0], family), store_of(folder)
        self.generator: ServedGenerator = build(Model(self.paths[0]), folder)
        self.generator.use_images(self.store)

    def load(self, number: int, version: int) -> None:
        """Load the weights of the first or the second model."""
        weights = ServedModel(Model(self.paths[number])).weights()
        assert weights is not None
        self.generator.load_weights(weights, version=version)

    def error(self, request: Request, completion: Completion, number: int = 0) -> float:
        """The largest difference between its log-probabilities and those of transformers."""
        assert completion.error is None
        expected = expected_logp(self.paths[number], self.chat, self.store, request, completion)
        return max((torch.tensor(completion.logp[: len(expected)]) - expected).abs().tolist(), default=0.0)


@pytest.fixture(scope="module", params=FAMILY)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    made = Opened(request.param, tmp_path_factory.mktemp("images"))
    yield made
    made.generator.close()


def test_log_probabilities_are_those_of_transformers(opened: Opened) -> None:
    """Several images in a prompt, none, the same one twice, and equal tokens with another image; then new weights."""
    requests = requests_for(opened.chat, [*PROMPTS, [message(OTHER, "a?")]])
    for number, version in ((0, 0), (1, 1)):
        opened.load(number, version)
        completions = {completion.key: completion for completion in generate(opened.generator, requests)}
        assert max(opened.error(each, completions[each.key], number) for each in requests) < 1e-3


def test_a_completion_continues_with_its_images_and_new_weights(opened: Opened) -> None:
    opened.load(0, 10)
    requests = requests_for(opened.chat, [[message(TALL, "and ", WIDE, "?")]] * 4, sampling=Sampling(max_tokens=300))
    opened.generator.submit(requests)
    opened.load(0, 11)
    completions = {}
    while len(completions) < len(requests):
        completions |= {each.key: each for each in opened.generator.collect(timeout=60.0)}
    assert max(opened.error(each, completions[each.key]) for each in requests) < 1e-3


def test_a_prompt_of_which_the_engine_makes_other_tokens_is_an_error(opened: Opened) -> None:
    [request] = requests_for(opened.chat, [[message(WIDE, "a?")]], samples=1)
    start = next(k for k, image in enumerate(request.image) if image)
    shorter = [tuple(row[:start]) + tuple(row[start + 1 :]) for row in (request.tokens, request.image)]
    [completion] = generate(opened.generator, [evolve(request, tokens=shorter[0], image=shorter[1])])
    assert completion.finish == "error"
    assert completion.error is not None
    assert "as 33 other tokens than the 32 of the run" in completion.error


def test_a_run_trains_with_images_and_agrees_with_the_engine(tmp_path: Path) -> None:
    prepare(tmp_path, wide=True)
    config = evolve(image_run(tmp_path), generator=settings(tmp_path))
    summary = train(config, directory=tmp_path / "run")
    steps = records(summary)[1:]
    assert len(steps) == 3
    assert all(step["mismatch/logp_abs_diff_max"] < 1e-3 for step in steps)
    assert all(step["rollout/failed"] == 0 for step in steps)
    assert processes(tmp_path) == []
