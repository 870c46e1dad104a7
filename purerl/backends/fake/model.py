"""A language model that is one table: the next token depends on the last one only.

logits after token k  =  row k of ``model.bigram.weight`` [vocab, vocab]
value before a token  =  entry k of ``value.weight`` [vocab], k the token before it; a critic has it
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.errors import ConfigError, EngineError, nearest
from purerl.protocols import Model

__all__ = ["BIGRAM", "VALUE", "export_weights", "initial_weights", "outputs_of", "text_of"]

BIGRAM, VALUE = "model.bigram.weight", "value.weight"
_KIND = "purerl_bigram"


def initial_weights(model: Model, vocabulary: int, role: str = "policy") -> dict[str, Tensor]:
    """Weights that `export_weights` wrote into the directory `model.path`; elsewhere, weights drawn from that name.

    So models of one path are equal, as they are when they come from files. A critic's values begin at 0.

    Raises: ConfigError for weights of another vocabulary.
    """
    table = _exported(Path(model.path))
    if table is None:
        generator = torch.Generator().manual_seed(zlib.crc32(model.path.encode()))
        table = torch.randn(vocabulary, vocabulary, generator=generator)
    if table.shape != (vocabulary, vocabulary):
        raise ConfigError("vocabulary", got=vocabulary, need=f"{len(table)}, as in {model.path!r}")
    table = table.to(torch.float64 if model.dtype == "float64" else torch.float32)
    return {BIGRAM: table, VALUE: table.new_zeros(vocabulary)} if role == "critic" else {BIGRAM: table}


def _exported(path: Path) -> Tensor | None:
    from safetensors.torch import load_file

    config = path / "config.json"
    if not config.is_file() or json.loads(config.read_text()).get("model_type") != _KIND:
        return None
    return load_file(path / "model.safetensors")[BIGRAM]


def export_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write `weights` into the directory `path`, as Hugging Face lays out a model."""
    from safetensors.torch import save_file

    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps({"model_type": _KIND, "vocab_size": len(weights[BIGRAM])}))
    save_file({name: value.detach().contiguous() for name, value in weights.items()}, path / "model.safetensors")


def outputs_of(weights: Mapping[str, Tensor], batch: TensorDict, names: Sequence[str]) -> dict[str, Tensor]:
    """The outputs `names` on `batch`, [rows, time] each, at the row's temperature (1 for 0); 0 where not `action`.

    Raises: EngineError for an output that a model with these weights does not have.
    """
    before = batch["tokens"].roll(1, -1)  # position 0 gets nonsense, and is no action
    temperature = batch["temperature"].where(batch["temperature"] > 0, 1)
    logp = (weights[BIGRAM][before] / temperature[:, None, None]).log_softmax(-1)
    found = {
        "logp": logp.gather(-1, batch["tokens"][..., None])[..., 0],
        "entropy": -(logp.exp() * logp).sum(-1),
    } | ({"value": weights[VALUE][before]} if VALUE in weights else {})
    for name in names:
        if name not in found:
            raise EngineError(f"output {name!r}", need="an output of this model", do=nearest(name, found))
    return {name: found[name].where(batch["action"], 0) for name in names}


def text_of(tokens: Sequence[int]) -> str:
    """The text of `tokens`: a letter each.

    >>> text_of([0, 1, 2])
    'abc'
    """
    return "".join(chr(ord("a") + token) for token in tokens)
