"""The fake trainer and the fake generator: manually computed steps, errors, and training with both of them."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest
import torch
from attrs import evolve

from purerl.algos.algebra import Objective, Term, prepare_step
from purerl.algos.parts.reductions import token_mean
from purerl.backends.fake import generator as generators
from purerl.backends.fake import trainer as trainers
from purerl.backends.fake.model import BIGRAM, initial_weights
from purerl.batch import collate
from purerl.errors import CheckpointError, ConfigError, EngineError, InputError
from purerl.protocols import Generator, Request, Sampling, Trainer, generate
from purerl.settings import Model
from purerl.testing.generator import check_generator
from purerl.testing.trainer import check_trainer
from tests.backends.generators import FAKE
from tests.backends.tiny import VOCAB_SIZE

MODEL = Model("a name", dtype="float64")
LR = 0.3


def make_trainer(outputs=trainers.OUTPUTS, vocab_size=11, model=MODEL, lr=LR):
    config = trainers.Config(vocab_size=vocab_size, lr=lr, top_k=min(4, vocab_size))
    return trainers.build(config, model=model, role="policy", outputs=outputs, updates=1, seed=0)


def make_generator(vocab_size=11, model=MODEL, seed=0, **settings) -> Any:
    return generators.build(generators.Config(vocab_size=vocab_size, **settings), model=model, seed=seed)


def test_fakes_satisfy_the_protocols():
    assert isinstance(make_trainer(), Trainer)
    assert isinstance(make_generator(), Generator)


def test_fake_trainer_conforms():
    check_trainer(
        make_trainer,
        vocab_size=11,
        logits=lambda weights, tokens: weights[BIGRAM][tokens],
        optimizer=partial(torch.optim.SGD, lr=LR),
        load=lambda path: make_trainer(model=Model(str(path), dtype="float64")),
    )


def test_weights_depend_on_the_path():
    first, again, other = (dict(make_trainer(model=Model(path)).weights())[BIGRAM] for path in ("a", "a", "b"))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(make_generator(model=Model("a"))._weights[BIGRAM], first)


def test_step_equals_manual_computation():
    """Policy gradient of one token: the row of the token before it changes by lr * (one-hot - p)."""
    trainer = make_trainer(vocab_size=3)
    before = dict(trainer.weights())[BIGRAM]
    loss = Objective("policy", (), ("logp",), (Term("nll", lambda batch: -batch["logp"], token_mean),))
    batch = collate([dict(tokens=[2, 0], action=[0, 1], row=0, group=0, temperature=2.0)])
    metrics = trainer.step(*make_step(loss, batch))
    p = (before[2] / 2).softmax(-1)
    expected = before.clone()
    expected[2] += LR * (torch.tensor([1.0, 0, 0], dtype=torch.float64) - p) / 2
    torch.testing.assert_close(dict(trainer.weights())[BIGRAM], expected)
    torch.testing.assert_close(metrics["loss/nll"].total, -p[0].log())


def make_step(objective, batch):
    step, counts = prepare_step(objective, batch)
    return step, objective, counts


@pytest.mark.parametrize("output", ["value", "log_partition"])
def test_heads_are_functions_of_the_token_before(output):
    critic = make_trainer((output,), vocab_size=3)
    batch = collate([dict(tokens=[2, 0, 1], action=[0, 1, 1], row=0, group=0, temperature=1.0, reward=[0, 4.0, 8.0])])
    error = Term("square", lambda batch: (batch[output] - batch["reward"]).square(), token_mean)
    critic.step(*make_step(Objective("critic", ("reward",), (output,), (error,)), batch))
    head = critic._weights[f"{output}_head.weight"].tolist()
    assert head == pytest.approx([LR * 8, 0, LR * 4])  # the gradient of (v - r)^2 / 2 over 2 tokens, twice
    assert critic.score(batch, (output,))[output].tolist() == [pytest.approx([0, LR * 4, LR * 8])]
    assert set(dict(critic.weights())) == {BIGRAM}


def test_head_that_was_not_requested_is_refused():
    batch = collate([dict(tokens=[2, 0], action=[0, 1], row=0, group=0, temperature=1.0)])
    with pytest.raises(InputError, match=r"output 'value'(.|\n)*one of: entropy, logp"):
        make_trainer(("logp",)).score(batch, ("logp", "value"))


def test_exported_weights_are_loaded_from_their_directory(tmp_path):
    trainer = make_trainer(model=Model("a", dtype="float64"))
    trainer.export(tmp_path / "final")
    weights = initial_weights(Model(str(tmp_path / "final"), dtype="float64"), 11, ("value",))
    assert torch.equal(weights[BIGRAM], dict(trainer.weights())[BIGRAM])
    with pytest.raises(ConfigError, match="vocab_size\n  got:  12\n  need: 11"):
        initial_weights(Model(str(tmp_path / "final")), 12)


def test_damaged_or_unsuitable_checkpoint_is_refused(tmp_path):
    make_trainer(("value",)).save(tmp_path)
    with pytest.raises(CheckpointError, match="do not fit"):
        make_trainer(("logp",)).load(tmp_path)
    (tmp_path / "weights.safetensors").write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="no weights can be read"):
        make_trainer(("logp",)).load(tmp_path)


def make_requests(count, max_tokens=5):
    return [Request(str(number), [number % 11], Sampling(max_tokens=max_tokens), number) for number in range(count)]


def test_completions_are_returned_in_small_groups_in_random_order():
    def collected_keys(seed):
        generator = make_generator(seed=seed, max_collected=3)
        generator.submit(make_requests(10))
        return [[completion.key for completion in generator.collect()] for _ in range(5)]

    groups = collected_keys(0)
    assert [len(group) for group in groups] == [3, 3, 3, 1, 0]
    order = [key for group in groups for key in group]
    assert order != sorted(order) == [str(number) for number in range(10)]
    assert groups == collected_keys(0) != collected_keys(1)


def test_order_of_completions_does_not_change_their_tokens():
    first, second = (
        generate(make_generator(seed=seed, max_collected=count), make_requests(10))
        for seed, count in ((0, 1), (1, 100))
    )
    assert first == second


# --- faults and decoding in the background -------------------------------------------------------------------------


def test_error_rate_is_the_share_of_requests_with_an_error():
    """400 requests, of which 100 are expected to fail: six standard deviations are 52."""
    requests = make_requests(400, max_tokens=8)
    plain, failing = (generate(make_generator(max_collected=400, error_rate=rate), requests) for rate in (0.0, 0.25))
    failed = [completion for completion in failing if completion.finish == "error"]
    assert 48 < len(failed) < 152
    assert {len(completion.tokens) for completion in failed} == set(range(8))
    assert failed[0].error == f"the fake generator fails on seed {failed[0].key}"
    for expected, actual in zip(plain, failing, strict=True):
        assert actual.tokens == expected.tokens[: len(actual.tokens)]
        assert (actual.finish, actual.error) == ("length", None) or actual.finish == "error"


def test_seed_decides_which_requests_fail():
    requests = make_requests(40)
    failed = [
        [completion.key for completion in generate(make_generator(error_rate=0.3), order) if completion.error]
        for order in (requests, requests[::-1])
    ]
    assert sorted(failed[0]) == sorted(failed[1])
    assert all(completion.finish == "error" for completion in generate(make_generator(error_rate=1.0), requests))


@pytest.fixture
def background():
    generator = make_generator(in_process=False, seconds_per_token=0.001)
    yield generator
    generator.close()


def test_capabilities_say_where_decoding_happens(background):
    assert not background.capabilities.in_process
    assert background.capabilities == generators.preview(generators.Config(in_process=False), model=MODEL)
    assert make_generator().capabilities == generators.preview(generators.Config(), model=MODEL)
    assert make_generator().capabilities == evolve(background.capabilities, in_process=True)


@pytest.mark.slow
def test_background_generator_conforms():
    def build():
        config = generators.Config(vocab_size=VOCAB_SIZE, in_process=False, seconds_per_token=0.002)
        return generators.build(config, model=Model("nowhere"), seed=3)

    check_generator(build, **FAKE | {"samples": 200})


def test_background_generator_decodes_while_the_caller_does_something_else(background):
    background.submit(make_requests(3, max_tokens=4))
    for _ in range(10_000):  # ten seconds at most
        if background._generator.has_finished:
            break
        time.sleep(0.001)
    assert background._generator.has_finished


def test_tokens_do_not_depend_on_where_decoding_happens(background):
    requests = make_requests(20)
    assert generate(background, requests) == generate(make_generator(), requests)


def test_exception_of_a_step_is_raised_by_collect(background, monkeypatch):
    monkeypatch.setattr(background._generator, "step", lambda: 1 / 0)
    background.submit(make_requests(1))
    with pytest.raises(EngineError, match="the fake generator stopped\n  got:  ZeroDivisionError"):
        background.collect()


def test_closing_ends_the_thread():
    generator = make_generator(in_process=False)
    generator.submit(make_requests(1, max_tokens=1000))
    generator.close()
    assert not generator._thread.is_alive()


def test_step_takes_the_time_of_the_setting():
    start = time.monotonic()
    generate(make_generator(seconds_per_token=0.01), make_requests(8, max_tokens=5))
    assert time.monotonic() - start >= 0.05


def test_generate_ignores_completions_of_other_requests():
    generator = make_generator(max_collected=1)
    generator.submit([evolve(request, key="other") for request in make_requests(1, max_tokens=1)])
    completions = generate(generator, make_requests(2))
    assert [completion.key for completion in completions] == ["0", "1"]


def test_generate_refuses_a_generator_that_loses_requests(monkeypatch):
    generator = make_generator(max_collected=1)
    submit = generator.submit
    monkeypatch.setattr(generator, "submit", lambda requests: submit(requests[:1]))
    with pytest.raises(EngineError) as error:
        generate(generator, make_requests(3))
    assert str(error.value).splitlines() == [
        "a generator has lost requests",
        "  got:  no completion from collect(), with 2 missing: '1', ...",
        "  need: a completion of every request that was submitted",
        "  do:   test the generator with purerl.testing.check_generator",
    ]


def test_step_without_counted_tokens_is_skipped():
    trainer = make_trainer(vocab_size=3)
    before = dict(trainer.weights())[BIGRAM].clone()
    loss = Objective("policy", (), ("logp",), (Term("nll", lambda batch: -batch["logp"], token_mean),))
    batch = collate([dict(tokens=[2, 0], action=[0, 1], mask=[0, 0], row=0, group=0, temperature=1.0)])
    metrics = trainer.step(*make_step(loss, batch))
    assert float(metrics["skipped"].total) == 1
    assert "grad_norm" not in metrics
    assert torch.equal(dict(trainer.weights())[BIGRAM], before)


def test_request_that_exceeds_max_sequence_length_is_refused():
    generator = make_generator(max_sequence_length=6)
    generator.submit(make_requests(1))
    with pytest.raises(InputError, match="got:  7 tokens"):
        generator.submit([evolve(request, key="other") for request in make_requests(1, max_tokens=6)])


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        (generators.Config, dict(vocab_size=0)),
        (generators.Config, dict(max_collected=0)),
        (generators.Config, dict(max_sequence_length=0)),
        (generators.Config, dict(seconds_per_token=-0.1)),
        (generators.Config, dict(seconds_per_token=float("inf"))),
        (generators.Config, dict(error_rate=-0.1)),
        (generators.Config, dict(error_rate=1.1)),
        (trainers.Config, dict(vocab_size=0)),
        (trainers.Config, dict(lr=0.0)),
        (trainers.Config, dict(top_k=0)),
        (trainers.Config, dict(top_k=17)),
    ],
)
def test_setting_out_of_range_is_refused(config, settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        config(**settings)


def test_trainer_and_generator_learn_together():
    """REINFORCE on the fraction of token 0 among the sampled tokens: from about 1/5 to nearly 1."""
    trainer, generator = make_trainer(vocab_size=5, lr=40.0), make_generator(vocab_size=5)
    loss = Objective("policy", ("advantage",), ("logp",), (Term("policy", _surrogate, token_mean),))
    fraction = []
    for version in range(30):
        generator.load_weights(trainer.weights(), version=version)
        completions = generate(
            generator, [Request(str(k), [k % 5], Sampling(max_tokens=8), seed=1000 * version + k) for k in range(32)]
        )
        fraction.append(sum(c.tokens.count(0) for c in completions) / (8 * 32))
        rows = [
            dict(tokens=[k % 5, *c.tokens], action=[0] + [1] * 8, row=k, group=0, temperature=1.0)
            | dict(advantage=[0.0, *((token == 0) - fraction[-1] for token in c.tokens)])
            for k, c in enumerate(completions)
        ]
        trainer.step(*make_step(loss, collate(rows)))
    assert fraction[0] < 0.4
    assert fraction[-1] > 0.9


def _surrogate(batch):
    return -batch["advantage"] * batch["logp"]
