"""A check before the first step: what the generator samples changes with the weights that it is sent.

A digest shows that weights have arrived, and not that they are used. So all weights of the policy are changed a little
(`purerl.backends.weight_changes`), and sent. Each copy c of the weights, in a server, an actor or a rank, completes at
least one prompt. With the means over the tokens of a copy, of which the largest counts,

    d = max_c mean_t |logp_t of the trainer - logp_t of the copy|        nats
    level = d before the change,        d after the change <= limit = max(4 level, 1e-4), in 16 bits max(4 level, 1e-2)

Otherwise the generator has kept old weights somewhere. They are found by changing only some of them: half of the
tensors, half of that half, and so on. A set is in use if d is within the limit when it alone is changed. If both halves
of all weights are, and d is at most 4 times the limit, then it has grown by rounding.

A generator that samples with the tensors of the trainer themselves is sent nothing that could be old: the level is all
that is measured.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from attrs import define, evolve, field, frozen
from torch import Tensor

from purerl.backends.copies import copies_of, generate_on_copies
from purerl.backends.weight_changes import change_weights
from purerl.batch import collate
from purerl.errors import EngineError
from purerl.protocols import Completion, Generator, Request, Sampling, SupportsSleep, Trainer
from purerl.ranks import Ranks
from purerl.rollouts.fields import RowTurn, token_fields
from purerl.seeds import derive_seed
from purerl.system.devices.accelerator import release_cached_memory

__all__ = ["check_updates"]

_PROBES = 8  # of all copies together, but at least one of each
_PROMPT, _NEW = 8, 4  # tokens of a probe
_SMALLEST, _SMALLEST_IN_16_BITS = 1e-4, 1e-2  # nats; rounding is below it
_GROWTH = 4.0  # of rounding, because other weights have other activations
_OTHER_MODEL = 1.0  # nats
_MAX_TRANSFERS = 64  # while stale weights are searched
_MAX_NAMED = 8


def check_updates(
    trainer: Trainer,
    generator: Generator,
    tokens: Sequence[int],
    *,
    ranks: Ranks,
    seed: int,
    temperature: float = 1.0,
    is_narrow: bool = False,
    is_shared: bool = False,
) -> float | None:
    """Send changed weights of `trainer`, the policy, to `generator`; return the level in nats.

    tokens       ids that prompts may consist of
    temperature  of sampling
    is_narrow    one of them computes in 16 bits
    is_shared    the generator samples with the tensors of the trainer themselves, so only the level is measured

    It is None if the trainer does not compute log-probabilities. Afterwards the trainer has its weights, bit for bit,
    and the generator has other ones, until it is sent those of the trainer.

    Raises: EngineError, with the names of the weights that the generator does not use, and of the copies that do not;
    if generator and trainer compute other models with the same weights; if a copy completes no prompt.
    """
    if "logp" not in trainer.capabilities.outputs:
        return None
    copies = ranks.gather(copies_of(generator), "copies of the weights")
    check = _Check(trainer, generator, tokens, ranks, seed=seed, temperature=temperature, copies=copies)
    before = check.differences()
    level = float(before.max())
    if not level <= _OTHER_MODEL:
        where, need = check.where(before, _OTHER_MODEL), f"at most {_OTHER_MODEL:g} nat before the first step"
        got = f"{level:.2g} nats between their log-probabilities with the same weights{where}"
        do = (
            "set generator.kind to hf to see which of them differs; a generator of your own must sample what it returns"
        )
        raise EngineError("the generator computes another model than the trainer", got=got, need=need, do=do)
    if is_shared:
        return level
    limit = max(_GROWTH * level, _SMALLEST_IN_16_BITS if is_narrow else _SMALLEST)
    with check.changed(None) as names:
        differences = check.differences()
    after = float(differences.max())
    if not after <= limit:
        names = sorted(names, key=_kind)
        stale = _stale_sets(check, names, limit)
        is_rounding = stale == [names] and len(names) > 1 and after <= _GROWTH * limit
        if not is_rounding:
            raise _not_used(names, stale, limit, level, after, check.where(differences, limit))
    return level


@define
class _Transfers:
    """The number of times that weights were sent."""

    used: int = 0


@frozen
class _Check:
    """The probes of a check. `copies` are the names of the copies of the weights that each rank asks, by rank."""

    trainer: Trainer
    generator: Generator
    tokens: Sequence[int]
    ranks: Ranks
    seed: int
    temperature: float
    copies: Sequence[Sequence[str]]
    transfers: _Transfers = field(factory=_Transfers)

    @property
    def names(self) -> list[str]:
        """The names of all copies, in the order of `differences`."""
        if len(self.copies) == 1:
            return [*self.copies[0]]
        return [f"{f'{name} of ' if name else ''}rank {rank}" for rank, own in enumerate(self.copies) for name in own]

    def where(self, differences: Tensor, limit: float) -> str:
        """The copies that have more than `limit`, for a message; "" if there is only one copy."""
        names = self.names
        found = [name for name, value in zip(names, differences.tolist(), strict=True) if not value <= limit]
        more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
        of_all = f"{len(found)} of {len(names)} copies of the weights ({', '.join(found[:_MAX_NAMED])}{more})"
        return f", in {of_all}" if len(names) > 1 else ""

    @contextmanager
    def changed(self, names: Collection[str] | None) -> Iterator[list[str]]:
        """Inside the block, the weights with these names, or all, are changed. Yields the names of all weights."""
        yield change_weights(self.trainer, names, self.seed)
        change_weights(self.trainer, names, self.seed)

    def requests(self) -> list[list[Request]]:
        """Random prompts for each copy of this rank, other ones after each transfer, of which no cache has a part."""
        limits = [each.capabilities.max_sequence_length or _PROMPT + _NEW for each in (self.trainer, self.generator)]
        limit = min(limits) // 2
        sampling = Sampling(temperature=self.temperature, max_tokens=min(_NEW, limit))
        of_copy = max(1, _PROBES // len(self.names))
        requests = []
        for number in range(of_copy * len(self.copies[self.ranks.rank])):
            own = derive_seed(self.seed, "probe", self.transfers.used, self.ranks.rank, number)
            draw = torch.Generator().manual_seed(own)
            chosen = torch.randint(len(self.tokens), (min(_PROMPT, limit),), generator=draw)
            requests.append(Request(f"probe-{number}", [self.tokens[k] for k in chosen.tolist()], sampling, seed=own))
        return [requests[start : start + of_copy] for start in range(0, len(requests), of_copy)]

    def differences(self) -> Tensor:
        """Send the weights of the trainer; return the mean difference of log-probabilities of each copy, in nats."""
        self.transfers.used += 1
        release_cached_memory()
        self.generator.load_weights(self.trainer.weights(), version=0)
        requests = self.requests()
        completions = generate_on_copies(self.generator, requests)
        if self.generator.capabilities.sleeps:
            cast(SupportsSleep, self.generator).sleep()
        answers = [[*map(_answer, *each)] for each in zip(requests, completions, strict=True)]
        of_copies = [each for own in self.ranks.gather(answers, "probes of new weights") for each in own]
        rows, owners = list[dict[str, Any]](), list[int]()
        for copy, answered in enumerate(of_copies):
            found = [row for row, _ in answered if row is not None]
            if not found:
                where = f" in {self.names[copy]}" if self.names[copy] else ""
                raise EngineError(f"the generator completes no prompt{where}", got=answered[0][1])
            rows += found
            owners += [copy] * len(found)
        batch = collate([{**row, "row": number, "group": number} for number, row in enumerate(rows)])
        logp, action = self.trainer.score(batch, ("logp",))["logp"], batch["action"]
        sizes = (logp - batch["rollout_logp"]).double().abs().where(action, 0).sum(-1)
        copies, zeros = torch.tensor(owners), torch.zeros(len(of_copies), dtype=torch.float64)
        return zeros.index_add(0, copies, sizes) / zeros.index_add(0, copies, action.double().sum(-1))


def _answer(request: Request, completion: Completion) -> tuple[dict[str, Any] | None, str]:
    """The row of a completion, None if it has failed; and how it has ended."""
    if completion.finish not in ("stop", "length"):
        return None, completion.error or completion.finish
    turn = RowTurn(0, [], evolve(completion, routes=None))  # experts are read where the run stores them
    row = {**token_fields(request.tokens, [turn]), "temperature": request.sampling.temperature}
    return row, completion.finish


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
        return bool((check.differences() <= limit).all())


def _kind(name: str) -> tuple[str, list[int]]:
    """The name without the numbers in it, and these: a key by which a weight of all layers is together.

    Both matrices of an adapter are one kind: while one of them is 0, only both together change anything.

    >>> sorted(["l.1.a", "l.0.a", "l.0.b", "l.10.a", "l.2.a"], key=_kind)
    ['l.0.a', 'l.1.a', 'l.2.a', 'l.10.a', 'l.0.b']
    """
    return re.sub(r"\d+|(?<=\.lora_)[AB]", "*", name), [int(number) for number in re.findall(r"\d+", name)]


def _not_used(
    names: Sequence[str], stale: Sequence[Sequence[str]], limit: float, level: float, after: float, where: str
) -> EngineError:
    """The error that says which kinds of weights the generator does not use."""
    total = Counter(_kind(name)[0] for name in names)
    found = Counter(_kind(name)[0] for part in stale for name in part)
    shown = [f"{kind} ({number} of {total[kind]})" for kind, number in sorted(found.items())[:_MAX_NAMED]]
    others = [f"and {len(found) - _MAX_NAMED} other kinds"] if len(found) > _MAX_NAMED else []
    among = "" if all(len(part) == 1 for part in stale) else "some of "
    differ = f"{after:.2g} nats between its log-probabilities and the trainer's{where}"
    return EngineError(
        f"the generator does not use new values of {among}{', '.join(shown + others)}",
        got=f"{differ}; {level:.2g} with the first weights",
        need=f"at most {limit:.2g} nats after all weights have been changed a little and sent",
        do="use another version of the engine, or another generator; docs/how-to/servers.md has a table of models",
    )
