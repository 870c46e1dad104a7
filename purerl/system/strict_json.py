"""JSON without NaN and infinity, which JSON does not have: many readers refuse a file that contains them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["finite", "to_json"]


def to_json(value: Any, **options: Any) -> str:
    """`value` as JSON, with null for each NaN and infinity. `options` are those of `json.dumps`.

    >>> to_json({"a": [1.5, float("nan")], "b": float("inf")})
    '{"a": [1.5, null], "b": null}'
    """
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(finite(value), allow_nan=False, **options)


def finite(value: Any) -> Any:
    """`value` with None for each float in it that is not finite; mappings become dicts, sequences lists.

    >>> finite({"a": float("-inf"), "b": (2, "nan")})
    {'a': None, 'b': [2, 'nan']}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(part) for key, part in value.items()}
    return [finite(part) for part in value] if isinstance(value, list | tuple) else value
