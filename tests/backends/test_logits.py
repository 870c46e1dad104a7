"""`filter_logits`, compared value for value with the processors of transformers, in float64."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from attrs import evolve
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from purerl.backends.logits import FILTERS, Filters, filter_logits
from purerl.backends.sampling import choose
from purerl.protocols import Request, Sampling, generate
from purerl.settings import Model
from tests.backends.generators import make_generator, tiny_model
from tests.backends.tiny import VOCAB_SIZE

VOCAB, STOPS = 50, (3, 7)
CASES = {
    "top_p": dict(top_p=0.7),
    "small top_p": dict(top_p=1e-6),
    "top_k": dict(top_k=5),
    "top_k of one": dict(top_k=1),
    "top_k above the vocabulary": dict(top_k=10 * VOCAB),
    "min_p": dict(min_p=0.1),
    "min_p of one": dict(min_p=1.0),
    "penalty": dict(repetition_penalty=1.3),
    "reward of repetition": dict(repetition_penalty=0.7),
    "min_tokens": dict(min_tokens=9, max_tokens=20),
    "min_tokens reached": dict(min_tokens=4, max_tokens=20),
    "top_p with top_k": dict(top_p=0.6, top_k=9),
    "top_p with min_p": dict(top_p=0.6, min_p=0.05),
    "all": dict(top_p=0.8, top_k=12, min_p=0.02, repetition_penalty=1.2, min_tokens=9, max_tokens=20),
    "none": {},
}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def request(seed: int, **sampling: float) -> Request:
    tokens = torch.randint(VOCAB, (6 + seed % 3,), generator=torch.Generator().manual_seed(seed)).tolist()
    return Request(str(seed), tokens, Sampling(stop_tokens=STOPS, **sampling), seed)


def completion(seed: int) -> list[int]:
    return torch.randint(VOCAB, (4 + seed % 2,), generator=torch.Generator().manual_seed(100 + seed)).tolist()


def filtered(logits: Tensor, requests: Sequence[Request], completions: Sequence[Sequence[int]]) -> Tensor:
    return filter_logits(logits, Filters.of(requests, completions, VOCAB, dtype=torch.float64))


def oracle(logits: Tensor, request: Request, completion: Sequence[int]) -> Tensor:
    """The logits of one row after the processors of transformers, in the order of `Sampling`."""
    sampling, length = request.sampling, len(request.tokens)
    minimum = MinNewTokensLengthLogitsProcessor(length, sampling.min_tokens, [*STOPS])
    processors = LogitsProcessorList([minimum, RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)])
    processors.append(TemperatureLogitsWarper(sampling.temperature))
    processors.append(MinPLogitsWarper(sampling.min_p))
    processors += [TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
    processors += [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
    return processors(torch.tensor([[*request.tokens, *completion]]), logits[None].clone())[0] * sampling.temperature


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.8])
@pytest.mark.parametrize("name", CASES)
def test_each_value_is_that_of_transformers(name: str, temperature: float) -> None:
    requests = [request(seed, temperature=temperature, **CASES[name]) for seed in range(16)]
    completions, logits = [completion(seed) for seed in range(16)], normal(16, VOCAB)
    expected = torch.stack([oracle(*row) for row in zip(logits, requests, completions, strict=True)])
    torch.testing.assert_close(filtered(logits, requests, completions), expected, rtol=1e-14, atol=0)


def test_each_row_has_its_own_parameters() -> None:
    requests = [request(seed, temperature=0.5 + seed / 8, **each) for seed, each in enumerate(CASES.values())]
    completions, logits = [completion(seed) for seed in range(len(CASES))], normal(len(CASES), VOCAB)
    together = filtered(logits, requests, completions)
    for row, each in enumerate(requests):
        alone = filtered(logits[row : row + 1], [each], completions[row : row + 1])
        assert torch.equal(together[row : row + 1], alone)
    assert torch.equal(together[-1], logits[-1])


def test_greedy_decoding_has_the_logits_after_the_penalty() -> None:
    sampling = dict(temperature=0.0, repetition_penalty=1.4, min_tokens=9, max_tokens=20)
    requests = [request(0, **sampling), request(0, **sampling, top_p=0.1, top_k=2, min_p=0.5)]
    logits = normal(1, VOCAB).expand(2, -1)
    result = filtered(logits, requests, [completion(0)] * 2)
    expected = oracle(
        logits[0], evolve(requests[0], sampling=evolve(requests[0].sampling, temperature=1.0)), completion(0)
    )
    torch.testing.assert_close(result, expected.expand(2, -1), rtol=1e-14, atol=0)
    assert (result > -torch.inf).sum(-1).tolist() == [VOCAB - len(STOPS)] * 2


def test_tokens_that_are_as_likely_as_the_last_one_are_kept() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    for each in (dict(top_k=2), dict(top_p=0.5), dict(min_p=0.3)):
        result = filter_logits(logits, Filters.of([request(0, **each)], [[]], 5, dtype=torch.float64))
        assert (result > -torch.inf).tolist() == [[True] * 4 + [False]]


def test_top_p_of_nearly_one_drops_only_what_rounding_loses() -> None:
    """In float32 the probabilities add up to more or less than 1; a row without top_p keeps all of them."""
    logits = normal(4, VOCAB).float()
    requests = [request(0, top_k=VOCAB - 1) if row == 2 else request(0) for row in range(4)]
    result = filter_logits(logits, Filters.of(requests, [[]] * 4, VOCAB))
    assert (result > -torch.inf).sum(-1).tolist() == [VOCAB, VOCAB, VOCAB - 1, VOCAB]


def test_nan_remains_and_gives_a_logp_of_nan() -> None:
    logits = normal(1, VOCAB).float()
    logits[0, 5] = torch.nan
    result = filter_logits(logits, Filters.of([request(0, top_p=0.5, top_k=3)], [[]], VOCAB))
    assert choose(result, torch.ones(1), torch.full((1,), 0.5))[1].isnan().all()


def test_added_tokens_are_those_of_the_completion() -> None:
    requests = [request(seed, repetition_penalty=1.5, min_tokens=3, max_tokens=9) for seed in range(4)]
    tokens = [completion(seed)[:4] for seed in range(4)]
    filters, logits = Filters.of(requests, [[]] * 4, VOCAB, dtype=torch.float64), normal(4, VOCAB)
    for count in range(5):
        expected = filtered(logits, requests, [each[:count] for each in tokens])
        assert torch.equal(filter_logits(logits, filters), expected)
        if count < 4:
            filters.add(torch.tensor([each[count] for each in tokens]))


# --- the embedded generator --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("model"))


SAMPLED = [
    dict(top_p=0.6),
    dict(top_k=3, temperature=1.5),
    dict(min_p=0.2),
    dict(repetition_penalty=1.8),
    dict(min_tokens=12),
    dict(temperature=0.0, repetition_penalty=1.8, min_tokens=12),
    dict(top_p=0.9, top_k=6, min_p=0.05, repetition_penalty=1.2, min_tokens=12),
    {},
]


def requests_with_parameters(number: int) -> list[Request]:
    return [
        Request(
            str(k),
            [(k + time) % VOCAB_SIZE for time in range(1 + k % 5)],
            Sampling(**{"max_tokens": 24, "stop_tokens": (4, 9)} | SAMPLED[k % len(SAMPLED)]),
            seed=k,
        )
        for k in range(number)
    ]


def test_generator_has_the_same_tokens_alone_in_other_batches_and_in_small_tables(model: Model) -> None:
    """Rows end at different times, so that the parameters are gathered again while rows are in flight."""
    requests = requests_with_parameters(24)
    together = generate(make_generator(model), requests)
    assert {len(each.tokens) for each in together} > {12}
    for settings in (dict(max_num_seqs=5), dict(max_num_seqs=1)):
        completions = generate(make_generator(model, **settings), requests[::-1])[::-1]
        for actual, expected in zip(completions, together, strict=True):
            assert actual.tokens == expected.tokens
            assert actual.logp == pytest.approx(expected.logp, abs=1e-5)


def test_rows_without_parameters_are_not_changed_by_rows_with_them(model: Model) -> None:
    requests = requests_with_parameters(16)
    plain = [each for each in requests if not each.sampling.parameters]
    assert len(plain) == 2
    together = {each.key: each for each in generate(make_generator(model), requests)}
    assert [each.tokens for each in generate(make_generator(model), plain)] == [together[p.key].tokens for p in plain]


def test_parameters_cost_nothing_if_no_request_has_them(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Filters, "of", lambda *arguments: pytest.fail("parameters were gathered"))
    [completion] = generate(make_generator(model), [Request("a", [1, 2], Sampling(max_tokens=3), seed=0)])
    assert len(completion.tokens) == 3


def test_generators_state_what_they_implement(model: Model) -> None:
    assert make_generator(model).capabilities.sampling == FILTERS
