"""The parts in which two algorithms can differ, and the algorithms that have only one part of the other."""

from __future__ import annotations

from collections.abc import Iterator

from purerl.algos.algebra import Algorithm, Objective, Term, keep_all, no_metrics, stages_of, unchanged
from purerl.errors import InputError
from purerl.explain.description import call_of, factor_of, parts
from purerl.testing.batches import fields_of

__all__ = ["NOTHING", "aligned", "changes", "fields_to_compare", "policy_of", "texts_of"]

NOTHING = "-"


def policy_of(algorithm: Algorithm) -> Objective:
    """The objective of the policy, without its metrics. Raises InputError if the algorithm does not train one."""
    for objective in algorithm.objectives:
        if objective.role == "policy":
            return objective._replace(metrics=no_metrics, metric_outputs=())
    raise InputError("an algorithm", got="no objective of the policy", need="an algorithm that trains the policy")


def fields_to_compare(*algorithms: Algorithm) -> tuple[str, ...]:
    """The fields that a batch must have so that `algorithms` can be compared on it, beside those of every batch.

    Losses of other models and metrics are not computed, so their fields are not among them.
    """
    policies = (algorithm._replace(before=(), objectives=(policy_of(algorithm),)) for algorithm in algorithms)
    return tuple(dict.fromkeys(name for policy in policies for name in fields_of(policy)))


def aligned(first: Algorithm, second: Algorithm) -> tuple[Algorithm, Algorithm]:
    """The two algorithms, with one name for the first term of both policies, so that one loss replaces the other.

    The names are changed only if they differ and the other algorithm has no term of this name.
    """
    names = [[term.name for term in policy_of(algorithm).terms] for algorithm in (first, second)]
    if names[0][0] in names[1] or names[1][0] in names[0]:
        return first, second
    name = f"{names[0][0]} / {names[1][0]}"
    return _with_first_term(first, name), _with_first_term(second, name)


def _with_first_term(algorithm: Algorithm, name: str) -> Algorithm:
    policy = policy_of(algorithm)
    main, *others = policy.terms
    return _with_policy(algorithm, algorithm, policy._replace(terms=(main._replace(name=name), *others)))


def texts_of(algorithm: Algorithm) -> Iterator[tuple[str, str]]:
    """(part, text) of everything in which algorithms can differ."""
    policy = policy_of(algorithm)
    yield "rows that are kept", NOTHING if algorithm.select is keep_all else call_of(algorithm.select)
    yield "advantage", "; ".join(call_of(stage.apply) for stage in stages_of(algorithm.advantage)) or NOTHING
    yield "before each step", NOTHING if policy.prepare is unchanged else call_of(policy.prepare)
    for term in policy.terms:
        yield f"loss: {term.name}", f"{factor_of(term)}{call_of(term.loss)}"
        yield f"reduction: {term.name}", call_of(term.reduce)
    for role in _other_objectives(algorithm):
        purpose = f"loss of the {role.replace('_', ' ')}"
        yield purpose, "; ".join(text for name, text in parts(algorithm) if name == purpose)


def _other_objectives(algorithm: Algorithm) -> dict[str, Objective]:
    """The objectives of the models that are trained beside the policy, by role."""
    objectives = (*algorithm.before, *algorithm.objectives)
    return {objective.role: objective for objective in objectives if objective.role != "policy"}


def changes(first: Algorithm, second: Algorithm) -> dict[str, Algorithm]:
    """`first` with one part of `second`, for each part in which they differ.

    The loss of another model does not change the step of the policy. There the result is `first`.
    """
    ours, theirs = policy_of(first), policy_of(second)
    changed = {}
    if first.select != second.select:
        changed["rows that are kept"] = _with_reads(first._replace(select=second.select), second)
    if first.advantage != second.advantage:
        changed["advantage"] = _with_reads(first._replace(advantage=second.advantage), second)
    if ours.prepare != theirs.prepare:
        changed["before each step"] = _with_policy(first, second, ours._replace(prepare=theirs.prepare))
    our_terms, their_terms = ({term.name: term for term in policy.terms} for policy in (ours, theirs))
    for name in dict.fromkeys((*our_terms, *their_terms)):
        for part, term in _changed_terms(our_terms.get(name), their_terms.get(name)):
            changed[f"{part}: {name}"] = _with_term(first, second, name, term, is_loss=part == "loss")
    our_others, their_others = _other_objectives(first), _other_objectives(second)
    for role in dict.fromkeys((*our_others, *their_others)):
        if _loss(our_others.get(role)) != _loss(their_others.get(role)):
            changed[f"loss of the {role.replace('_', ' ')}"] = first
    return changed


def _loss(objective: Objective | None) -> object:
    return objective and (objective.terms, objective.prepare)


def _changed_terms(first: Term | None, second: Term | None) -> Iterator[tuple[str, Term | None]]:
    """The part of a term that differs, and `first` with this part of `second`; None if the term is not there."""
    if first is None or second is None:
        yield "loss", second
        return
    if first._replace(reduce=second.reduce) != second:
        yield "loss", second._replace(reduce=first.reduce)
    if first.reduce != second.reduce:
        yield "reduction", first._replace(reduce=second.reduce)


def _with_term(first: Algorithm, second: Algorithm, name: str, term: Term | None, *, is_loss: bool) -> Algorithm:
    """`first` with the policy's term `name` replaced by `term`, added or removed, and what `second` computes for it."""
    policy, other = policy_of(first), policy_of(second)
    terms = {each.name: each for each in policy.terms} | {name: term}
    changed = policy._replace(
        terms=tuple(each for each in terms.values() if each is not None),
        prepare=other.prepare if is_loss and name == other.terms[0].name else policy.prepare,
    )
    return _with_policy(first, second, changed)


def _with_policy(first: Algorithm, second: Algorithm, policy: Objective) -> Algorithm:
    """`first` with the objective `policy`, and with the fields that the one of `second` uses."""
    other = policy_of(second)
    policy = policy._replace(
        reads=tuple(dict.fromkeys((*policy.reads, *other.reads))),
        outputs=tuple(dict.fromkeys((*policy.outputs, *other.outputs))),
    )
    objectives = tuple(policy if objective.role == "policy" else objective for objective in first.objectives)
    return _with_reads(first._replace(objectives=objectives), second)


def _with_reads(algorithm: Algorithm, other: Algorithm) -> Algorithm:
    return algorithm._replace(reads=tuple(dict.fromkeys((*algorithm.reads, *other.reads))))
