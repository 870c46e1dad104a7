"""The HF trainer: properties that are specific to this engine, beside the conformance suite."""

from __future__ import annotations

import copy
import math
import os
import shutil

import pytest
import torch
from torch import nn

from purerl.algos.algebra import prepare_step
from purerl.backends.hf.settings import OptimizerSettings
from purerl.backends.hf.trainer import Config, check_model
from purerl.backends.hf.training.engine import HFTrainer
from purerl.batch import with_fields
from purerl.errors import CheckpointError, ConfigError, InputError
from purerl.kernels import logp as kernel
from purerl.settings import Model
from tests.backends.gradients import keep_gradients
from tests.backends.saved import FILES
from tests.backends.tiny import FAMILIES, VOCAB_SIZE, make_trainer, write_model
from tests.backends.training import CRITIC, POLICY, equal, make_batch, make_step, parameters_of, train, weights_of


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    return write_model(tmp_path_factory.mktemp("models"))


def scores(trainer: HFTrainer, *outputs: str) -> dict[str, torch.Tensor]:
    return dict(trainer.score(make_batch(), outputs).items())


# --- models ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_equal_the_model_and_weights_equal_its_exported_files(tmp_path, family):
    from safetensors.torch import load_file

    # transformers computes experts in float32 at most.
    trainer = make_trainer(write_model(tmp_path, family), dtype="float32")
    batch = make_batch(dtype=torch.float32)
    with torch.no_grad():
        logits = trainer.module.model(batch["tokens"], attention_mask=batch["attention_mask"].long()).logits
    log_p = (
        (logits[:, :-1] / batch["temperature"][:, None, None]).log_softmax(-1).gather(-1, batch["tokens"][:, 1:, None])
    )
    expected = torch.where(batch["action"][:, 1:], log_p[..., 0], 0)
    torch.testing.assert_close(trainer.score(batch, ["logp"])["logp"][:, 1:], expected, rtol=1e-4, atol=1e-4)
    trainer.export(tmp_path)
    exported = load_file(tmp_path / "model.safetensors")
    assert equal(dict(trainer.weights()), exported)


@pytest.mark.parametrize("family", ["gemma2", "cohere", "granite"])
def test_model_with_an_unsupported_change_of_logits_is_refused(tmp_path, family, monkeypatch):
    monkeypatch.setattr(
        "purerl.backends.hf.model.token_model.logit_shape", lambda config: {"scale": 1.0, "softcap": None}
    )
    message = r"cannot be used: .*\n  got:  logits, from that product: they differ by "
    with pytest.raises(ConfigError, match=message):
        make_trainer(write_model(tmp_path, family))


def test_model_whose_decoder_returns_no_hidden_states_is_refused(path, monkeypatch):
    monkeypatch.setattr("purerl.backends.hf.model.self_test.decoder_of", lambda model: model)
    with pytest.raises(ConfigError, match=r"a decoder that returns CausalLMOutputWithPast, without hidden states"):
        make_trainer(path)


def test_model_with_a_weight_that_is_not_finite_is_refused(path, tmp_path):
    from safetensors.torch import load_file, save_file

    shutil.copytree(path, tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    next(iter(weights.values()))[0] = math.nan
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    message = r"cannot be used: its own .*not finite\n  got:  .*: NaN or infinity, in float64"
    with pytest.raises(ConfigError, match=message):
        make_trainer(str(tmp_path / "model"))


def test_model_that_attends_to_later_tokens_is_refused(path, monkeypatch):
    from transformers import Qwen3Model

    def forward(self, *args, original=Qwen3Model.forward, **kwargs):
        output = original(self, *args, **kwargs)
        output.last_hidden_state = output.last_hidden_state + 0.1 * output.last_hidden_state.mean(1, keepdim=True)
        return output

    monkeypatch.setattr(Qwen3Model, "forward", forward)
    with pytest.raises(ConfigError, match="hidden states of tokens that others follow"):
        make_trainer(path)


def test_model_with_a_nonlinear_head_is_refused(path, monkeypatch):
    forward = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda m, x: forward(m, x) * (2 if m.out_features == VOCAB_SIZE else 1))
    with pytest.raises(ConfigError, match="product of hidden states and output head"):
        make_trainer(path)


def test_dropout_is_off(tmp_path):
    trainer = make_trainer(write_model(tmp_path, "gpt2"))
    assert equal(scores(trainer, "logp"), scores(trainer, "logp"))
    assert any(module.p for module in trainer.module.modules() if isinstance(module, nn.Dropout))


def test_build_does_not_change_the_global_random_state(path):
    before = torch.get_rng_state()
    make_trainer(path, "critic")
    assert torch.equal(torch.get_rng_state(), before)


