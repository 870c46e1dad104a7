"""The HF generator: the conformance suite on several families, and properties that are specific to this engine."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from purerl.backends.fake.model import text_of
from purerl.backends.hf.decoder.limits import check_layers, limits_of
from purerl.backends.hf.generator import Config
from purerl.backends.weights import TensorWeights
from purerl.errors import ConfigError, EngineError, InputError
from purerl.protocols import Request, Sampling, generate
from purerl.testing.generator import check_generator
from tests.backends.generators import (
    make_generator,
    suite_arguments,
    tiny_model,
    weights_in_files,
)
from tests.backends.tiny import VOCAB_SIZE

SLIDING = dict(use_sliding_window=True, sliding_window=4, max_window_layers=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


# --- the conformance suite -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("qwen3", {}),  # untied, grouped heads
        ("llama", {}),  # tied
        ("qwen3", SLIDING),  # one layer with a sliding window, one without
        ("gemma2", {}),  # one layer with a sliding window, one without; soft caps and eager attention
        ("gpt2", {}),  # learned positions
    ],
)
def test_generator_conforms(tmp_path, family, changes):
    first, second = (tiny_model(tmp_path / str(seed), family, seed=seed, **changes) for seed in (0, 1))
    check_generator(
        lambda: make_generator(first, max_num_seqs=16, max_prefill_tokens=40),
        **suite_arguments(first, second),
    )


# --- rows, columns and weights -------------------------------------------------------------------------------------


def make_requests(count, *, max_tokens=8, temperature=1.0, **sampling):
    rng = torch.Generator().manual_seed(5)
    lengths = torch.randint(1, 21, (count,), generator=rng).tolist()
    prompts = [torch.randint(0, VOCAB_SIZE, (length,), generator=rng).tolist() for length in lengths]
    sampling = Sampling(temperature, max_tokens, **sampling)
    return [Request(str(number), prompt, sampling, seed=number) for number, prompt in enumerate(prompts)]


def tokens_of(completions):
    return [completion.tokens for completion in completions]


@pytest.mark.parametrize("settings", [dict(max_num_seqs=1), dict(max_num_seqs=3), dict(max_prefill_tokens=1)])
def test_settings_do_not_change_tokens(model, settings):
    requests = [
        evolve(request, sampling=Sampling(1.0, 1 + 7 * number % 30)) for number, request in enumerate(make_requests(12))
    ]
    completions = generate(make_generator(model, **settings), requests)
    assert tokens_of(completions) == tokens_of(generate(make_generator(model), requests))


def test_memory_is_released_when_no_request_is_in_flight(model):
    def allocated(generator):
        return sum(plane.numel() for plane in generator._table._planes.values())

    generator, requests = make_generator(model, max_num_seqs=3), make_requests(5)
    assert allocated(generator) == 0
    generator.submit(requests)
    generator.collect(timeout=0.0)
    assert allocated(generator) > 0
    first = generate(generator, [evolve(requests[0], key="other")])
    generator.cancel([request.key for request in requests])
    generator.collect()
    assert allocated(generator) == 0
    assert tokens_of(generate(generator, requests)) == tokens_of(generate(make_generator(model), requests))
    assert tokens_of(first) == tokens_of(generate(generator, requests[:1]))
    assert allocated(generator) == 0


def test_waiting_requests_take_the_slots_of_finished_ones(model, monkeypatch):
    """Requests of 30, 1, 1 and 1 tokens in two slots: 30 steps for the long one, and no further steps."""
    generator, rows = make_generator(model, max_num_seqs=2), []
    step = generator._step
    monkeypatch.setattr(generator, "_step", lambda: (rows.append(generator._table.rows), step()))
    lengths = (30, 1, 1, 1)
    pairs = zip(make_requests(4), lengths, strict=True)
    generate(generator, [evolve(request, sampling=Sampling(1.0, length)) for request, length in pairs])
    assert rows == [2, 2, 2] + [1] * 27


def test_prompt_is_read_once_for_all_its_samples(model, monkeypatch):
    generator, blocks = make_generator(model), []
    forward = generator._model.base_model.forward
    monkeypatch.setattr(
        generator._model.base_model,
        "forward",
        lambda *args, **kwargs: (blocks.append(tuple(kwargs["input_ids"].shape)), forward(*args, **kwargs))[1],
    )
    prompts = [[1, 2, 3, 4, 5, 6], [7, 8, 9]]
    sampling = Sampling(max_tokens=2)
    requests = [
        Request(f"{number}", prompt, sampling, seed=number)
        for number, prompt in enumerate(prompt for prompt in prompts for _ in range(4))
    ]
    completions = generate(generator, requests)
    assert blocks == [(2, 5), (8, 1), (8, 1)]
    separate = [generate(make_generator(model), [request])[0] for request in requests]
    assert tokens_of(completions) == tokens_of(separate)


def test_row_with_nan_returns_an_error_and_does_not_change_other_rows(model):
    """The embedding of token 3 is NaN. A short row gets the slot of a long row with NaN, beside one without NaN."""
    generator, weights = make_generator(model, max_num_seqs=2), weights_in_files(model)
    weights["model.embed_tokens.weight"][3] = torch.nan
    weights["lm_head.weight"][3] = 0.0  # so that token 3 is not the argmax
    generator.load_weights(TensorWeights(weights), version=1)
    long, bad, short = (
        Request(key, tokens, Sampling(0.0, max_tokens), seed=0)
        for key, tokens, max_tokens in (("long", [4] * 20, 9), ("bad", [3] * 20, 2), ("short", [5, 6], 5))
    )
    completions = generate(generator, [long, bad, short])
    assert [completion.finish for completion in completions] == ["length", "error", "length"]
    assert (completions[1].tokens, completions[1].logp, completions[1].version) == ((), (), ())
    assert completions[1].error == "the model's logits are not finite after 0 new tokens"
    separate = [generate(generator, [request])[0].tokens for request in (long, short)]
    assert tokens_of(completions)[::2] == separate


def test_loaded_weights_are_copies(model):
    """Later changes of the trainer's tensors have no effect."""
    generator, weights = make_generator(model), weights_in_files(model)
    generator.load_weights(TensorWeights(weights), version=1)
    before = tokens_of(generate(generator, make_requests(4)))
    for weight in weights.values():
        weight.zero_()
    assert tokens_of(generate(generator, make_requests(4))) == before


