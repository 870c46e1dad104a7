"""Probabilities of prompts from how often they have been solved, and the importance weights of their draws.

    w_i = 1 / (M p_i)

p_i is the probability of prompt i (`probabilities`), w_i its weight (`importance_weights`), and M the number of prompts
that are not retired. The expectation of w_i g_i over the draws is the mean of g_i over these
prompts, for whatever g: the gradient of a loss that is a mean over draws is that of uniform draws. All tensors are
float64 [prompts], on the CPU. Sums are cumulative ones, which are the same for any number of threads.
"""

from __future__ import annotations

import torch

from purerl.data.curriculum_settings import Curriculum
from purerl.errors import DataError
from purerl.seeds import derive_seed

__all__ = ["BANDS", "bands_of", "draw_position", "importance_weights", "is_retired", "pass_rate", "probabilities"]

BANDS = ("easy", "normal", "hard")


def pass_rate(solved: torch.Tensor, attempts: torch.Tensor) -> torch.Tensor:
    """The pass rate of each prompt, with one success and one failure added: (solved + 1) / (attempts + 2).

    >>> pass_rate(torch.tensor([0.0, 3.0]), torch.tensor([0.0, 4.0]))
    tensor([0.5000, 0.6667])
    """
    return (solved + 1) / (attempts + 2)


def is_retired(settings: Curriculum, solved: torch.Tensor, attempts: torch.Tensor) -> torch.Tensor:
    """Whether each prompt is retired: after enough attempts, of which more than `retire_above` have solved it.

    >>> settings = Curriculum(retire_above=0.9, retire_after=4)
    >>> is_retired(settings, torch.tensor([3.0, 4.0, 9.0]), torch.tensor([3.0, 4.0, 10.0]))
    tensor([False,  True, False])
    """
    if settings.retire_above is None:
        return torch.zeros_like(attempts, dtype=torch.bool)
    return (attempts >= settings.retire_after) & (solved > settings.retire_above * attempts)


def bands_of(settings: Curriculum, solved: torch.Tensor, attempts: torch.Tensor) -> torch.Tensor:
    """The band of each prompt, as an index of `BANDS`.

    >>> bands_of(Curriculum(), torch.tensor([6.0, 0.0, 0.0]), torch.tensor([6.0, 0.0, 6.0]))
    tensor([0, 1, 2])
    """
    rate, (low, high) = pass_rate(solved, attempts), settings.limits
    return 1 - (rate > high).long() + (rate < low).long()


def probabilities(settings: Curriculum, solved: torch.Tensor, attempts: torch.Tensor) -> torch.Tensor:
    """The probability with which each prompt is drawn: 0 of a retired one.

    - difficulty: r (1 - r) of its `pass_rate` r, divided by the sum over prompts; a part `uniform_share` is uniform
    - bands: the share of its band, divided by the shares of all bands with prompts and by the prompts of the band
    - uniform: one divided by the number of prompts

    If no band with a share has a prompt, draws are uniform. Raises: DataError if every prompt is retired.

    >>> settings = Curriculum(by="bands", shares=(0.2, 0.6, 0.2))
    >>> probabilities(settings, torch.tensor([8.0, 0.0, 0.0, 0.0]), torch.tensor([8.0, 0.0, 0.0, 8.0]))
    tensor([0.2000, 0.3000, 0.3000, 0.2000])
    """
    eligible = (~is_retired(settings, solved, attempts)).to(solved.dtype)
    remaining = int(eligible.sum())
    if not remaining:
        got, need = f"{len(eligible)} prompts, all of which are retired", "at least one that is not"
        do = "end the run, raise data.curriculum.retire_above, or add prompts that are harder"
        raise DataError("no prompt can be drawn", got=got, need=need, do=do)
    uniform = eligible / remaining
    if settings.by == "difficulty":
        rate = pass_rate(solved, attempts)
        weight = rate * (1 - rate) * eligible
        share = settings.uniform_share
        return (1 - share) * weight / weight.cumsum(0)[-1] + share * uniform
    if settings.by == "bands":
        band = bands_of(settings, solved, attempts)
        count = torch.zeros(len(BANDS), dtype=solved.dtype).index_add(0, band, eligible)
        share = torch.tensor(settings.shares, dtype=solved.dtype) * (count > 0)
        total = share.sum()
        return uniform if total == 0 else eligible * (share / total / count.clamp(min=1))[band]
    return uniform


def importance_weights(probability: torch.Tensor) -> torch.Tensor:
    """The importance weight of a draw of each prompt, relative to uniform draws; 0 of one that is never drawn.

    >>> importance_weights(torch.tensor([0.5, 0.25, 0.25, 0.0]))
    tensor([0.6667, 1.3333, 1.3333, 0.0000])
    """
    drawn = probability > 0
    return torch.where(drawn, 1 / (drawn.sum() * torch.where(drawn, probability, 1)), 0)


def draw_position(cumulative: torch.Tensor, seed: int, number: int) -> int:
    """The prompt of draw `number`, by the inverse of the cumulative sum of probabilities.

    >>> draw_position(torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64), seed=0, number=7)
    1
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "curriculum", number))
    uniform = torch.rand((), generator=generator, dtype=torch.float64)
    return int(torch.searchsorted(cumulative, uniform * cumulative[-1], right=True).clamp(max=len(cumulative) - 1))
