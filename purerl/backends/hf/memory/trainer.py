"""The memory of a trainer on one rank, from its settings and the configuration of its model.

The largest micro-batch is scored and trained on with fake weights (`simulation.py`), by the code of the trainer itself.
What the ranks of a mesh divide is divided here: parameters, gradients and moments by their number, activations of a
sequence by the number of ranks that share it. `sharding_memory.py` has what FSDP2 gathers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Objective, Term, of_fields, prepare_step
from purerl.algos.parts.reductions import token_mean
from purerl.backends.hf.decoder.architecture import architecture_of
from purerl.backends.hf.decoder.backbone import layers_of
from purerl.backends.hf.decoder.images import reads_images
from purerl.backends.hf.decoder.limits import unsupported_layers
from purerl.backends.hf.memory.sharding import GATHERED, count_gathered
from purerl.backends.hf.memory.simulation import Simulation, fake_model, over_layers, with_fake_weights
from purerl.backends.hf.mesh import RankMesh
from purerl.backends.hf.model.fit import check_shapes
from purerl.backends.hf.model.freeze import freeze, frozen_names
from purerl.backends.hf.model.parallel import recompute
from purerl.backends.hf.model.token_model import TokenModel
from purerl.backends.hf.training.adapter import add_adapter
from purerl.backends.hf.training.engine import HFTrainer
from purerl.backends.hf.training.idle_memory import MIN_SIZE
from purerl.backends.hf.training.layout import MicroBatch, arrange, arrange_packs
from purerl.backends.hf.training.rounding import REMAINDER, is_narrow
from purerl.backends.hf.weights.gather import BUCKET
from purerl.kernels.logp import KEPT, chunk_size, fused
from purerl.models.pretrained import config_of
from purerl.ranks import ONE_RANK, Ranks
from purerl.settings import Model
from purerl.system.memory_use import GRADIENTS, MOMENTS, PARAMETERS, MemoryUse, Workload, refusal
from purerl.system.tensor_tracker import MemoryTracker

if TYPE_CHECKING:
    from purerl.backends.hf.settings import TrainerConfig

__all__ = ["adapted_size", "memory_of_trainer", "microbatches_to_plan", "probe_objective"]

_NO_IMAGES = "prompts without images: what the vision tower computes is not counted"
_ACTIVATIONS = "activations and temporary tensors"


def memory_of_trainer(
    config: TrainerConfig,
    *,
    model: Model,
    outputs: Sequence[str],
    is_trained: bool,
    workload: Workload,
    on_accelerator: bool = False,
) -> MemoryUse:
    """The memory of a trainer of `model`, with these settings and `outputs`, on each rank.

    A model that the trainer refuses is planned, and `refused` says why.

    Raises: ConfigError if the configuration of the model cannot be read.
    """
    config = evolve(config, optimizer=None)  # other optimizers are counted as AdamW
    build = partial(_simulated_trainer, config, model, outputs, is_trained=is_trained)
    whole = build()
    workload = workload.limited_to(whole.module.limits.max_sequence_length)
    layers = whole.module.config.num_hidden_layers
    transient = over_layers(layers, lambda number: _transient(build(number), outputs, workload))
    if on_accelerator and whole.module.has_vocabulary:
        transient = _with_logits(transient, whole, workload)
    _create_states(whole)
    shapes = fake_model(model, architecture=architecture_of(model, outputs, is_trained=is_trained))
    refused = refusal(partial(check_shapes, shapes, model, config))
    use = evolve(_on_one_rank(config, whole, transient, workload), refused=refused)
    is_mapped = not (is_trained or on_accelerator or config.mesh.is_divided) and _has_dtype_of_files(model)
    return _only_while_scoring(use) if is_mapped else use


def _transient(trainer: _SimulatedTrainer, outputs: Sequence[str], workload: Workload) -> dict[str, dict[str, int]]:
    """The transient memory, by phase and component: of the largest micro-batch of `workload`."""
    tracker, objective = trainer.tracker, probe_objective(outputs)
    _create_states(trainer)
    with tracker, Simulation():
        for name, tensors in _states(trainer).items():
            tracker.label(name, tensors)
        for batch in microbatches_to_plan(trainer, workload):
            _create_gradients(trainer)
            tracker.label(GRADIENTS, _states(trainer)[GRADIENTS])
            with count_gathered(trainer.module, trainer.config, tracker):
                with tracker.phase("scoring"):
                    trainer.score(batch, outputs)
                if trainer.trained:
                    prepared, counts = prepare_step(objective, batch)
                    trainer.step(prepared, objective, counts)
    return {phase: _without_states(peak) for phase, peak in tracker.peaks.items()}


class _SimulatedTrainer(HFTrainer):
    """A trainer that records its phases."""

    tracker: MemoryTracker

    def _backward(self, *args: Any, **kwargs: Any) -> Any:
        with self.tracker.phase("training"):
            return super()._backward(*args, **kwargs)

    def _optimize(self, *args: Any, **kwargs: Any) -> Any:
        with self.tracker.phase("optimizer"):
            return super()._optimize(*args, **kwargs)


def _simulated_trainer(
    config: TrainerConfig, model: Model, outputs: Sequence[str], num_layers: int | None = None, *, is_trained: bool
) -> _SimulatedTrainer:
    """As `trainer.build` and `load.load`, without values, compilation and ranks."""
    architecture = architecture_of(model, outputs, is_trained=is_trained)
    causal = fake_model(model, num_layers=num_layers, architecture=architecture)
    autocast = None if config.mixed_precision == "off" else torch.bfloat16
    module = TokenModel(causal, outputs, path=Path(model.path), autocast=autocast, top_k=config.top_k)
    if config.recompute != "none":
        recompute(list(layers_of(module)), is_selective=config.recompute == "selective")
    module, adapter = module.requires_grad_(is_trained), None
    frozen = frozen_names(module, config.freeze) if is_trained else set[str]()
    if config.lora is not None and is_trained:
        lora = evolve(config.lora, initial=None)
        adapter = add_adapter(module, lora, path=model.path, device=torch.device("cpu"), seed=0, frozen=frozen)
    elif frozen:
        freeze(module, frozen)
    module.adds_early = not config.compile and not config.mesh.is_divided
    if config.packing:
        module.pack_rows()
    is_split = config.packing or config.mesh.sequence > 1
    share = config.share_prefixes is not False and not is_split and not unsupported_layers(causal)
    trainer = _SimulatedTrainer(
        config,
        with_fake_weights(module),
        model=model,
        updates=int(is_trained),
        mesh=RankMesh(ONE_RANK, ONE_RANK, torch.device("cpu")),
        share=share,
        router_coefficient=0.0,
        adapter=adapter,
    )
    trainer.tracker = MemoryTracker()
    return trainer


# --- the micro-batch -----------------------------------------------------------------------------------------------


def microbatches_to_plan(trainer: HFTrainer, workload: Workload) -> list[TensorDict]:
    """The rows of the micro-batches that may need most memory, of an optimizer step of `workload` with full rows.

    That is the one that reads the most tokens, and the one that predicts the most tokens among those that are so small
    that `token_outputs` keeps all logits.
    """
    mesh, batch = trainer.config.mesh, _step_rows(workload, trainer)
    data_ranks = Ranks(0, max(1, workload.ranks // (mesh.sequence * mesh.tensor)))
    budget = trainer.config.budget.divided(mesh.sequence)
    divide = arrange_packs if trainer.config.packing else partial(arrange, share=trainer.share)
    parts = divide(batch, unit="row", budget=budget, ranks=data_ranks)
    vocabulary = trainer.module.limits.vocab_size if trainer.module.has_vocabulary else 0
    predicted = [int(batch["action"][part.rows].sum()) for part in parts]
    small = [k for k, tokens in enumerate(predicted) if tokens * vocabulary <= KEPT]
    chosen = [max(range(len(parts)), key=lambda k: _tokens_read(batch, parts[k]))]
    chosen += [max(small, key=predicted.__getitem__)] if small else []
    return [batch[parts[k].rows] for k in dict.fromkeys(chosen)]


def _step_rows(workload: Workload, trainer: HFTrainer) -> TensorDict:
    """The rows of an optimizer step, drawn at random as those of a mini-batch, with equal prompts in a group.

    With sequence parallelism they have the tokens that a rank reads of each row.
    """
    size = trainer.config.mesh.sequence
    prompt, completion = -(-workload.prompt_tokens // size), -(-workload.completion_tokens // size)
    row = torch.randperm(workload.rows, generator=torch.Generator().manual_seed(0))
    row = row[: -(-workload.rows // workload.minibatches)]
    group, time = row // workload.group_size, torch.arange(prompt + completion)
    is_action = (time >= prompt).expand(len(row), -1)
    # Rows of a group differ from the first token of the completion on.
    label = torch.where(is_action, row[:, None] + workload.rows, group[:, None])
    fields = {
        "tokens": (label + time) % trainer.module.limits.vocab_size,
        "attention_mask": torch.ones_like(is_action),
        "action": is_action,
        "mask": is_action,
        "row": row,
        "group": group,
        "temperature": torch.ones(len(row)),
    }
    return TensorDict(fields, batch_size=[len(row)])


def _tokens_read(batch: TensorDict, part: MicroBatch) -> int:
    if part.prefixes is not None:
        return part.prefixes.prefixes.numel() + part.prefixes.suffixes.numel()
    if part.pack is not None:
        return len(part.pack.index)
    return batch["tokens"][part.rows].numel()


def probe_objective(outputs: Sequence[str]) -> Objective:
    """An objective that reads all `outputs`. Its own memory, a few numbers for each token, is that of any objective."""
    learned = [name for name in outputs if name != "topk_tokens"]
    terms = (Term(name, of_fields(torch.square, name), token_mean) for name in learned)
    return Objective("policy", (), tuple(learned), tuple(terms))


def adapted_size(config: TrainerConfig, model: Model) -> int:
    """Bytes of the weights of `model` that get an adapter, in the dtype of `model`."""
    whole = _simulated_trainer(config, model, ("logp",), is_trained=True)
    return _size(layer.base_layer.weight for layer in whole.adapter.layers.values())


# --- states --------------------------------------------------------------------------------------------------------


def _create_states(trainer: HFTrainer) -> None:
    """Create AdamW's moments, as the first step does, and gradients."""
    _create_gradients(trainer)
    for parameter in trainer.trained.values():
        moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        if trainer.rounding.keeps and is_narrow(parameter):
            moments[REMAINDER] = torch.zeros_like(parameter, dtype=torch.int16)
        trainer.optimizer.state[parameter] = {"step": torch.zeros(()), **moments}


