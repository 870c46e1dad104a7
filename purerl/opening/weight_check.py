"""A check before the first step: what the generator samples changes with the weights that it is sent.

A digest shows that weights have arrived, and not that they are used. So all weights of the policy are changed a little
(`purerl.backends.weight_changes`), and sent. With the mean d over the tokens of a few completions,

    d = mean_t |logp_t of the trainer - logp_t of the generator|        nats
    level = d before the change,        d after the change <= limit = max(4 level, 1e-4), in 16 bits max(4 level, 1e-2)

Otherwise the generator has kept old weights somewhere. They are found by changing only some of them: half of the
tensors, half of that half, and so on. A set is in use if d is within the limit when it alone is changed. If both halves
of all weights are, and d is at most 4 times the limit, then it has grown by rounding.
"""

from __future__ import annotations

import logging
import re
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from attrs import define, evolve, field, frozen

from purerl.backends.weight_changes import change_weights
from purerl.batch import collate
from purerl.errors import EngineError
from purerl.protocols import Completion, Generator, Request, Sampling, SupportsSleep, Trainer, generate
from purerl.ranks import Ranks
from purerl.rollouts.fields import RowTurn, token_fields
from purerl.seeds import derive_seed
from purerl.system.devices.accelerator import release_cached_memory

__all__ = ["check_updates"]

_PROBES = 8  # of all ranks together, but at least one of each
_PROMPT, _NEW = 16, 16  # tokens of a probe
_SMALLEST, _SMALLEST_IN_16_BITS = 1e-4, 1e-2  # nats; rounding is below it
_GROWTH = 4.0  # of rounding, because other weights have other activations
_OTHER_MODEL = 1.0  # nats
_MAX_TRANSFERS = 64  # while stale weights are searched
_MAX_NAMED = 8
_LOG = logging.getLogger(__name__)


def check_updates(
    trainer: Trainer,
    generator: Generator,
    tokens: Sequence[int],
    *,
    ranks: Ranks,
    seed: int,
    temperature: float = 1.0,
    is_narrow: bool = False,
) -> float | None:
    """Send changed weights of `trainer`, the policy, to `generator`; return the level in nats.

    tokens       ids that prompts may consist of
    temperature  of sampling
    is_narrow    one of them computes in 16 bits

    It is None if the trainer does not compute log-probabilities, and, with a warning, if these are of other models: a
    generator may return completions that it does not sample. Afterwards the trainer has its weights, bit for bit,
    and the generator has other ones, until it is sent those of the trainer.

    Raises: EngineError, with the names of the weights that the generator does not use.
    """
    if "logp" not in trainer.capabilities.outputs:
        return None
    check = _Check(trainer, generator, tokens, ranks, seed, temperature)
    level = check.difference()
    if not level <= _OTHER_MODEL:
        what = "generator and trainer have other models: %.2g nats between their log-probabilities"
        _LOG.warning(f"{what}. So nothing shows whether new weights are used", level)
        return None
    limit = max(_GROWTH * level, _SMALLEST_IN_16_BITS if is_narrow else _SMALLEST)
    with check.changed(None) as names:
        after = check.difference()
    if not after <= limit:
        names = sorted(names, key=_kind)
        stale = _stale_sets(check, names, limit)
        is_rounding = stale == [names] and len(names) > 1 and after <= _GROWTH * limit
        if not is_rounding:
            raise _not_used(names, stale, limit, level, after)
    return level


@define
class _Transfers:
    """The number of times that weights were sent."""

    used: int = 0


