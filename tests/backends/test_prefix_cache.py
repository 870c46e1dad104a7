"""Keys and values that are kept between the turns of an episode: what is read, what is kept, and when it is dropped."""

from __future__ import annotations

import random

import pytest
import torch
from attrs import evolve

from purerl.backends.fake.model import text_of
from purerl.backends.hf.generator import Config
from purerl.backends.hf.sampling.prefill import Prompt, batches
from purerl.backends.hf.sampling.prefix_cache import PAGE, FinishedRow, PrefixCache, prefix_hashes
from purerl.backends.hf.sampling.table import Table
from purerl.backends.weights import TensorWeights
from purerl.errors import ConfigError
from purerl.protocols import Request, Sampling, generate
from tests.backends.generators import make_generator, reference_score, tiny_model, weights_in_files

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def generator(model):
    return make_generator(model)


@pytest.fixture
def blocks(generator, monkeypatch):
    """The shapes of the blocks of tokens that the model reads, decoding steps included."""
    shapes, forward = [], generator._model.base_model.forward

    def recorded(*args, **kwargs):
        shapes.append(tuple(kwargs["input_ids"].shape))
        return forward(*args, **kwargs)

    monkeypatch.setattr(generator._model.base_model, "forward", recorded)
    return shapes


def request(number=0, *, length=9, max_tokens=3, **sampling):
    rng = random.Random(number)
    tokens = [rng.randrange(2, 19) for _ in range(length)]
    return Request(str(number), tokens, Sampling(max_tokens=max_tokens, **sampling), seed=number, keep=True)


def next_turn(first, completion, added=(5, 6)):
    return evolve(first, tokens=[*first.tokens, *completion.tokens, *added], seed=first.seed + 100)


def allocated(generator):
    """Numbers in the memory of kept sequences."""
    return sum(plane.numel() for plane in generator._prefixes._planes.values())


# --- what is read ------------------------------------------------------------------------------------------------


def test_next_turn_reads_only_new_tokens(generator, blocks):
    """Prompts of 9 and 6 tokens, 3 sampled ones, then 2 and 5.

    The last sampled token was not read. The last token of all is read by the first decoding step.
    """
    requests = [request(0), request(1, length=6)]
    completions = generate(generator, requests)
    assert blocks == [(2, 8), (2, 1), (2, 1), (2, 1)]
    blocks.clear()
    added = ((5, 6), (5, 6, 7, 8, 9))
    generate(generator, [next_turn(*turn) for turn in zip(requests, completions, added, strict=True)])
    assert blocks == [(2, 5), (2, 1), (2, 1), (2, 1)]


@pytest.mark.parametrize(("added", "read"), [((), 1), ((4,), 1), ((4, 5), 2)])
def test_at_least_one_token_is_read(generator, blocks, added, read):
    first = request()
    (completion,) = generate(generator, [first])
    blocks.clear()
    generate(generator, [next_turn(first, completion, added)])
    assert blocks[0] == (1, read)


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("added", [(), (4,), (4, 5)])
def test_short_sequences_are_continued(model, generator, length, added):
    requests = [request(length=length, max_tokens=1), request(1, length=length, max_tokens=1)]
    later = [next_turn(*turn, added) for turn in zip(requests, generate(generator, requests), strict=True)]
    assert tokens_of(generate(generator, later)) == tokens_of(generate(make_generator(model), later))


def tokens_of(completions):
    return [completion.tokens for completion in completions]


def test_new_and_continued_requests_are_read_separately(generator, blocks):
    first = request()
    (completion,) = generate(generator, [first])
    blocks.clear()
    generate(generator, [next_turn(first, completion), request(1, length=12)])
    assert blocks[:3] == [(1, 11), (1, 2), (2, 1)]


@pytest.mark.parametrize(
    ("max_cached_tokens", "order"),
    [
        pytest.param(10 * PAGE, ["1", "2", "3", "next", "long"], id="room for all: as they were submitted"),
        pytest.param(2 * PAGE, ["long", "next", "1", "2", "3"], id="no room: the longest kept sequence first"),
    ],
)
def test_waiting_requests_are_admitted_in_an_order_that_keeps_few_sequences(model, max_cached_tokens, order):
    """One row at a time. The kept sequences have 8 and 12 tokens, and those of the waiting requests up to 17."""
    generator = make_generator(model, max_num_seqs=1, max_cached_tokens=max_cached_tokens)
    requests = [request(0, length=5), request(1, length=5), request(2), request(3)]
    first = evolve(request(9), key="first")
    generator.submit([requests[0], first])
    done = {each.key: each for _ in range(2) for each in generator.collect()}
    later = [evolve(next_turn(each, done[each.key]), key=key) for key, each in (("next", requests[0]), ("long", first))]
    generator.submit([*requests[1:], *later])
    assert [each.key for _ in range(5) for each in generator.collect()] == order


