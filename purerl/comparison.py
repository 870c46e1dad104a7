"""The differences between two algorithms, one by one, and what each of them changes on a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import (
    Algorithm,
    Objective,
    Term,
    compute_advantages,
    compute_loss,
    keep_all,
    prepare_step,
    select_rows,
    stages_of,
)
from purerl.batch import FIELDS, STRUCTURE, with_fields
from purerl.description import call_of
from purerl.errors import InputError
from purerl.store.rollouts import read_batch, stored_steps
from purerl.testing import example_batch, fields_of

__all__ = ["Difference", "Effect", "compare", "example_completions", "stored_completions"]

_NOTHING = "-"


class Effect(NamedTuple):
    """What changes on a batch if one algorithm is replaced by another.

    advantage      root mean square of the change of the advantages, divided by that of the advantages
    loss           the loss of the policy, before and after
    gradient_norm  the norm of its gradient with respect to `logp`, after divided by before
    cosine         the cosine of the two gradients
    """

    advantage: float
    loss: tuple[float, float]
    gradient_norm: float
    cosine: float


class Difference(NamedTuple):
    """A part in which two algorithms differ: its text in each, and the effect of this difference alone.

    There is no effect if the part cannot be exchanged alone, because another part writes what it reads.
    """

    part: str
    first: str
    second: str
    effect: Effect | None


def compare(first: Algorithm, second: Algorithm, batch: TensorDict) -> tuple[list[Difference], Effect]:
    """The differences of `second` from `first`, and the effect of all of them.

    `batch` needs the fields that either algorithm reads, and `logp`.

    Raises: InputError if a field is missing, and if one of the two has no policy.
    """
    for algorithm in (first, second):
        missing = [name for name in fields_of(algorithm) if name not in batch.keys()]
        if missing:
            raise InputError("a batch", got=f"no field {', '.join(missing)}", need="the fields of both algorithms")
        _policy(algorithm)
    before = _result(first, batch)
    ours, theirs = dict(_parts(first)), dict(_parts(second))
    differences = [
        Difference(part, ours.get(part, _NOTHING), theirs.get(part, _NOTHING), _alone(before, changed, batch))
        for part, changed in _changes(first, second).items()
    ]
    return differences, _effect(before, _result(second, batch))


# --- parts -------------------------------------------------------------------------------------------------------


def _policy(algorithm: Algorithm) -> Objective:
    for objective in algorithm.objectives:
        if objective.role == "policy":
            return objective
    raise InputError("an algorithm", got="no objective of the policy", need="an algorithm that trains the policy")


def _parts(algorithm: Algorithm) -> Iterator[tuple[str, str]]:
    """(part, text) of everything in which algorithms can differ."""
    policy = _policy(algorithm)
    yield "rows that are kept", _NOTHING if algorithm.select is keep_all else call_of(algorithm.select)
    yield "advantage", "; ".join(call_of(stage.apply) for stage in stages_of(algorithm.advantage)) or _NOTHING
    for term in policy.terms:
        factor = "" if abs(term.weight) == 1 else f"{abs(term.weight):g} * "
        yield f"loss: {term.name}", f"{'-' if term.weight < 0 else ''}{factor}{call_of(term.loss)}"
        yield f"reduction: {term.name}", call_of(term.reduce)


def _changes(first: Algorithm, second: Algorithm) -> dict[str, Algorithm]:
    """`first` with one part of `second`, for each part in which they differ."""
    changes = {}
    if first.select != second.select:
        changes["rows that are kept"] = _with_reads(first._replace(select=second.select), second)
    if (first.advantage, first.before) != (second.advantage, second.before):
        advantage = first._replace(advantage=second.advantage, before=second.before)
        changes["advantage"] = _with_reads(advantage, second)
    ours, theirs = ({term.name: term for term in _policy(algorithm).terms} for algorithm in (first, second))
    for name in dict.fromkeys((*ours, *theirs)):
        for part, term in _changed_terms(ours.get(name), theirs.get(name)):
            changes[f"{part}: {name}"] = _with_term(first, second, name, term, is_loss=part == "loss")
    return changes


def _changed_terms(first: Term | None, second: Term | None) -> Iterator[tuple[str, Term | None]]:
    """The part of a term that differs, and `first` with this part of `second`; None if the term is not there."""
    if first is None or second is None:
        yield "loss", second
        return
    if (first.loss, first.weight, first.where) != (second.loss, second.weight, second.where):
        yield "loss", second._replace(reduce=first.reduce)
    if first.reduce != second.reduce:
        yield "reduction", first._replace(reduce=second.reduce)


def _with_term(first: Algorithm, second: Algorithm, name: str, term: Term | None, *, is_loss: bool) -> Algorithm:
    """`first` with the policy's term `name` replaced by `term`, added or removed."""
    policy, other = _policy(first), _policy(second)
    terms = {each.name: each for each in policy.terms} | {name: term}
    changed = policy._replace(
        reads=tuple(dict.fromkeys((*policy.reads, *other.reads))),
        outputs=tuple(dict.fromkeys((*policy.outputs, *other.outputs))),
        terms=tuple(each for each in terms.values() if each is not None),
        prepare=other.prepare if is_loss and name == other.terms[0].name else policy.prepare,
    )
    objectives = tuple(changed if objective is policy else objective for objective in first.objectives)
    return _with_reads(first._replace(objectives=objectives, advantage=first.advantage), second)


def _with_reads(algorithm: Algorithm, other: Algorithm) -> Algorithm:
    return algorithm._replace(reads=tuple(dict.fromkeys((*algorithm.reads, *other.reads))))


# --- numbers -----------------------------------------------------------------------------------------------------


