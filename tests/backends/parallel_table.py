"""Training on several ranks equals training in one process: a table of cases, which torchrun runs on real processes.

    torchrun --nproc-per-node 2 -m tests.backends.parallel_table all      # or: compiled

A case is a mesh, a kind of rows, a way to save memory, and an algorithm. Its scores, metrics, gradients and parameters
after several steps are compared with one process that saves no memory. `PAIRS` has every pair of values of two columns.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest import mock

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from purerl.algos import dpo, grpo, gspo, kl_cov, ppo, reward_model
from purerl.algos.algebra import Algorithm, Objective, compute_advantages, outputs_of, prepare_step, roles
from purerl.backends.hf.mesh import Mesh
from purerl.backends.hf.model import load
from purerl.backends.hf.model import token_model as module
from purerl.backends.hf.training.engine import HFTrainer
from purerl.backends.hf.weights.gather import full_tensors
from purerl.batch import FIELDS, with_fields
from purerl.loop.update import score, scored_fields
from purerl.ranks import Ranks, current_ranks
from purerl.testing.batches import example_batch, fields_of
from purerl.testing.trainer.reference import assert_close
from tests.backends.gradients import keep_gradients
from tests.backends.tiny import VOCAB_SIZE, make_trainer, write_model
from tests.backends.training import POLICY, make_step, regression
from tests.backends.training import train as take_steps
from tests.ranks import run_cases

MESHES = {
    2: {
        "replicated": Mesh(replicate=2),
        "sharded": Mesh(shard=2),
        "tensor": Mesh(tensor=2),
        "sequence": Mesh(sequence=2),
    },
    4: {
        "shard x tensor": Mesh(shard=2, tensor=2),
        "shard x sequence": Mesh(shard=2, sequence=2),
        "replicate x shard": Mesh(shard=2, replicate=2),
    },
}
ROWS = {"padded": {"share_prefixes": False}, "shared": {}, "packed": {"packing": True}}
MEMORY: dict[str, dict[str, Any]] = {
    "kept": {},
    "recomputed": {"recompute": "layers"},
    "selective": {"recompute": "selective"},
    "offloaded": {"cpu_offload": True},
    "gathered once": {"reshard_after_forward": False},
}
ALGORITHMS: dict[str, Algorithm] = {
    "grpo": grpo.algorithm(grpo.Config()),
    "ppo": ppo.algorithm(ppo.Config()),
    "gspo": gspo.algorithm(gspo.Config()),
    "kl_cov": kl_cov.algorithm(kl_cov.Config()),
    "dpo": dpo.algorithm(dpo.Config()),
    "reward_model": reward_model.algorithm(reward_model.Config(centering_coef=0.1)),
}

# Pairs of rows with a common prompt, of uneven lengths; one row has no counted token.
LAYOUT = (
    *((3, "......aaxa"), (3, "......aaaaaaa"), (-5, "....aa"), (-5, "....xx.aaaaa")),
    *((8, "........a"), (8, "........aaaa"), (1, "..aaa"), (1, "..xx")),
)
# Heads that two ranks can split; an eps that is not small, so that AdamW depends on the scale of the gradient.
HEADS = dict(num_attention_heads=4, num_key_value_heads=2)
ADAMW = {"lr": 1e-2, "betas": (0.8, 0.9), "eps": 1e-2, "max_grad_norm": 0.5, "max_tokens_per_microbatch": 40}
FLOAT64, FLOAT32 = 1e-9, 2e-4
"""Tolerances, relative and absolute; in float32 of gradients and of parameters that AdamW has divided by their size."""


class Row(NamedTuple):
    """One case: names of a mesh, of rows, of a way to save memory, and of an algorithm."""

    mesh: str
    rows: str
    memory: str
    algorithm: str


# --- the table -----------------------------------------------------------------------------------------------------


def pairwise(columns: Sequence[Sequence[str]]) -> list[Row]:
    """Rows that have every pair of values of two columns, chosen greedily."""
    indices = tuple(combinations(range(len(columns)), 2))

    def pairs_in(row: Sequence[str]) -> set[tuple[int, int, str, str]]:
        return {(i, j, row[i], row[j]) for i, j in indices}

    candidates = [row for row in product(*columns) if _has_effect(row)]
    missing, rows = set().union(*map(pairs_in, candidates)), []
    while missing:
        rows.append(max(candidates, key=lambda row: len(pairs_in(row) & missing)))
        missing -= pairs_in(rows[-1])
    return [Row(*row) for row in rows]


def _has_effect(row: Sequence[str]) -> bool:
    return not (row[0] == "replicated" and row[2] in ("offloaded", "gathered once"))


def cases(which: str, ranks: int) -> list[tuple[Row, dict[str, Any]]]:
    """The rows of the table with further settings of the trainer. `which` is "all" or "compiled"."""
    meshes = tuple(MESHES[ranks])
    if which == "compiled":
        kinds = product(meshes, ("padded", "packed"))
        return [(Row(mesh, rows, "recomputed", "grpo"), {"compile": True}) for mesh, rows in kinds]
    if ranks == 4:
        return [(Row(mesh, rows, "recomputed", "ppo"), {}) for mesh, rows in product(meshes, ("shared", "packed"))]
    table = pairwise((meshes, tuple(ROWS), tuple(MEMORY), tuple(ALGORITHMS)))
    return [(row, {}) for row in table]


# --- one case ------------------------------------------------------------------------------------------------------


def make_batch(algorithm: Algorithm, seed: int, dtype: torch.dtype) -> TensorDict:
    batch = example_batch([*fields_of(algorithm), "temperature"], LAYOUT, seed=seed, dtype=dtype)
    tokens = torch.randint(0, VOCAB_SIZE, batch["tokens"].shape, generator=torch.Generator().manual_seed(seed))
    leader = (batch["group"][:, None] == batch["group"]).int().argmax(-1)
    before = ~(batch["action"].cumsum(-1) > 0)
    tokens = torch.where(before & before[leader], tokens[leader], tokens)
    return with_fields(batch, tokens=torch.where(batch["attention_mask"], tokens, 0))


def train(build: Callable[..., HFTrainer], name: str, dtype: str) -> dict[str, Tensor]:
    """Scores, metrics, gradients and parameters after two steps."""
    algorithm = ALGORITHMS[name]
    found: dict[str, Tensor] = {}
    trained = {objective.role for objective in algorithm.objectives}
    trainers = {
        role: build(role, outputs_of(algorithm, role, FIELDS), updates=10 if role in trained else 0)
        for role in roles(algorithm, FIELDS)
    }
    kept = {role: keep_gradients(trainer) for role, trainer in trainers.items()}
    for seed in range(2):
        batch = make_batch(algorithm, seed, getattr(torch, dtype))
        names = scored_fields(algorithm.objectives, algorithm.reads)
        batch = score(trainers, batch, names)
        found |= {f"{seed}: {name}": batch[name] for name in names}
        if "old_logp" in batch.keys():  # at a ratio of 1, rounding decides the sign of the log-ratio in KL-Cov's loss
            batch = with_fields(batch, old_logp=batch["old_logp"] + torch.linspace(-0.2, 0.3, batch["tokens"].shape[1]))
        _, batch = compute_advantages(algorithm, algorithm.advantage.init(), batch)
        for objective in algorithm.objectives:
            step, counts = prepare_step(objective, batch)
            for key, metric in trainers[objective.role].step(step, objective, counts).items():
                found[f"{seed}: {objective.role} {key}"] = torch.stack([*map(torch.as_tensor, metric)]).double()
    for role, trainer in trainers.items():
        found |= {f"{role} {name}": value.detach().clone() for name, value in full_tensors(trainer.parameters)}
        found |= {f"{role} gradient of {name}": value.clone() for name, value in full_tensors(kept[role])}
        check_parts(trainer)
        trainer.close()
    return found


def check_parts(trainer: HFTrainer) -> None:
    """No rank holds a whole matrix of a model that is divided, except of routers, which are small."""
    if not trainer.config.mesh.is_divided:
        return
    for name, parameter in trainer.parameters.items():
        assert isinstance(parameter, DTensor), f"{name} is not divided"
        if parameter.ndim > 1 and parameter.shape[0] > 1 and not name.endswith("mlp.gate.weight"):
            assert parameter.to_local().numel() < parameter.numel(), f"{name} is whole"


class _Sizes(TorchDispatchMode):
    """Records the sizes of all tensors with values."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.device.type != "meta":
                self.sizes.add((leaf.to_local() if isinstance(leaf, DTensor) else leaf).numel())
        return result