def test_requests_that_continue_one_sequence_alike_are_read_once(generator, blocks):
    first = request()
    (completion,) = generate(generator, [first])
    blocks.clear()
    later = next_turn(first, completion)
    generate(generator, [evolve(later, key=str(seed), seed=seed) for seed in range(4)])
    assert blocks[:2] == [(1, 2), (4, 1)]


@pytest.mark.parametrize("stop", [dict(stop_tokens=(3,)), dict(stop_strings=(text_of([3]),))])
def test_turns_that_stopped_are_continued(model, generator, blocks, stop):
    requests = [request(number, max_tokens=30, **stop) for number in range(4)]
    completions = generate(generator, requests)
    assert {completion.finish for completion in completions} >= {"stop"}
    blocks.clear()
    later = [next_turn(*turn) for turn in zip(requests, completions, strict=True)]
    assert tokens_of(generate(generator, later)) == tokens_of(generate(make_generator(model), later))
    assert blocks[0] == (4, 2)


@pytest.mark.parametrize("family", ["qwen3", "gpt2", "gemma2"])
def test_logp_after_many_turns_equals_a_forward_pass(tmp_path, family):
    """Episodes of different lengths run beside each other, in few slots and with small prefills."""
    tiny = tiny_model(tmp_path, family)
    generator = make_generator(tiny, max_num_seqs=3, max_prefill_tokens=8)
    score, weights = reference_score(tiny), weights_in_files(tiny)
    requests = [request(number, length=1 + 2 * number, max_tokens=2 + number % 3) for number in range(6)]
    for turn in range(4):
        completions = generate(generator, requests)
        for each, completion in zip(requests, completions, strict=True):
            tokens = [*each.tokens, *completion.tokens]
            assert completion.logp == pytest.approx(score(weights, tokens, 1.0)[len(each.tokens) :], abs=1e-4)
        pairs = enumerate(zip(requests, completions, strict=True))
        requests = [next_turn(*pair, range(2, 3 + (k + turn) % 4)) for k, pair in pairs]


# --- what is kept ------------------------------------------------------------------------------------------------


def test_nothing_is_kept_unless_the_request_asks_for_it(generator, blocks):
    first = evolve(request(), keep=False)
    (completion,) = generate(generator, [first])
    assert allocated(generator) == 0
    blocks.clear()
    generate(generator, [next_turn(first, completion)])
    assert blocks[0] == (1, 13)


def test_nothing_is_kept_with_a_bound_of_0(model):
    generator = make_generator(model, max_cached_tokens=0)
    generate(generator, [request()])
    assert allocated(generator) == 0


def test_sequence_is_kept_while_no_request_is_in_flight(generator):
    generate(generator, [request()])
    assert generator.collect() == []
    assert allocated(generator) == 2 * 2 * 1 * PAGE * 8  # keys and values, layers, heads, tokens, width


def test_memory_is_freed_when_the_last_sequence_is_continued(generator):
    first = request()
    (completion,) = generate(generator, [first])
    generate(generator, [evolve(next_turn(first, completion), keep=False)])
    assert allocated(generator) == 0


def test_cancelling_a_finished_request_frees_its_memory(generator, blocks):
    requests = [request(0), request(1)]
    completions = generate(generator, requests)
    generator.cancel(["0"])
    blocks.clear()
    generate(generator, [evolve(next_turn(*pair), keep=False) for pair in zip(requests, completions, strict=True)])
    assert blocks[:2] == [(1, 13), (1, 2)]
    assert allocated(generator) == 0


def test_loading_weights_frees_the_memory(generator, blocks):
    first = request()
    (completion,) = generate(generator, [first])
    generator.load_weights(TensorWeights({}), version=1)
    assert allocated(generator) == 0
    blocks.clear()
    generate(generator, [next_turn(first, completion)])
    assert blocks[0] == (1, 13)


def test_cancelled_request_is_not_kept(generator):
    generator.submit([request(max_tokens=30)])
    generator.collect(timeout=0.0)
    generator.cancel(["0"])
    assert [completion.finish for completion in generator.collect()] == ["cancelled"]
    assert allocated(generator) == 0


def test_request_with_an_error_is_not_kept(model, generator):
    weights = weights_in_files(model)
    weights["model.embed_tokens.weight"][3] = torch.nan
    generator.load_weights(TensorWeights(weights), version=1)
    bad, good = evolve(request(), tokens=[3, 3]), request(1)
    bad_completion, _ = generate(generator, [bad, good])
    assert bad_completion.finish == "error"
    assert [sequence.key for sequence in generator._prefixes._sequences.values()] == ["1"]


def test_sequences_that_finished_first_are_dropped_when_there_is_no_room(model):
    """Four sequences of 11 tokens without their last, one page each; room for three."""
    generator = make_generator(model, max_cached_tokens=3 * PAGE)
    for number in range(4):
        generate(generator, [request(number)])
    assert [sequence.key for sequence in generator._prefixes._sequences.values()] == ["1", "2", "3"]


