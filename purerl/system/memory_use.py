"""The memory of an engine on one rank, as the sum in a plan."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from attrs import evolve, field, frozen

from purerl.errors import ConfigError

__all__ = [
    "COPIES",
    "GIB",
    "GRADIENTS",
    "MOMENTS",
    "PARAMETERS",
    "PHASES",
    "MemoryUse",
    "Workload",
    "format_bytes",
    "parse_bytes",
    "refusal",
]

GIB = 2**30
_MIB = 2**20

PHASES = ("sampling", "scoring", "training", "optimizer", "weight sync")
"""The phases of a run, in the order of a step. Forward and backward pass together are "training"."""

PARAMETERS, GRADIENTS, MOMENTS, COPIES = "parameters", "gradients", "AdamW's moments", "parameters in float32"
"""Names of states. The copies are of weights in 16 bits, for the optimizer."""


@frozen(kw_only=True)
class Workload:
    """The amount of work of an engine at a time.

    rows                rows of a step, of all ranks
    group_size          rows of each prompt
    minibatches         optimizer steps that the rows of a step are split into
    prompt_tokens       tokens of a row before its completion
    completion_tokens   tokens of a row that the policy has sampled, or that it learns
    ranks               number of ranks of the run
    turns               of an episode, at most
    stages_checkpoints  whether checkpoints are written from a copy in main memory, while training continues
    """

    rows: int
    group_size: int
    minibatches: int
    prompt_tokens: int
    completion_tokens: int
    ranks: int
    turns: int = 1
    stages_checkpoints: bool = False

    def limited_to(self, max_sequence_length: int | None) -> Workload:
        """The same with rows of at most this number of tokens, of which one is a prompt's; None: any number.

        >>> workload = Workload(
        ...     rows=1, group_size=1, minibatches=1, prompt_tokens=512, completion_tokens=512, ranks=1
        ... )
        >>> [(each.prompt_tokens, each.completion_tokens) for each in map(workload.limited_to, (None, 600, 32))]
        [(512, 512), (88, 512), (1, 31)]
        """
        if max_sequence_length is None:
            return self
        completion = min(self.completion_tokens, max_sequence_length - 1)
        prompt = min(self.prompt_tokens, max_sequence_length - completion)
        return evolve(self, prompt_tokens=prompt, completion_tokens=completion)

    @property
    def row_tokens(self) -> int:
        """Tokens of a row."""
        return self.prompt_tokens + self.completion_tokens


@frozen(kw_only=True)
class MemoryUse:
    """Bytes that an engine needs on one rank, by component.

    states     what stays for the whole run, in the memory of the device
    transient  by phase: what exists in the phase only, in the memory of the device
    host       what stays for the whole run, in the main memory if the device is an accelerator
    assumed    what had to be assumed, a sentence each
    refused    why the engine refuses to run what was planned, a line each
    remarks    what else the plan should say, a line each
    """

    states: Mapping[str, int]
    transient: Mapping[str, Mapping[str, int]] = field(factory=dict)
    host: Mapping[str, int] = field(factory=dict)
    assumed: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def refusal(check: Callable[[], object]) -> tuple[str, ...]:
    """The ConfigError that `check` raises, in one line, for `MemoryUse.refused`; empty if it raises none."""
    try:
        check()
    except ConfigError as error:
        return ("; ".join(" ".join(line.split()) for line in str(error).splitlines()),)
    return ()


def format_bytes(size: float) -> str:
    """`size` in GiB, or in MiB below a tenth of a GiB.

    >>> format_bytes(3 * 2**30), format_bytes(5 * 2**20), format_bytes(0)
    ('3.00 GiB', '5.0 MiB', '0')
    """
    if not size:
        return "0"
    return f"{size / GIB:,.2f} GiB" if size >= GIB / 10 else f"{size / _MIB:.1f} MiB"


def parse_bytes(text: str) -> int:
    """The number of bytes that `text` names, such as "80GiB", "512 MiB" or "80GB".

    Raises: ConfigError for other texts.

    >>> parse_bytes("80GiB") == 80 * 2**30, parse_bytes("1.5 GB")
    (True, 1500000000)
    """
    units = {"B": 1, "MB": 10**6, "GB": 10**9, "TB": 10**12, "MIB": _MIB, "GIB": GIB, "TIB": 2**40}
    match = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]+)\s*", text)
    try:
        size = int(float(match[1]) * units[match[2].upper()]) if match else 0
    except (ValueError, KeyError):
        size = 0
    if size <= 0:
        raise ConfigError("a size of memory", got=repr(text), need="a number above 0 and a unit: 80GiB, 512MiB or 80GB")
    return size
