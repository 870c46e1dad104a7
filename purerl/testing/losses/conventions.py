"""The meaning of the parameters of a plain loss, by their names: those of verl, TRL, OpenRLHF and purerl.

The name of the mask says whose names a loss uses: `response_mask` (verl), `completion_mask` (TRL), `action_mask`
(OpenRLHF) or `mask` (purerl).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from attrs import define
from tensordict import TensorDict
from torch import Tensor
from torch.nn import Module

from purerl.algos.algebra import Counts, bind
from purerl.algos.parts.rows import row_mean
from purerl.errors import ConfigError, nearest
from purerl.testing.plain_loss import PlainLoss, share_of_rows, whole

__all__ = ["CONVENTIONS", "Convention", "VerlConfig", "convention_of", "plain_loss"]

Value = Callable[[TensorDict, Counts], Any]


class Argument(NamedTuple):
    """The fields of a batch that the value of a parameter is made of, and the function that makes it."""

    fields: tuple[str, ...]
    value: Value


class Convention(NamedTuple):
    """The names that a library uses.

    library        whose names these are
    arguments      what each parameter gets, by its name
    denominators   parameters that have the number of tokens or rows of the whole optimizer step
    """

    library: str
    arguments: Mapping[str, Argument]
    denominators: tuple[str, ...]


@define(slots=False)
class VerlConfig:
    """A stand-in for verl's ActorConfig, with the settings that verl's policy losses read, at verl's defaults."""

    clip_ratio: float = 0.2
    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.2
    clip_ratio_c: float = 3.0
    tau_pos: float = 1.0
    tau_neg: float = 1.05
    entropy_coeff: float = 0.0
    use_kl_loss: bool = False
    kl_loss_coef: float = 0.001
    loss_agg_mode: str = "token-mean"

    def get(self, name: str, default: Any = None) -> Any:
        """The setting `name`, or `default`, as verl's configurations do."""
        return getattr(self, name, default)


# --- values of parameters ----------------------------------------------------------------------------------------


def _field(part: TensorDict, counts: Counts, *, name: str) -> Tensor:
    return part[name]


def _integers(part: TensorDict, counts: Counts) -> Tensor:
    return part["mask"].long()


def _tokens(part: TensorDict, counts: Counts) -> Tensor:
    return counts.tokens


def _verl_config(part: TensorDict, counts: Counts, *, config: Any) -> Any:
    """`config` with the counts of the mini-batch, as verl's actor sets them before it calls a loss."""
    info = {"dp_size": 1, "batch_num_tokens": counts.tokens, "global_batch_size": counts.rows}
    changed = copy.copy(config)
    object.__setattr__(changed, "global_batch_info", {**info, "loss_scale_factor": None})  # verl's classes are frozen
    return changed


def _fields(**names: str) -> dict[str, Argument]:
    return {parameter: Argument((name,), bind(_field, name=name)) for parameter, name in names.items()}


_LOGP = ("logp", "old_logp", "ref_logp", "rollout_logp")
_OWN = (*_LOGP, "entropy", "advantage", "value", "old_value", "returns", "group")
_OUTPUTS = ("logp", "entropy", "value")
_COUNTS = {
    "batch_num_tokens": Argument((), _tokens),
    "global_batch_size": Argument((), lambda part, counts: counts.rows),
}

CONVENTIONS: Mapping[str, Convention] = {
    "mask": Convention(
        "purerl",
        {**_fields(**{name: name for name in _OWN}, mask="mask"), "counts": Argument((), lambda part, counts: counts)},
        ("counts",),
    ),
    "response_mask": Convention(
        "verl",
        {
            **_fields(
                log_prob="logp", old_log_prob="old_logp", ref_log_prob="ref_logp", rollout_log_probs="rollout_logp"
            ),
            **_fields(advantages="advantage", entropy="entropy"),
            **_fields(vpreds="value", values="old_value", returns="returns"),
            **_COUNTS,
            "response_mask": Argument((), _integers),
            "config": Argument((), bind(_verl_config, config=VerlConfig())),
        },
        ("config", *_COUNTS),
    ),
    "completion_mask": Convention(
        "TRL",
        {
            **_fields(per_token_logps="logp", old_per_token_logps="old_logp", ref_per_token_logps="ref_logp"),
            **_fields(sampling_per_token_logps="rollout_logp", entropies="entropy"),
            "advantages": Argument(("advantage",), lambda part, counts: row_mean(part["advantage"], part["mask"])),
            "completion_mask": Argument((), _integers),
            "num_items_in_batch": Argument((), _tokens),
        },
        ("num_items_in_batch",),
    ),
    "action_mask": Convention(
        "OpenRLHF",
        {
            **_fields(log_probs="logp", old_log_probs="old_logp", rollout_log_probs="rollout_logp"),
            **_fields(advantages="advantage", values="value", old_values="old_value", returns="returns"),
            **_COUNTS,
            "action_mask": Argument((), _integers),
        },
        tuple(_COUNTS),
    ),
}
"""The names of each library, by the name of the mask."""