def test_number_of_cached_tokens_must_not_be_negative():
    with pytest.raises(ConfigError, match="max_cached_tokens\n  got:  -1"):
        Config(max_cached_tokens=-1)


# --- the cache itself --------------------------------------------------------------------------------------------


def test_cache_has_the_numbers_of_all_sequences_that_were_not_dropped():
    """Rows of different lengths are stored and dropped at random; each number in the table is different."""
    rng, cache, expected, table = random.Random(0), PrefixCache(12 * PAGE, CPU), {}, Table(5)
    table.add_plane("plane", torch.zeros(1, 2, 1, 3))
    for number in range(60):
        lengths = [rng.randrange(1, 40) for _ in range(rng.randrange(1, 6))]
        rows = table.add_rows(len(lengths), before=max(lengths))
        values = table.view("plane", rows, table.now - max(lengths), table.now)
        values.copy_(torch.rand(values.shape))
        stored = [
            FinishedRow(row, f"{number}/{row}", (number, row, *[7] * (length - 1)))
            for row, length in enumerate(lengths)
        ]
        cache.store(table, ["plane"], stored)
        for row, length in enumerate(lengths):
            expected[f"{number}/{row}"] = values[row, :, max(lengths) - length :].clone()
        present = list(cache._sequences.values())
        pages = [page for sequence in present for page in sequence.pages]
        assert len(pages) == len(set(pages)) <= 12
        assert sorted([*pages, *cache._free]) == list(range(cache._pages))
        for sequence in present:
            slots = cache.slots([sequence], torch.arange(sequence.length)[None])
            assert torch.equal(cache.read("plane", slots)[0], expected[sequence.key])
            assert cache.find([*sequence.tokens, 8]) is sequence
        cache.drop_requests([sequence.key for sequence in present if rng.random() < 0.3])
        table.remove_rows([], [], rows=0, start=table.now)
        table.add_column()


def test_longest_sequence_is_found():
    cache, table = PrefixCache(10 * PAGE, CPU), Table(2)
    table.add_plane("plane", torch.zeros(1, 1, 1, 1))
    table.add_rows(2, before=5)
    cache.store(table, ["plane"], [FinishedRow(0, "short", (1, 2, 3)), FinishedRow(1, "long", (1, 2, 3, 4, 5))])
    keys = [found and found.key for found in map(cache.find, ([1, 2], [1, 2, 3], (1, 2, 3, 4), (1, 2, 3, 4, 5, 6)))]
    assert keys == [None, "short", "short", "long"]


def test_equal_hash_is_not_enough(monkeypatch):
    cache, table = PrefixCache(10 * PAGE, CPU), Table(1)
    table.add_plane("plane", torch.zeros(1, 1, 1, 1))
    table.add_rows(1, before=5)
    monkeypatch.setattr(
        "purerl.backends.hf.sampling.prefix_cache.prefix_hashes", lambda tokens: [len(tokens)] * len(tokens)
    )
    cache.store(table, ["plane"], [FinishedRow(0, "a", (1, 2, 3))])
    assert cache.find([1, 2, 4]) is None
    assert cache.find([1, 2, 3]) is not None


def test_hashes_depend_on_tokens_and_their_order():
    sequences = [(), (0,), (0, 0), (1,), (1, 0), (0, 1), (2, 1), (1, 2), (10**6,)]
    assert len({tuple(prefix_hashes(tokens))[-1:] for tokens in sequences}) == len(sequences)


# --- which prompts are read together -----------------------------------------------------------------------------


def test_continued_prompts_are_read_after_new_ones_and_short_ones_first():
    new, long, short = Prompt((1,) * 9), Prompt((2,) * 20, 11), Prompt((3,) * 20, 18)
    assert list(batches([long, new, short, new], 100)) == [[1, 3], [2, 0]]
    assert list(batches([long, new, short, new], 10)) == [[1, 3], [2], [0]]
    assert list(batches([long, new, short, new], 1)) == [[1], [3], [2], [0]]
    assert list(batches([], 1)) == []


@pytest.mark.parametrize(("count", "waits"), [(32, 8), (8, 0)])
def test_a_request_waits_for_others_while_many_rows_are_decoded(model, monkeypatch, count, waits):
    """One request waits eight steps beside 32 rows, and not at all beside eight."""
    generator, rows = make_generator(model, max_num_seqs=64), []
    step = generator._step
    monkeypatch.setattr(generator, "_step", lambda: (rows.append(generator._table.rows), step()))
    generator.submit([request(number, max_tokens=20) for number in range(count)])
    generator.collect(timeout=0.0)
    generator.submit([request(99, max_tokens=20)])
    generator.collect()
    assert rows[1 : waits + 2] == [count] * waits + [count + 1]
