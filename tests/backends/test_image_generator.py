"""The in-process generator with images: its log-probabilities are those of transformers and of the trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from tensordict import TensorDict

from purerl.backends.hf.generator import Config, build
from purerl.backends.hf.sampling.engine import HFGenerator
from purerl.batch import collate
from purerl.data.chat import Chat, image_ids, tokenize_prompts
from purerl.errors import ConfigError, InputError
from purerl.images import Image, ImageStore
from purerl.protocols import Completion, Request, Sampling, generate
from purerl.settings import Model
from tests.backends.image_rows import (
    FREE,
    OTHER,
    PROMPTS,
    TALL,
    WIDE,
    chat_of,
    expected_logp,
    message,
    pictures_of,
    reference,
    requests_for,
    row_of,
    store_of,
)
from tests.backends.tiny import make_trainer, write_model
from tests.backends.vision import FAMILIES, write_vision_model

pytestmark = pytest.mark.slow

SUPPORTED = [name for name in FAMILIES if name != "gemma3"]
FREQUENT = ("qwen2_5_vl", "qwen3_vl", "idefics3")
"""Those that are not left to the session slow."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="module")
def store(folder: Path) -> ImageStore:
    return store_of(folder)


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in FREQUENT else pytest.mark.slow) for name in SUPPORTED],
)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def path(folder: Path, family: str) -> str:
    return write_vision_model(folder, family)


@pytest.fixture(scope="module")
def chat(path: str, family: str) -> Chat:
    return chat_of(path, family)


@pytest.fixture(scope="module")
def qwen(folder: Path) -> str:
    return write_vision_model(folder, "qwen3_vl", seed=3)


@pytest.fixture(scope="module")
def qwen_chat(qwen: str) -> Chat:
    return chat_of(qwen, "qwen3_vl")


def open_generator(path: str, store: ImageStore, dtype: str = "float64", **settings: Any) -> HFGenerator:
    generator = build(Config(device="cpu", **settings), model=Model(path, dtype=dtype), seed=0)
    assert generator.capabilities.images
    generator.use_images(store)
    return generator


@pytest.fixture(scope="module")
def used(path: str, store: ImageStore) -> HFGenerator:
    """A generator for several tests. It keeps nothing of a request, so it is like a new one."""
    return open_generator(path, store)


@pytest.fixture(scope="module")
def used_qwen(qwen: str, store: ImageStore) -> HFGenerator:
    """As `used`."""
    return open_generator(qwen, store)


def check_logp(path: str, chat: Chat, store: ImageStore, request: Request, completion: Completion) -> None:
    expected = expected_logp(path, chat, store, request, completion)
    actual = torch.tensor(completion.logp).double()[: len(expected)]
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def rollouts(path: str, chat: Chat, store: ImageStore) -> TensorDict:
    """Completions in float32."""
    requests = requests_for(chat, PROMPTS)
    pairs = zip(requests, generate(open_generator(path, store, dtype="float32"), requests), strict=True)
    return collate([row_of(*pair, number) for number, pair in enumerate(pairs)])


def test_log_probabilities_are_those_of_transformers(
    path: str, chat: Chat, store: ImageStore, used: HFGenerator
) -> None:
    requests = requests_for(chat, PROMPTS)
    for request, completion in zip(requests, generate(used, requests), strict=True):
        assert len(completion.tokens) == FREE.max_tokens
        check_logp(path, chat, store, request, completion)


@pytest.mark.parametrize("settings", [{}, {"packing": True}, {"share_prefixes": False}])
def test_log_probabilities_are_those_of_the_trainer(
    path: str, rollouts: TensorDict, store: ImageStore, settings: dict[str, Any]
) -> None:
    trainer = make_trainer(path, dtype="float32", **settings)
    trainer.use_images(store)
    scores, action = trainer.score(rollouts, ["logp"])["logp"], rollouts["action"]
    torch.testing.assert_close(scores[action], rollouts["rollout_logp"][action], rtol=1e-5, atol=1e-5)


def test_greedy_tokens_are_those_of_transformers_generate(
    path: str, chat: Chat, store: ImageStore, used: HFGenerator
) -> None:
    requests = requests_for(chat, PROMPTS, samples=1, sampling=Sampling(0.0, 8))
    completions = generate(used, requests)
    model, processor = reference(path), chat.processor
    for request, completion in zip(requests, completions, strict=True):
        row = row_of(request, completion)
        images = [_decoded(data) for data in pictures_of(row, store, chat)]
        inputs = dict(processor._processor.image_processor([images], return_tensors="pt")) if images else {}
        inputs = {name: value for name, value in inputs.items() if name not in ("rows", "cols")}
        ids = torch.tensor([request.tokens])
        if "image_grid_thw" in inputs:
            inputs["mm_token_type_ids"] = (ids == processor.image_token_id).int()
        attention = torch.ones_like(ids)
        options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": -1}
        generated = model.generate(ids, attention_mask=attention, **options, **inputs)
        assert generated[0, ids.shape[1] :].tolist() == list(completion.tokens)


