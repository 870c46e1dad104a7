"""A language model that is one table: the distribution of the next token depends on the last token only.

logits after token k          row k of ``model.bigram.weight`` [vocab, vocab]
value before a token          entry k of ``value_head.weight`` [vocab], where k is the token before it
log_partition before a token  entry k of ``log_partition_head.weight`` [vocab], likewise
classifier_score at token k   entry k of ``score.weight`` [vocab]

The three heads exist only if their output is requested.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from purerl.backends.predicted_tokens import predicted_tokens
from purerl.errors import ConfigError, InputError, nearest
from purerl.settings import Model
from purerl.system.nesting import read_json
from purerl.types import TensorDict

__all__ = ["BIGRAM", "OUTPUTS", "compute_outputs", "export_weights", "initial_weights", "text_of"]

BIGRAM = "model.bigram.weight"
_SCORE = "classifier_score"
_HEADS = {"value": "value_head.weight", "log_partition": "log_partition_head.weight", _SCORE: "score.weight"}
OUTPUTS = ("logp", "entropy", "sum_pi_squared", "topk_logp", "topk_tokens", *_HEADS)
_MODEL_TYPE = "purerl_bigram"


def initial_weights(model: Model, vocab_size: int, outputs: Sequence[str] = ()) -> dict[str, Tensor]:
    """The weights that `export_weights` wrote into the directory `model.path`, or else weights drawn from its name.

    Two models whose paths have the same last part are equal, wherever their run directories are. Heads that are not in
    the files are 0.

    Raises: ConfigError for weights with another vocabulary.
    """
    exported = _exported(Path(model.path))
    generator = torch.Generator().manual_seed(zlib.crc32(f"bigram{Path(model.path).name}".encode()))
    table = exported[BIGRAM] if exported else torch.randn(vocab_size, vocab_size, generator=generator)
    if table.shape != (vocab_size, vocab_size):
        raise ConfigError("vocab_size", got=vocab_size, need=f"{len(table)}, as in {model.path!r}")
    heads = {name: exported.get(name, torch.zeros(vocab_size)) for output, name in _HEADS.items() if output in outputs}
    dtype = torch.float64 if model.dtype == "float64" else torch.float32
    return {name: value.to(dtype) for name, value in {BIGRAM: table, **heads}.items()}


def _exported(path: Path) -> dict[str, Tensor]:
    """The weights in the directory `path`; empty if it has none of this model."""
    from safetensors.torch import load_file

    config = path / "config.json"
    if not config.is_file() or read_json(config.read_text()).get("model_type") != _MODEL_TYPE:
        return {}
    return load_file(path / "model.safetensors")


def export_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write `weights` into the directory `path`, for `initial_weights`. transformers has no such model."""
    from safetensors.torch import save_file

    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps({"model_type": _MODEL_TYPE, "vocab_size": len(weights[BIGRAM])}))
    save_file({name: value.detach().contiguous() for name, value in weights.items()}, path / "model.safetensors")


def compute_outputs(
    weights: Mapping[str, Tensor], batch: TensorDict, names: Sequence[str], *, top_k: int
) -> dict[str, Tensor]:
    """The outputs `names` on `batch`, as `purerl.protocols.Trainer.score` defines them.

    Raises: InputError for an output that this model does not have.
    """
    before = batch["tokens"].roll(1, -1)  # position 0 is never an action token
    temperature = batch["temperature"].where(batch["temperature"] > 0, 1)
    logp = (weights[BIGRAM][before] / temperature[:, None, None]).log_softmax(-1)
    choices = batch.get("teacher_topk_tokens", None)
    top = logp.topk(top_k).indices if choices is None else choices
    outputs = {
        "logp": logp.gather(-1, batch["tokens"][..., None])[..., 0],
        "entropy": -(logp.exp() * logp).sum(-1),
        "sum_pi_squared": (2 * logp).exp().sum(-1),
        "topk_logp": logp.gather(-1, top),
        "topk_tokens": top,
        **{
            output: weights[name][batch["tokens"] if output == _SCORE else before]
            for output, name in _HEADS.items()
            if name in weights
        },
    }
    for name in names:
        if name not in outputs:
            raise InputError(f"output {name!r}", need="an output of this model", do=nearest(name, outputs))
    action = predicted_tokens(batch)
    return {name: outputs[name].where(_expanded(action, outputs[name]), 0) for name in names}


def _expanded(action: Tensor, output: Tensor) -> Tensor:
    return action if output.ndim == action.ndim else action[..., None]


def text_of(tokens: Sequence[int]) -> str:
    """The text of `tokens`: one letter for each.

    >>> text_of([0, 1, 2])
    'abc'
    """
    return "".join(chr(ord("a") + token) for token in tokens)