def check_load(path: str, mesh: Mesh) -> None:
    """While a model is loaded, no tensor is larger than the largest part of this rank."""
    true, seen = load.load, _Sizes()

    def observed(*args: Any, **kwargs: Any) -> Any:
        with seen:
            return true(*args, **kwargs)

    with mock.patch.object(load, "load", observed):
        trainer = make_trainer(path, mesh=mesh)
    parts = [p.to_local().numel() for p in trainer.parameters.values() if isinstance(p, DTensor)]
    whole = max(p.numel() for p in trainer.parameters.values())
    assert max(seen.sizes) == max(parts) < whole, f"{max(seen.sizes)}, {max(parts)}, {whole}"


def check_head(path: str, mesh: Mesh) -> None:
    """Each rank multiplies by its own rows of the output head."""
    true, rows = module.token_outputs, []

    def observed(hidden: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        rows.append(len(weight))
        return true(hidden, weight, *args, **kwargs)

    with mock.patch.object(module, "token_outputs", observed):
        batch = make_batch(ALGORITHMS["grpo"], 0, torch.float64)
        make_trainer(path, mesh=mesh).score(batch, ("logp",))
    assert 0 < max(rows) <= -(-VOCAB_SIZE // mesh.tensor), rows


@functools.cache
def expected(path: str, algorithm: str, dtype: str, others: tuple[tuple[str, Any], ...]) -> dict[str, Tensor]:
    """The results of one process, also if there are others."""

    with mock.patch("purerl.ranks.current_ranks", Ranks):
        return train(_builder(path, dtype=dtype, share_prefixes=False, **dict(others)), algorithm, dtype)


def _builder(path: str, **settings: Any) -> Callable[..., HFTrainer]:
    """Builds trainers. The reference is another model: ties of two equal ones are decided by rounding."""

    def build(role: str, outputs: Sequence[str], **options: Any) -> HFTrainer:
        own = path.removesuffix("0") + "1" if role == "reference" else path
        return make_trainer(own, role, outputs=outputs, **ADAMW, **settings, **options)

    return build


def check(
    path: str,
    row: Row,
    *,
    dtype: str = "float64",
    tolerance: float = FLOAT64,
    loss: Mapping[str, Any] = MappingProxyType({}),
    **others: Any,
) -> None:
    """Raise AssertionError if the case `row` differs from one process with the settings `loss`."""
    settings = {"mesh": MESHES[current_ranks().size][row.mesh], **ROWS[row.rows], **MEMORY[row.memory], **others}

    with mock.patch("purerl.backends.hf.model.prefix._WORTHWHILE", float("inf")):
        got = train(_builder(path, dtype=dtype, **settings, **loss), row.algorithm, dtype)
    assert_close(" ".join(row), got, expected(path, row.algorithm, dtype, tuple(loss.items())), tolerance)


# --- files ---------------------------------------------------------------------------------------------------------


def check_files(
    directory: Path,
    path: str,
    mesh: Mesh,
    dtype: str,
    outputs: tuple[str, ...] = ("logp", "value"),
    objective: Objective = POLICY,
) -> None:
    """Weights, a checkpoint and an export of a divided trainer are those of the same model in one process."""

    def build(source: str, **settings: Any) -> HFTrainer:
        return make_trainer(source, outputs=outputs, dtype=dtype, **ADAMW, **settings)

    ranks, trainer = current_ranks(), build(path, mesh=mesh)
    take_steps(trainer, 1, objective)
    weights = {name: weight.clone() for name, weight in trainer.weights()}
    assert {name: (tuple(w.shape), w.dtype) for name, w in weights.items()} == dict(trainer.weights().metadata)
    folders = [directory / f"{name}-{time.monotonic_ns()}" for name in ("checkpoint", "export")]
    folders = ranks.gather(folders)[0]
    ranks.on_first(lambda: [folder.mkdir() for folder in folders])
    trainer.save(folders[0])
    trainer.export(folders[1])
    loaded = build(path, mesh=mesh)
    loaded.load(folders[0])
    for each in (trainer, loaded):
        each.step(*make_step(7, objective))
    assert_close("after a resume", dict(loaded.weights()), dict(trainer.weights()), 0)
    with mock.patch("purerl.ranks.current_ranks", Ranks):
        exported = build(str(folders[1]))
    assert_close("exported", dict(exported.weights()), weights, 0)
    loaded.load_weights(exported.weights())
    assert_close("loaded", dict(loaded.weights()), weights, 0)
    ranks.gather(None)  # every rank has read the files


# --- on several ranks ----------------------------------------------------------------------------------------------


def checks(which: str, directory: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    ranks = current_ranks()
    families = ("phi", "qwen3", "qwen3_moe", "llama")
    ranks.on_first(lambda: [write_model(directory, name, seed=seed, **HEADS) for name in families for seed in (0, 1)])
    phi, qwen, experts, tied = (str(directory / f"{name}-0") for name in families)
    for row, others in cases(which, ranks.size):
        yield " ".join(row), functools.partial(check, phi, row, **others)
        if which == "compiled":
            torch.compiler.reset()  # each case compiles for its own shapes
    for name, mesh in MESHES[ranks.size].items() if which == "all" else ():
        row, float32 = Row(name, "shared", "kept", "grpo"), {"dtype": "float32", "tolerance": FLOAT32}
        loss = {"router_aux_loss_coef": 0.1}
        others = {
            "qwen3": functools.partial(check, qwen, row, **float32),
            "tied embeddings": functools.partial(check, tied, row, **float32),
            "experts": functools.partial(check, experts, row, loss=loss, **float32),
            "load": functools.partial(check_load, phi, mesh),
            "head": functools.partial(check_head, phi, mesh),
            "tied head": functools.partial(check_head, tied, mesh),
            "files": functools.partial(check_files, directory, phi, mesh, "float64"),
            "files of a classifier": functools.partial(
                check_files, directory, phi, mesh, "float64", ("classifier_score",), regression("classifier_score")
            ),
            "files of experts": functools.partial(check_files, directory, experts, mesh, "float32"),
        }
        for what, run in others.items():
            if _is_of(mesh, what):
                yield f"{name}, {what}", run


def _is_of(mesh: Mesh, what: str) -> bool:
    if "head" in what:
        return mesh.tensor > 1
    return mesh.is_divided or what not in ("load", "files of experts")


if __name__ == "__main__":
    run_cases(functools.partial(checks, sys.argv[1]))
