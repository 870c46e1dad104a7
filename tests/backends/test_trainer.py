"""The embedded trainer: what the published suite does not ask, because it is this engine's own."""

from __future__ import annotations

import copy
import os

import pytest
import torch
from torch import nn

from purerl.algos.algebra import Objective, Term, of_fields, prepare_step
from purerl.algos.parts.reductions import token_mean
from purerl.backends.hf.heads import recompute_layers
from purerl.backends.hf.trainer import Config
from purerl.batch import with_fields
from purerl.errors import BatchError, CheckpointError, ConfigError, InputError
from purerl.kernels import logp as kernel
from purerl.testing.batches import example_batch
from tests.backends.tiny import FAMILIES, VOCABULARY, trainer, write_model

LAYOUT = ((0, "..aaa.aax"), (1, "..a"), (0, "...axaaaaa."), (2, "."), (0, "..a..aa"), (1, "..aaaa"))


def batch(seed: int = 0, dtype: torch.dtype = torch.float64):
    made = example_batch(("old_logp", "advantage", "temperature", "returns"), LAYOUT, seed=seed, dtype=dtype)
    tokens = torch.randint(0, VOCABULARY, made["tokens"].shape, generator=torch.Generator().manual_seed(seed))
    return with_fields(made, tokens=torch.where(made["attention_mask"], tokens, 0))


def _policy_gradient(logp, advantage):
    return -advantage * logp


def _squared_error(value, returns):
    return (value - returns).square() / 2


POLICY = Objective(
    "policy",
    ("advantage",),
    ("logp",),
    (Term("policy", of_fields(_policy_gradient, "logp", "advantage"), token_mean),),
    metric_outputs=("entropy",),
)
CRITIC = Objective(
    "critic", ("returns",), ("value",), (Term("value", of_fields(_squared_error, "value", "returns"), token_mean),)
)


def run(made, steps: int = 1, objective: Objective = POLICY) -> list[dict[str, float]]:
    """What `max_steps` steps report, as means."""
    reports = [made.step(*_given(seed, objective)) for seed in range(steps)]
    return [{name: float(m.total / m.weight) for name, m in report.items() if m.weight} for report in reports]


def _given(seed, objective):
    step, counts = prepare_step(objective, batch(seed))
    return step, objective, counts


def weights(made) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in made.weights()}


def same(ours: dict, theirs: dict) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    return write_model(tmp_path_factory.mktemp("models"))


# --- models ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_and_names_are_those_of_the_model_itself(tmp_path, family):
    from safetensors.torch import load_file

    # transformers computes experts in float32 at most.
    made = trainer(write_model(tmp_path, family), dtype="float32")
    rows = batch(dtype=torch.float32)
    with torch.no_grad():
        logits = made.module.causal(rows["tokens"], attention_mask=rows["attention_mask"].long()).logits
    log_p = (
        (logits[:, :-1] / rows["temperature"][:, None, None]).log_softmax(-1).gather(-1, rows["tokens"][:, 1:, None])
    )
    wanted = torch.where(rows["action"][:, 1:], log_p[..., 0], 0)
    torch.testing.assert_close(made.score(rows, ["logp"])["logp"][:, 1:], wanted, rtol=1e-4, atol=1e-4)
    made.export(tmp_path)
    exported = load_file(tmp_path / "model.safetensors")
    assert same(dict(made.weights()), exported)


@pytest.mark.parametrize("family", ["gemma2", "cohere", "granite"])
def test_logits_that_are_finished_in_an_unknown_way_are_refused(tmp_path, family, monkeypatch):
    monkeypatch.setattr("purerl.backends.hf.trainer.logit_shape", lambda config: {"scale": 1.0, "softcap": None})
    with pytest.raises(ConfigError, match=r"cannot be trained here: .*\n  got:  logits, from that product: .* apart"):
        trainer(write_model(tmp_path, family))


def test_a_model_that_looks_to_the_right_is_refused(path, monkeypatch):
    from transformers import Qwen3Model

    def forward(self, *args, true=Qwen3Model.forward, **kwargs):
        output = true(self, *args, **kwargs)
        output.last_hidden_state = output.last_hidden_state + 0.1 * output.last_hidden_state.mean(1, keepdim=True)
        return output

    monkeypatch.setattr(Qwen3Model, "forward", forward)
    with pytest.raises(ConfigError, match="hidden states of its decoder, with padding to the right"):
        trainer(path)


def test_a_head_that_is_not_linear_is_refused(path, monkeypatch):
    true = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda m, x: true(m, x) * (2 if m.out_features == VOCABULARY else 1))
    with pytest.raises(ConfigError, match="product of hidden states and output head"):
        trainer(path)