@frozen
class _Check:
    """The probes of a check."""

    trainer: Trainer
    generator: Generator
    tokens: Sequence[int]
    ranks: Ranks
    seed: int
    temperature: float
    transfers: _Transfers = field(factory=_Transfers)

    @contextmanager
    def changed(self, names: Collection[str] | None) -> Iterator[list[str]]:
        """Inside the block, the weights with these names, or all, are changed. Yields the names of all weights."""
        yield change_weights(self.trainer, names, self.seed)
        change_weights(self.trainer, names, self.seed)

    def requests(self) -> list[Request]:
        """Random prompts, other ones on each rank and after each transfer, of which no cache has a part."""
        limits = [each.capabilities.max_sequence_length or _PROMPT + _NEW for each in (self.trainer, self.generator)]
        limit = min(limits) // 2
        sampling = Sampling(temperature=self.temperature, max_tokens=min(_NEW, limit))
        requests = []
        for number in range(max(1, _PROBES // self.ranks.size)):
            own = derive_seed(self.seed, "probe", self.transfers.used, self.ranks.rank, number)
            draw = torch.Generator().manual_seed(own)
            chosen = torch.randint(len(self.tokens), (min(_PROMPT, limit),), generator=draw)
            requests.append(Request(f"probe-{number}", [self.tokens[k] for k in chosen.tolist()], sampling, seed=own))
        return requests

    def difference(self) -> float:
        """Send the weights of the trainer; return the mean difference of log-probabilities of the probes, in nats."""
        self.transfers.used += 1
        release_cached_memory()
        self.generator.load_weights(self.trainer.weights(), version=0)
        requests = self.requests()
        completions = generate(self.generator, requests)
        if self.generator.capabilities.sleeps:
            cast(SupportsSleep, self.generator).sleep()
        pairs = zip(requests, completions, strict=True)
        rows = [_row(*pair) for pair in pairs if pair[1].finish in ("stop", "length")]
        gathered = [row for own in self.ranks.gather(rows, "probes of new weights") for row in own]
        if not gathered:
            raise EngineError("the generator completes no prompt", got=completions[0].error or completions[0].finish)
        batch = collate([{**row, "row": number, "group": number} for number, row in enumerate(gathered)])
        logp, action = self.trainer.score(batch, ("logp",))["logp"], batch["action"]
        return float((logp - batch["rollout_logp"])[action].double().abs().mean())


def _row(request: Request, completion: Completion) -> dict[str, Any]:
    """The fields of a row, without experts: they are read where the run stores them."""
    turn = RowTurn(0, [], evolve(completion, routes=None))
    return {**token_fields(request.tokens, [turn]), "temperature": request.sampling.temperature}


def _stale_sets(check: _Check, names: Sequence[str], limit: float) -> list[list[str]]:
    """Sets of weights among `names` that are not in use, as small as can be found with so many transfers.

    If it takes several weights together to see a difference, they are one set.
    """
    waiting, found = deque([list(names)]), list[list[str]]()
    while waiting:
        part = waiting.popleft()
        halves = [half for half in (part[: len(part) // 2], part[len(part) // 2 :]) if half]
        is_smallest = len(halves) == 1 or check.transfers.used >= _MAX_TRANSFERS
        stale = [] if is_smallest else [half for half in halves if not _is_used(check, half, limit)]
        waiting += stale
        if not stale:
            found.append(part)
    return found


def _is_used(check: _Check, names: Sequence[str], limit: float) -> bool:
    with check.changed(names):
        return check.difference() <= limit


def _kind(name: str) -> tuple[str, list[int]]:
    """The name without the numbers in it, and these: a key by which a weight of all layers is together.

    Both matrices of an adapter are one kind: while one of them is 0, only both together change anything.

    >>> sorted(["l.1.a", "l.0.a", "l.0.b", "l.10.a", "l.2.a"], key=_kind)
    ['l.0.a', 'l.1.a', 'l.2.a', 'l.10.a', 'l.0.b']
    """
    return re.sub(r"\d+|(?<=\.lora_)[AB]", "*", name), [int(number) for number in re.findall(r"\d+", name)]


def _not_used(
    names: Sequence[str], stale: Sequence[Sequence[str]], limit: float, level: float, after: float
) -> EngineError:
    """The error that says which kinds of weights the generator does not use."""
    total = Counter(_kind(name)[0] for name in names)
    found = Counter(_kind(name)[0] for part in stale for name in part)
    shown = [f"{kind} ({number} of {total[kind]})" for kind, number in sorted(found.items())[:_MAX_NAMED]]
    others = [f"and {len(found) - _MAX_NAMED} other kinds"] if len(found) > _MAX_NAMED else []
    among = "" if all(len(part) == 1 for part in stale) else "some of "
    return EngineError(
        f"the generator does not use new values of {among}{', '.join(shown + others)}",
        got=f"{after:.2g} nats between its log-probabilities and the trainer's; {level:.2g} with the first weights",
        need=f"at most {limit:.2g} nats after all weights have been changed a little and sent",
        do="use another version of the engine, or another generator; docs/how-to/servers.md has a table of models",
    )