def _create_gradients(trainer: HFTrainer) -> None:
    """Create gradients, which each step frees at its end."""
    for parameter in trainer.trained.values():
        parameter.grad = torch.zeros_like(parameter)


def _states(trainer: HFTrainer) -> dict[str, list[Tensor]]:
    states = trainer.optimizer.state.values() if trainer.optimizer else ()
    return {
        PARAMETERS: [*trainer.module.parameters(), *trainer.module.buffers()],
        GRADIENTS: [parameter.grad for parameter in trainer.trained.values() if parameter.grad is not None],
        MOMENTS: [value for state in states for value in state.values()],
    }


def _without_states(peak: Mapping[str, int]) -> dict[str, int]:
    """The memory beside states, at the peak of a phase."""
    states = (PARAMETERS, GRADIENTS, MOMENTS)
    return {_ACTIVATIONS if name == "other" else name: size for name, size in peak.items() if name not in states}


def _with_logits(
    transient: Mapping[str, Mapping[str, int]], trainer: HFTrainer, workload: Workload
) -> dict[str, Mapping[str, int]]:
    """`transient` with the larger chunks of logits that the kernels of an accelerator use in the backward pass."""
    vocabulary, width = trainer.module.limits.vocab_size, 2 if trainer.module.model.dtype == torch.bfloat16 else 4
    batch = microbatches_to_plan(trainer, workload)[0]
    tokens = int(batch["action"].sum())
    if "training" not in transient or tokens * vocabulary <= KEPT:
        return {**transient}
    larger = min(tokens, fused.chunk_size(vocabulary)) * width - min(tokens, chunk_size(vocabulary)) * 4
    return {**transient, "training": {**transient["training"], "chunk of logits": max(0, larger * vocabulary)}}