class _Result(NamedTuple):
    advantage: Tensor
    loss: float
    gradient: Tensor


def _result(algorithm: Algorithm, batch: TensorDict) -> _Result:
    """Advantages, the policy's loss and its gradient, on the rows that the algorithm keeps; 0 in other rows."""
    keep = select_rows(algorithm, batch)
    kept = batch[keep]
    _, after = compute_advantages(algorithm, algorithm.advantage.init(), kept.select(*STRUCTURE, *algorithm.reads))
    policy = _policy(algorithm)
    written = {name: value for name, value in after.items() if name == "mask" or name not in kept.keys()}
    step, counts = prepare_step(policy, with_fields(kept, **written))
    logp = step["logp"].detach().clone().requires_grad_()
    loss, _ = compute_loss(policy, with_fields(step, logp=logp), counts)
    [gradient] = torch.autograd.grad(loss, logp, allow_unused=True, materialize_grads=True)
    canvas = torch.zeros_like(batch["logp"])
    advantage = after["advantage"] if "advantage" in after.keys() else torch.zeros_like(kept["logp"])
    scattered = [canvas.clone().masked_scatter_(keep[:, None], value) for value in (advantage, gradient)]
    return _Result(scattered[0], float(loss.detach()), scattered[1])


def _alone(before: _Result, changed: Algorithm, batch: TensorDict) -> Effect | None:
    if not _policy(changed).terms:
        return None
    try:
        return _effect(before, _result(changed, batch))
    except KeyError:  # a field that another part of the second algorithm writes
        return None


def _effect(before: _Result, after: _Result) -> Effect:
    def norm(value: Tensor) -> float:
        return float(value.norm())

    norms = norm(before.gradient), norm(after.gradient)
    product = float((before.gradient * after.gradient).sum())
    return Effect(
        advantage=norm(after.advantage - before.advantage) / (norm(before.advantage) or 1.0),
        loss=(before.loss, after.loss),
        gradient_norm=norms[1] / norms[0] if norms[0] else float("nan"),
        cosine=product / (norms[0] * norms[1]) if norms[0] and norms[1] else float("nan"),
    )


# --- a batch -----------------------------------------------------------------------------------------------------


def example_completions(*algorithms: Algorithm, prompts: int = 16, samples: int = 8, seed: int = 0) -> TensorDict:
    """A batch as in the middle of a run, with the fields of `algorithms`: rewards 0 or 1, a policy that has moved.

    Rows have 8 to 64 tokens. The log-ratio of a token has a standard deviation of 0.1 nats between the current and the
    old policy, 0.02 between the old policy and the generator, and 0.3 between the old policy and the reference.
    """
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.randint(8, 65, (prompts * samples,), generator=rng).tolist()
    layout = tuple((row // samples, ".." + "a" * length) for row, length in enumerate(lengths))
    names = dict.fromkeys(name for algorithm in algorithms for name in (*fields_of(algorithm), "logp"))
    batch = example_batch(names, layout, seed=seed)
    old = -torch.rand(batch["mask"].shape, generator=rng, dtype=torch.float64).add(0.02).log().neg()

    def moved(scale: float) -> Tensor:
        return (old + scale * torch.randn(old.shape, generator=rng, dtype=torch.float64)).clamp(max=-1e-4)

    spread: Mapping[str, float] = {"old_logp": 0.0, "logp": 0.1, "rollout_logp": 0.02, "ref_logp": 0.3}
    fields: dict[str, Any] = {name: moved(scale) for name, scale in spread.items() if name in batch.keys()}
    if "reward" in batch.keys():
        difficulty = torch.rand(prompts, generator=rng).repeat_interleave(samples)
        correct = (torch.rand(prompts * samples, generator=rng) < difficulty).double()
        last = batch["action"] & (batch["action"].flip(-1).cumsum(-1).flip(-1) == 1)
        fields["reward"] = correct.unsqueeze(-1) * last
    return with_fields(batch, **fields)


def stored_completions(run: Path, step: int | None, *algorithms: Algorithm) -> TensorDict:
    """The rollouts of the run in the directory `run` at `step`, the last one if it is None, in float64.

    The current policy is the one at the start of the update: `logp` is `old_logp`, or `rollout_logp` without it.

    Raises: InputError if there are no rollouts of this step, or if they lack a field that `algorithms` read.
    """
    steps = stored_steps(run / "rollouts")
    if not steps or step not in (None, *steps):
        got = f"steps {steps[0]} to {steps[-1]}" if steps else "no rollouts"
        need = f"step {step}" if steps else "the directory of a run"
        raise InputError(f"rollouts of {str(run)!r}", got=got, need=need)
    batch = read_batch(run / "rollouts", steps[-1] if step is None else step)
    batch = with_fields(batch, **{name: value.double() for name, value in batch.items() if value.is_floating_point()})
    logp = batch["old_logp"] if "old_logp" in batch.keys() else batch["rollout_logp"]
    entropy = {"entropy": torch.zeros_like(logp)}  # only metrics and an entropy bonus read it
    known = {"logp": logp, "old_logp": logp, **entropy, **dict(batch.items())}
    missing = [name for algorithm in algorithms for name in fields_of(algorithm) if name not in known]
    if missing:
        got = f"no field {', '.join(dict.fromkeys(missing))}"
        raise InputError(f"rollouts of {str(run)!r}", got=got, need="the fields that both algorithms read")
    written = [name for name in batch.keys() if FIELDS[name].writer in ("estimator", "prepare")]
    return with_fields(batch.exclude(*written), **{name: known[name] for name in ("logp", "old_logp", "entropy")})