def test_some_of_the_weights_can_be_loaded(model):
    generator = make_generator(model)
    before = tokens_of(generate(generator, make_requests(4, temperature=0.0)))
    head = weights_in_files(model)["lm_head.weight"]
    generator.load_weights(TensorWeights({"lm_head.weight": -head}), version=1)
    assert tokens_of(generate(generator, make_requests(4, temperature=0.0))) != before


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("lm_head.wait", (VOCAB_SIZE, 16), "unknown weight 'lm_head.wait'(.|\n)*did you mean 'lm_head.weight'"),
        ("lm_head.weight", (3, 16), rf"got:  shape \[3, 16\]\n  need: \[{VOCAB_SIZE}, 16\]"),
    ],
)
def test_invalid_weights_are_refused(model, name, shape, message):
    with pytest.raises(EngineError, match=message):
        make_generator(model).load_weights(TensorWeights({name: torch.zeros(shape)}), version=1)


def test_weights_of_experts_are_loaded_as_they_are_in_files(tmp_path):
    """A file has a weight for every expert, the model one weight for all experts of a layer."""
    from transformers.core_model_loading import revert_weight_conversion

    from purerl.backends.hf.decoder.loading import load_model

    first, second = (tiny_model(tmp_path / str(seed), "qwen3_moe", seed=seed) for seed in (0, 1))
    requests, generator = make_requests(6, temperature=0.0), make_generator(first)
    other = load_model(second)
    weights = revert_weight_conversion(other, other.state_dict())
    assert any(".experts.1." in name for name in weights)
    parts = [{name: weight for name, weight in weights.items() if (".experts.3." in name) == k} for k in (False, True)]
    for version, part in enumerate(parts, start=1):
        generator.load_weights(TensorWeights(part), version=version)
    assert tokens_of(generate(generator, requests)) == tokens_of(generate(make_generator(second), requests))
    name = "model.layers.0.mlp.experts.gate_up_proj"
    with pytest.raises(EngineError, match="unknown weight"):
        generator.load_weights(TensorWeights({name: torch.zeros(1)}), version=3)


