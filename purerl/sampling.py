"""Sampling parameters: how the next token of a sequence is chosen, in a request to any generator."""

from __future__ import annotations

from operator import attrgetter

from attrs import frozen

__all__ = ["MAX_SAMPLES", "MAX_TEMPERATURE", "MIN_TEMPERATURE", "SAMPLING_PARAMETERS", "Sampling"]

MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-4, 1e4
"""Temperatures between which logits that are divided by one stay finite numbers that differ, in every dtype."""
MAX_SAMPLES = 2**16
"""Completions of one prompt."""


@frozen
class Sampling:
    """Sampling parameters of a completion.

    temperature         divides the logits; 0 is greedy decoding (argmax)
    max_tokens          maximum number of new tokens
    stop_tokens         token ids that end a completion; the completion includes the one that ended it
    stop_strings        strings that end a completion; the completion includes them
    top_p               keep the most likely tokens until their probabilities add up to this number; 1: all
    top_k               keep this number of the most likely tokens; 0: all
    min_p               keep tokens whose probability is at least this share of the largest one; 0: all
    repetition_penalty  lowers the logits of tokens that are in the prompt or the completion; 1: unchanged
    min_tokens          new tokens before which neither a stop token is sampled nor a stop string ends the completion
    regex               a regular expression that the whole completion, without its stop token, must match
    json_schema         a JSON schema, as text, that the completion must satisfy

    The distribution of the next token is made of the logits z in this order, which is that of vLLM:

        1. regex, json_schema   z = -inf for tokens with which the text cannot be completed
        2. min_tokens           z = -inf for stop tokens, if there are less than min_tokens new tokens
        3. repetition_penalty   z / penalty where z > 0, and z * penalty elsewhere, for tokens that occurred
        4. temperature          z / temperature
        5. min_p                p = softmax(z); keep tokens with p >= min_p * max(p)
        6. top_k                keep tokens with z >= the k-th largest z
        7. top_p                p = softmax(z) of the tokens that are kept so far; keep a token if all tokens that are
                                more likely have a total of less than top_p. The most likely token is always kept

    The log-probability of a token is that of the distribution from which it was sampled: the softmax over the tokens
    that are kept. Greedy decoding takes the argmax after step 3. It ignores min_p, top_k and top_p, and its
    log-probabilities are at temperature 1. A request with regex or json_schema needs the end tokens of the model as
    stop tokens: they are what follows a match.

    Only evaluations set anything below `stop_strings`: training needs the log-probability under the whole distribution.
    """

    temperature: float = 1.0
    max_tokens: int = 16
    stop_tokens: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    regex: str | None = None
    json_schema: str | None = None

    @property
    def parameters(self) -> frozenset[str]:
        """The parameters, and combinations of parameters, that a generator has to have in `Capabilities.sampling`.

        >>> sorted(Sampling(top_p=0.9, top_k=5).parameters)
        ['top_k', 'top_p', 'top_p with top_k']
        """
        values = _get_parameters(self)
        if values == _DEFAULTS:
            return frozenset()
        used = {name for name, value, default in zip(_PARAMETERS, values, _DEFAULTS, strict=True) if value != default}
        used |= {"stop_strings"} if self.stop_strings else set()
        return frozenset(name for name in SAMPLING_PARAMETERS if used.issuperset(name.split(" with ")))

    @property
    def is_structured(self) -> bool:
        """Whether the text of the completion has to match something."""
        return self.regex is not None or self.json_schema is not None


_PARAMETERS = ("top_p", "top_k", "min_p", "repetition_penalty", "min_tokens", "regex", "json_schema")
_get_parameters = attrgetter(*_PARAMETERS)
_DEFAULTS = _get_parameters(Sampling())
SAMPLING_PARAMETERS = frozenset({*_PARAMETERS, "top_p with top_k", "top_p with min_p", "min_tokens with stop_strings"})
"""Parameters of `Sampling` that not every generator has, and combinations in which engines differ."""