# --- precision and memory ----------------------------------------------------------------------------------------


def test_mixed_precision_computes_the_backbone_in_bfloat16_and_keeps_float32_weights(path):
    full, mixed = (
        make_trainer(path, dtype="float32", lr=1e-3, mixed_precision=precision) for precision in ("off", "bfloat16")
    )
    batch = make_batch(dtype=torch.float32)
    logps = [trainer.score(batch, ["logp"])["logp"] for trainer in (full, mixed)]
    assert logps[1].dtype == torch.float32
    assert not torch.equal(*logps)
    assert (logps[0] - logps[1]).abs().mean() < 0.1
    step, counts = prepare_step(POLICY, batch)
    norms = [trainer.step(step, POLICY, counts)["grad_norm"].total for trainer in (full, mixed)]
    torch.testing.assert_close(*norms, rtol=0.1, atol=0)
    assert {weight.dtype for _, weight in mixed.weights()} == {torch.float32}


def test_bfloat16_weights_are_trained(path):
    trainer = make_trainer(path, dtype="bfloat16", lr=1e-2)
    before = weights_of(trainer)
    report = trainer.step(*make_step(0))
    assert float(report["skipped"].total) == 0
    assert {weight.dtype for weight in before.values()} == {torch.bfloat16}
    assert not equal(before, weights_of(trainer))
    assert scores(trainer, "logp")["logp"].dtype == torch.float64


@pytest.mark.parametrize(("name", "settings"), [("recompute", {"recompute": "layers"}), ("compile", {"compile": True})])
def test_recomputation_and_compilation_of_a_model_without_layers_are_refused(path, monkeypatch, name, settings):
    monkeypatch.setattr("purerl.backends.hf.model.fit.layers_of", lambda module: iter(()))
    message = rf"^{name}\n  got:  Qwen3ForCausalLM, whose layers are not marked as layers(.|\n)*leave {name} out$"
    with pytest.raises(ConfigError, match=message):
        check_model(Config(**settings), model=Model(path), outputs=("logp",), is_trained=True)


def test_chunks_of_the_vocabulary_change_results_only_by_rounding(path, monkeypatch):
    results = []
    monkeypatch.setattr(kernel, "chunk_size", lambda vocabulary: 3)
    for max_logits in (kernel.KEPT, 3 * VOCAB_SIZE):
        monkeypatch.setattr(kernel, "KEPT", max_logits)
        trainer = make_trainer(path, lr=1e-2, eps=1e-2)
        report = train(trainer, 2)
        results.append([report, weights_of(trainer)])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12)


# --- optimizer steps ---------------------------------------------------------------------------------------------


def test_steps_equal_a_plain_adamw_loop_with_clipping_decay_and_schedule(path):
    settings = dict(lr=1e-2, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.3, max_grad_norm=0.5)
    trainer = make_trainer(
        path,
        **settings,
        lr_scheduler="cosine",
        warmup_steps=2,
        min_lr_ratio=0.1,
        updates=6,
        max_tokens_per_microbatch=20,
    )
    plain = copy.deepcopy(trainer.module)
    named = dict(plain.named_parameters())
    decayed = {name for name in named if name.endswith(("proj.weight", "lm_head.weight"))}
    groups = [
        {"params": [p for n, p in named.items() if (n in decayed) == decays], "weight_decay": 0.3 * decays}
        for decays in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.8, 0.9), eps=1e-3)
    # Manually computed: two warm-up steps, then 0.1 + 0.9 * (1 + cos(pi * k / 4)) / 2 for k = 0 ... 3.
    rates = [0.005, 0.01, 0.01, 0.008681981, 0.0055, 0.002318019]
    reports = train(trainer, 6)
    for seed, (rate, report) in enumerate(zip(rates, reports, strict=True)):
        batch = make_batch(seed)
        optimizer.zero_grad()
        logp = plain(batch["tokens"], batch["action"], batch["temperature"], ("logp",))["logp"]
        (-(logp * batch["advantage"])[batch["mask"]].mean()).backward()
        norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        assert report["learning_rate"] == pytest.approx(rate, abs=1e-9)
        assert report["grad_norm"] == pytest.approx(float(norm), rel=1e-6)
        assert norm > 0.5
    expected = {name: parameter.detach() for name, parameter in plain.model.named_parameters()}
    torch.testing.assert_close(weights_of(trainer), expected, rtol=1e-6, atol=1e-8)


