"""Images in rows: the trainer computes what transformers' own models compute, however rows are arranged."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from purerl.algos.algebra import prepare_step
from purerl.backends.hf.lora import Lora
from purerl.backends.hf.model import prefix
from purerl.batch import with_fields
from purerl.data.chat import Chat
from purerl.errors import BatchError, ConfigError, ImageError, InputError
from purerl.images import ImageStore
from tests.backends.image_rows import (
    OTHER,
    PROMPTS,
    WIDE,
    chat_of,
    make_image_batch,
    make_rows,
    message,
    pictures_of,
    reference,
    reference_logp,
    store_of,
)
from tests.backends.tiny import make_trainer, write_model
from tests.backends.training import CRITIC, POLICY
from tests.backends.vision import FAMILIES, write_vision_model
from tests.ranks import check_cases

pytestmark = pytest.mark.slow

ROUNDING = {"rtol": 1e-5, "atol": 1e-6}  # transformers computes some norms and positions in float32

SUPPORTED = [name for name in FAMILIES if name != "gemma3"]
FREQUENT = ("qwen2_5_vl", "qwen3_vl", "idefics3")
"""Those that are not left to the session slow."""


@pytest.fixture(autouse=True)
def sharing_is_always_worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix, "_WORTHWHILE", math.inf)


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
    return write_vision_model(folder, "qwen2_5_vl", seed=3)


@pytest.fixture(scope="module")
def qwen_chat(qwen: str) -> Chat:
    return chat_of(qwen, "qwen2_5_vl")


def open_trainer(path: str, store: ImageStore, *arguments: Any, **settings: Any) -> Any:
    trainer = make_trainer(path, *arguments, **settings)
    assert trainer.capabilities.images
    trainer.use_images(store)
    return trainer


@pytest.fixture(scope="module")
def scorer(path: str, store: ImageStore) -> Any:
    """A trainer for tests that change nothing in it."""
    return open_trainer(path, store)


def gradients(trainer: Any, batch: Any, objective: Any = POLICY) -> dict[str, torch.Tensor]:
    step, counts = prepare_step(objective, batch)
    for part in trainer._arrange(step, ("tokens", "temperature", *objective.reads), objective.unit):
        trainer._backward(step, part, objective, counts)
    return {name: parameter.grad for name, parameter in trainer.trained.items()}


def test_log_probabilities_are_those_of_transformers(path: str, chat: Chat, store: ImageStore, scorer: Any) -> None:
    batch, model = make_image_batch(chat), reference(path)
    scores = scorer.score(batch, ["logp"])["logp"]
    for number, row in enumerate(make_rows(chat)):
        with torch.no_grad():
            expected = reference_logp(model, chat.processor, row["tokens"], pictures_of(row, store, chat))
        action = torch.tensor(row["action"])[1:]
        torch.testing.assert_close(scores[number, 1 : len(row["tokens"])][action], expected[action])


def test_gradients_are_those_of_transformers(path: str, chat: Chat, store: ImageStore) -> None:
    trainer = open_trainer(path, store, share_prefixes=False)
    actual = gradients(trainer, make_image_batch(chat))
    model, rows = reference(path), make_rows(chat)
    counted = sum(sum(row["mask"]) for row in rows)
    for row in rows:
        logp = reference_logp(model, chat.processor, row["tokens"], pictures_of(row, store, chat))
        mask, advantage = torch.tensor(row["mask"])[1:], torch.tensor(row["advantage"]).double()[1:]
        (-(advantage * logp)[mask].sum() / counted).backward()
    expected = {f"model.{name}": parameter.grad for name, parameter in model.named_parameters()}
    towers = [name for name, value in expected.items() if value is not None and ("vis" in name or "connector" in name)]
    assert any(float(expected[name].abs().max()) > 1e-4 for name in towers), "images are trained on"
    for name, value in actual.items():
        torch.testing.assert_close(value, expected[name])


def test_arrangement_of_rows_changes_nothing(path: str, chat: Chat, store: ImageStore) -> None:
    """Shuffling, micro-batches, shared prefixes, packing and recomputation keep images with their rows."""
    batch = make_image_batch(chat)
    plain = open_trainer(path, store, share_prefixes=False, max_tokens_per_microbatch=10_000)
    scores, expected = plain.score(batch, ["logp", "entropy"]), gradients(plain, batch)
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(0))
    for settings in (
        {"share_prefixes": True, "max_tokens_per_microbatch": 10_000},
        {"share_prefixes": True, "max_tokens_per_microbatch": 1},
        {"max_tokens_per_microbatch": 150, "recompute": "layers"},
        {"packing": True, "max_tokens_per_microbatch": 10_000},
        {"packing": True, "max_tokens_per_microbatch": 90},
    ):
        trainer = open_trainer(path, store, **settings)
        torch.testing.assert_close(trainer.score(batch[order], ["logp", "entropy"]), scores[order])
        torch.testing.assert_close(gradients(trainer, batch[order]), expected, **ROUNDING)


def test_an_image_changes_the_results_and_so_does_another_one_of_the_same_size(chat: Chat, scorer: Any) -> None:
    prompts = [[message(WIDE, "a?")], [message(OTHER, "a?")]]
    batch = make_image_batch(chat, prompts=prompts, samples=1)
    batch = with_fields(batch[:1].repeat(2), image=batch["image"], row=torch.arange(2))
    assert torch.equal(batch["tokens"][0], batch["tokens"][1])
    first, second = scorer.score(batch, ["logp"])["logp"]
    without = scorer.score(with_fields(batch, image=torch.zeros_like(batch["image"])), ["logp"])["logp"][0]
    action = batch["action"][0]
    for one, other in ((first, second), (first, without)):
        assert float((one - other)[action].abs().max()) > 1e-2


def test_rows_of_a_group_with_different_images_share_only_what_comes_before(
    path: str, chat: Chat, store: ImageStore
) -> None:
    prompts = [[message("look: ", image, "a?")] for image in (WIDE, OTHER, WIDE)]
    batch = make_image_batch(chat, prompts=prompts)
    batch = with_fields(batch, group=torch.zeros(len(batch), dtype=torch.int64))
    shared, separate = (open_trainer(path, store, share_prefixes=share) for share in (True, False))
    torch.testing.assert_close(shared.score(batch, ["logp"]), separate.score(batch, ["logp"]))
    [part] = shared._arrange(batch, ("tokens", "temperature"), "row")
    assert part.prefixes is not None
    before = batch["image"][0].nonzero()[0]
    assert part.prefixes.length.tolist() == [int(before)]


def test_a_critic_reads_images(qwen: str, qwen_chat: Chat, store: ImageStore, tmp_path: Path) -> None:
    batch = make_image_batch(qwen_chat)
    critic = open_trainer(qwen, store, "critic")
    values = critic.score(batch, ["value"])["value"]
    assert float(values.abs().max()) > 0
    assert any("visual" in name for name in critic.trained)
    step, counts = prepare_step(CRITIC, batch)
    critic.step(step, CRITIC, counts)
    changed = critic.score(batch, ["value"])
    critic.export(tmp_path / "critic")
    copy_processor(qwen, tmp_path / "critic")
    again = open_trainer(str(tmp_path / "critic"), store, "critic")
    torch.testing.assert_close(again.score(batch, ["value"]), changed)


def copy_processor(source: str, target: Path) -> None:
    for name in ("preprocessor_config.json", "tokenizer.json", "tokenizer_config.json"):
        (target / name).write_bytes((Path(source) / name).read_bytes())


def test_rows_without_action_tokens_need_no_image(qwen: str, qwen_chat: Chat, store: ImageStore) -> None:
    batch = make_image_batch(qwen_chat, prompts=PROMPTS[:2])
    unread = torch.arange(len(batch)) == 1
    action = batch["action"] & ~unread[:, None]
    unknown = torch.where((batch["image"] > 0) & unread[:, None], 5, batch["image"])
    failed = with_fields(batch, action=action, mask=batch["mask"] & action, image=unknown)
    for settings in ({"share_prefixes": False}, {"share_prefixes": True}, {"packing": True}):
        trainer = open_trainer(qwen, store, **settings)
        scores = trainer.score(failed, ["logp"])["logp"]
        torch.testing.assert_close(scores[~unread], trainer.score(batch, ["logp"])["logp"][~unread])
        assert not scores[1].any()


def test_an_image_that_is_not_in_the_store_is_an_error(qwen: str, qwen_chat: Chat, store: ImageStore) -> None:
    batch = make_image_batch(qwen_chat)
    with pytest.raises(ImageError, match="No such file"):
        open_trainer(qwen, store).score(with_fields(batch, image=torch.where(batch["image"] > 0, 5, 0)), ["logp"])


def test_a_part_of_an_image_is_an_error(qwen: str, qwen_chat: Chat, store: ImageStore) -> None:
    batch = make_image_batch(qwen_chat)
    image = batch["image"].clone()
    image[0, image[0].nonzero()[-1]] = 0
    with pytest.raises(BatchError, match=r"row 0 of a micro-batch\n  got:  9 tokens of the image .*\n  need: 10"):
        open_trainer(qwen, store, share_prefixes=False).score(with_fields(batch, image=image), ["logp"])


def test_images_without_a_store_are_an_error(qwen: str, qwen_chat: Chat) -> None:
    with pytest.raises(InputError, match="use_images first"):
        make_trainer(qwen).score(make_image_batch(qwen_chat), ["logp"])


def test_a_model_whose_image_tokens_see_each_other_is_refused(folder: Path, store: ImageStore) -> None:
    trainer = make_trainer(write_vision_model(folder, "gemma3"))
    with pytest.raises(ConfigError, match="Gemma3ForConditionalGeneration: other hidden states"):
        trainer.use_images(store)


def test_a_text_model_has_no_images(tmp_path: Path) -> None:
    assert not make_trainer(write_model(tmp_path)).capabilities.images


def test_pixels_are_computed_once(qwen: str, qwen_chat: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, made = open_trainer(qwen, store_of(tmp_path), max_tokens_per_microbatch=1), []
    tensors = trainer.extras.images.processor.tensors
    monkeypatch.setattr(trainer.extras.images.processor, "tensors", lambda data: made.append(1) or tensors(data))
    for _ in range(2):
        trainer.score(make_image_batch(qwen_chat), ["logp"])
    assert len(made) == 2, "one for each image"
    bounded = store_of(tmp_path)
    bounded.cache.max_bytes = 0
    trainer.use_images(bounded)
    monkeypatch.setattr(trainer.extras.images.processor, "tensors", lambda data: made.append(1) or tensors(data))
    trainer.score(make_image_batch(qwen_chat), ["logp"])
    assert len(made) > 4, "nothing was kept"


# --- freezing ------------------------------------------------------------------------------------------------------


def _train(trainer: Any, batch: Any) -> None:
    step, counts = prepare_step(POLICY, batch)
    trainer.step(step, POLICY, counts)


@pytest.mark.parametrize("patterns", [("vision",), ("visual.*",), ("model.visual.patch_embed.*", "visual.[bm]*")])
def test_frozen_parameters_stay_as_they_are(
    qwen: str, qwen_chat: Chat, store: ImageStore, tmp_path: Path, patterns: tuple[str, ...]
) -> None:
    trainer = open_trainer(qwen, store, freeze=patterns, lr=1e-2, weight_decay=0.1)
    before = {name: parameter.detach().clone() for name, parameter in trainer.module.named_parameters()}
    _train(trainer, make_image_batch(qwen_chat))
    changed = {name for name, value in trainer.module.named_parameters() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if "visual" not in name}
    assert changed == set(trainer.trained)
    assert not any("visual" in name for name in dict(trainer.weights()))
    scores = trainer.score(make_image_batch(qwen_chat), ["logp"])
    trainer.export(tmp_path / "exported")
    copy_processor(qwen, tmp_path / "exported")
    again = open_trainer(str(tmp_path / "exported"), store)
    torch.testing.assert_close(again.score(make_image_batch(qwen_chat), ["logp"]), scores)


def test_gradients_of_other_parameters_do_not_depend_on_frozen_ones(
    qwen: str, qwen_chat: Chat, store: ImageStore
) -> None:
    batch = make_image_batch(qwen_chat)
    frozen, free = (gradients(open_trainer(qwen, store, freeze=freeze), batch) for freeze in (("vision",), ()))
    torch.testing.assert_close(frozen, {name: free[name] for name in frozen})
    assert len(frozen) < len(free)


def test_a_frozen_model_resumes_from_its_checkpoint(
    qwen: str, qwen_chat: Chat, store: ImageStore, tmp_path: Path
) -> None:
    batch, trainer = make_image_batch(qwen_chat), open_trainer(qwen, store, freeze=("vision",), lr=1e-2)
    _train(trainer, batch)
    trainer.save(tmp_path)
    _train(trainer, batch)
    resumed = open_trainer(qwen, store, freeze=("vision",), lr=1e-2)
    resumed.load(tmp_path)
    _train(resumed, batch)
    for name, parameter in trainer.module.named_parameters():
        assert torch.equal(parameter, resumed.module.get_parameter(name))


def test_an_adapter_leaves_frozen_layers_out(qwen: str, qwen_chat: Chat, store: ImageStore) -> None:
    lora, batch = Lora(rank=2, alpha=2.0), make_image_batch(qwen_chat)
    everywhere, frozen = (open_trainer(qwen, store, lora=lora, freeze=names, lr=1e-2) for names in ((), ("vision",)))
    assert any("visual" in name for name in everywhere.adapter.tensors)
    assert frozen.adapter.tensors.keys() == {name for name in everywhere.adapter.tensors if "visual" not in name}
    before = frozen.score(batch, ["logp"])["logp"]
    _train(frozen, batch)
    assert float((frozen.score(batch, ["logp"])["logp"] - before).abs().max()) > 1e-3
    torch.testing.assert_close(frozen.base().score(batch, ["logp"])["logp"], before)


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (("visaul.*",), r"freeze\n  got:  'visaul.\*', which no parameter matches"),
        (("*",), r"freeze\n  got:  all parameters of the model"),
    ],
)
def test_patterns_that_match_nothing_or_everything_are_refused(
    qwen: str, patterns: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_trainer(qwen, freeze=patterns)


def test_vision_of_a_text_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'vision', which no parameter matches"):
        make_trainer(write_model(tmp_path), freeze=("vision",))


@pytest.mark.parallel
def test_two_ranks_equal_one_process() -> None:
    check_cases("-m", "tests.backends.image_ranks")
