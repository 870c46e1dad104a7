"""Changes of the logits before a token is sampled: `purerl.protocols.Sampling` defines the parameters and their order.

All rows are processed together, each as if it were alone. A row without parameters keeps its logits bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from purerl.protocols import Request

__all__ = ["FILTERS", "Filters", "filter_logits"]

FILTERS = frozenset(
    {"top_p", "top_k", "min_p", "repetition_penalty", "min_tokens", "top_p with top_k", "top_p with min_p"}
)
"""The parameters that `filter_logits` implements."""


class Filters(NamedTuple):
    """Parameters of rows: [rows], except for `seen` and `stops`, which are [rows, vocab].

    seen        whether a token is in the prompt or the completion
    stops       whether a token is a stop token
    min_tokens  new tokens before which no stop token is sampled, without those that the completion has already
    """

    temperature: torch.Tensor
    top_p: torch.Tensor
    top_k: torch.Tensor
    min_p: torch.Tensor
    repetition_penalty: torch.Tensor
    min_tokens: torch.Tensor
    seen: torch.Tensor
    stops: torch.Tensor

    @classmethod
    def of(
        cls,
        requests: Sequence[Request],
        completions: Sequence[Sequence[int]],
        vocab_size: int,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> Filters:
        """The parameters of `requests`, whose completions have the tokens `completions`, in `dtype`, or in float32."""
        samplings = [request.sampling for request in requests]

        def column(values: Iterable[float], kind: torch.dtype = dtype or torch.float32) -> torch.Tensor:
            return torch.tensor([*values], dtype=kind, device=device)

        tokens = [
            [*request.tokens, *completion] if request.sampling.repetition_penalty != 1 else []
            for request, completion in zip(requests, completions, strict=True)
        ]
        remaining = (each.min_tokens - len(tokens) for each, tokens in zip(samplings, completions, strict=True))
        return cls(
            temperature=column(each.temperature for each in samplings),
            top_p=column(each.top_p for each in samplings),
            top_k=column((each.top_k or vocab_size for each in samplings), torch.int64),
            min_p=column(each.min_p for each in samplings),
            repetition_penalty=column(each.repetition_penalty for each in samplings),
            min_tokens=column(remaining, torch.int64),
            seen=_members(tokens, vocab_size, device),
            stops=_members([each.stop_tokens if each.min_tokens else () for each in samplings], vocab_size, device),
        )

    def add(self, token: torch.Tensor) -> None:
        """Take into account, in place, that each row has sampled `token` [rows]."""
        self.seen.scatter_(1, token[:, None], value=True)
        self.min_tokens.sub_(1)


def _members(sets: Sequence[Sequence[int]], vocab_size: int, device: Any) -> torch.Tensor:
    """Whether each token below `vocab_size` is in each of `sets`: [rows, vocab]. Other tokens are ignored."""
    width = max(map(len, sets))
    padded = [[*tokens, *[vocab_size] * (width - len(tokens))] for tokens in sets]
    index = torch.tensor(padded, dtype=torch.int64, device=device).reshape(len(sets), width).clamp(max=vocab_size)
    is_member = torch.zeros(len(sets), vocab_size + 1, dtype=torch.bool, device=device)
    return is_member.scatter_(1, index, value=True)[:, :vocab_size]


def filter_logits(logits: torch.Tensor, filters: Filters) -> torch.Tensor:
    """The logits z [rows, vocab], before division by the temperature, of which softmax(z / temperature) is sampled.

        z_k = -inf                      for stop tokens, if min_tokens > 0
        z_k = z_k / r or z_k * r        where z_k > 0 or not, for seen tokens; r is the repetition penalty
        z_k = -inf                      if z_k / temperature < max(t_1, t_2, t_3)

        t_1 = max(z / temperature) + log(min_p)
        t_2 = the top_k-th largest of z / temperature
        t_3 = the largest t so that the probabilities of all tokens with z / temperature >= t are at least top_p

    The probabilities in t_3 are those of the tokens that min_p and top_k keep. A token that is exactly as likely as the
    last one that is kept is kept too. Rows with temperature 0 have no thresholds. Logits with a NaN remain NaN.
    """
    z = logits.masked_fill(filters.stops & (filters.min_tokens > 0)[:, None], -torch.inf)
    penalty = filters.repetition_penalty[:, None]
    z = torch.where(filters.seen, torch.where(z > 0, z / penalty, z * penalty), z)
    greedy = filters.temperature == 0
    scaled = z / torch.where(greedy, 1.0, filters.temperature)[:, None]
    return z.masked_fill(scaled < _threshold(scaled, filters).masked_fill(greedy, -torch.inf)[:, None], -torch.inf)


def _threshold(scaled: torch.Tensor, filters: Filters) -> torch.Tensor:
    """max(t_1, t_2, t_3) of `filter_logits`, [rows]."""
    ordered = scaled.sort(-1, descending=True).values
    top_k = filters.top_k.clamp(max=scaled.shape[-1])
    threshold = torch.maximum(ordered[:, 0] + filters.min_p.log(), ordered.gather(-1, top_k[:, None] - 1)[:, 0])
    probability = ordered.masked_fill(ordered < threshold[:, None], -torch.inf).softmax(-1)
    more_likely = probability.cumsum(-1) - probability
    is_kept = (more_likely < filters.top_p[:, None]) | (filters.top_p == 1)[:, None]
    return torch.maximum(threshold, ordered.masked_fill(~is_kept, torch.inf).amin(-1))