def test_warmup_ratio_equals_the_same_number_of_warmup_steps(path):
    settings = dict(lr=1e-2, lr_scheduler="linear", updates=4)
    by_ratio, by_steps = (make_trainer(path, **settings, **w) for w in ({"warmup_ratio": 0.5}, {"warmup_steps": 2}))
    reports = train(by_ratio, 4)
    assert reports == train(by_steps, 4)
    assert [report["learning_rate"] for report in reports] == pytest.approx([0.005, 0.01, 0.01, 0.005])
    assert equal(weights_of(by_ratio), weights_of(by_steps))


def test_tied_head_does_not_decay(tmp_path):
    trainer = make_trainer(write_model(tmp_path, "llama"), lr=1e-2, weight_decay=0.5)
    decay, no_decay = ({id(p) for p in group["params"]} for group in trainer.optimizer.param_groups)
    model = trainer.module.model
    assert id(model.get_output_embeddings().weight) in no_decay
    assert id(model.model.norm.weight) in no_decay
    assert id(model.model.layers[0].mlp.up_proj.weight) in decay
    assert len(decay) + len(no_decay) == len(list(model.parameters()))


def test_skipped_step_changes_only_the_schedule(path):
    trainer = make_trainer(path, lr=1e-2, lr_scheduler="linear", updates=4)
    before = weights_of(trainer)
    batch, objective, counts = make_step(0)
    report = trainer.step(with_fields(batch, advantage=batch["advantage"] * torch.inf), objective, counts)
    assert float(report["skipped"].total) == 1
    assert "grad_norm" not in report
    assert equal(weights_of(trainer), before)
    assert [report["learning_rate"] for report in train(trainer)] == [pytest.approx(0.75e-2)]


def test_all_gradients_exist_after_a_step_without_rows(path):
    trainer = make_trainer(path)
    batch, objective, counts = make_step(0)
    kept = keep_gradients(trainer)
    report = trainer.step(batch[:0], objective, counts)
    assert kept.keys() == trainer.trained.keys()
    assert all(gradient is not None and gradient.count_nonzero() == 0 for gradient in kept.values())
    # `counts` is not 0, so tokens are counted.
    assert (float(report["skipped/zero_gradient"].total), float(report["skipped/no_tokens"].total)) == (1, 0)
    assert {name for name in report if name.startswith("loss")} == {"loss/policy"}


def test_rows_without_action_tokens_cost_one_token(path):
    trainer = make_trainer(path)
    shapes = []
    trainer.module.decoder.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    trainer.score(make_batch()[3:4], ["logp"])
    trainer.score(make_batch()[:1], ["logp"])
    # The last token of `..aaa.aax` is an action token, so the seven tokens before it, and one more, are read.
    assert shapes == [(1, 1), (1, 8)]


# --- roles -------------------------------------------------------------------------------------------------------


def test_critic_computes_the_value_before_each_action_token(path):
    trainer = make_trainer(path, "critic")
    batch = make_batch()
    with torch.no_grad():
        hidden = trainer.module.decoder(batch["tokens"], use_cache=False).last_hidden_state
        values = trainer.module.heads["value"](hidden[:, :-1])[..., 0]
        expected = torch.where(batch["action"][:, 1:], values, 0)
    torch.testing.assert_close(trainer.score(batch, ["value"])["value"][:, 1:], expected, rtol=1e-9, atol=1e-9)
    hotter = with_fields(batch, temperature=batch["temperature"] * 2)
    assert torch.equal(trainer.score(hotter, ["value"])["value"], trainer.score(batch, ["value"])["value"])


def test_critic_learns_its_targets(path):
    trainer = make_trainer(path, "critic", lr=1e-2, updates=60)
    batch, objective, counts = make_step(0, CRITIC)
    losses = [float(trainer.step(batch, objective, counts)["loss/value"].total) for _ in range(60)]
    assert losses[-1] < 0.1 * losses[0]


def test_seed_initializes_only_the_heads(path):
    first, again, other = (parameters_of(make_trainer(path, "critic", seed=seed)) for seed in (1, 1, 2))
    assert equal(first, again)
    assert {name for name in first if not torch.equal(first[name], other[name])} == {"heads.value.weight"}
    assert equal(parameters_of(make_trainer(path, seed=1)), parameters_of(make_trainer(path, seed=2)))


@pytest.mark.parametrize("role", ["policy", "critic"])
def test_exported_model_has_equal_scores(path, tmp_path, role):
    trainer = make_trainer(path, role, lr=1e-2)
    train(trainer, 2, CRITIC if role == "critic" else POLICY)
    trainer.export(tmp_path)
    exported = make_trainer(str(tmp_path), role, seed=5)
    outputs = trainer.module.outputs
    assert equal(scores(exported, *outputs), scores(trainer, *outputs))