def test_bfloat16_model_computes_in_bfloat16_and_returns_float32_logp(model):
    """The probabilities of all tokens add up to one."""
    generator = make_generator(evolve(model, dtype="bfloat16"))
    requests = [Request(str(seed), [1, 2, 3], Sampling(max_tokens=1), seed) for seed in range(400)]
    logp = {completion.tokens[0]: completion.logp[0] for completion in generate(generator, requests)}
    total = torch.tensor(list(logp.values())).exp().sum()
    assert generator._model.dtype == torch.bfloat16
    assert 0.9 < total < 1 + 1e-5


# --- stop strings --------------------------------------------------------------------------------------------------


def test_tokenizer_is_not_loaded_without_stop_strings(model, monkeypatch):
    loaded = []
    monkeypatch.setattr("purerl.backends.hf.sampling.stop_strings.load_tokenizer", loaded.append)
    generate(make_generator(model), make_requests(2, stop_tokens=(3,)))
    assert loaded == []


def test_stop_string_may_start_before_the_weights_change(model):
    tokens = generate(make_generator(model), make_requests(1, max_tokens=12))[0].tokens
    stop = text_of(tokens[4:8])
    length = next(length for length in range(1, 13) if stop in text_of(tokens[:length]))
    generator = make_generator(model)
    generator.submit(make_requests(1, max_tokens=12, stop_strings=(stop,)))
    for _ in range(length - 2):
        assert generator.collect(timeout=0.0) == []
    generator.load_weights(TensorWeights({}), version=1)
    (completion,) = generator.collect()
    assert (completion.tokens, completion.finish) == (tokens[:length], "stop")
    assert completion.version == (0,) * (length - 2) + (1, 1)


# --- input validation ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(tokens=[]), "got:  no tokens"),
        (dict(tokens=[1] * 57), "got:  65 tokens, prompt and completion together\n  need: at most 64"),
        (dict(tokens=[VOCAB_SIZE]), f"got:  token {VOCAB_SIZE}\n  need: ids from 0 to {VOCAB_SIZE - 1}"),
        (dict(tokens=[-1]), "got:  token -1"),
        (dict(sampling=Sampling(temperature=-1.0)), "got:  temperature -1.0"),
        (dict(sampling=Sampling(temperature=float("nan"))), "got:  temperature nan"),
        (dict(sampling=Sampling(max_tokens=0)), "got:  max_tokens 0"),
        (dict(sampling=Sampling(stop_strings=("",))), "got:  an empty stop string"),
    ],
)
def test_invalid_request_is_refused(model, changes, message):
    generator = make_generator(model)
    valid = Request("valid", [1], Sampling(max_tokens=8), seed=0)
    with pytest.raises(InputError, match=message):
        generator.submit([valid, evolve(valid, key="invalid", **changes)])
    assert generator.collect() == []


def test_request_of_maximum_length_is_served(model):
    completions = generate(make_generator(model), [Request("long", [1] * 44, Sampling(max_tokens=20), seed=0)])
    assert len(completions[0].tokens) == 20


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("mamba", dict(vocab_size=19, hidden_size=16, num_hidden_layers=1, state_size=4)),
        ("qwen3_next", dict(vocab_size=19, hidden_size=16, num_hidden_layers=4, num_experts=2, head_dim=8)),
    ],
)
def test_model_without_keys_and_values_is_refused(family, changes):
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        unsupported = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **changes))
    with pytest.raises(ConfigError, match="cannot run this model"):
        check_layers(unsupported)


def test_longrope_limits_sequences_to_the_original_length(model):
    loaded = make_generator(model)._model
    loaded.config.rope_parameters = {"rope_type": "longrope", "original_max_position_embeddings": 32}
    assert limits_of(loaded).max_sequence_length == 32


@pytest.mark.parametrize("name", ["max_num_seqs", "max_prefill_tokens"])
def test_setting_out_of_range_is_refused(name):
    with pytest.raises(ConfigError, match=f"{name}\n  got:  0"):
        Config(**{name: 0})
