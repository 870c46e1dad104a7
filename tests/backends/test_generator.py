"""The embedded generator: the published suite on several families, and what only it promises."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from purerl.backends.fake.model import text_of
from purerl.backends.hf.generator import Config
from purerl.backends.hf.limits import check_layers, longest
from purerl.errors import ConfigError, EngineError, InputError
from purerl.protocols import Request, Sampling, generate
from purerl.testing.generator import check_generator
from tests.backends.generators import made, oracle, tiny_model, weights_of
from tests.backends.tiny import VOCABULARY

SLIDING = dict(use_sliding_window=True, sliding_window=4, max_window_layers=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


# --- the suite -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("qwen3", {}),  # untied, grouped heads
        ("llama", {}),  # tied
        ("qwen3", SLIDING),  # one layer with a sliding window, one without
        ("gemma2", {}),  # likewise, with soft caps and eager attention
        ("gpt2", {}),  # learned positions
    ],
)
def test_it_conforms(tmp_path, family, changes):
    first, second = (tiny_model(tmp_path / str(seed), family, seed=seed, **changes) for seed in (0, 1))
    check_generator(
        lambda: made(first, max_num_seqs=16, max_prefill_tokens=40),
        weights=[weights_of(first), weights_of(second)],
        score=oracle(first),
        vocabulary=VOCABULARY,
        text=text_of,
        samples=400,
    )


# --- rows, columns and weights -------------------------------------------------------------------------------------


def requests(count, *, max_tokens=8, temperature=1.0, **sampling):
    draw = torch.Generator().manual_seed(5)
    lengths = torch.randint(1, 21, (count,), generator=draw).tolist()
    prompts = [torch.randint(0, VOCABULARY, (length,), generator=draw).tolist() for length in lengths]
    how = Sampling(temperature, max_tokens, **sampling)
    return [Request(str(number), prompt, how, seed=number) for number, prompt in enumerate(prompts)]


def tokens_of(completions):
    return [completion.tokens for completion in completions]


@pytest.mark.parametrize("settings", [dict(max_num_seqs=1), dict(max_num_seqs=3), dict(max_prefill_tokens=1)])
def test_settings_change_nothing(model, settings):
    asked = [evolve(one, sampling=Sampling(1.0, 1 + 7 * number % 30)) for number, one in enumerate(requests(12))]
    assert tokens_of(generate(made(model, **settings), asked)) == tokens_of(generate(made(model), asked))


def test_nothing_is_held_between_two_phases(model):
    def held(generator):
        return sum(plane.numel() for plane in generator._table._planes.values())

    generator, asked = made(model, max_num_seqs=3), requests(5)
    assert held(generator) == 0
    generator.submit(asked)
    generator.collect(timeout=0.0)
    assert held(generator) > 0
    first = generate(generator, [evolve(asked[0], key="other")])
    generator.cancel([one.key for one in asked])
    generator.collect()
    assert held(generator) == 0
    assert tokens_of(generate(generator, asked)) == tokens_of(generate(made(model), asked))
    assert tokens_of(first) == tokens_of(generate(generator, asked[:1]))
    assert held(generator) == 0


def test_rows_leave_and_waiting_ones_enter(model, monkeypatch):
    """Lengths 1, 1, 1, 30 through two slots: 30 steps for the long one, and nothing in vain."""
    generator, sizes = made(model, max_num_seqs=2), []
    step = generator._step
    monkeypatch.setattr(generator, "_step", lambda: (sizes.append(generator._table.rows), step()))
    lengths = (30, 1, 1, 1)
    generate(generator, [evolve(one, sampling=Sampling(1.0, n)) for one, n in zip(requests(4), lengths, strict=True)])
    assert sizes == [2, 2, 2] + [1] * 27


def test_a_prompt_is_read_once_for_all_its_samples(model, monkeypatch):
    generator, blocks = made(model), []
    forward = generator._model.base_model.forward
    monkeypatch.setattr(
        generator._model.base_model,
        "forward",
        lambda *args, **kwargs: (blocks.append(tuple(kwargs["input_ids"].shape)), forward(*args, **kwargs))[1],
    )
    prompts = [[1, 2, 3, 4, 5, 6], [7, 8, 9]]
    how = Sampling(max_tokens=2)
    group = [
        Request(f"{n}", prompt, how, seed=n) for n, prompt in enumerate(prompt for prompt in prompts for _ in "abcd")
    ]
    done = generate(generator, group)
    assert blocks == [(2, 5), (8, 1), (8, 1)]
    alone = [generate(made(model), [request])[0] for request in group]
    assert tokens_of(done) == tokens_of(alone)


def test_a_row_that_went_wrong_is_an_error_and_spoils_no_other(model):
    """Token 3 is NaN. A short row gets the slot of a long one that has it, beside a long one that has not."""
    generator, weights = made(model, max_num_seqs=2), weights_of(model)
    weights["model.embed_tokens.weight"][3] = torch.nan
    weights["lm_head.weight"][3] = 0.0  # and is not the likeliest
    generator.load_weights(weights.items(), version=1)
    long, bad, short = (
        Request(key, tokens, Sampling(0.0, most), seed=0)
        for key, tokens, most in (("long", [4] * 20, 9), ("bad", [3] * 20, 2), ("short", [5, 6], 5))
    )
    done = generate(generator, [long, bad, short])
    assert [completion.finish for completion in done] == ["length", "error", "length"]
    assert (done[1].tokens, done[1].logp, done[1].version) == ((), (), ())
    assert done[1].error == "the model's logits are not finite after 0 new tokens"
    assert tokens_of(done)[::2] == [generate(generator, [one])[0].tokens for one in (long, short)]


def test_weights_keep_their_places(model):
    """They are copied, not taken over: what happens to the trainer's tensors afterwards does not show."""
    generator, weights = made(model), weights_of(model)
    generator.load_weights(weights.items(), version=1)
    before = tokens_of(generate(generator, requests(4)))
    for weight in weights.values():
        weight.zero_()
    assert tokens_of(generate(generator, requests(4))) == before