def test_reference_computes_scores_and_is_not_trained(path, tmp_path):
    trainer = make_trainer(path, "reference", warmup_steps=100, updates=0)
    assert equal(scores(trainer, "logp"), scores(make_trainer(path), "logp"))
    assert trainer.optimizer is None
    assert dict(trainer.weights()) == {}
    with pytest.raises(InputError, match="an optimizer step\n  got:  a model that is not trained"):
        train(trainer)
    trainer.save(tmp_path)
    trainer.load(tmp_path)


def test_role_name_does_not_change_training(path):
    reward_model, policy = make_trainer(path, "reward_model", lr=1e-2), make_trainer(path, lr=1e-2)
    train(reward_model), train(policy)
    assert equal(weights_of(reward_model), weights_of(policy))


# --- checkpoints -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["policy", "critic"])
def test_checkpoint_restores_moments_and_schedule(path, tmp_path, role):
    objective = CRITIC if role == "critic" else POLICY
    settings = dict(lr=1e-2, lr_scheduler="cosine", warmup_steps=2)
    saved, loaded = (make_trainer(path, role, **settings, seed=seed) for seed in (0, 1))
    train(saved, 3, objective)
    saved.save(tmp_path)
    loaded.load(tmp_path)
    assert train(saved, 2, objective) == train(loaded, 2, objective)
    assert equal(parameters_of(saved), parameters_of(loaded))


def test_checkpoint_of_another_model_is_refused_and_names_tensors(path, tmp_path):
    make_trainer(write_model(tmp_path, "qwen3", hidden_size=24)).save(tmp_path)
    trainer = make_trainer(path)
    before = weights_of(trainer)
    with pytest.raises(CheckpointError) as error:
        trainer.load(tmp_path)
    assert "is a checkpoint of another model" in str(error.value)
    shapes = "model.lm_head.weight is float64 [19, 24] in the checkpoint and float64 [19, 16] in the model"
    assert shapes in str(error.value)
    assert "; and 16 more" in str(error.value)
    assert equal(weights_of(trainer), before)


@pytest.mark.parametrize("file", sorted(FILES))
@pytest.mark.parametrize(
    "damage", [os.unlink, lambda file: os.truncate(file, file.stat().st_size // 2)], ids=["missing", "truncated"]
)
def test_damaged_checkpoint_is_refused(path, tmp_path, file, damage):
    trainer = make_trainer(path, lr=1e-2)
    trainer.save(tmp_path)
    damage(tmp_path / file)
    train(trainer)
    before = weights_of(trainer)
    with pytest.raises(CheckpointError, match="no checkpoint can be read"):
        trainer.load(tmp_path)
    assert equal(weights_of(trainer), before)


# --- gradients on request ------------------------------------------------------------------------------------------


def test_gradients_of_rows_add_up_to_that_of_the_step_and_change_nothing(path):
    trainer, other = make_trainer(path, max_grad_norm=torch.inf), make_trainer(path, max_grad_norm=torch.inf)
    step, objective, counts = make_step(0)
    whole = trainer.gradient(step, objective, counts)
    rows = [trainer.gradient(step[k : k + 1], objective, counts) for k in range(len(step))]
    torch.testing.assert_close(whole, {name: sum(row[name] for row in rows) for name in whole})
    norm = torch.stack([value.square().sum() for value in whole.values()]).sum().sqrt()
    report, expected = (each.step(step, objective, counts) for each in (trainer, other))
    assert float(report["grad_norm"].total) == pytest.approx(float(norm), rel=1e-10)
    assert {name: float(m.total) for name, m in report.items()} == {n: float(m.total) for n, m in expected.items()}
    assert equal(weights_of(trainer), weights_of(other))


def test_the_gradient_is_that_of_a_step(path):
    """An optimizer that subtracts the gradient takes a step by it; other tests compare steps with plain training."""
    settings = {
        "optimizer": OptimizerSettings("torch.optim:SGD"),
        "lr": 0.5,
        "warmup_steps": 0,
        "max_grad_norm": math.inf,
    }
    trainer = make_trainer(path, **settings)
    gradient = trainer.gradient(*make_step(0))
    before = {name: parameter.detach().clone() for name, parameter in trainer.trained.items()}
    trainer.step(*make_step(0))
    assert {*gradient} == {*before}
    for name, value in gradient.items():
        torch.testing.assert_close(before[name] - trainer.trained[name], 0.5 * value, rtol=1e-9, atol=1e-12)
    assert max(float(value.abs().max()) for value in gradient.values()) > 0.1


def test_a_model_that_is_not_trained_has_no_gradient(path):
    with pytest.raises(InputError, match="a model that is not trained"):
        make_trainer(path, updates=0).gradient(*make_step(0))