def _on_one_rank(
    config: TrainerConfig, trainer: HFTrainer, transient: Mapping[str, Mapping[str, int]], workload: Workload
) -> MemoryUse:
    """The states as the ranks of the mesh divide them, and gradients. An adapter is not divided."""
    ranks = config.mesh.shard * config.mesh.sequence * config.mesh.tensor
    adapter = {id(tensor) for tensor in trainer.adapter.tensors.values()} if trainer.adapter else set[int]()
    states = dict[str, int]()
    for name, tensors in _states(trainer).items():
        whole = [tensor for tensor in tensors if id(tensor) in adapter or (adapter and name != PARAMETERS)]
        size, total = _size(whole), _size(tensors)
        states[name] = size + -(-(total - size) // ranks)
    states = {name: size for name, size in states.items() if size}
    assumed = (_NO_IMAGES,) if reads_images(trainer.module.model) else ()
    phases = {**transient, "weight sync": _gathered(trainer, ranks)}
    host = dict[str, int]()
    if workload.stages_checkpoints and trainer.optimizer is not None:
        trained = _size(trainer.adapter.tensors.values()) if trainer.adapter else states[PARAMETERS]
        host |= {"copy for the checkpoint": trained + states.get(MOMENTS, 0)}
    if config.cpu_offload:
        return MemoryUse(states={}, transient=phases, host=host | states, assumed=assumed)
    gradients = {GRADIENTS: size} if (size := states.pop(GRADIENTS, 0)) else {}
    phases |= {phase: {**phases[phase], **gradients} for phase in ("training", "optimizer") if phase in phases}
    return MemoryUse(states=states, transient=phases, host=host, assumed=assumed)


def _has_dtype_of_files(model: Model) -> bool:
    """Whether weights are loaded in the dtype of the files, so that they are mapped and not copied."""
    dtype = config_of(model).dtype
    return dtype is not None and model.dtype in ("auto", str(dtype).removeprefix("torch."))


def _only_while_scoring(use: MemoryUse) -> MemoryUse:
    """`use` with the parameters in the phase in which they are used, after which `release_memory` releases them."""
    size = use.states.get(PARAMETERS, 0)
    if size < MIN_SIZE:
        return use
    states = {name: each for name, each in use.states.items() if name != PARAMETERS}
    scoring = {PARAMETERS: size, **use.transient.get("scoring", {})}
    return evolve(use, states=states, transient={**use.transient, "scoring": scoring})


def _gathered(trainer: HFTrainer, ranks: int) -> dict[str, int]:
    """The memory that `weights()` needs to gather beside the parts of this rank: the sum of all twice, and its own."""
    if ranks == 1 or trainer.adapter is not None:
        return {}
    sizes = [tensor.nbytes for tensor in trainer.module.parameters()]
    bucket = max(*sizes, min(sum(sizes), BUCKET))
    return {GATHERED: 2 * bucket + 2 * bucket // ranks}


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
