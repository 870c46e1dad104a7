"""The fakes: small enough to check by hand, and real enough to learn."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from attrs import evolve

from purerl.algos.algebra import Objective, Term, prepare_step
from purerl.algos.parts.reductions import token_mean
from purerl.backends.fake import generator as generators
from purerl.backends.fake import trainer as trainers
from purerl.backends.fake.model import BIGRAM, VALUE, initial_weights
from purerl.batch import collate
from purerl.errors import CheckpointError, ConfigError, EngineError, InputError
from purerl.protocols import Generator, Model, Request, Sampling, Trainer, generate
from purerl.testing.trainer import check_trainer

MODEL = Model("a name", dtype="float64")
RATE = 0.3


def trainer(role="policy", vocabulary=11, model=MODEL, learning_rate=RATE):
    config = trainers.Config(vocabulary=vocabulary, learning_rate=learning_rate)
    return trainers.build(config, model=model, role=role, updates=1, seed=0)


def generator(vocabulary=11, model=MODEL, seed=0, **settings):
    return generators.build(generators.Config(vocabulary=vocabulary, **settings), model=model, seed=seed)


def test_they_are_what_the_protocols_say():
    assert isinstance(trainer(), Trainer)
    assert isinstance(generator(), Generator)


def test_the_trainer_conforms():
    optimizer = partial(torch.optim.SGD, lr=RATE)
    check_trainer(trainer, vocabulary=11, logits=lambda weights, tokens: weights[BIGRAM][tokens], optimizer=optimizer)


def test_models_of_one_path_are_equal_and_of_two_are_not():
    one, same, other = (dict(trainer(model=Model(path)).weights())[BIGRAM] for path in ("a", "a", "b"))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(generator(model=Model("a"))._weights[BIGRAM], one)


def test_a_step_by_hand():
    """Policy gradient on one token: the row of the token before moves by rate * (one-hot - p)."""
    one = trainer(vocabulary=3)
    before = dict(one.weights())[BIGRAM]
    loss = Objective("policy", (), ("logp",), (Term("nll", lambda batch: -batch["logp"], token_mean),))
    batch = collate([dict(tokens=[2, 0], action=[0, 1], row=0, group=0, temperature=2.0)])
    metrics = one.step(*_with_objective(loss, batch))
    p = (before[2] / 2).softmax(-1)
    moved = before.clone()
    moved[2] += RATE * (torch.tensor([1.0, 0, 0], dtype=torch.float64) - p) / 2
    torch.testing.assert_close(dict(one.weights())[BIGRAM], moved)
    torch.testing.assert_close(metrics["loss/nll"].total, -p[0].log())


def _with_objective(objective, batch):
    step, counts = prepare_step(objective, batch)
    return step, objective, counts


def test_a_critic_values_what_comes_before():
    critic = trainer("critic", vocabulary=3)
    batch = collate([dict(tokens=[2, 0, 1], action=[0, 1, 1], row=0, group=0, temperature=1.0, reward=[0, 4.0, 8.0])])
    loss = Objective("critic", ("reward",), ("value",), (Term("square", _square, token_mean),))
    critic.step(*_with_objective(loss, batch))
    value = dict(critic.weights())[VALUE].tolist()
    assert value == pytest.approx([RATE * 8, 0, RATE * 4])  # the gradient of (v - r)^2 / 2 over 2 tokens, twice
    assert critic.score(batch, ("value",))["value"].tolist() == [pytest.approx([0, RATE * 4, RATE * 8])]


def _square(batch):
    return (batch["value"] - batch["reward"]).square()


def test_a_policy_has_no_value():
    batch = collate([dict(tokens=[2, 0], action=[0, 1], row=0, group=0, temperature=1.0)])
    with pytest.raises(EngineError, match=r"output 'value'(.|\n)*one of: entropy, logp"):
        trainer().score(batch, ("logp", "value"))


def test_what_is_exported_is_where_others_start_from(tmp_path):
    one = trainer(model=Model("a", dtype="float64"))
    one.export(tmp_path / "final")
    found = initial_weights(Model(str(tmp_path / "final"), dtype="float64"), 11, "critic")
    assert torch.equal(found[BIGRAM], dict(one.weights())[BIGRAM])
    with pytest.raises(ConfigError, match="vocabulary\n  got:  12\n  need: 11"):
        initial_weights(Model(str(tmp_path / "final")), 12)


def test_damaged_and_foreign_checkpoints_are_refused(tmp_path):
    trainer("critic").save(tmp_path)
    with pytest.raises(CheckpointError, match="do not fit"):
        trainer().load(tmp_path)
    (tmp_path / "weights.pt").write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="no weights can be read"):
        trainer().load(tmp_path)


def requests(count, max_tokens=5):
    return [Request(str(number), [number % 11], Sampling(max_tokens=max_tokens), number) for number in range(count)]


def test_completions_trickle_in_scrambled_order():
    def batches(seed):
        engine = generator(seed=seed, at_once=3)
        engine.submit(requests(10))
        return [[completion.key for completion in engine.collect()] for _ in range(5)]

    found = batches(0)
    assert [len(batch) for batch in found] == [3, 3, 3, 1, 0]
    order = [key for batch in found for key in batch]
    assert order != sorted(order) == [str(number) for number in range(10)]
    assert found == batches(0) != batches(1)


def test_its_order_has_no_part_in_its_tokens():
    one, two = (generate(generator(seed=seed, at_once=n), requests(10)) for seed, n in ((0, 1), (1, 100)))
    assert one == two


def test_completions_of_others_are_not_waited_for():
    engine, heard = generator(at_once=1), []
    engine.submit([evolve(request, key="other") for request in requests(1, max_tokens=1)])
    done = generate(engine, requests(2), heard=heard.extend)
    assert [one.key for one in done] == ["0", "1"]
    assert {one.key for one in heard} == {"0", "1", "other"}


def test_a_sequence_has_a_longest_length():
    engine = generator(longest=6)
    engine.submit(requests(1))
    with pytest.raises(InputError, match="got:  7 tokens"):
        engine.submit([evolve(request, key="other") for request in requests(1, max_tokens=6)])


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        (generators.Config, dict(vocabulary=0)),
        (generators.Config, dict(at_once=0)),
        (generators.Config, dict(longest=0)),
        (trainers.Config, dict(vocabulary=0)),
        (trainers.Config, dict(learning_rate=0.0)),
    ],
)
def test_settings_out_of_range_are_refused(config, settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        config(**settings)


def test_they_learn_together():
    """REINFORCE on the share of token 0 among the new ones: from about 1/5 to nearly 1."""
    policy, sampler = trainer(vocabulary=5, learning_rate=40.0), generator(vocabulary=5)
    loss = Objective("policy", ("advantage",), ("logp",), (Term("policy", _surrogate, token_mean),))
    share = []
    for version in range(30):
        sampler.load_weights(policy.weights(), version=version)
        done = generate(
            sampler, [Request(str(k), [k % 5], Sampling(max_tokens=8), seed=1000 * version + k) for k in range(32)]
        )
        share.append(sum(c.tokens.count(0) for c in done) / (8 * 32))
        rows = [
            dict(tokens=[k % 5, *c.tokens], action=[0] + [1] * 8, row=k, group=0, temperature=1.0)
            | dict(advantage=[0.0, *((token == 0) - share[-1] for token in c.tokens)])
            for k, c in enumerate(done)
        ]
        policy.step(*_with_objective(loss, collate(rows)))
    assert share[0] < 0.4
    assert share[-1] > 0.9


def _surrogate(batch):
    return -batch["advantage"] * batch["logp"]