def _decoded(data: bytes) -> Any:
    from purerl.images import decode

    return decode(data)


def test_equal_tokens_with_different_images_are_different_prompts(chat: Chat, used: HFGenerator) -> None:
    first, second = requests_for(chat, [[message(WIDE, "a?")], [message(OTHER, "a?")]], samples=1)
    assert first.tokens == second.tokens
    together = generate(used, [first, second])
    alone = [generate(used, [request])[0] for request in (first, second)]
    for one, other in zip(together, alone, strict=True):
        assert one.tokens == other.tokens
        torch.testing.assert_close(torch.tensor(one.logp), torch.tensor(other.logp))
    same_seed = Request("s", second.tokens, FREE, first.seed, image=second.image)
    assert generate(used, [same_seed])[0].logp != alone[0].logp


def test_equal_prompts_with_images_are_read_once(qwen: str, qwen_chat: Chat, store: ImageStore) -> None:
    generator, read = open_generator(qwen, store), []
    handle = generator._model.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: read.append(tuple(kwargs["inputs_embeds"].shape[:2])), with_kwargs=True
    )
    requests = requests_for(qwen_chat, [[message(WIDE, "a?")]], samples=5)
    generator.submit(requests)
    generator._admit()
    handle.remove()
    assert read == [(1, len(requests[0].tokens) - 1)]
    generator.cancel([request.key for request in requests])


@pytest.mark.parametrize("then", [TALL, None])
def test_turns_continue_from_what_was_kept(
    path: str, chat: Chat, store: ImageStore, used: HFGenerator, then: bytes | None
) -> None:
    """The second turn has an image of its own, or text only; the first one may have other images with equal tokens."""
    generator = open_generator(path, store)
    first = [
        Request(f"{k}", request.tokens, FREE, k, keep=True, image=request.image)
        for k, request in enumerate(requests_for(chat, [[message(WIDE, "a?")], [message(OTHER, "a?")]], samples=1))
    ]
    completions = generate(generator, first)
    assert generator._prefixes._sequences
    [added] = tokenize_prompts(chat, [[message("b", *([then] if then else []), "c")]])
    after = image_ids(chat, added.tokens, added.images)
    second = []
    for request, completion in zip(first, completions, strict=True):
        tokens = [*request.tokens, *completion.tokens, *added.tokens]
        image = [*request.image, *[0] * len(completion.tokens), *after]
        second.append(Request(f"{request.key}/next", tokens, FREE, 5, image=image))
    kept = generate(generator, second)
    assert not used._prefixes._sequences
    fresh = generate(used, second)
    for request, one, other in zip(second, kept, fresh, strict=True):
        assert one.tokens == other.tokens
        torch.testing.assert_close(torch.tensor(one.logp), torch.tensor(other.logp), rtol=1e-5, atol=1e-5)
        check_logp(path, chat, store, request, one)


def test_kept_images_do_not_go_through_the_vision_tower_again(qwen: str, qwen_chat: Chat, store: ImageStore) -> None:
    generator, patches = open_generator(qwen, store), []
    generator._model.base_model.visual.register_forward_pre_hook(
        lambda module, args, kwargs: patches.append(len(args[0])), with_kwargs=True
    )
    [request] = requests_for(qwen_chat, [[message(WIDE, "a?")]], samples=1)
    [completion] = generate(generator, [Request("a", request.tokens, FREE, 0, keep=True, image=request.image)])
    [added] = tokenize_prompts(qwen_chat, [[message(TALL, "c")]])
    image = [*request.image, *[0] * len(completion.tokens), *image_ids(qwen_chat, added.tokens, added.images)]
    tokens = [*request.tokens, *completion.tokens, *added.tokens]
    generate(generator, [Request("b", tokens, FREE, 0, image=image)])
    assert patches == [40, 40], "one image of 40 patches in each turn"


