"""The tokenizer of a model, and its stop tokens: loaded from a directory or from the hub."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from purerl.errors import ConfigError
from purerl.models.cache import stored_result
from purerl.models.config_file import read_object
from purerl.models.pretrained import cannot_load, config_of, file_of, loading
from purerl.models.template_probe import check_templates
from purerl.settings import Model
from purerl.system.phases import phase

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "check_same_ids",
    "declared_pad_token",
    "end_tokens",
    "load_tokenizer",
    "ordinary_tokens",
    "pad_token_of",
    "set_pad_token",
]


@phase("importing transformers and loading a tokenizer")
def load_tokenizer(model: Model) -> PreTrainedTokenizerBase:
    """The tokenizer of `model`. Raises ConfigError if there is none, and as `check_templates`."""
    with loading("tokenizer", model):
        tokenizer: Any = _load(model)
        tokenizer("a")  # some values in its files make only its calls fail
    if tokenizer.get_vocab().keys() <= tokenizer.get_added_vocab().keys():
        # If only the configuration of the model exists, transformers returns a tokenizer without a vocabulary.
        raise cannot_load("tokenizer", model, ValueError("no vocabulary: tokenizer.json is missing"))
    check_templates(tokenizer, model.path)
    return tokenizer


@frozen
class _ClassOfTokenizer:
    """A class, by the module and the name with which it is imported."""

    module: str
    name: str


def _load(model: Model) -> PreTrainedTokenizerBase:
    """The tokenizer of `model`, as transformers' `AutoTokenizer` loads it.

    `AutoTokenizer` reads the configuration of the model to choose the class. That imports code of models, which takes
    more than a second, so the class for the files of a local directory is stored for the next process.
    """
    loaded: list[PreTrainedTokenizerBase] = []

    def choose() -> _ClassOfTokenizer:
        from transformers import AutoTokenizer

        kwargs = {"revision": model.revision, "trust_remote_code": model.trust_remote_code}
        loaded.append(AutoTokenizer.from_pretrained(model.path, **kwargs))
        return _ClassOfTokenizer(type(loaded[0]).__module__, type(loaded[0]).__qualname__)

    files = _digests(Path(model.path))
    if not files:
        choose()
        return loaded[0]
    chosen = stored_result(_ClassOfTokenizer, choose, model=model, settings=model, arguments=("tokenizer", files))
    if not loaded and not chosen.module.startswith("transformers."):  # code of a user has registered it
        choose()
    return loaded[0] if loaded else getattr(import_module(chosen.module), chosen.name).from_pretrained(model.path)


def _digests(folder: Path) -> dict[str, str]:
    """The digests of the files in `folder` that the class of the tokenizer depends on, except for config.json."""
    digests = dict[str, str]()
    for name in ("tokenizer_config.json", "tokenizer.json"):
        with suppress(OSError):
            digests[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    return digests


def ordinary_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids of all tokens that are text: no special tokens, such as those of images, and no others that were added.

    All ids, if the tokenizer has no others.
    """
    loaded: Any = tokenizer  # its properties have several types
    ids, added = {*loaded.get_vocab().values()}, {*loaded.get_added_vocab().values(), *loaded.all_special_ids}
    return sorted(ids - added) or sorted(ids)


def check_same_ids(tokenizer: PreTrainedTokenizerBase, model: Model, role: str) -> None:
    """Refuse `model`, in `role`, if its token ids mean other tokens than those of `tokenizer`, or if it has fewer.

    Raises: ConfigError.
    """
    policy_ids, role_ids = tokenizer.get_vocab(), load_tokenizer(model).get_vocab()
    different = sorted((token, text) for text, token in policy_ids.items() if role_ids.get(text, token) != token)
    do = "use a model of the same family, which has the policy's tokenizer"
    if different:
        token, text = different[0]
        got = f"{text!r} is token {token} of the policy and {role_ids[text]} of the {role}; {len(different):,} differ"
        need = "the same token ids"
        raise ConfigError(f"the {role} {model.path!r} has another tokenizer", got=got, need=need, do=do)
    size = getattr(_text_config(model), "vocab_size", None) or max(role_ids.values()) + 1
    needed = max(policy_ids.values()) + 1
    if size < needed:
        need = f"{needed:,}, as many as the policy's tokenizer has"
        raise ConfigError(f"the {role} {model.path!r}", got=f"{size:,} token ids", need=need, do=do)


def declared_pad_token(model: Model) -> int | None:
    """The padding token in the configuration of `model`; None if it has none."""
    return getattr(_text_config(model), "pad_token_id", None)


def _text_config(model: Model) -> Any:
    """The configuration of the decoder of `model`; None if transformers does not know the configuration."""
    try:
        return config_of(model).get_text_config(decoder=True)
    except ConfigError:
        return None


def end_tokens(model: Model) -> tuple[int, ...]:
    """The stop tokens that `model` declares in generation_config.json, otherwise in config.json; may be none.

    They can differ from those of the tokenizer.

    Raises: ConfigError if one of the files is damaged.
    """
    for name in ("generation_config.json", "config.json"):
        with suppress(OSError):  # there is none, or no network: loading the model reports the problem
            declared = read_object(file_of(model, name)).get("eos_token_id")
            ids = [declared] if type(declared) is int else declared
            if isinstance(ids, list) and all(type(each) is int for each in ids):
                return tuple(ids)
            if declared is not None:
                what, need = f"eos_token_id in {name} of {model.path!r}", "a token id, or a list of them"
                raise ConfigError(what, got=f"{declared!r:.100}", need=need, do="fix the file, or remove the line")
    return ()


def pad_token_of(model: Model) -> int | None:
    """The padding token of a classifier made of `model`, as `set_pad_token` chooses it; None without a tokenizer."""
    try:
        tokenizer: Any = load_tokenizer(model)
    except ConfigError:
        return None
    set_pad_token(tokenizer)
    return tokenizer.pad_token_id


def set_pad_token(tokenizer: Any) -> None:
    """Give `tokenizer` a padding token that never ends a text, if there is one.

    transformers takes the score of a sequence classifier at the last token that is not padding. If the padding token is
    also the token that ends a turn or a text, as in some chat models, that is the token before it.
    """
    ends = {tokenizer.eos_token, _last_token_of_turn(tokenizer)}
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    named = [text for text in special if "pad" in text.lower()]
    candidates = [tokenizer.pad_token, *named, tokenizer.unk_token, *special]
    tokenizer.pad_token = next((text for text in candidates if text and text not in ends), tokenizer.pad_token)


def _last_token_of_turn(tokenizer: Any) -> str | None:
    """The last special token in a conversation, as the chat template writes it; None if there is none."""
    from jinja2 import TemplateError

    turns = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": "an answer"}]
    try:
        tokens = tokenizer.apply_chat_template(turns, return_dict=True)["input_ids"] if tokenizer.chat_template else []
    except (TemplateError, TypeError, ValueError):  # what a template may raise about such turns
        return None
    added = [token for token in tokens if token in tokenizer.added_tokens_decoder]
    return tokenizer.added_tokens_decoder[added[-1]].content if added else None
