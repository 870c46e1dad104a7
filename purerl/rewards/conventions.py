"""The calling conventions of reward functions: those of purerl, verl, TRL and OpenRLHF.

The names of the parameters determine the convention. Functions for the other libraries work without changes, and their
return values have the same meaning as in these libraries. A function gets those arguments that it has a parameter for.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from purerl.rewards.adapters import Call, Convention, LoadedReward, RewardInput

__all__ = ["CONVENTIONS", "OPENRLHF", "PURERL", "convention_of"]

_UNLIMITED = 2**31
Parameters = Mapping[str, inspect.Parameter]


def convention_of(parameters: Iterable[str]) -> Convention:
    """The convention of a function with these parameters."""
    names = {*parameters}
    return next(each for each in CONVENTIONS if not each.marker_parameters or each.marker_parameters & names)


def _select(parameters: Parameters, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The `arguments` that have a parameter: all of them if there is ``**kwargs``."""
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(arguments)
    return {name: value for name, value in arguments.items() if name in parameters}


def _accepts(names: tuple[str, ...], signature: inspect.Signature) -> bool:
    """Whether a function with `signature` can be called with those of the arguments `names` that it has."""
    return _binds(signature, **_select(signature.parameters, dict.fromkeys(names)))


def _binds(signature: inspect.Signature, *arguments: Any, **keywords: Any) -> bool:
    try:
        signature.bind(*arguments, **keywords)
    except TypeError:
        return False
    return True


_OPTIONAL = ("messages", "tokens", "truncated", "log_metric")


def _call_purerl(reward: LoadedReward, inputs: Sequence[RewardInput], call: Call) -> Any:
    [item] = inputs
    values = (item.conversation, item.tokens, item.truncated, call.log_metric)
    optional = dict(zip(_OPTIONAL, values, strict=True))
    arguments = {name: value for name, value in optional.items() if name in reward.parameters}
    return reward.function(item.completion, item.example, **arguments)


def _parse_purerl(returned: Any, call: Call) -> list[Any]:
    if isinstance(returned, Mapping) and not returned:
        raise TypeError("returned {}; need at least one number, or None if there is no reward")
    return [returned]


_VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
_VERL_BATCH = ("data_sources", "solution_strs", "ground_truths", "extra_infos")


def _verl_arguments(item: RewardInput) -> tuple[Any, ...]:
    """The values of verl's arguments. Its reward managers add two entries to `extra_info`."""
    example = item.example
    num_turns = 1 + sum(1 for _ in groupby(message["role"] == "assistant" for message in item.conversation))
    added = {"num_turns": num_turns, "rollout_reward_scores": {}}
    ground_truth = example["reward_model"]["ground_truth"]
    return example["data_source"], item.completion, ground_truth, {**(example.get("extra_info") or {}), **added}


def _call_verl(reward: LoadedReward, inputs: Sequence[RewardInput], call: Call) -> Any:
    return reward.function(**_select(reward.parameters, dict(zip(_VERL, _verl_arguments(inputs[0]), strict=True))))


def _call_verl_batch(reward: LoadedReward, inputs: Sequence[RewardInput], call: Call) -> Any:
    columns = zip(*map(_verl_arguments, inputs), strict=True)
    arguments = {name: [*values] for name, values in zip(_VERL_BATCH, columns, strict=True)}
    return reward.function(**_select(reward.parameters, arguments))


def _parse_verl_batch(returned: Any, call: Call) -> list[Any]:
    return [_verl_score(row, value, call) for row, value in enumerate(_listed(returned, call, "numbers or mappings"))]


def _verl_score(row: int, value: Any, call: Call) -> Any:
    """Only `score` of a mapping is the reward. The other entries are logged."""
    if not isinstance(value, Mapping) or "score" not in value:
        return value
    call.log_entries(row, {name: entry for name, entry in value.items() if name != "score"})
    return value["score"]


_TRL = ("prompts", "completions", "completion_ids", "trainer_state", "log_metric", "log_extra")


def _call_trl(reward: LoadedReward, inputs: Sequence[RewardInput], call: Call) -> Any:
    """Pass every column of the examples as a list. A completion of a conversation is a list of messages."""
    examples = [item.example for item in inputs]
    prompts = [example["prompt"] for example in examples]
    completions = [
        item.completion if isinstance(prompt, str) else item.conversation
        for item, prompt in zip(inputs, prompts, strict=True)
    ]
    own = ("prompt", "completion", "completion_ids")
    names = dict.fromkeys(name for example in examples for name in example if name not in own)
    columns = {name: [example.get(name) for example in examples] for name in names}
    tokens = [[*item.tokens] for item in inputs]
    values = (prompts, completions, tokens, call.trainer_state(inputs), call.log_metric, call.log_extra)
    return reward.function(**_select(reward.parameters, {**columns, **dict(zip(_TRL, values, strict=True))}))


