"""Whether a server that runs already has the model of the run: its architecture and its tokenizer, not its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from purerl.backends.serving.http import Http, RefusedError, UnreachableError
from purerl.backends.serving.versions import is_version
from purerl.backends.transfer.engine.purerl_model import PATH, describe_vocabulary
from purerl.errors import ConfigError
from purerl.models.pretrained import config_of
from purerl.models.tokenizer import load_tokenizer
from purerl.settings import Model

__all__ = ["config_problem", "identity_problem", "version_problem"]

_TIMEOUT = 120.0  # seconds; the server reads its tokenizer
_NOT_COMPUTED = frozenset(
    [
        *("_name_or_path", "architectures", "bos_token_id", "dtype", "eos_token_id", "id2label", "initializer_range"),
        *("output_attentions", "output_hidden_states", "output_router_logits", "router_aux_loss_coef"),
        *("task_specific_params", "label2id", "max_position_embeddings", "pad_token_id", "quantization_config"),
        *("torch_dtype", "transformers_version", "use_cache"),
    ]
)
"""Fields of a configuration that may differ between copies of a model, or that other checks compare."""

_FIRST = ("hidden_size", "num_hidden_layers", "vocab_size")
"""Fields that are named first."""

_TEXT = "The 12 quick foxes: if (x == 3.14) { return x; }\n\tNaïve café, 東京, Привет, 🙂 -- don't!"
_AGREEMENT = 0.5  # share of its tokens; versions of libraries may differ in some


def version_problem(engine: str, installed: str, need: str) -> str | None:
    """The problem of a server of this version; None if it is the right one."""
    if is_version(installed, need):
        return None
    return f"{engine} {installed}, and {engine} {need} is needed: routes and arguments differ between versions"


async def identity_problem(http: Http, model: Model, kind: str | None) -> str | None:
    """The problem of a server that must have `model`; None if it has, or if it says nothing about its model.

    `kind` is the model type that its engine shows. A server that purerl's program runs shows all files of its model.
    """
    described, own = await _asked(http, PATH), config_of(model)
    other = described.get("config") or {"model_type": kind or own.model_type}
    problem = _kind_problem(own, other) or (config_problem(own, other) if "config" in described else None)
    if problem is not None:
        return f"another model than {model.path!r}: {problem}"
    return await _tokenizer_problem(http, model, described.get("vocabulary"))


def _kind_problem(own: Any, other: Mapping[str, Any]) -> str | None:
    kind = other.get("model_type")
    return None if kind == own.model_type else f"its architecture is {kind!r} in place of {own.model_type!r}"


def config_problem(own: Any, other: Mapping[str, Any]) -> str | None:
    """The difference between the configuration `own` and the file `other`, read by the same class.

    Only what decides about the tensors, or what is computed with them.
    """
    problem = None
    try:
        read = type(own).from_dict(dict(other)).to_dict()
    except Exception as error:  # noqa: BLE001 - what a class of any library raises
        problem, read = f"its configuration cannot be read: {error!r}", other
    different = _differences(own.to_dict(), read)
    if not different:
        return problem
    name, value, need = different[0]
    more = f"; {len(different) - 1} other settings differ" if len(different) > 1 else ""
    return f"its {name} is {value!r} in place of {need!r}{more}"


def _differences(own: Mapping[str, Any], other: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any, Any]]:
    """(name, value of `other`, value of `own`) for each field in which they differ."""
    found: list[tuple[str, Any, Any]] = []
    for name in (own.keys() & other.keys()) - _NOT_COMPUTED:
        if "dropout" in name or name.endswith("_pdrop"):
            continue  # of training
        mine, theirs = own[name], other[name]
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            found += _differences(mine, theirs, f"{prefix}{name}.")
        elif mine != theirs:
            found.append((prefix + name, theirs, mine))
    return sorted(found, key=lambda each: (each[0].rpartition(".")[2] not in _FIRST, each[0]))


async def _tokenizer_problem(http: Http, model: Model, vocabulary: Mapping[str, Any] | None) -> str | None:
    try:
        tokenizer: Any = load_tokenizer(model)
    except ConfigError:  # it has none: token ids are all that it needs
        return None
    own = describe_vocabulary(tokenizer.get_vocab())
    if vocabulary is not None:
        if vocabulary == own:
            return None
        same = f"its {own['size']:,} ids mean other tokens"
        got = (
            same if vocabulary["size"] == own["size"] else f"{vocabulary['size']:,} tokens in place of {own['size']:,}"
        )
        return f"another tokenizer than that of {model.path!r}: {got}"
    answer = await _asked(http, "/tokenize", {"prompt": _TEXT, "add_special_tokens": False})
    tokens, expected = answer.get("tokens"), tokenizer.encode(_TEXT, add_special_tokens=False)
    if not isinstance(tokens, list) or len({*tokens} & {*expected}) >= _AGREEMENT * len({*expected}):
        return None
    return f"another tokenizer than that of {model.path!r}: a text has {tokens[:5]} in place of {expected[:5]}"


async def _asked(http: Http, path: str, body: dict[str, Any] | None = None) -> Mapping[str, Any]:
    """The answer of the server to `body`, or without one; empty if it has no such path."""
    try:
        answer = await (http.get(path, timeout=_TIMEOUT) if body is None else http.post(path, body, timeout=_TIMEOUT))
    except (RefusedError, UnreachableError):
        return {}
    return answer if isinstance(answer, Mapping) else {}