def test_dropout_is_off(tmp_path):
    made = trainer(write_model(tmp_path, "gpt2"))
    assert same(dict(made.score(batch(), ["logp"]).items()), dict(made.score(batch(), ["logp"]).items()))
    assert any(m.p for m in made.module.modules() if isinstance(m, nn.Dropout))


def test_building_leaves_the_global_generator_alone(path):
    before = torch.get_rng_state()
    trainer(path, "critic")
    assert torch.equal(torch.get_rng_state(), before)


# --- precision and memory ----------------------------------------------------------------------------------------


def test_autocast_computes_the_backbone_narrowly_and_keeps_weights_wide(path):
    wide, narrow = (
        trainer(path, dtype="float32", lr=1e-3, mixed_precision=autocast) for autocast in ("off", "bfloat16")
    )
    rows = batch(dtype=torch.float32)
    scores = [made.score(rows, ["logp"])["logp"] for made in (wide, narrow)]
    assert scores[1].dtype == torch.float32
    assert not torch.equal(*scores)
    assert (scores[0] - scores[1]).abs().mean() < 0.1
    norms = [
        made.step(*prepare_step(POLICY, rows)[:1], POLICY, prepare_step(POLICY, rows)[1])["grad_norm"].total
        for made in (wide, narrow)
    ]
    torch.testing.assert_close(*norms, rtol=0.1, atol=0)
    assert {weight.dtype for _, weight in narrow.weights()} == {torch.float32}


def test_narrow_weights_train(path):
    made = trainer(path, dtype="bfloat16", lr=1e-2)
    before = weights(made)
    report = made.step(*_given(0, POLICY))
    assert float(report["skipped"].total) == 0
    assert {weight.dtype for weight in before.values()} == {torch.bfloat16}
    assert not same(before, weights(made))
    assert made.score(batch(), ["logp"])["logp"].dtype == torch.float64


def test_layers_are_computed_again_in_the_backward_pass(path):
    calls = []
    for again in (False, True):
        made = trainer(path, gradient_checkpointing=again)
        calls.append(0)
        for layer in made.module.causal.model.layers:
            layer.mlp.register_forward_pre_hook(lambda *_: calls.append(calls.pop() + 1))
        run(made)
    assert calls == [2, 4]


def test_a_model_without_layers_cannot_recompute_them():
    with pytest.raises(ConfigError, match="gradient_checkpointing"):
        recompute_layers(nn.Linear(2, 2))


def test_chunks_of_the_vocabulary_change_nothing_but_rounding(path, monkeypatch):
    results = []
    monkeypatch.setattr(kernel, "chunk_size", lambda vocabulary: 3)
    for kept in (kernel.KEPT, 3 * VOCABULARY):
        monkeypatch.setattr(kernel, "KEPT", kept)
        made = trainer(path, lr=1e-2, eps=1e-2)
        report = run(made, 2)
        results.append([report, weights(made)])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12)


# --- steps -------------------------------------------------------------------------------------------------------


def test_steps_are_those_of_a_plain_adamw_loop_with_clipping_decay_and_schedule(path):
    settings = dict(lr=1e-2, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.3, max_grad_norm=0.5)
    made = trainer(
        path,
        **settings,
        lr_scheduler="cosine",
        warmup_steps=2,
        min_lr_ratio=0.1,
        updates=6,
        max_tokens_per_microbatch=20,
    )
    plain = copy.deepcopy(made.module)
    named = dict(plain.named_parameters())
    decayed = {name for name in named if name.endswith(("proj.weight", "lm_head.weight"))}
    groups = [
        {"params": [p for n, p in named.items() if (n in decayed) == decays], "weight_decay": 0.3 * decays}
        for decays in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.8, 0.9), eps=1e-3)
    # By hand: two steps up, then 0.1 + 0.9 * (1 + cos(pi * k / 4)) / 2 for k = 0 ... 3.
    rates = [0.005, 0.01, 0.01, 0.008681981, 0.0055, 0.002318019]
    reports = run(made, 6)
    for seed, (rate, report) in enumerate(zip(rates, reports, strict=True)):
        rows = batch(seed)
        logp = plain(rows["tokens"], rows["action"], rows["temperature"], rows["group"])["logp"]
        optimizer.zero_grad()
        (-(logp * rows["advantage"])[rows["mask"]].mean()).backward()
        norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        assert report["learning_rate"] == pytest.approx(rate, abs=1e-9)
        assert report["grad_norm"] == pytest.approx(float(norm), rel=1e-6)
        assert norm > 0.5
    wanted = {name: parameter.detach() for name, parameter in plain.causal.named_parameters()}
    torch.testing.assert_close(weights(made), wanted, rtol=1e-6, atol=1e-8)