def _parse_trl(returned: Any, call: Call) -> list[Any]:
    """None means that the function does not apply to this row. It adds no component to the reward of the row."""
    return [{} if value is None else value for value in _listed(returned, call, "numbers or None")]


def _listed(returned: Any, call: Call, need: str) -> list[Any]:
    values = list(returned) if isinstance(returned, Iterable) and not isinstance(returned, str | Mapping) else []
    if len(values) != call.count:
        raise TypeError(f"returned {returned!r:.200}; need a list of {call.count}, {need}")
    return values


def _required_columns_trl(parameters: Parameters) -> tuple[str, ...]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    required = [p.name for p in parameters.values() if p.kind in kinds and p.default is p.empty]
    return ("prompt", *(name for name in required if name not in _TRL))


_OPENRLHF = ("queries", "prompts", "labels")


def _call_openrlhf(reward: LoadedReward, inputs: Sequence[RewardInput], call: Call) -> Any:
    [item] = inputs
    query = item.prompt + item.completion if item.query is None else item.query
    arguments = dict(zip(_OPENRLHF, ([query], [item.prompt], [_label_of(item.example)]), strict=True))
    return reward.function(**_select(reward.parameters, arguments))


def _label_of(example: Mapping[str, Any]) -> Any:
    """The label of a row: its column `label`, or the ground truth that purerl's functions read; None without one."""
    if "label" in example:
        return example["label"]
    reward_model = example.get("reward_model")
    answer = example.get("answer")
    return reward_model.get("ground_truth") if answer is None and isinstance(reward_model, Mapping) else answer


def _parse_openrlhf(returned: Any, call: Call) -> list[Any]:
    """`rewards` is the reward. The scores and the entries of `extra_logs` are logged."""
    if not isinstance(returned, Mapping):
        return [_single(returned)]
    if "rewards" not in returned:
        raise TypeError(f"returned a mapping with {', '.join(map(str, returned))}; need rewards")
    logged = {"scores": returned["scores"]} if returned.get("scores") is not None else {}
    logged |= returned.get("extra_logs") or {}
    call.log_entries(0, {name: _single(value) for name, value in logged.items()})
    return [_single(returned["rewards"])]


def _single(value: Any) -> Any:
    """The only item of a list or tensor of one; any other value is returned."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return value[0] if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 1 else value


VERL = Convention(
    name="verl",
    signature=f"({', '.join(_VERL)})",
    marker_parameters=frozenset({"solution_str"}),
    max_inputs=1,
    accepts=partial(_accepts, _VERL),
    call=_call_verl,
    parse=lambda returned, call: [_verl_score(0, returned, call)],
    required_columns=lambda parameters: ("data_source", "reward_model"),
)
VERL_BATCH = Convention(
    name="verl's batch manager",
    signature=f"({', '.join(_VERL_BATCH)})",
    marker_parameters=frozenset({"solution_strs"}),
    max_inputs=_UNLIMITED,
    accepts=partial(_accepts, _VERL_BATCH),
    call=_call_verl_batch,
    parse=_parse_verl_batch,
    required_columns=lambda parameters: ("data_source", "reward_model"),
)
TRL = Convention(
    name="TRL",
    signature="(prompts, completions, **columns)",
    marker_parameters=frozenset({"completions", "completion_ids"}),
    max_inputs=_UNLIMITED,
    accepts=lambda signature: True,
    call=_call_trl,
    parse=_parse_trl,
    required_columns=_required_columns_trl,
)
OPENRLHF = Convention(
    name="OpenRLHF",
    signature=f"({', '.join(_OPENRLHF)})",
    marker_parameters=frozenset({"queries"}),
    max_inputs=1,
    accepts=partial(_accepts, _OPENRLHF),
    call=_call_openrlhf,
    parse=_parse_openrlhf,
    required_columns=lambda parameters: (),
)
PURERL = Convention(
    name="purerl",
    signature="(completion, example)",
    marker_parameters=frozenset(),
    max_inputs=1,
    accepts=lambda signature: _binds(signature, "", {}, **{k: None for k in _OPTIONAL if k in signature.parameters}),
    call=_call_purerl,
    parse=_parse_purerl,
    required_columns=lambda parameters: (),
)
CONVENTIONS = (VERL, VERL_BATCH, TRL, OPENRLHF, PURERL)
"""All conventions, in the order in which they are tried. The last one matches every function of two arguments."""
