"""Checks of `load_weights`, between requests and while they are in flight."""

from __future__ import annotations

from purerl.backends.weights import TensorWeights
from purerl.errors import EngineError
from purerl.protocols import Completion, Weights
from purerl.testing.generator.case import DELAYS, Case
from purerl.testing.suite import assert_raises, shown

__all__ = [
    "each_token_has_the_version_of_its_weights",
    "load_weights_applies_to_requests_in_flight",
    "load_weights_replaces_weights",
    "loaded_weights_are_copied",
    "unknown_weights_are_refused",
    "weights_of_an_adapter_are_refused",
    "weights_of_another_shape_are_refused",
]

# --- weights that do not fit ---------------------------------------------------------------------------------------


def unknown_weights_are_refused(case: Case) -> None:
    """`load_weights` raises EngineError for a name that the model does not have: such a weight would be lost."""
    weight = next(iter(case.weights[0].values()))
    _assert_refused(case, TensorWeights({"no.such.weight": weight}), "the unknown name 'no.such.weight'")


def weights_of_another_shape_are_refused(case: Case) -> None:
    """`load_weights` raises EngineError for a weight whose shape is not that of the model."""
    name, weight = next(iter(case.weights[0].items()))
    other = weight.flatten()[:-1].clone()
    _assert_refused(case, TensorWeights({name: other}), f"{name!r} with the shape {list(other.shape)}")


def weights_of_an_adapter_are_refused(case: Case) -> None:
    """`load_weights` raises EngineError for the weights of an adapter, unless `capabilities.adapters` is stated."""
    _assert_refused(case, TensorWeights(case.weights[0], adapter={"r": 8}), "the weights of an adapter")


def _assert_refused(case: Case, weights: Weights, what: str) -> None:
    assert_raises(EngineError, lambda: case.generator.load_weights(weights, version=10**6), f"load_weights with {what}")


# --- weights that fit ----------------------------------------------------------------------------------------------


def each_token_has_the_version_of_its_weights(case: Case) -> None:
    """Tokens that are sampled after `load_weights` have its version."""
    requests = [case.request(number, max_tokens=4) for number in range(4)]
    for version in (10**6, 10**6 + 1, 10**6 + 4):
        case.load(version)
        for completion in case.run(requests):
            assert set(completion.version) == {version}, (
                f"versions of the tokens: got {completion.version}, expected only {version}"
            )


def load_weights_replaces_weights(case: Case) -> None:
    """After `load_weights`, greedy decoding gives other tokens, or other log-probabilities of them."""
    answers = []
    for version in (10**6, 10**6 + 1):
        case.load(version)
        answers.append(_greedy(case))
    assert _difference(*answers) > case.tolerance, (
        f"greedy completions after load_weights with other weights: got {_shown(answers[1])}, expected others than "
        f"before, {_shown(answers[0])}"
    )


def loaded_weights_are_copied(case: Case) -> None:
    """After `load_weights`, a change of the tensors that it has read changes no completion.

    A trainer changes them in place in its next step.
    """
    tensors = {name: weight.clone() for name, weight in case.weights[0].items()}
    case.generator.load_weights(TensorWeights(tensors), version=10**6)
    before = _greedy(case)
    for tensor in tensors.values():
        tensor.detach().zero_()
    after = _greedy(case)
    assert _difference(before, after) <= case.tolerance, (
        f"greedy completions after a change of the tensors that load_weights has read: got {_shown(after)}, expected "
        f"those before, {_shown(before)}: the generator keeps references to the tensors"
    )


def _greedy(case: Case) -> list[Completion]:
    return case.run([case.request(number, max_tokens=1, temperature=0.0) for number in range(6)])


def _difference(first: list[Completion], second: list[Completion]) -> float:
    """The largest difference of log-probabilities; infinite if a token differs or a log-probability is NaN."""
    largest = 0.0
    for one, other in zip(first, second, strict=True):
        distance = abs(one.logp[0] - other.logp[0]) if one.tokens == other.tokens else float("inf")
        largest = max(largest, float("inf") if distance != distance else distance)
    return largest


def _shown(completions: list[Completion]) -> str:
    return ", ".join(f"token {each.tokens[0]} with logp {shown(each.logp[0])}" for each in completions[:3])


def load_weights_applies_to_requests_in_flight(case: Case) -> None:
    """Requests in flight continue with the new weights; tokens that were sampled before keep the old version."""
    requests = [case.request(number, max_tokens=case.long, temperature=0.8) for number in range(10)]
    for attempt, delay in enumerate(DELAYS):
        old, new = 10**6 + 2 * attempt, 10**6 + 2 * attempt + 1
        case.load(old)
        finished = case.start(requests, delay)
        case.load(new)
        in_flight = case.wait([request.key for request in requests if request.key not in finished])
        completions = finished | {completion.key: completion for completion in in_flight}
        for request in requests:
            versions = list(completions[request.key].version)
            assert set(versions) <= {old, new}, f"versions of the tokens: got {versions}, expected {old} and {new}"
            assert versions == sorted(versions), f"versions of the tokens: got {versions}, expected increasing versions"
            case.check_logp(request, completions[request.key])
        if any(len(set(completion.version)) > 1 for completion in in_flight):
            return
    raise AssertionError(
        "versions of requests in flight during load_weights: got one version in each completion, expected two in some"
    )