def test_a_tied_head_does_not_decay(tmp_path):
    made = trainer(write_model(tmp_path, "llama"), lr=1e-2, weight_decay=0.5)
    decayed, kept = ({id(p) for p in group["params"]} for group in made.optimizer.param_groups)
    causal = made.module.causal
    assert id(causal.get_output_embeddings().weight) in kept
    assert id(causal.model.norm.weight) in kept
    assert id(causal.model.layers[0].mlp.up_proj.weight) in decayed
    assert len(decayed) + len(kept) == len(list(causal.parameters()))


def test_a_skipped_step_moves_the_schedule_on_and_nothing_else(path):
    made = trainer(path, lr=1e-2, lr_scheduler="linear", updates=4)
    before = weights(made)
    rows, objective, counts = _given(0, POLICY)
    report = made.step(with_fields(rows, advantage=rows["advantage"] * torch.inf), objective, counts)
    assert float(report["skipped"].total) == 1
    assert "grad_norm" not in report
    assert same(weights(made), before)
    assert [report["learning_rate"] for report in run(made)] == [pytest.approx(0.75e-2)]


def test_every_gradient_is_there_after_a_step_without_rows(path):
    made = trainer(path)
    rows, objective, counts = _given(0, POLICY)
    report = made.step(rows[:0], objective, counts)
    assert all(p.grad is not None and p.grad.count_nonzero() == 0 for p in made.module.parameters())
    # Other ranks counted tokens, so this one takes its part in the step.
    assert float(report["skipped"].total) == 0
    assert {name for name in report if name.startswith("loss")} == {"loss/policy"}


