"""Options of the trainer, one training step of each family with them, and what is wrong with the outcome."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from attrs import evolve
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Counts, Objective, prepare_step
from purerl.backends.hf.decoder.preview import without_weights
from purerl.backends.hf.lora import Lora
from purerl.backends.hf.mesh import Mesh
from purerl.backends.hf.trainer import Config, build, check_model
from purerl.batch import with_fields
from purerl.errors import ConfigError
from purerl.settings import Model
from purerl.testing.batches import example_batch
from tests.backends.training import POLICY
from tests.families.tiny import FLOAT32, write_model

__all__ = [
    "MESHES",
    "OPTIONS",
    "Outcome",
    "config_with",
    "default_of",
    "difference",
    "is_refused",
    "misleading",
    "model_of",
    "outcome_of",
    "remedied",
]

_RANK = 2

OPTIONS: dict[str, dict[str, Any]] = {
    "micro-batches": {"max_tokens_per_microbatch": 16},
    "packing": {"packing": True},
    "share_prefixes": {"share_prefixes": True},
    "recompute layers": {"recompute": "layers"},
    "recompute selective": {"recompute": "selective"},
    "lora": {"lora": Lora(rank=_RANK)},
    "freeze": {},  # of the embedding, whose name depends on the model
}
"""Settings of one option each, beside those by default, in which prefixes are not shared."""

MESHES: dict[str, dict[str, Any]] = {name: {"mesh": Mesh(**{name: 2})} for name in ("shard", "tensor", "sequence")}
"""Options that need two ranks."""

LAYOUT = ((0, "......aaaaaaaaa"), (0, "......aaxaa"), (0, "......aaaa"), (1, "........a.a"), (1, "........aaa"))
"""Two groups of rows, each of which starts with the same tokens."""

# With a large eps AdamW's update is proportional to the gradient, so that equal weights mean equal gradients.
_PLAIN: dict[str, Any] = {"lr": 1.0, "eps": 1.0, "max_grad_norm": float("inf"), "share_prefixes": False}
_OUTPUTS = ("logp", "entropy")


_REFUSED = tomllib.loads((Path(__file__).parent / "refused.toml").read_text())


def is_refused(family: str, option: str) -> bool:
    """Whether refused.toml has `family` with `option`."""
    return family in _REFUSED["default"] or family in _REFUSED[option]


class Outcome(NamedTuple):
    """The metrics of one step and the weights before and after it; or the refusal, and the stage in which it came."""

    metrics: dict[str, float]
    initial: dict[str, Tensor]
    weights: dict[str, Tensor]
    refusal: str | None = None
    stage: str = "trained"


def config_with(option: str, model: Model) -> Config:
    """The settings of the trainer with `option`; "default": with none."""
    options = OPTIONS | MESHES | {"default": {}, "compile": {"compile": True}}
    embedding = {"freeze": (_embedding_of(model),)} if option == "freeze" else {}
    return Config(**_PLAIN | options[option] | embedding)


def _embedding_of(model: Model) -> str:
    """The name of the weights of the input embedding."""
    causal = without_weights(model, device="cpu")
    weight: Any = causal.get_input_embeddings().weight
    return next(name for name, parameter in causal.named_parameters() if parameter is weight)


def model_of(directory: Path, family: str) -> Model:
    """A small model of `family`, in float64 if its code can compute in it."""
    return Model(str(write_model(directory, family)), dtype="float32" if family in FLOAT32 else "float64")


def _step(dtype: str) -> tuple[TensorDict, Objective, dict[str, Counts]]:
    batch = example_batch(("old_logp", "advantage", "temperature"), LAYOUT, seed=0, dtype=getattr(torch, dtype))
    tokens = torch.randint(3, 60, batch["tokens"].shape, generator=torch.Generator().manual_seed(0))
    for label, first, length in ((0, 0, 6), (1, 3, 8)):
        same = torch.tensor([group == label for group, _ in LAYOUT])
        tokens[same, :length] = tokens[first, :length].clone()
    step, counts = prepare_step(POLICY, with_fields(batch, tokens=torch.where(batch["attention_mask"], tokens, 0)))
    return step, POLICY, counts


def outcome_of(model: Model, config: Config) -> Outcome:
    """The result of one training step of `model`, or the ConfigError that refuses it. Other errors are raised."""
    stage = "check"
    try:
        check_model(config, model=model, outputs=_OUTPUTS, is_trained=True)
        stage = "build"
        trainer = build(config, model=model, role="policy", outputs=_OUTPUTS, updates=10, seed=0)
    except ConfigError as error:
        return Outcome({}, {}, {}, str(error), stage)
    initial = {name: weight.clone() for name, weight in trainer.weights()}
    report = trainer.step(*_step(str(model.dtype)))
    metrics = {name: float(each.total / each.weight) for name, each in report.items() if each.weight}
    weights = {name: weight.clone() for name, weight in trainer.weights()}
    assert trainer.flops(10.0, 5.0) > 0  # every step of a run computes its utilization
    trainer.close()
    return Outcome(metrics, initial, weights)


@cache
def default_of(model: Model) -> Outcome:
    """The outcome with the settings by default. On several ranks, they read different rows."""
    return outcome_of(model, config_with("default", model))


def difference(family: str, option: str, computed: Outcome, expected: Outcome) -> str | None:
    """Differences above rounding between the outcome with `option` and that with the settings by default."""
    tolerance = 1e-3 if family in FLOAT32 else 1e-5  # some families compute parts in float32
    names = computed.metrics.keys() & expected.metrics.keys()
    for name in names - {"grad_norm"} if option in ("lora", "freeze") else names:
        first, second = computed.metrics[name], expected.metrics[name]
        if abs(first - second) > tolerance * max(1.0, abs(second)):
            return f"{name}: {first} instead of {second}"
    if option == "lora":
        return _wrong_adapter(computed, expected, tolerance)
    missing = expected.weights.keys() - computed.weights.keys()
    if len(missing) != (1 if option == "freeze" else 0):
        return f"weights that are not trained: {sorted(missing)}"
    for name, weight in computed.weights.items():
        distance = _distance(weight, expected.weights[name])
        if distance > tolerance:
            return f"{name} differs by {distance:.3g}"
    return None


def _wrong_adapter(computed: Outcome, expected: Outcome, tolerance: float) -> str | None:
    """The matrix B whose gradient is not scale * gradient of W * transpose of A, with W = W0 + scale * B A."""
    for name in (name for name in computed.weights if name.endswith(".lora_B.weight")):
        base = name.removeprefix("base_model.model.").replace(".lora_B.weight", ".weight")
        if base in expected.weights:  # files of some families have other names than their modules
            whole = _gradient(expected, base)
            own = Lora(rank=_RANK).alpha / _RANK * whole @ computed.initial[name.replace("lora_B", "lora_A")].mT
            distance = _distance(_gradient(computed, name), own)
            if distance > 100 * tolerance * max(1.0, float(own.abs().max())):
                return f"the gradient of {name} differs by {distance:.3g}"
    return None


def _gradient(outcome: Outcome, name: str) -> Tensor:
    """The gradient g from the update g / (|g| + 1)."""
    update = outcome.initial[name] - outcome.weights[name]
    return update / (1 - update.abs())


def _distance(first: Tensor, second: Tensor) -> float:
    return float((first - second).abs().max()) if first.numel() else 0.0


def misleading(refusal: str, model: Model, config: Config) -> str | None:
    """A fault in the text of a refusal: a missing part, or advice that the user follows already."""
    missing = [part for part in ("got", "need", "do") if not re.search(rf"^  {part}: +\S", refusal, re.MULTILINE)]
    if missing:
        return f"without {', '.join(missing)}: {refusal}"
    names = re.findall(r"leave ([\w.]+) out", refusal)
    values = {"model.attention": model.attention is not None, "mesh.shard": config.mesh.shard > 1}
    values |= {"mesh.tensor": config.mesh.tensor > 1, "mesh.sequence": config.mesh.sequence > 1}
    unset = [name for name in names if not values.get(name, bool(getattr(config, name.partition(".")[0])))]
    return f"advice to leave out what is not set: {refusal}" if unset else None


def remedied(refusal: str, config: Config) -> Config | None:
    """`config` as the refusal says, if that is another value of the option and not to leave it out."""
    if found := re.search(r"set it to some of (.*)$", refusal, re.MULTILINE):
        return evolve(config, lora=evolve(config.lora, target_modules=tuple(found.group(1).split(", "))))
    return evolve(config, mesh=Mesh(shard=2)) if "and use mesh.shard" in refusal else None
