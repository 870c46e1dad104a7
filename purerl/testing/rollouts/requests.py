"""Checks of a workflow: the keys and the seeds of its requests."""

from __future__ import annotations

from collections import Counter

from purerl.protocols import Request
from purerl.testing.rollouts.case import Case

__all__ = ["keys_begin_with_that_of_the_draw", "seeds_come_from_the_draw"]


def keys_begin_with_that_of_the_draw(case: Case) -> None:
    """Each request has a key of its own, which is the key of its draw, "/" and something else."""
    for draw in case.draws:
        requests = case.alone(draw).requests
        for request in requests:
            begins = request.key.startswith(f"{draw.key}/")
            assert begins, f"key of a request: got {request.key!r}, expected one that begins with '{draw.key}/'"
        [(key, count), *_] = Counter(request.key for request in requests).most_common(1) or [("", 1)]
        assert count == 1, f"key {key!r}: got {count} requests, expected 1"


def seeds_come_from_the_draw(case: Case) -> None:
    """A request has the same seed if the draw is repeated, and another one in another sample, draw or run."""
    seen: dict[int, str] = {}
    for index, draw in enumerate(case.draws):
        requests, repeated = case.alone(draw).requests, case.run([draw]).requests
        assert _seeds(repeated) == _seeds(requests), (
            f"seeds of draw {draw.number}, repeated: got {_seeds(repeated)}, expected {_seeds(requests)}"
        )
        for key, seed in _seeds(requests).items():
            other = seen.setdefault(seed, key)
            assert other == key, f"seed {seed}: got it for {other!r} and for {key!r}; use derive_seed(*draw.seeds, ...)"
        other_run = _seeds(case.run([case.draw(index, seed=1)]).requests)
        for key, seed in _seeds(requests).items():
            is_other = other_run.get(key) != seed
            assert is_other, f"seed of {key!r}: got {seed} in runs with different seeds; derive it from draw.seeds"


def _seeds(requests: list[Request] | tuple[Request, ...]) -> dict[str, int]:
    """The seeds of the requests that are sampled; greedy ones do not need any."""
    return {request.key: request.seed for request in requests if request.sampling.temperature > 0}