def test_turns_whose_sequence_was_dropped_are_read_from_the_start(
    qwen: str, qwen_chat: Chat, store: ImageStore
) -> None:
    """There is room for one of two sequences: the second turn of the other one reads its first image again."""
    prompts = [[message(WIDE, "a?")], [message(TALL, "b?")]]
    first = [evolve(request, keep=True) for request in requests_for(qwen_chat, prompts, samples=1)]
    length = max(len(request.tokens) for request in first) + FREE.max_tokens
    generator = open_generator(qwen, store, max_cached_tokens=length)
    completions = generate(generator, first)
    [added] = tokenize_prompts(qwen_chat, [[message("c", OTHER)]])
    after, second = image_ids(qwen_chat, added.tokens, added.images), []
    for request, completion in zip(first, completions, strict=True):
        tokens = [*request.tokens, *completion.tokens, *added.tokens]
        image = [*request.image, *[0] * len(completion.tokens), *after]
        second.append(Request(f"{request.key}/next", tokens, FREE, 5, image=image))
    assert [bool(generator._prefixes.find(request.content)) for request in second].count(False) == 1
    for request, completion in zip(second, generate(generator, second), strict=True):
        check_logp(qwen, qwen_chat, store, request, completion)


def test_requests_continue_after_new_weights(qwen: str, qwen_chat: Chat, store: ImageStore, folder: Path) -> None:
    """Rows in flight are read again, images included, and each token has the log-probability of its own weights."""
    other = write_vision_model(folder, "qwen3_vl", seed=4)
    generator, trainer = open_generator(qwen, store), make_trainer(other)
    [request] = requests_for(qwen_chat, [[message(WIDE, "a?")]], samples=1)
    generator.submit([request])
    for _ in range(5):
        generator._admit()
        generator._step()
    generator.load_weights(trainer.weights(), version=1)
    [completion] = generator.collect()
    versions = list(completion.version)
    assert versions == sorted(versions)
    before = versions.count(0)
    assert 0 < before < len(versions)
    for path, part in ((qwen, slice(0, before)), (other, slice(before, None))):
        expected = expected_logp(path, qwen_chat, store, request, completion)
        torch.testing.assert_close(torch.tensor(completion.logp).double()[part], expected[part], rtol=1e-5, atol=1e-5)


def test_neighbors_change_nothing(qwen: str, qwen_chat: Chat, store: ImageStore, used_qwen: HFGenerator) -> None:
    requests = requests_for(qwen_chat, PROMPTS, samples=3)
    together = generate(open_generator(qwen, store, max_num_seqs=4, max_prefill_tokens=60), requests)
    alone = [generate(used_qwen, [request])[0] for request in requests]
    assert [completion.tokens for completion in together] == [completion.tokens for completion in alone]


REFUSED = {
    "of another length": ((5,), "1 content ids of images"),
    "at the end": ("end", "an image at the end"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_images_of_a_request_are_refused(name: str, qwen_chat: Chat, used_qwen: HFGenerator) -> None:
    image, message_ = REFUSED[name]
    [request] = requests_for(qwen_chat, PROMPTS[:1], samples=1)
    if image == "end":
        image = [*request.image[:-1], Image(WIDE).id]
    with pytest.raises(InputError, match=message_):
        used_qwen.submit([Request("a", request.tokens, FREE, 0, image=image)])


def test_a_text_model_refuses_images(tmp_path: Path) -> None:
    generator = build(Config(device="cpu"), model=Model(write_model(tmp_path)), seed=0)
    with pytest.raises(InputError, match="an engine that reads images"):
        generator.submit([Request("a", [1, 2], FREE, 0, image=[5, 0])])


def test_a_model_whose_image_tokens_see_each_other_is_refused(folder: Path, store: ImageStore) -> None:
    generator = build(Config(device="cpu"), model=Model(write_vision_model(folder, "gemma3"), dtype="float64"), seed=0)
    with pytest.raises(ConfigError, match="Gemma3ForConditionalGeneration: other hidden states"):
        generator.use_images(store)


def test_what_was_kept_of_another_image_is_not_used(
    qwen: str, qwen_chat: Chat, store: ImageStore, used_qwen: HFGenerator
) -> None:
    generator = open_generator(qwen, store)
    first, second = requests_for(qwen_chat, [[message(WIDE, "a?")], [message(OTHER, "a?")]], samples=1)
    [completion] = generate(generator, [Request("a", first.tokens, FREE, 0, keep=True, image=first.image)])
    tokens = [*first.tokens, *completion.tokens, *first.tokens[:3]]
    rest = [0] * (len(tokens) - len(first.tokens))
    continued = Request("b", tokens, FREE, 0, image=[*second.image, *rest])
    [with_kept], [fresh] = (generate(each, [continued]) for each in (generator, used_qwen))
    assert with_kept.tokens == fresh.tokens
    torch.testing.assert_close(torch.tensor(with_kept.logp), torch.tensor(fresh.logp))
