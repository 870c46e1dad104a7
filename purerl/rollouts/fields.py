"""The fields of a row that have one value for each token, from the prompt and the turns of the row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen

from purerl.expert_routes import first_records
from purerl.protocols import Completion

__all__ = ["RowTurn", "token_fields"]


@frozen
class RowTurn:
    """A turn in a row.

    number      of the turn in its episode
    added       tokens between the turn before, or the prompt, and this one
    completion  the sampled tokens
    reward      of the turn
    is_action   whether its tokens are trained in this row; otherwise they are context
    image       for each of `added`, the content id of its image; empty in a run without images
    """

    number: int
    added: Sequence[int]
    completion: Completion
    reward: float = 0.0
    is_action: bool = True
    image: Sequence[int] = ()


def token_fields(
    prompt: Sequence[int], turns: Sequence[RowTurn], *, has_reward: bool = True, image: Sequence[int] = ()
) -> dict[str, Any]:
    """The fields `tokens`, `action`, `mask`, `reward`, `rollout_logp`, `version` and `turn` of a row.

    The reward of a turn is at its last token. Without a reward, because something failed, the row is masked out. With
    the `image` of each token of the prompt there is also the field `image`. If completions have `routes`, there is the
    field `routes`, with the experts of the tokens of the row as `Completion.routes`: the run stores them, and puts the
    number of the record in their place.

    >>> first, second = Completion("a", [5, 6], [-0.1, -0.2], [0, 0], "stop"), Completion("b", [7], [-0.3], [1], "stop")
    >>> fields = token_fields([1, 2], [RowTurn(0, [], first), RowTurn(1, [3], second, 1.0)])
    >>> fields["tokens"], fields["reward"], fields["turn"]
    ([1, 2, 5, 6, 3, 7], [0.0, 0.0, 0.0, 0.0, 0.0, 1.0], [0, 0, 0, 0, 1, 1])
    >>> [int(value) for value in fields["action"]]
    [0, 0, 1, 1, 0, 1]
    """
    before = len(prompt)
    fields: dict[str, Any] = {
        "tokens": [*prompt],
        "action": [False] * before,
        "reward": [0.0] * before,
        "rollout_logp": [0.0] * before,
        "version": [0] * before,
        "turn": [0] * before,
    }
    for turn in turns:
        added, sampled, is_action = len(turn.added), len(turn.completion.tokens), turn.is_action
        fields["tokens"] += [*turn.added, *turn.completion.tokens]
        fields["action"] += [False] * added + [is_action] * sampled
        fields["reward"] += [0.0] * (added + sampled - 1) + [turn.reward if has_reward else 0.0]
        fields["rollout_logp"] += [0.0] * added + [logp if is_action else 0.0 for logp in turn.completion.logp]
        fields["version"] += [0] * added + [version if is_action else 0 for version in turn.completion.version]
        fields["turn"] += [turn.number] * (added + sampled)
    if image:
        fields["image"] = [*image, *(each for turn in turns for each in _images_of(turn))]
    routes = first_records(turn.completion.routes for turn in turns if turn.completion.routes is not None)
    record = {} if routes is None else {"routes": routes}
    return {**fields, **record, "mask": [is_action and has_reward for is_action in fields["action"]]}


def _images_of(turn: RowTurn) -> list[int]:
    """The field `image` of the tokens of `turn`."""
    return [*(turn.image or [0] * len(turn.added)), *[0] * len(turn.completion.tokens)]