def test_some_of_the_weights_may_come(model):
    generator = made(model)
    before = tokens_of(generate(generator, requests(4, temperature=0.0)))
    head = weights_of(model)["lm_head.weight"]
    generator.load_weights([("lm_head.weight", -head)], version=1)
    assert tokens_of(generate(generator, requests(4, temperature=0.0))) != before


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("lm_head.wait", (VOCABULARY, 16), "unknown weight 'lm_head.wait'(.|\n)*did you mean 'lm_head.weight'"),
        ("lm_head.weight", (3, 16), rf"got:  shape \[3, 16\]\n  need: \[{VOCABULARY}, 16\]"),
    ],
)
def test_weights_that_do_not_fit_are_refused(model, name, shape, message):
    with pytest.raises(EngineError, match=message):
        made(model).load_weights([(name, torch.zeros(shape))], version=1)


def test_experts_are_taken_over_as_they_are_in_files(tmp_path):
    """A file has a weight for every expert, the model one for all experts of a layer."""
    from transformers.core_model_loading import revert_weight_conversion

    from purerl.backends.hf.model import load_model

    first, second = (tiny_model(tmp_path / str(seed), "qwen3_moe", seed=seed) for seed in (0, 1))
    asked, generator = requests(6, temperature=0.0), made(first)
    other = load_model(second)
    filed = revert_weight_conversion(other, other.state_dict())
    assert any(".experts.1." in name for name in filed)
    generator.load_weights(((name, weight) for name, weight in filed.items() if ".experts.3." not in name), version=1)
    generator.load_weights(((name, weight) for name, weight in filed.items() if ".experts.3." in name), version=2)
    assert tokens_of(generate(generator, asked)) == tokens_of(generate(made(second), asked))
    with pytest.raises(EngineError, match="unknown weight"):
        generator.load_weights([("model.layers.0.mlp.experts.gate_up_proj", torch.zeros(1))], version=3)


