"""LoRA in the HF trainer and the HF generator, beside plain peft."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from attrs import evolve
from tensordict import TensorDict

from purerl.backends.hf import lora as lora_module
from purerl.backends.hf.decoder.loading import load_model
from purerl.backends.hf.lora import Lora
from purerl.backends.hf.mesh import Mesh
from purerl.backends.hf.trainer import Config, check
from purerl.backends.weights import TensorWeights
from purerl.batch import collate
from purerl.errors import ConfigError, EngineError, InputError
from purerl.protocols import Request, Sampling, generate
from purerl.settings import Model
from purerl.system.installation import install_command
from tests.backends.generators import make_generator, tiny_model
from tests.backends.gradients import keep_gradients
from tests.backends.tiny import make_trainer, write_model
from tests.backends.training import CRITIC, POLICY, equal, make_batch, make_step, parameters_of, train, weights_of
from tests.ranks import check_cases

LORA = Lora(rank=4, alpha=8.0, rank_stabilized=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    return write_model(tmp_path_factory.mktemp("models"))


def peft_model(path: str, directory: Path):
    from peft import PeftModel

    base = load_model(Model(path, dtype="float64"))
    return PeftModel.from_pretrained(base, directory, is_trainable=True).eval()


def logp_of(model, batch) -> torch.Tensor:
    """Log-probabilities by a plain forward pass and a softmax."""
    logits = model(input_ids=batch["tokens"], attention_mask=batch["attention_mask"].long()).logits
    logits = logits / torch.where(batch["temperature"] > 0, batch["temperature"], 1)[:, None, None]
    logp = logits.log_softmax(-1)[:, :-1].gather(-1, batch["tokens"][:, 1:, None])[..., 0]
    return torch.nn.functional.pad(logp, (1, 0)) * batch["action"]


def test_value_and_gradient_equal_those_of_peft(path, tmp_path):
    trainer = make_trainer(path, lora=evolve(LORA, export="adapter"), lr=1e-2, max_grad_norm=float("inf"))
    train(trainer, 2)
    trainer.export(tmp_path)
    model, (batch, objective, counts) = peft_model(path, tmp_path), make_step(5)
    logp = logp_of(model, batch)
    torch.testing.assert_close(trainer.score(batch, ["logp"])["logp"], logp, rtol=1e-6, atol=1e-6)
    (-(batch["advantage"] * logp)[batch["action"]].sum() / counts["policy"].tokens).backward()
    expected = {n.replace(".default", ""): p.grad for n, p in model.named_parameters() if p.grad is not None}
    kept = keep_gradients(trainer)
    trainer.step(batch, objective, counts)
    names = {parameter: name for name, parameter in trainer.trained.items()}
    gradients = {name: kept[names[value]] for name, value in trainer.adapter.tensors.items()}
    assert gradients.keys() == expected.keys()
    torch.testing.assert_close(gradients, expected, rtol=1e-6, atol=1e-8)


def test_only_the_adapter_changes_and_is_transferred(path):
    trainer = make_trainer(path, lora=LORA, lr=1e-2)
    before = parameters_of(trainer)
    train(trainer, 2)  # in the first step B is 0, and so is the gradient of A
    changed = {name for name, value in parameters_of(trainer).items() if not torch.equal(value, before[name])}
    assert changed == trainer.trained.keys() == {name for name in before if ".lora_" in name}
    weights = trainer.weights()
    assert weights.adapter["r"] == 4
    assert weights.adapter["use_rslora"] is True
    assert all(name.startswith("base_model.model.model.layers.") for name in weights.metadata)


def test_the_model_without_the_adapter_is_the_base_bit_for_bit(path):
    trainer, base = make_trainer(path, lora=LORA, lr=1e-2), make_trainer(path, "reference", updates=0)
    train(trainer, 2)
    scores = [each.score(make_batch(), ["logp", "entropy"]) for each in (trainer.base(), base, trainer)]
    assert torch.equal(scores[0]["logp"], scores[1]["logp"])
    assert not torch.equal(scores[0]["logp"], scores[2]["logp"])
    train(trainer)  # the adapter is still trained
    with pytest.raises(InputError, match="without its adapter"):
        trainer.base().step(*make_step(0))


@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_the_merged_export_computes_what_the_adapter_computes(tmp_path, family):
    trainer = make_trainer(write_model(tmp_path, family), lora=LORA, lr=1e-2)
    train(trainer, 2)
    exported = tmp_path / f"merged-{family}"
    trainer.export(exported)
    merged = make_trainer(str(exported), updates=0)
    assert merged.parameters.keys() == make_trainer(write_model(tmp_path, family), updates=0).parameters.keys()
    (ours, theirs) = (each.score(make_batch(), ["logp"])["logp"] for each in (trainer, merged))
    torch.testing.assert_close(theirs, ours, rtol=1e-6, atol=1e-6)


def test_frozen_weights_may_be_bfloat16(path):
    trainer = make_trainer(path, lora=LORA, dtype="bfloat16", mixed_precision="bfloat16", lr=1e-2)
    assert {value.dtype for value in trainer.trained.values()} == {torch.float32}
    assert {value.dtype for name, value in trainer.parameters.items() if ".lora_" not in name} == {torch.bfloat16}
    before = weights_of(trainer)
    assert train(trainer)[0]["skipped"] == 0
    assert not equal(before, weights_of(trainer))


def test_a_critic_trains_its_head_and_an_adapter(path):
    trainer = make_trainer(path, "critic", lora=LORA, lr=1e-2)
    before = parameters_of(trainer)
    train(trainer, 2, CRITIC)
    changed = {name for name, value in parameters_of(trainer).items() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if ".lora_" in name or name.startswith("heads.")}


def test_an_adapter_resumes_exactly_and_is_the_start_of_another_run(path, tmp_path):
    settings = {"lora": evolve(LORA, export="adapter"), "lr": 1e-2}
    trainer, resumed = make_trainer(path, **settings), make_trainer(path, seed=1, **settings)
    train(trainer, 2)
    trainer.save(tmp_path)
    resumed.load(tmp_path)
    for each in (trainer, resumed):
        each.step(*make_step(7, POLICY))
    assert equal(weights_of(resumed), weights_of(trainer))
    trainer.export(tmp_path / "adapter")
    started = make_trainer(path, lora=evolve(LORA, initial=str(tmp_path / "adapter")))
    assert equal(weights_of(started), weights_of(trainer))
    assert started.base() is None
    with pytest.raises(ConfigError, match=r"lora\.rank\n  got:  8\n  need: 4, as in "):
        make_trainer(path, lora=evolve(LORA, rank=8, initial=str(tmp_path / "adapter")))
    with pytest.raises(ConfigError, match="lora.initial with a reference"):
        check(Config(lora=started.config.lora), role="reference", outputs=("logp",), updates=0)


def test_weights_of_an_adapter_are_mixed(path):
    source, target = (make_trainer(path, lora=LORA, lr=1e-2, seed=seed) for seed in (0, 1))
    train(source, 2)
    old, new = weights_of(target), weights_of(source)
    target.load_weights(source.weights(), mix=0.25)
    torch.testing.assert_close(weights_of(target), {name: 0.75 * old[name] + 0.25 * new[name] for name in new})
    for weights in (TensorWeights(new), TensorWeights(new, adapter={"r": 8})):
        with pytest.raises(EngineError, match="weights of an adapter"):
            target.load_weights(weights)


def row_of(prompt: Sequence[int], completion: Sequence[int]) -> TensorDict:
    """A batch of one row."""
    action = [*[False] * len(prompt), *[True] * len(completion)]
    return collate([{"tokens": [*prompt, *completion], "action": action, "group": 0, "row": 0, "temperature": 1.0}])


# --- the generator -------------------------------------------------------------------------------------------------


def test_the_generator_merges_every_adapter_into_the_base(tmp_path):
    model = tiny_model(tmp_path)
    generator, trainer = make_generator(model), make_trainer(model.path, lora=LORA, lr=1e-1)
    for version in (1, 2):
        train(trainer, 2)
        generator.load_weights(trainer.weights(), version=version)
    fresh = make_generator(model)
    fresh.load_weights(trainer.weights(), version=2)
    assert equal(dict(generator._model.named_parameters()), dict(fresh._model.named_parameters()))
    [completion] = generate(generator, [Request("a", [3, 4, 5], Sampling(max_tokens=8), seed=0)])
    logp = trainer.score(row_of([3, 4, 5], completion.tokens), ["logp"])["logp"][0, 3:]
    torch.testing.assert_close(torch.tensor(completion.logp), logp, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w, a: ({}, a), "got:  no weights"),
        (lambda w, a: (w, {**a, "use_dora": True}), "got:  use_dora"),
        (lambda w, a: ({"lm_head.weight": next(iter(w.values()))}, a), "unknown weight 'lm_head.weight' of an adapter"),
        (lambda w, a: (dict([next(iter(w.items()))]), a), "an adapter of 'model.layers.0.self_attn.q_proj.weight'"),
    ],
)
def test_adapters_that_cannot_be_merged_are_refused(tmp_path, change, message):
    model = tiny_model(tmp_path)
    generator, weights = make_generator(model), make_trainer(model.path, lora=LORA).weights()
    tensors, adapter = change(dict(weights), dict(weights.adapter))
    with pytest.raises(EngineError, match=message):
        generator.load_weights(TensorWeights(tensors, adapter=adapter), version=1)


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "targets", "message"),
    [
        ("qwen3", ("lm_head",), "the output head"),
        ("qwen3", ("nothing",), "not found"),
        ("llama", ("embed_tokens",), "embed_tokens, a Embedding"),
        ("gpt2", ("all-linear",), "a Conv1D"),
        ("qwen3_moe", ("all-linear",), "experts that share one tensor"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_layers_without_an_adapter_are_refused(tmp_path, family, targets, message):
    with pytest.raises(ConfigError, match=rf"lora.target_modules\n  got:  {targets[0]}: .*{message}"):
        make_trainer(write_model(tmp_path, family), lora=Lora(target_modules=targets))


def test_settings_that_do_not_fit_are_refused(monkeypatch):
    with pytest.raises(ConfigError, match=r"mesh.tensor\n  got:  2\n  need: 1 with lora"):
        Config(lora=Lora(), mesh=Mesh(tensor=2))
    with pytest.raises(ConfigError, match="target_modules"):
        Lora(target_modules=("all-linear", "q_proj"))
    monkeypatch.setattr(lora_module, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=re.escape(install_command("lora"))):
        check(Config(lora=Lora()), role="policy", outputs=("logp",), updates=10)


@pytest.mark.parallel
def test_an_adapter_on_two_ranks_equals_one_process():
    check_cases("-m", "tests.backends.lora_ranks")