# --- a loss ------------------------------------------------------------------------------------------------------


def convention_of(loss: Callable) -> Convention:
    """The names that `loss` uses. Raises ConfigError if it has no mask, or masks of two libraries."""
    masks = [name for name in _parameters(loss) if name in CONVENTIONS]
    if len(masks) != 1:
        need = "one mask: mask, response_mask (verl), completion_mask (TRL) or action_mask (OpenRLHF)"
        got = ", ".join(_parameters(loss))
        raise ConfigError(f"the parameters of the loss {_name(loss)}", got=got, need=need)
    return CONVENTIONS[masks[0]]


def plain_loss(
    loss: Callable, arguments: Mapping[str, Any], *, accumulate: str | None = None, unit: str = "row"
) -> PlainLoss:
    """`loss` with the values of a batch for the parameters that its convention knows, and `arguments` for others.

    Raises: ConfigError as `convention_of`; for a parameter without a value, an argument without a parameter, and
        for values of `accumulate` and `unit` that do not exist.
    """
    convention, parameters = convention_of(loss), _parameters(loss)
    _check_choice("accumulate", accumulate, (None, "sum", "mean"))
    _check_choice("unit", unit, ("row", "group"))
    for name in arguments:
        if name not in parameters:
            raise ConfigError(
                f"the argument {name!r}", need=f"a parameter of {_name(loss)}", do=nearest(name, parameters)
            )
    if "config" in convention.arguments and "config" in arguments:
        config = Argument((), bind(_verl_config, config=arguments["config"]))
        convention = convention._replace(arguments={**convention.arguments, "config": config})
        arguments = {name: value for name, value in arguments.items() if name != "config"}
    used = {name: convention.arguments[name] for name in parameters if _is_from_batch(name, convention, arguments)}
    _check_values(loss, parameters, {*used, *arguments}, convention)
    fields = tuple(dict.fromkeys(field for argument in used.values() for field in argument.fields if field != "mask"))
    outputs = tuple(field for field in fields if field in _OUTPUTS)
    if not {"logp", "value"} & {*outputs}:
        need = "a parameter with the log-probabilities of the current policy, or with the values of the critic"
        raise ConfigError(f"the loss {_name(loss)}", got=", ".join(parameters), need=need)
    is_sum = accumulate == "sum" or (accumulate is None and any(name in used for name in convention.denominators))
    values = tuple((name, argument.value) for name, argument in used.items())
    function = bind(_call, loss=loss, values=values, arguments=tuple(arguments.items()))
    reads = tuple(field for field in fields if field not in outputs)
    role = "policy" if "logp" in outputs else "critic"
    return PlainLoss(function, whole if is_sum else share_of_rows, reads, outputs, unit, role)


def _parameters(loss: Callable) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(loss.forward if isinstance(loss, Module) else loss).parameters


def _is_from_batch(name: str, convention: Convention, arguments: Mapping[str, Any]) -> bool:
    return name in convention.arguments and name not in arguments


def _check_choice(name: str, value: Any, choices: tuple) -> None:
    if value not in choices:
        raise ConfigError(name, got=repr(value), need=" or ".join(repr(choice) for choice in choices if choice))


def _check_values(
    loss: Callable, parameters: Mapping[str, inspect.Parameter], known: set[str], convention: Convention
) -> None:
    for name, parameter in parameters.items():
        is_optional = parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        )
        if name not in known and not is_optional:
            need = f"one of {', '.join(convention.arguments)} (as in {convention.library}), or a value"
            do = f"give a value: arguments={{{name!r}: ...}}, or --set {name}=..."
            raise ConfigError(f"the parameter {name!r} of {_name(loss)}", got="no value", need=need, do=do)


def _call(part: TensorDict, counts: Counts, *, loss: Callable, values: tuple, arguments: tuple) -> Tensor:
    result = loss(**{name: value(part, counts) for name, value in values}, **dict(arguments))
    value = result[0] if isinstance(result, tuple) else result
    if not isinstance(value, Tensor) or value.ndim:
        got = f"{list(value.shape)} values" if isinstance(value, Tensor) else type(value).__name__
        raise ConfigError(
            f"the result of {_name(loss)}", got=got, need="a scalar tensor, or a tuple that starts with it"
        )
    return value


def _name(loss: Callable) -> str:
    return getattr(loss, "__qualname__", repr(loss))