def test_bfloat16_computes_in_it(model):
    """Log-probabilities are float32 all the same: they add up to one."""
    generator = made(evolve(model, dtype="bfloat16"))
    done = generate(generator, [Request(str(seed), [1, 2, 3], Sampling(max_tokens=1), seed) for seed in range(400)])
    found = {completion.tokens[0]: completion.logp[0] for completion in done}
    total = torch.tensor(list(found.values())).exp().sum()
    assert generator._model.dtype == torch.bfloat16
    assert 0.9 < total < 1 + 1e-5


# --- stop texts ----------------------------------------------------------------------------------------------------


def test_no_tokenizer_is_loaded_without_stop_texts(model, monkeypatch):
    loaded = []
    monkeypatch.setattr("purerl.backends.hf.stop_strings.load_tokenizer", loaded.append)
    generate(made(model), requests(2, stop_tokens=(3,)))
    assert loaded == []


def test_a_stop_text_may_begin_before_the_weights_changed(model):
    whole = generate(made(model), requests(1, max_tokens=12))[0].tokens
    stop = text_of(whole[4:8])
    end = next(end for end in range(1, 13) if stop in text_of(whole[:end]))
    generator = made(model)
    generator.submit(requests(1, max_tokens=12, stop_strings=(stop,)))
    for _ in range(end - 2):
        assert generator.collect(timeout=0.0) == []
    generator.load_weights([], version=1)
    (done,) = generator.collect()
    assert (done.tokens, done.finish) == (whole[:end], "stop")
    assert done.version == (0,) * (end - 2) + (1, 1)


# --- at the door ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(tokens=[]), "got:  no tokens"),
        (dict(tokens=[1] * 57), "got:  65 tokens, new ones included\n  need: at most 64"),
        (dict(tokens=[VOCABULARY]), f"got:  token {VOCABULARY}\n  need: ids from 0 to {VOCABULARY - 1}"),
        (dict(tokens=[-1]), "got:  token -1"),
        (dict(inputs={"image": 0}), "got:  inputs .'image'."),
        (dict(sampling=Sampling(temperature=-1.0)), "got:  temperature -1.0"),
        (dict(sampling=Sampling(temperature=float("nan"))), "got:  temperature nan"),
        (dict(sampling=Sampling(max_tokens=0)), "got:  max_tokens 0"),
        (dict(sampling=Sampling(stop_strings=("",))), "got:  an empty stop text"),
    ],
)
def test_requests_that_cannot_be_served_are_refused(model, changes, message):
    generator = made(model)
    fine = Request("fine", [1], Sampling(max_tokens=8), seed=0)
    with pytest.raises(InputError, match=message):
        generator.submit([fine, evolve(fine, key="bad", **changes)])
    assert generator.collect() == []


def test_the_longest_request_is_served(model):
    done = generate(made(model), [Request("longest", [1] * 44, Sampling(max_tokens=20), seed=0)])
    assert len(done[0].tokens) == 20


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("mamba", dict(vocab_size=19, hidden_size=16, num_hidden_layers=1, state_size=4)),
        ("qwen3_next", dict(vocab_size=19, hidden_size=16, num_hidden_layers=4, num_experts=2, head_dim=8)),
    ],
)
def test_models_without_keys_and_values_are_refused(family, changes):
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        strange = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **changes))
    with pytest.raises(ConfigError, match="cannot run this model"):
        check_layers(strange)


def test_long_rope_ends_where_rows_would_depend_on_each_other(model):
    loaded = made(model)._model
    loaded.config.rope_parameters = {"rope_type": "longrope", "original_max_position_embeddings": 32}
    assert longest(loaded) == 32


@pytest.mark.parametrize("name", ["max_num_seqs", "max_prefill_tokens"])
def test_settings_out_of_range_are_refused(name):
    with pytest.raises(ConfigError, match=f"{name}\n  got:  0"):
        Config(**{name: 0})
