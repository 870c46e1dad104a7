"""A generator that samples with the weights of the trainer, beside one with a copy of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from purerl.backends.hf import generator as hf_generator
from purerl.backends.hf import trainer as hf_trainer
from purerl.backends.hf.generator import build_shared, copy_reason
from purerl.backends.hf.lora import Lora
from purerl.backends.hf.model.casts import Casts
from purerl.backends.hf.model.twin import AdaptedLinear
from purerl.backends.hf.sampling.engine import HFGenerator
from purerl.backends.hf.training.engine import HFTrainer
from purerl.backends.weights import TensorWeights
from purerl.errors import EngineError
from purerl.opening.weight_check import check_updates
from purerl.protocols import Completion, Request, Sampling, Weights, generate
from purerl.ranks import ONE_RANK
from purerl.settings import Model
from purerl.testing.generator import check_generator
from tests.backends.generators import make_generator, suite_arguments, tiny_model
from tests.backends.tiny import VOCAB_SIZE
from tests.backends.training import equal, make_batch, parameters_of, train

LORA = Lora(rank=4)
MIXED: dict[str, Any] = {"mixed_precision": "bfloat16"}
FAMILIES = ("qwen3", "llama", "gemma2", "qwen3_moe", "gpt2")  # untied, tied, soft caps, experts, learned positions


def trainer_of(model: Model, **settings: Any) -> HFTrainer:
    config = hf_trainer.Config(device="cpu", **{"lr": 1e-2, **settings})
    return hf_trainer.build(config, model=model, role="policy", outputs=("logp", "entropy"), updates=4, seed=0)


def shared_with(trainer: HFTrainer, **settings: Any) -> HFGenerator:
    config = hf_generator.Config(device="cpu", **settings)
    return build_shared(config, trainer=trainer, model=_sampled(trainer), seed=0)


def copy_of(trainer: HFTrainer) -> HFGenerator:
    return make_generator(_sampled(trainer))


def _sampled(trainer: HFTrainer) -> Model:
    mixed = trainer.config.mixed_precision
    return trainer.model if mixed == "off" else evolve(trainer.model, dtype=mixed)


def requests() -> list[Request]:
    prompts = [[3, 5, 7, 11, 2], [4], [3, 5, 7]]
    return [Request(str(k), prompts[k % 3], Sampling(max_tokens=7), seed=k) for k in range(6)]


def storages(tensors: Iterable[Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def weights_in(generator: HFGenerator) -> list[Tensor]:
    return [*generator._model.parameters(), *generator._model.buffers()]


# --- equal to a copy -------------------------------------------------------------------------------------------------

SETTINGS = {
    "plain": {},
    "recompute": {"recompute": "layers"},
    "packing": {"packing": True},
    "mixed": MIXED,
    "mixed, recompute": {**MIXED, "recompute": "selective"},
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", SETTINGS)
def test_samples_equal_those_of_a_copy_bit_for_bit(tmp_path: Path, family: str, name: str) -> None:
    trainer = trainer_of(tiny_model(tmp_path, family), **SETTINGS[name])
    shared, copied = shared_with(trainer), copy_of(trainer)
    before = generate(shared, requests())
    for version in (1, 2):
        train(trainer)
        for generator in (shared, copied):
            generator.load_weights(trainer.weights(), version=version)
        completions = generate(shared, requests())
        assert completions == generate(copied, requests())
        assert [each.logp for each in completions] != [each.logp for each in before], "the weights have changed"


@pytest.mark.parametrize("settings", [{}, {"recompute": "layers"}, MIXED])
def test_the_trainer_computes_as_without_a_generator_bit_for_bit(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = tiny_model(tmp_path)
    trainer, alone = trainer_of(model, **settings), trainer_of(model, **settings)
    shared = shared_with(trainer)
    for _ in range(2):
        generate(shared, requests())
        assert train(trainer) == train(alone)
    assert equal(parameters_of(trainer), parameters_of(alone))
    assert torch.equal(*(each.score(make_batch(), ["logp"])["logp"] for each in (trainer, alone)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("settings", [{}, MIXED])
def test_an_adapter_is_applied_and_samples_are_those_that_the_trainer_scores(
    tmp_path: Path, settings: dict[str, Any], dtype: str
) -> None:
    model = evolve(tiny_model(tmp_path), dtype=dtype)
    trainer, alone = (trainer_of(model, lora=LORA, lr=1e-1, **settings) for _ in range(2))
    shared = shared_with(trainer)
    base = generate(shared, requests())
    for each in (trainer, alone):
        train(each, 2)
    assert equal(parameters_of(trainer), parameters_of(alone))
    shared.load_weights(trainer.weights(), version=1)
    level = check_updates(trainer, shared, range(VOCAB_SIZE), ranks=ONE_RANK, seed=0, is_narrow=True)
    assert level is not None
    assert level < (1e-5 if dtype == "float32" and not settings else 0.05)
    shared.load_weights(trainer.weights(), version=2)
    adapted = generate(shared, requests())
    assert [each.logp for each in adapted] != [each.logp for each in base]
    reference, plain = trainer.base(), trainer_of(model, **settings)
    assert reference is not None
    scores = [each.score(make_batch(), ["logp"])["logp"] for each in (reference, plain)]
    assert torch.equal(*scores), "the reference is the model without the adapter"
    assert generate(shared, requests()) == adapted


def test_an_adapter_samples_as_if_it_was_merged_within_rounding(tmp_path: Path) -> None:
    trainer = trainer_of(tiny_model(tmp_path), lora=LORA, lr=1e-1)
    shared, copied = shared_with(trainer), copy_of(trainer)
    train(trainer, 2)
    for generator in (shared, copied):
        generator.load_weights(trainer.weights(), version=1)
    pairs = [*zip(*(generate(generator, requests()) for generator in (shared, copied)), strict=True)]
    assert [a.tokens for a, _ in pairs] == [b.tokens for _, b in pairs]
    for a, b in pairs:
        assert a.logp == pytest.approx(b.logp, abs=1e-5)


# --- memory and casts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("settings", [{}, {"lora": Lora(rank=4, target_modules=("q_proj", "o_proj"))}])
def test_no_weight_exists_twice(tmp_path: Path, family: str, settings: dict[str, Any]) -> None:
    if family == "gpt2" and settings:
        pytest.skip("its layers are no linear ones")
    trainer = trainer_of(tiny_model(tmp_path, family), **settings)
    own = storages([*trainer.module.parameters(), *trainer.module.buffers()])
    shared, copied = shared_with(trainer), copy_of(trainer)
    assert storages(weights_in(shared)) <= own
    assert not storages(copied._model.parameters()) & own
    adapted = [layer for layer in shared._model.modules() if isinstance(layer, AdaptedLinear)]
    assert len(adapted) == (4 if settings else 0)
    assert all(parameter.requires_grad for parameter in trainer.trained.values())


def test_with_mixed_precision_the_casts_are_the_weights_of_the_generator(tmp_path: Path) -> None:
    trainer = trainer_of(tiny_model(tmp_path), **MIXED)
    shared = shared_with(trainer)
    assert trainer.casts is not None
    casts = storages(copy for _, copy in trainer.casts._pairs)
    assert storages(shared._model.parameters()) == casts
    assert {p.dtype for p in shared._model.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in trainer.module.parameters()} == {torch.float32}
    assert equal(dict(shared._model.named_parameters()), dict(copy_of(trainer)._model.named_parameters()))


class _Casting(TorchDispatchMode):
    """Counts how often each matrix is cast."""

    def __init__(self, trainer: HFTrainer) -> None:
        super().__init__()
        self.matrices = storages(p for p in trainer.module.decoder.layers.parameters() if p.ndim == 2)
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_):
            source = args[0] if func.overloadpacket is torch.ops.aten._to_copy else args[1]
            self.count += source.untyped_storage().data_ptr() in self.matrices
        return func(*args, **(kwargs or {}))


def test_weights_are_cast_once_per_optimizer_step_and_not_per_micro_batch(tmp_path: Path) -> None:
    settings = {**MIXED, "max_tokens_per_microbatch": 12, "recompute": "layers"}
    counts = []
    for is_shared in (True, False):
        trainer = trainer_of(tiny_model(tmp_path), **settings)
        if is_shared:
            shared_with(trainer)
        with _Casting(trainer) as casting:
            train(trainer)
        counts.append(casting.count / len(casting.matrices))
    once, by_autocast = counts
    assert once == 1
    assert by_autocast >= 4, "at least two micro-batches, and each layer twice"


def test_gradients_are_freed_after_a_step(tmp_path: Path) -> None:
    trainer = trainer_of(tiny_model(tmp_path))
    train(trainer)
    assert all(parameter.grad is None for parameter in trainer.module.parameters())


# --- weights that arrive ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, MIXED, {"lora": LORA}])
def test_a_loaded_checkpoint_is_sampled(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = tiny_model(tmp_path / "model")
    trained, trainer = (trainer_of(model, **settings) for _ in range(2))
    train(trained, 2)
    (tmp_path / "saved").mkdir()
    trained.save(tmp_path / "saved")
    shared, expected = shared_with(trainer), shared_with(trained)
    trainer.load(tmp_path / "saved")
    for generator, source in ((shared, trainer), (expected, trained)):
        generator.load_weights(source.weights(), version=2)
    assert generate(shared, requests()) == generate(expected, requests())


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    trainer = trainer_of(tiny_model(tmp_path))
    shared = shared_with(trainer)
    shared.load_weights(trainer.weights(), version=1)
    others = TensorWeights({name: value.detach().clone() for name, value in trainer.weights()})
    with pytest.raises(EngineError) as caught:
        shared.load_weights(others, version=2)
    assert str(caught.value).splitlines() == [
        "weights of another model",
        "  got:  'model.embed_tokens.weight' in other memory than that of the trainer",
        "  need: the weights of the trainer, with which this generator samples",
        "  do:   set generator.copy_weights, and it gets a copy that other weights can be copied into",
    ]
    with pytest.raises(EngineError, match="got:  no weights"):
        shared.load_weights(TensorWeights({}), version=2)


def test_casts_that_do_not_follow_the_weights_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(tiny_model(tmp_path), **MIXED)
    shared = shared_with(trainer)
    monkeypatch.setattr("purerl.opening.weight_check._NEW", 4)
    monkeypatch.setattr(Casts, "refresh", lambda self: None)
    # The trainer computes with the stale casts too; only what it reads in float32 differs.
    with pytest.raises(EngineError, match=r"does not use new values of .*(embed_tokens|lm_head)"):
        check_updates(trainer, shared, range(VOCAB_SIZE), ranks=ONE_RANK, seed=0, is_narrow=True)


class _Both:
    """A trainer that gets weights, and the generator that samples with them, as one generator."""

    def __init__(self, trainer: HFTrainer) -> None:
        self._trainer, self._generator = trainer, shared_with(trainer, max_num_seqs=16, max_prefill_tokens=40)
        self.capabilities = self._generator.capabilities
        self.submit, self.cancel, self.close = self._generator.submit, self._generator.cancel, self._generator.close

    def collect(self, timeout: float | None = None) -> list[Completion]:
        return self._generator.collect(timeout)

    def load_weights(self, weights: Weights, *, version: int) -> None:
        self._trainer.load_weights(weights)
        self._generator.load_weights(self._trainer.weights(), version=version)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_a_generator_with_shared_weights_conforms(tmp_path: Path, family: str) -> None:
    first, second = (tiny_model(tmp_path / str(seed), family, seed=seed) for seed in (0, 1))
    check_generator(lambda: _Both(trainer_of(first)), **suite_arguments(first, second))


# --- when -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("generator", "trainer", "reason"),
    [
        ({}, {}, None),
        ({"dtype": "float32"}, {"lora": LORA}, None),
        ({}, {**MIXED, "recompute": "layers", "packing": True}, None),
        ({"copy_weights": True}, {}, "generator.copy_weights is true"),
        ({"dtype": "bfloat16"}, {}, "generator.dtype is bfloat16, and the trainer computes in float32"),
        ({"device": "cuda:1"}, {}, "generator.device is cuda:1, and trainer.device is cpu"),
        ({}, {"compile": True}, "trainer.compile is true"),
        ({}, {"replay_routes": "old_logp"}, "trainer.replay_routes is old_logp"),
    ],
)
def test_reasons_for_a_copy(generator: dict[str, Any], trainer: dict[str, Any], reason: str | None) -> None:
    sampler = hf_generator.Config(**{"device": "cpu", **generator})
    settings = hf_trainer.Config(device="cpu", **trainer)
    assert copy_reason(sampler, model=Model("nowhere", dtype="float32"), trainer=settings) == reason


def test_peft_is_not_imported_without_an_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "peft"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "peft", None)  # importing it fails
    trainer = trainer_of(tiny_model(tmp_path, "llama"))
    assert len(generate(shared_with(trainer), requests())) == 6
