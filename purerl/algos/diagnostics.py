"""Diagnostics of a batch or of an optimizer step: how far the policy has moved, and how noisy its gradient is.

From ratios, advantages and values, without a model. They cost about as much as reading the tensors once:

    effective_sample_size    of importance weights; a run logs that of rollouts as mismatch/effective_sample_size
    chi_square               divergence of two policies from their ratio
    clip_fraction            fraction of tokens without a gradient; a run logs it as policy/clip_fraction
    token_average            of an estimator of a KL divergence: those of `parts.divergences`; a run logs that of k3 as
                             policy/approx_kl
    explained_variance       how much of the variance of returns a critic explains
    gradient_noise_scale     from the norms of the gradients of rows and the norm of their sum

From a model, with `torch.func`. They run on request only:

    objective_gradient       one forward and one backward pass, and one copy of the parameters
    row_gradient_norms       a forward and a backward pass of each row. `chunk_size` rows at a time are in memory, with
                             `chunk_size` copies of the parameters
    gradient_cosine          the cosine of two results of `objective_gradient`: is there a conflict between two losses?

A model is a function `forward` of parameters and a batch, which returns the outputs that the objective reads. With
`torch.func.functional_call`, this is any module:

>>> from purerl.algos import grpo
>>> from purerl.algos.algebra import prepare_step
>>> from purerl.batch import with_fields
>>> from purerl.testing import example_batch
>>> [policy] = grpo.algorithm().objectives
>>> batch = example_batch(["advantage", "old_logp", "entropy"], ((1, ".aa"), (1, ".aaa")))
>>> def forward(parameters, batch):
...     logits = parameters["logits"].log_softmax(-1)
...     return {"logp": logits[batch["tokens"]], "entropy": batch["entropy"]}
>>> step, counts = prepare_step(policy, batch)
>>> parameters = {"logits": torch.zeros(4, dtype=torch.float64)}
>>> norms = row_gradient_norms(policy, forward, parameters, step, counts)
>>> gradient = objective_gradient(policy, forward, parameters, step, counts)
>>> bool(gradient["logits"].norm() <= norms.sum())
True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.func import grad, vmap

from purerl.algos.algebra import Counts, Objective, compute_loss
from purerl.algos.parts.corrections import effective_sample_size
from purerl.algos.parts.surrogates import clip_indicator
from purerl.algos.parts.whiten import center
from purerl.batch import with_fields
from purerl.errors import InputError
from purerl.kernels.masks import count_true, masked
from purerl.types import RowFloat, Scalar, TensorDict, TokenBool, TokenFloat

__all__ = [
    "chi_square",
    "clip_fraction",
    "effective_sample_size",
    "explained_variance",
    "gradient_cosine",
    "gradient_noise_scale",
    "objective_gradient",
    "row_gradient_norms",
    "token_average",
]

Parameters = Mapping[str, Tensor]
Forward = Callable[[Parameters, TensorDict], Mapping[str, Tensor]]


# --- from tensors ------------------------------------------------------------------------------------------------


def token_average(x: TokenFloat, mask: TokenBool) -> Scalar:
    """Compute the mean of `x` over counted tokens, 0 without any. Shapes: [rows, time] each; the result is a scalar.

    >>> token_average(torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[True, True, False]]))
    tensor(2.)
    """
    return torch.atleast_2d(masked(x, mask)).sum((-2, -1)) / count_true(mask).sum(-1).clamp(min=1)


def chi_square(ratio: TokenFloat, mask: TokenBool) -> Scalar:
    """Estimate the chi-square divergence of two policies from the ratio of the probabilities of sampled tokens.

        chi2 = (1 / tokens) sum_it m_it (r_it - 1)^2

    r is the probability under the first policy, divided by that under the second one, which sampled the tokens. The
    expected value is sum_v p(v)^2 / q(v) - 1, because that of r is 1. It is the variance of importance weights: their
    `effective_sample_size` is about 1 / (1 + chi2). It is 0 without counted tokens. Shapes: [rows, time] each; the
    result is a scalar.

    >>> chi_square(torch.tensor([[1.5, 0.5]]), torch.tensor([[True, True]]))
    tensor(0.2500)
    """
    return token_average((masked(ratio, mask, 1) - 1).square(), mask)


def clip_fraction(
    ratio: TokenFloat, advantage: TokenFloat, mask: TokenBool, *, clip_low: float, clip_high: float
) -> Scalar:
    """Compute the fraction of counted tokens that `clip_surrogate` clips. Shapes: [rows, time] each; a scalar results.

    >>> ratio, advantage = torch.tensor([[1.5, 1.5, 0.5, 1.0]]), torch.tensor([[1.0, -1.0, -1.0, 1.0]])
    >>> clip_fraction(ratio, advantage, torch.ones(1, 4) > 0, clip_low=0.2, clip_high=0.2)
    tensor(0.5000)
    """
    return token_average(clip_indicator(ratio, advantage, clip_low=clip_low, clip_high=clip_high), mask)


def explained_variance(value: TokenFloat, returns: TokenFloat, mask: TokenBool) -> Scalar:
    """Compute the fraction of the variance of the returns that the values explain.

        1 - Var(returns - value) / Var(returns)

    Both variances are over the counted tokens. 1 is a perfect critic, 0 one that is as good as a constant, and a
    negative value a worse one. A constant error has no effect. If the returns have no variance, the result is 0.
    Shapes: [rows, time] each; the result is a scalar.

    >>> returns, mask = torch.tensor([[0.0, 2.0]]), torch.tensor([[True, True]])
    >>> explained_variance(torch.tensor([[0.5, 1.5]]), returns, mask)
    tensor(0.7500)
    """
    total, remaining = _variance(returns, mask), _variance(returns - value, mask)
    return torch.where(total > 0, 1 - remaining / torch.where(total > 0, total, 1), 0)


def _variance(x: TokenFloat, mask: TokenBool) -> Scalar:
    return token_average(center(x, mask).square(), mask)


def gradient_noise_scale(row_norms: RowFloat, norm: Scalar) -> Scalar:
    """Estimate the number of rows at which the noise of the gradient is as large as the gradient itself.

        S   = n / (n - 1) (n sum_i |g_i|^2 - |G|^2)
        G2  = |G|^2 - S / n
        B   = S / G2

    |g_i| is `row_norms`: the norm of the gradient of the part of the loss that belongs to row i (`row_gradient_norms`).
    |G| is `norm`: that of the gradient G of the whole step, the sum of all g_i. n g_i is then a sample of the gradient
    of the expected loss, S estimates the trace of its covariance, and G2 the square of its expected value, both without
    bias. A step of far fewer rows than B is dominated by noise, and one of far more wastes samples. The result is inf
    if G2 is not above 0: the gradient cannot be distinguished from noise. n must be at least 2. Rows are assumed to be
    independent; those of one group are not. Shapes: [rows] and a scalar; the result is a scalar, in rows.
    Source: McCandlish et al. 2018 (1812.06162, eq. 2.9 and appendix A.1).

    >>> gradient_noise_scale(torch.tensor([1.0, 1.0]), torch.tensor(2.0)), gradient_noise_scale(
    ...     torch.tensor([1.0, 1.0]), torch.tensor(2.0).sqrt()
    ... )
    (tensor(0.), tensor(inf))
    """
    rows = row_norms.shape[-1]
    if rows < 2:
        raise InputError("the noise of a gradient", got=f"{rows} rows", need="at least 2", do="use a larger step")
    square = norm.square()
    noise = (rows * row_norms.square().sum(-1) - square) * rows / (rows - 1)
    signal = square - noise / rows
    return torch.where(signal > 0, noise / torch.where(signal > 0, signal, 1), torch.inf)


# --- from a model ------------------------------------------------------------------------------------------------


def objective_gradient(
    objective: Objective, forward: Forward, parameters: Parameters, step: TensorDict, counts: Mapping[str, Counts]
) -> dict[str, Tensor]:
    """Compute the gradient of the loss of an optimizer step, by name of the parameter.

    `step` and `counts` are results of `prepare_step`. Costs one forward and one backward pass of the whole step.
    """
    return grad(_loss)(dict(parameters), step, objective, forward, counts)


def row_gradient_norms(
    objective: Objective,
    forward: Forward,
    parameters: Parameters,
    step: TensorDict,
    counts: Mapping[str, Counts],
    *,
    chunk_size: int | None = None,
) -> RowFloat:
    """Compute the norm of the gradient of the part of the loss that belongs to each row.

    The sum of these gradients is `objective_gradient`. `forward` gets batches of one row. `chunk_size` rows are
    computed at a time, each with a gradient of its own; None: all of them.

    Raises: InputError if the loss of the objective couples the rows of a group.
    """
    if objective.unit != "row":
        need = "a loss that is a sum over rows"
        raise InputError("gradients of rows", got=f"an objective with the unit {objective.unit!r}", need=need)

    def norm(row: TensorDict) -> Tensor:
        gradient = grad(_loss)(dict(parameters), row.unsqueeze(0), objective, forward, counts)
        return torch.stack([value.square().sum() for value in gradient.values()]).sum().sqrt()

    return vmap(norm, chunk_size=chunk_size)(step)


def _loss(
    parameters: Parameters, part: TensorDict, objective: Objective, forward: Forward, counts: Mapping[str, Counts]
) -> Tensor:
    return compute_loss(objective, with_fields(part, **forward(parameters, part)), counts)[0]


def gradient_cosine(first: Parameters, second: Parameters) -> Scalar:
    """Compute the cosine of two gradients of the same parameters, 0 if one of them is 0.

    1: both losses change the model in the same direction. 0: they do not interact, to first order. Below 0: a step that
    decreases one of them increases the other. The gradients are results of `objective_gradient`.

    >>> gradient_cosine({"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([-2.0, 0.0])})
    tensor(-1.)
    """
    product, *squares = (_inner(a, b) for a, b in ((first, second), (first, first), (second, second)))
    norm = torch.stack(squares).prod().sqrt()
    return torch.where(norm > 0, product / torch.where(norm > 0, norm, 1), 0)


def _inner(first: Parameters, second: Parameters) -> Scalar:
    return torch.stack([(value * second[name]).sum() for name, value in first.items()]).sum()