def test_rows_without_action_tokens_cost_one_token(path):
    made = trainer(path)
    widths = []
    made.module.causal.model.register_forward_pre_hook(
        lambda m, a, kwargs: widths.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    made.score(batch()[3:4], ["logp"])
    made.score(batch()[:1], ["logp"])
    # The last token of `..aaa.aax` is an action token: the seven before it predict all that there is.
    assert widths == [(1, 1), (1, 8)]


# --- roles -------------------------------------------------------------------------------------------------------


def test_a_critic_gives_the_value_before_each_action_token(path):
    made = trainer(path, "critic")
    rows = batch()
    with torch.no_grad():
        hidden = made.module.backbone(rows["tokens"], use_cache=False).last_hidden_state
        wanted = torch.where(rows["action"][:, 1:], made.module.head(hidden[:, :-1])[..., 0], 0)
    torch.testing.assert_close(made.score(rows, ["value"])["value"][:, 1:], wanted, rtol=1e-9, atol=1e-9)
    warm = with_fields(rows, temperature=rows["temperature"] * 2)
    assert torch.equal(made.score(warm, ["value"])["value"], made.score(rows, ["value"])["value"])


def test_a_critic_learns_its_targets(path):
    made = trainer(path, "critic", lr=1e-2, updates=60)
    rows, objective, counts = _given(0, CRITIC)
    losses = [float(made.step(rows, objective, counts)["loss/value"].total) for _ in range(60)]
    assert losses[-1] < 0.1 * losses[0]


def test_the_seed_draws_the_head_of_a_critic_and_nothing_else(path):
    first, again, other = (weights(trainer(path, "critic", seed=seed)) for seed in (1, 1, 2))
    assert same(first, again)
    assert {name for name in first if not torch.equal(first[name], other[name])} == {"head.weight"}
    assert same(weights(trainer(path, seed=1)), weights(trainer(path, seed=2)))


@pytest.mark.parametrize("role", ["policy", "critic"])
def test_an_exported_model_scores_as_it_did(path, tmp_path, role):
    made = trainer(path, role, lr=1e-2)
    run(made, 2, CRITIC if role == "critic" else POLICY)
    made.export(tmp_path)
    reopened = trainer(str(tmp_path), role, seed=5)
    outputs = made.module.outputs
    assert same(dict(reopened.score(batch(), outputs).items()), dict(made.score(batch(), outputs).items()))


def test_a_reference_scores_and_is_never_stepped(path, tmp_path):
    made = trainer(path, "reference", warmup_steps=100)
    assert same(dict(made.score(batch(), ["logp"]).items()), dict(trainer(path).score(batch(), ["logp"]).items()))
    assert made.optimizer is None
    assert dict(made.weights()) == {}
    with pytest.raises(InputError, match="this model is a reference"):
        run(made)
    made.save(tmp_path)
    made.load(tmp_path)


def test_any_other_role_is_a_policy(path):
    ours, theirs = trainer(path, "reward_model", lr=1e-2), trainer(path, lr=1e-2)
    run(ours), run(theirs)
    assert same(weights(ours), weights(theirs))


# --- checkpoints -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["policy", "critic"])
def test_a_checkpoint_holds_moments_and_the_place_in_the_schedule(path, tmp_path, role):
    objective = CRITIC if role == "critic" else POLICY
    settings = dict(lr=1e-2, lr_scheduler="cosine", warmup_steps=2)
    saved, loaded = (trainer(path, role, **settings, seed=seed) for seed in (0, 1))
    run(saved, 3, objective)
    saved.save(tmp_path)
    loaded.load(tmp_path)
    assert run(saved, 2, objective) == run(loaded, 2, objective)
    assert same(weights(saved), weights(loaded))


def test_a_checkpoint_of_another_model_is_refused_by_its_tensors(path, tmp_path):
    made = trainer(write_model(tmp_path, "qwen3", hidden_size=24))
    made.save(tmp_path)
    here = trainer(path)
    before = weights(here)
    with pytest.raises(CheckpointError) as error:
        here.load(tmp_path)
    assert "is a checkpoint of another model" in str(error.value)
    assert "causal.lm_head.weight is float64 [19, 24] there, float64 [19, 16] here" in str(error.value)
    assert "; and 16 more" in str(error.value)
    assert same(weights(here), before)


@pytest.mark.parametrize("damage", ["weights.safetensors", "state.pt"])
@pytest.mark.parametrize(
    "how", [os.unlink, lambda file: os.truncate(file, file.stat().st_size // 2)], ids=["missing", "cut"]
)
def test_a_damaged_checkpoint_is_refused(path, tmp_path, damage, how):
    made = trainer(path, lr=1e-2)
    made.save(tmp_path)
    how(tmp_path / damage)
    run(made)
    before = weights(made)
    with pytest.raises(CheckpointError, match="no checkpoint can be read"):
        made.load(tmp_path)
    assert same(weights(made), before)


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        dict(lr=-1e-3),
        dict(lr=float("nan")),
        dict(lr=2.0),
        dict(lr="fast"),
        dict(betas=(0.9, 1.0)),
        dict(betas=(0.9,)),
        dict(eps=0.0),
        dict(weight_decay=-0.1),
        dict(lr_scheduler="exponential"),
        dict(warmup_steps=-1),
        dict(warmup_steps=2.5),
        dict(lr_scheduler="linear", min_lr_ratio=1.5),
        dict(min_lr_ratio=0.1),
        dict(max_grad_norm=0.0),
        dict(max_tokens_per_microbatch=0),
        dict(mixed_precision="float16"),
        dict(gradient_checkpointing=1),
        dict(gradient_checkpointing="yes"),
        dict(betas=0.9),
        dict(max_grad_norm=float("nan")),
    ],
    ids=str,
)
def test_a_setting_that_cannot_be_is_refused(settings):
    with pytest.raises(ConfigError, match=rf"^{list(settings)[-1]}\n"):
        Config(**settings)


def test_a_fraction_that_a_constant_schedule_would_ignore_is_refused():
    with pytest.raises(ConfigError) as error:
        Config(min_lr_ratio=0.1)
    assert str(error.value).splitlines() == [
        "min_lr_ratio",
        "  got:  0.1",
        "  need: lr_scheduler linear or cosine: a constant one ends where it is",
        "  do:   leave it out",
    ]


def test_a_warm_up_as_long_as_the_run_is_refused(path):
    with pytest.raises(ConfigError, match=r"warmup_steps\n  got:  10\n  need: less than the run's 10 optimizer steps"):
        trainer(path, warmup_steps=10, updates=10)


def test_a_device_that_is_not_there_is_refused(path):
    with pytest.raises(ConfigError, match=r"device\n  got:  abacus: "):
        trainer(path, device="abacus")


@pytest.mark.parametrize(("role", "output"), [("policy", "value"), ("critic", "logp"), ("reference", "value")])
def test_an_output_of_another_role_is_refused(path, role, output):
    with pytest.raises(InputError, match=f"an output that this model does not have\n  got:  {output}\n"):
        trainer(path, role).score(batch(), [output])


@pytest.mark.parametrize("field", ["tokens", "temperature", "advantage"])
def test_a_batch_without_a_field_that_is_read_is_refused(path, field):
    rows, objective, counts = _given(0, POLICY)
    with pytest.raises(BatchError, match=f"field '{field}' is missing"):
        trainer(path).step(rows.exclude(field), objective, counts)
