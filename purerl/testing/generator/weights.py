"""Checks of `load_weights`, between requests and while they are in flight."""

from __future__ import annotations

from purerl.testing.generator.case import DELAYS, Case

__all__ = ["load_weights_applies_to_requests_in_flight", "load_weights_replaces_weights"]


def load_weights_replaces_weights(case: Case) -> None:
    """After `load_weights`, tokens have the new version and the log-probabilities of the new weights."""
    requests = [case.request(number, max_tokens=8) for number in range(8)]
    for version in (10**6, 10**6 + 1):
        case.load(version)
        for request, completion in zip(requests, case.run(requests), strict=True):
            assert set(completion.version) == {version}, (
                f"versions of the tokens: got {completion.version}, expected only {version}"
            )
            case.check_logp(request, completion)


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
