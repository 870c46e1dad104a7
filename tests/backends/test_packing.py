"""Sequence packing: scores and gradients are those of padded rows, and no row has an effect on another."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from purerl.algos.algebra import prepare_step
from purerl.backends.hf import trainer
from purerl.backends.hf.lora import Lora
from purerl.backends.hf.mesh import Mesh
from purerl.backends.hf.model import packed_attention
from purerl.backends.hf.model import self_test as probe
from purerl.backends.hf.model.packing import pack
from purerl.backends.hf.training import layout
from purerl.backends.hf.training.layout import MicroBatch, arrange_packs
from purerl.backends.training import Budget
from purerl.batch import with_fields
from purerl.errors import ConfigError
from purerl.kernels.partition import tokens_needed
from purerl.ranks import Ranks
from purerl.settings import Model
from purerl.testing.batches import example_batch, layouts
from tests.backends.tiny import FAMILIES, VOCAB_SIZE, make_trainer, write_model
from tests.backends.training import CRITIC, POLICY, make_batch, train

# Rows of equal and of different lengths, one without action tokens, one of one token, one longer than a small budget.
LAYOUT = (
    (0, "..aaa.aax"),
    (1, "..a"),
    (0, "...axaaaaa.aa"),
    (2, "."),
    (0, "..a..aa"),
    (1, "..aaaa."),
    (2, "..axx"),
    (2, "..aaaaa"),
    (3, ".a"),
)
SMALL = 9
# Window and soft cap are small, so that they have an effect on these rows.
CHANGES = {"gemma2": {"attn_logit_softcapping": 1.5, "sliding_window": 4}}
# These families compute norms, or also attention, in float32, whatever the dtype of their weights; experts all of it.
TOLERANCES = dict.fromkeys(FAMILIES, 1e-6) | {"phi": 1e-9, "gpt2": 1e-9, "qwen3_moe": 1e-4}


def make_pair(path, **settings):
    """A trainer that packs rows, and one that pads them into one rectangle."""
    dtype = "float32" if "moe" in path else "float64"
    return (
        make_trainer(path, dtype=dtype, **{"packing": True, **settings}),
        make_trainer(path, dtype=dtype, **{"share_prefixes": False, "packing": False, **settings}),
    )


def rows_of(trainer, layout=LAYOUT):
    return make_batch(layout=layout, dtype=trainer.module.model.dtype)


def gradients(trainer, objective=POLICY):
    step, counts = prepare_step(objective, rows_of(trainer))
    for part in trainer._arrange(step, ("tokens", "temperature", *objective.reads), objective.unit):
        trainer._backward(step, part, objective, counts)
    return {name: parameter.grad for name, parameter in trainer.trained.items()}


def check_equal(packed, padded, *, tolerance, objective=POLICY):
    """Raise AssertionError if scores or gradients differ."""
    outputs = [*objective.outputs, *objective.metric_outputs]
    scores = [each.score(rows_of(each), outputs) for each in (packed, padded)]
    torch.testing.assert_close(*scores, rtol=tolerance, atol=tolerance)
    actual, expected = gradients(packed, objective), gradients(padded, objective)
    assert max(float(gradient.abs().max()) for gradient in expected.values()) > 1e-2
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("budget", [SMALL, 1000])
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_equals_padded(tmp_path, family, budget):
    packed, padded = make_pair(write_model(tmp_path, family, **CHANGES.get(family, {})))
    packed.config = trainer.Config(packing=True, max_tokens_per_microbatch=budget)
    check_equal(packed, padded, tolerance=TOLERANCES[family])


@pytest.mark.parametrize("family", ["gemma2", "qwen2"])
def test_window_and_soft_cap_have_an_effect_on_these_rows(tmp_path, family):
    """Otherwise the test above would not notice if they are missing."""
    none = {"gemma2": {"attn_logit_softcapping": None, "sliding_window": 64}, "qwen2": {"use_sliding_window": False}}
    _, padded = make_pair(write_model(tmp_path, family, **CHANGES.get(family, {})))
    for change in none[family].items():
        other = write_model(tmp_path / change[0], family, **CHANGES.get(family, {}) | dict([change]))
        packed, _ = make_pair(other)
        with pytest.raises(AssertionError, match="not close"):
            check_equal(packed, padded, tolerance=1e-3)


@pytest.mark.parametrize(
    "settings",
    [
        {"role": "critic"},
        {"recompute": "layers"},
        {"recompute": "selective"},
        {"lora": Lora(rank=2)},
    ],
    ids=str,
)
def test_packed_equals_padded_with(tmp_path, settings):
    packed, padded = make_pair(write_model(tmp_path, "phi"), max_tokens_per_microbatch=20, **settings)
    check_equal(packed, padded, tolerance=1e-9, objective=CRITIC if "role" in settings else POLICY)


def test_metrics_of_steps_with_experts_are_those_of_padded_rows(tmp_path):
    settings = {"router_aux_loss_coef": 0.5, "lr": 1e-2, "max_tokens_per_microbatch": 20}
    packed, padded = (train(each, 2) for each in make_pair(write_model(tmp_path, "qwen3_moe"), **settings))
    assert packed == [pytest.approx(report, rel=1e-3) for report in padded]
    assert packed[0]["router_aux_loss"] > 0


# --- nothing between rows, nothing for padding ---------------------------------------------------------------------


@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_no_row_has_an_effect_on_another(tmp_path, family):
    packed, _ = make_pair(write_model(tmp_path, family))
    batch = rows_of(packed)
    before = packed.score(batch, ["logp", "entropy"])
    for row in range(len(batch)):
        tokens = batch["tokens"].clone()
        tokens[row] = (tokens[row] + 1) % VOCAB_SIZE * batch["attention_mask"][row]
        after = packed.score(with_fields(batch, tokens=tokens), ["logp", "entropy"])
        others = torch.arange(len(batch)) != row
        assert (after["logp"][others] == before["logp"][others]).all()  # bit for bit
        assert (after["entropy"][others] == before["entropy"][others]).all()
        assert (after["logp"][row] != before["logp"][row]).any() == batch["action"][row].any()


def test_only_tokens_before_action_tokens_are_read(tmp_path):
    packed, _ = make_pair(write_model(tmp_path))
    widths, lengths = [], []
    packed.module.decoder.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    true = packed_attention.AttentionInterface._global_mapping["sdpa"]

    def attend(module, query, *args, **kwargs):
        lengths.append(query.shape[0] * query.shape[2])
        return true(module, query, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(packed_attention.AttentionInterface._global_mapping, "sdpa", attend)
        packed.score(rows_of(packed), ["logp"])
    needed = tokens_needed(rows_of(packed)["action"]).tolist()
    assert widths == [(1, sum(needed))]
    assert max(lengths) < sum(needed)
    assert sum(lengths) == 2 * sum(needed)  # in two layers
    assert len(lengths) == 2 * len(set(needed) - {0})  # rows of equal length in one call


@pytest.mark.slow
def test_layers_are_compiled_once_for_all_packs(tmp_path, monkeypatch):
    from torch._dynamo.utils import counters

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    settings = {"packing": True, "compile": True, "max_tokens_per_microbatch": 128}
    packed = make_trainer(write_model(tmp_path, "phi"), **settings)
    torch.compiler.reset()
    graphs = []
    for seed in range(4):
        layout = [(0, ".a" + "a" * ((7 * seed + 5 * row) % 40)) for row in range(8)]
        packed.score(make_batch(seed, layout=layout), ["logp"])
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[1:] == graphs[:1] * 3


@pytest.mark.slow
def test_compiled_layers_are_kept_where_no_other_user_can_write(tmp_path, monkeypatch):
    from torch._inductor.runtime.cache_dir_utils import cache_dir, default_cache_dir

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    for default in (None, default_cache_dir()):  # torch writes it into the variable, also where nothing is compiled
        monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
        if default is not None:
            monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", default)
        make_trainer(write_model(tmp_path, "phi"), compile=True)
        assert cache_dir() == str(tmp_path / "cache" / "purerl" / "inductor")
    assert (tmp_path / "cache" / "purerl").stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "given"))
    make_trainer(write_model(tmp_path, "phi"), compile=True)
    assert cache_dir() == str(tmp_path / "given")


# --- mutants -------------------------------------------------------------------------------------------------------


def attend_everywhere(attend, query, key, value, boundaries, *, true=packed_attention._attend_runs):
    return true(attend, query, key, value, evolve(boundaries, runs=((1, query.shape[2]),)))


def attend_in_wrong_rows(attend, query, key, value, boundaries, *, true=packed_attention._attend_runs):
    return true(attend, query, key, value, evolve(boundaries, runs=boundaries.runs[::-1]))


def positions_continue(action):
    line = pack(action)
    return line._replace(position=torch.arange(len(line.position)))


def windows_are_ignored(query, sliding_window, *, is_eager, true=packed_attention._mask):
    return true(query, None, is_eager=is_eager)


MUTANTS = [
    ("phi", [(packed_attention, "_attend_runs")], attend_everywhere),
    ("phi", [(packed_attention, "_attend_runs")], attend_in_wrong_rows),
    # Rotary positions have an effect only on distances, so this mutant needs learned positions.
    ("gpt2", [(layout, "pack"), (probe, "pack")], positions_continue),
    ("gemma2", [(packed_attention, "_mask")], windows_are_ignored),
]


@pytest.mark.parametrize(("family", "places", "mutant"), MUTANTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_mutant_is_caught_by_the_probe_and_by_the_comparison(tmp_path, monkeypatch, family, places, mutant):
    path = write_model(tmp_path, family)
    for place in places:
        monkeypatch.setattr(*place, mutant)
    with pytest.raises(ConfigError, match=r"^packing\n  got:  \w+ForCausalLM: |LMHeadModel: other hidden states"):
        make_trainer(path, packing=True)
    monkeypatch.setattr(probe, "probe_pack", lambda *_: None)
    with pytest.raises(AssertionError, match="not close"):
        check_equal(*make_pair(path), tolerance=1e-4)


# --- lines ---------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(layouts(), st.integers(1, 5))
def test_a_pack_has_every_token_that_must_be_read_once(rows, multiple):
    action = example_batch(["temperature"], rows)["action"]
    line, needed = pack(action), tokens_needed(action)
    row, position = line.index // action.shape[1], line.index % action.shape[1]
    if action.any():
        assert torch.equal(torch.bincount(row, minlength=len(action)), needed)
        assert torch.equal(line.position, position)
        assert torch.equal(line.start[row] + position, torch.arange(len(row)))
    assert sum(count * length for count, length in line.boundaries.runs) == len(line.index)
    lengths = [length for count, length in line.boundaries.runs for _ in range(count)]
    assert lengths == sorted(lengths, reverse=True)
    padded = line.padded(multiple)
    assert len(padded.index) == -(-len(line.index) // multiple) * multiple
    for each in (line, padded):
        sizes = [length for count, length in each.boundaries.runs for _ in range(count)]
        assert each.boundaries.offsets.diff().tolist() == sizes
        assert len(each.index) == len(each.position) == sum(sizes)


@settings(deadline=None)
@given(layouts(), st.integers(1, 4), st.sampled_from(["row", "group"]), st.integers(1, 30))
def test_every_row_is_in_one_pack_of_one_rank(rows, ranks, unit, budget):
    batch = example_batch(["temperature"], rows)
    options = {"unit": unit, "budget": Budget(budget)}
    parts_of_ranks = [arrange_packs(batch, **options, ranks=Ranks(rank, ranks)) for rank in range(ranks)]
    parts = [part for parts in parts_of_ranks for part in parts]
    assert sorted(row for part in parts for row in part.rows.tolist()) == list(range(len(batch)))
    assert len({len(parts) for parts in parts_of_ranks}) == 1
    labels = batch["group"] if unit == "group" else torch.arange(len(batch))
    units = [labels[part.rows].unique().tolist() for part in parts]
    all_units = [label for own in units for label in own]
    assert len(all_units) == len(set(all_units))
    for part, own in zip(parts, units, strict=True):
        assert len(own) <= 1 or int(tokens_needed(batch["action"][part.rows]).sum()) <= budget


def test_a_rank_without_rows_has_gradients_of_0(tmp_path):
    packed, _ = make_pair(write_model(tmp_path))
    step, counts = prepare_step(POLICY, rows_of(packed))
    [*_, last] = arrange_packs(step[:1], unit="row", budget=Budget(10), ranks=Ranks(1, 2))
    assert len(last.rows) == 0
    for rows in (last.rows, torch.tensor([3])):  # no row, and one without action tokens
        packed._backward(step, MicroBatch(rows, pack=pack(step["action"][rows])), POLICY, counts)
    assert all((parameter.grad == 0).all() for parameter in packed.trained.values())


# --- refused -------------------------------------------------------------------------------------------------------


def test_packing_and_shared_prefixes_exclude_each_other():
    with pytest.raises(ConfigError) as error:
        trainer.Config(packing=True, share_prefixes=True)
    assert str(error.value).splitlines() == [
        "share_prefixes",
        "  got:  True",
        "  need: false with packing, which reads each row as a whole",
        "  do:   leave packing out if groups have long common prompts, otherwise leave share_prefixes out",
    ]
    trainer.Config(packing=True, share_prefixes=False)
    with pytest.raises(ConfigError, match="^share_prefixes\n  got:  True\n  need: false with mesh.sequence"):
        trainer.Config(mesh=Mesh(sequence=2), share_prefixes=True)


@pytest.mark.parametrize(
    ("family", "attention", "changes", "got", "need"),
    [
        (
            "qwen3",
            "flex_attention",
            {},
            "Qwen3ForCausalLM with attention flex_attention",
            "a model that supports sdpa or eager, with one of them",
        ),
        (
            "qwen3",
            "sdpa",
            {"layer_types": ["full_attention", "chunked_attention"]},
            "Qwen3ForCausalLM with chunked_attention",
            "layers of full or sliding-window attention only",
        ),
    ],
)
def test_a_model_that_cannot_read_packs_is_refused_before_it_is_loaded(tmp_path, family, attention, changes, got, need):
    model = Model(write_model(tmp_path, family, **changes), attention=attention)
    with pytest.raises(ConfigError) as error:
        trainer.preview(trainer.Config(packing=True), model=model)
    assert str(error.value).splitlines()[:3] == ["packing", f"  got:  {got}", f"  need: {need}"]


def test_a_model_that_ignores_boundaries_is_refused(tmp_path, monkeypatch):
    from transformers import Qwen3Model

    def forward(self, *args, original=Qwen3Model.forward, boundaries=None, **kwargs):
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Qwen3Model, "forward", forward)
    with pytest.raises(ConfigError, match=r"^packing\n  got:  Qwen3ForCausalLM: an error in its forward pass: "):
        make_trainer(write_model(tmp_path), packing=True)


# --- flash attention on a GPU --------------------------------------------------------------------------------------


def varlen_reference(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, window_size, scale, enable_gqa):
    """`varlen_attn` as torch documents it, for causal attention, row by row."""
    assert cu_seq_q.dtype == torch.int32
    assert max_q == max_k == int(cu_seq_q.diff().max())
    assert window_size == (-1, 0)
    assert enable_gqa == (query.shape[1] != key.shape[1])
    key, value = (x.repeat_interleave(query.shape[1] // key.shape[1], 1) for x in (key, value))
    rows = []
    for start, end in pairwise(cu_seq_q):
        scores = scale * torch.einsum("qhd,khd->hqk", query[start:end], key[start:end])
        allowed = torch.ones(scores.shape[1:]).tril().bool()
        rows.append(
            torch.einsum("hqk,khd->qhd", scores.masked_fill(~allowed, -torch.inf).softmax(-1), value[start:end])
        )
    return torch.cat(rows)


@pytest.mark.parametrize("family", ["qwen3", "phi"])
def test_arguments_of_flash_attention(tmp_path, monkeypatch, family):
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_reference)
    monkeypatch.setattr(packed_attention, "_varlen_fits", lambda *_: True)
    check_equal(*make_pair(write_model(tmp_path, family)), tolerance=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="flash attention of rows of different lengths needs a GPU")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_packed_equals_padded_on_a_gpu(tmp_path, monkeypatch, dtype):
    calls = []
    true = packed_attention._attend_varlen
    monkeypatch.setattr(packed_attention, "_attend_varlen", lambda *args: calls.append(1) or true(*args))
    path = write_model(tmp_path, "qwen3", head_dim=64)
    packed, padded = (
        make_trainer(path, dtype=dtype, device="cuda", packing=packing, share_prefixes=False)
        for packing in (True, False)
    )
    batch = make_batch(layout=LAYOUT, dtype=torch.float32)
    scores = [each.score(batch, ["logp"])["logp"] for each in (packed, padded)]
    assert bool(calls) == (dtype == "bfloat16")
    torch.testing.assert_close(*scores, rtol=0, atol=0.1 if dtype == "bfloat16" else 1e-4)
    actual, expected = ({name: grad.float() for name, grad in gradients(each).items()} for each in (packed, padded))
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    torch.testing.assert_close(actual, expected, rtol=0, atol=(0.05 if dtype == "bfloat16" else 1e-4) * largest)
