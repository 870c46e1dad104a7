"""The speed of a run, by formulas of its configuration and of stated speeds of the hardware.

    tokens per second = ranks * peak FLOP/s * utilization / FLOPs of a token
    transfer seconds  = bytes of the weights / bytes per second

The FLOPs are those of the policy's forward and backward pass over a trained token in a row of full length, by the
formula in `purerl/backends/hf/training/flops.py`; the peaks are those in `purerl/system/devices/peaks.py`. What a step
does beside training is not in them: sampling, scoring and the transfer.

A transfer of weights brings every byte of them to each rank that needs the whole model, through one link. So its time
is a lower bound: it holds if the transfer has one stage, and if the link is in use all the time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import frozen

from purerl.config.requirements import requirements_of
from purerl.config.schema import RunConfig
from purerl.errors import ConfigError
from purerl.planning.workload import Lengths, workload_of
from purerl.settings import Model
from purerl.system.devices.peaks import PEAKS, Precision, peak_flops
from purerl.system.memory_use import format_bytes

__all__ = ["UTILIZATION", "Speed", "plan_speed"]

UTILIZATION = 0.4
"""The fraction of the peak of an accelerator that is assumed if none is given."""


@frozen(kw_only=True)
class Speed:
    """The speed of a run, as far as it is known; empty if nothing was asked for.

    lines    sentences
    numbers  the same as numbers by name: bytes, FLOPs, seconds, tokens per second
    """

    lines: tuple[str, ...] = ()
    numbers: dict[str, float]


def plan_speed(
    config: RunConfig,
    *,
    ranks: int | None = None,
    lengths: Lengths | None = None,
    device: str | None = None,
    utilization: float | None = None,
    bandwidth: int | None = None,
) -> Speed:
    """The speed of the run that `config` describes.

    ranks        of the trainer; those of the configuration if not given
    lengths      of rows, where the configuration does not limit them
    device       the accelerator of each rank, by a name in `PEAKS`: gives tokens per second
    utilization  the fraction of its peak that the trainer reaches, above 0 and at most 1; `UTILIZATION` if not given
    bandwidth    bytes per second of the link of each rank: gives the time of a transfer of weights

    Raises: ConfigError for `utilization` without `device`, a device that is not known, and a model
    whose configuration cannot be read.
    """
    _check(device, utilization)
    if device is None and bandwidth is None:
        return Speed(numbers={})
    module, ranks = _module(config.model), ranks or config.placement.num_trainers
    lines, numbers = list[str](), dict[str, float]()
    if device is not None:
        workload, _ = workload_of(
            requirements_of(config),
            config.rollout,
            config.environment,
            ranks=ranks,
            lengths=lengths or Lengths(),
            max_prompt_tokens=config.data.max_prompt_tokens,
        )
        length = workload.row_tokens
        precision = _precision(config.trainer, module)
        peak, flops = _peak(device, precision), _flops(module, length)
        share = UTILIZATION if utilization is None else utilization
        rate = ranks * peak * share / flops
        numbers |= {"flops_per_token": flops, "peak_flops": peak, "trained_tokens_per_second": rate}
        lines.append(f"FLOPs of a trained token in a row of {length:,}: {flops / 1e9:,.1f} billion")
        assumed = ", which is assumed: --utilization sets another fraction" if utilization is None else ""
        hardware = f"{ranks:,} x {device} with {peak / 1e12:,.1f} TFLOP/s in {precision}"
        lines.append(f"trained tokens per second: {rate:,.0f}, on {hardware}, at {share:.0%} of it{assumed}")
    if bandwidth is not None:
        weights = sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())
        numbers |= {"weight_bytes": weights, "transfer_seconds": weights / bandwidth}
        link = f"at {bandwidth / 1e9:,.1f} GB per second"
        lines.append(f"transfer of weights: {format_bytes(weights)} {link}, at least {weights / bandwidth:,.1f} s")
    return Speed(lines=tuple(lines), numbers=numbers)


def _check(device: str | None, utilization: float | None) -> None:
    if device is None and utilization is not None:
        raise ConfigError("--utilization has no effect", got="no --device", need="--device", do="add --device NAME")
    if utilization is not None and not 0 < utilization <= 1:
        raise ConfigError("--utilization", got=utilization, need="a fraction above 0 and at most 1")


def _peak(device: str, precision: Precision) -> float:
    peak = peak_flops(device, precision)
    if peak is None:
        raise ConfigError("--device", got=repr(device), need=f"one of: {', '.join(PEAKS)}")
    return peak


def _module(model: Model) -> Any:
    """The policy without values, with what it computes of a token."""
    from purerl.backends.hf.memory.simulation import fake_model
    from purerl.backends.hf.model.token_model import TokenModel

    return TokenModel(fake_model(model), ("logp",), path=Path(model.path), autocast=None, top_k=None)


def _flops(module: Any, length: int) -> float:
    from purerl.backends.hf.training.flops import training_flops

    return training_flops(module, 1, length)


def _precision(trainer: Any, module: Any) -> Precision:
    """That of most matrix products."""
    is_narrow = next(module.parameters()).element_size() == 2
    return "bfloat16" if is_narrow or getattr(trainer, "mixed_precision", "") == "bfloat16" else "float32"
