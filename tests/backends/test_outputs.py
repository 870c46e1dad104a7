"""Outputs of the HF trainer: values and gradients equal a manual computation from the logits of the plain model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn

from purerl.algos.algebra import Objective, Term, prepare_step
from purerl.algos.parts.reductions import token_sum
from purerl.backends.hf.model.token_model import HEADS, LANGUAGE_OUTPUTS
from purerl.backends.hf.training.engine import HFTrainer
from purerl.batch import with_fields
from purerl.errors import ConfigError
from tests.backends.gradients import keep_gradients
from tests.backends.tiny import VOCAB_SIZE, make_trainer, write_model
from tests.backends.training import make_batch, parameters_of, regression

TOLERANCES = {"gpt2": 1e-9, "cohere": 1e-5, "gemma2": 1e-5}  # the norms of the last two round to float32
OUTPUTS = (*LANGUAGE_OUTPUTS, *HEADS)  # those of a language model
FLOATS = tuple(name for name in OUTPUTS if name != "topk_tokens")
TOP_K = 3


@pytest.fixture(scope="module", params=TOLERANCES)
def model(request, tmp_path_factory) -> tuple[str, float]:
    """The path of a model, and the tolerance of its results."""
    return write_model(tmp_path_factory.mktemp("models"), request.param), TOLERANCES[request.param]


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    return write_model(tmp_path_factory.mktemp("models"), "gpt2")


def make_scored_batch(choices: int | None = None) -> TensorDict:
    """A batch whose first row was decoded greedily; with `choices`, it has the teacher's most likely tokens."""
    batch = make_batch()
    batch = with_fields(batch, temperature=batch["temperature"].index_fill(0, torch.tensor(0), 0.0))
    if choices is None:
        return batch
    shape, random = (*batch["tokens"].shape, choices), torch.Generator().manual_seed(3)
    return with_fields(batch, teacher_topk_tokens=torch.randint(0, VOCAB_SIZE, shape, generator=random))


def compute_manually(causal: nn.Module, heads: nn.ModuleDict, batch: TensorDict) -> dict[str, Tensor]:
    """All outputs, token by token: from the probabilities of the token, given the tokens before it."""
    temperature = [float(t) or 1.0 for t in batch["temperature"]]
    result = causal(batch["tokens"], output_hidden_states=True, use_cache=False)
    hidden, logits = result.hidden_states[-1], result.logits
    choices = batch.get("teacher_topk_tokens", None)
    k = TOP_K if choices is None else choices.shape[-1]
    outputs = {name: torch.zeros(batch["tokens"].shape, dtype=torch.float64) for name in FLOATS}
    outputs["topk_logp"] = outputs["topk_logp"][..., None].repeat(1, 1, k)
    outputs["topk_tokens"] = torch.zeros_like(outputs["topk_logp"], dtype=torch.int64)
    for row, time in batch["action"].nonzero().tolist():
        powers = (logits[row, time - 1] / temperature[row]).exp()
        p = powers / powers.sum()
        top = p.sort(descending=True).indices[:k] if choices is None else choices[row, time]
        outputs["logp"][row, time] = p[batch["tokens"][row, time]].log()
        outputs["entropy"][row, time] = -(p * p.log()).sum()
        outputs["sum_pi_squared"][row, time] = (p * p).sum()
        outputs["topk_logp"][row, time] = p[top].log()
        outputs["topk_tokens"][row, time] = top
        for name in HEADS:
            outputs[name][row, time] = heads[name].weight[0] @ hidden[row, time - 1] + heads[name].bias[0]
    return outputs


def compute_with(trainer: HFTrainer, batch: TensorDict) -> dict[str, Tensor]:
    """All outputs, computed manually with the weights of `trainer`, which was built for all outputs."""
    return compute_manually(trainer.module.model, trainer.module.heads, batch)


# --- values ------------------------------------------------------------------------------------------------------


def test_all_outputs_in_one_call_equal_manual_computation(model):
    path, tolerance = model
    trainer, batch = make_trainer(path, outputs=OUTPUTS, top_k=TOP_K), make_scored_batch()
    scores = trainer.score(batch, OUTPUTS)
    with torch.no_grad():
        expected = compute_with(trainer, batch)
    assert list(scores.keys()) == list(OUTPUTS)
    assert scores["topk_tokens"].dtype == torch.int64
    torch.testing.assert_close(dict(scores.items()), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("output", OUTPUTS)
def test_output_does_not_depend_on_other_requested_outputs(path, output):
    trainer, batch = make_trainer(path, outputs=OUTPUTS, top_k=TOP_K), make_scored_batch()
    together, alone = (trainer.score(batch, names)[output] for names in (OUTPUTS, (output,)))
    torch.testing.assert_close(alone, together, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("outputs", [("topk_logp",), ("logp", "topk_logp"), ("topk_logp", "entropy", "sum_pi_squared")])
@pytest.mark.parametrize("k", [1, 5])
def test_topk_logp_is_computed_for_the_tokens_of_the_teacher(model, outputs, k):
    path, tolerance = model
    trainer, batch = make_trainer(path, outputs=OUTPUTS, top_k=TOP_K), make_scored_batch(choices=k)
    with torch.no_grad():
        expected = compute_with(trainer, batch)
    scores = trainer.score(batch, outputs)
    assert scores["topk_logp"].shape == (*batch["tokens"].shape, k)
    for name in outputs:
        torch.testing.assert_close(scores[name], expected[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("settings", "k"), [({}, 16), ({"top_k": 2}, 2), ({"top_k": VOCAB_SIZE}, VOCAB_SIZE)])
def test_number_of_most_likely_tokens_is_top_k(path, settings, k):
    trainer, batch = make_trainer(path, outputs=("topk_tokens", "topk_logp"), **settings), make_scored_batch()
    for rows in (batch, batch[:0]):
        scores = trainer.score(rows, ("topk_tokens", "topk_logp"))
        assert {score.shape for score in scores.values()} == {(len(rows), batch["tokens"].shape[1], k)}
    logp = trainer.score(batch, ("topk_logp",))["topk_logp"]
    assert (logp.diff() <= 0).all()


def test_default_top_k_is_at_most_the_size_of_the_vocabulary(tmp_path):
    small = write_model(tmp_path, "gpt2", vocab_size=11)
    trainer = make_trainer(small, outputs=("topk_tokens", "topk_logp"))
    batch = make_scored_batch()
    batch = with_fields(batch, tokens=batch["tokens"] % 11)
    scores = trainer.score(batch, ("topk_tokens", "topk_logp"))
    tokens = scores["topk_tokens"][batch["action"]].sort().values
    assert torch.equal(tokens, torch.arange(11).expand_as(tokens))
    with pytest.raises(ConfigError, match="top_k\n  got:  12\n  need: at most 11, the number of token ids"):
        make_trainer(small, outputs=("topk_tokens",), top_k=12)


# --- gradients ---------------------------------------------------------------------------------------------------


def _weighted_sum(output: str, batch: TensorDict) -> Tensor:
    """A loss per token that depends on the output nonlinearly, with another weight for each of the k tokens."""
    values = batch[output]
    values = values if values.ndim == 3 else values[..., None]
    return (torch.arange(1, values.shape[-1] + 1) * values.square()).sum(-1) * batch["advantage"]


def objective_of(*outputs: str) -> Objective:
    terms = tuple(Term(name, partial(_weighted_sum, name), token_sum) for name in outputs)
    return Objective("policy", ("advantage",), outputs, terms)


@pytest.mark.parametrize("outputs", [*((name,) for name in FLOATS), FLOATS], ids="+".join)
@pytest.mark.parametrize("choices", [None, 2])
def test_gradients_equal_autograd_through_the_plain_model(path, outputs, choices):
    settings = {"max_grad_norm": float("inf"), "max_tokens_per_microbatch": 20}
    trainer = make_trainer(path, outputs=OUTPUTS, top_k=TOP_K, **settings)
    objective = objective_of(*outputs)
    batch, counts = prepare_step(objective, make_scored_batch(choices))
    results = with_fields(batch, **compute_with(trainer, batch))
    loss = sum(_weighted_sum(name, results)[batch["mask"]].sum() for name in outputs)
    loss.backward()
    expected = {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in trainer.trained.items()}
    trainer.optimizer.zero_grad()
    actual = keep_gradients(trainer)
    report = trainer.step(batch, objective, counts)
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-8)
    assert sum(float(report[f"loss/{name}"].total) for name in outputs) == pytest.approx(float(loss.detach()))
    norm = torch.stack([gradient.square().sum() for gradient in expected.values()]).sum().sqrt()
    assert float(report["grad_norm"].total) == pytest.approx(float(norm))
    assert norm > 1e-3


# --- heads -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outputs", "computed", "heads"),
    [
        (("logp",), LANGUAGE_OUTPUTS, ()),
        (("value",), ("value",), ("value",)),
        (("log_partition", "logp"), (*LANGUAGE_OUTPUTS, "log_partition"), ("log_partition",)),
        (OUTPUTS, OUTPUTS, HEADS),
    ],
    ids=["logp", "value", "log_partition+logp", "all"],
)
def test_only_requested_heads_are_built(path, outputs: Sequence[str], computed: Sequence[str], heads: Sequence[str]):
    trainer = make_trainer(path, outputs=outputs)
    assert set(trainer.module.heads) == set(heads)
    assert trainer.capabilities.outputs == set(trainer.module.outputs) == set(computed)
    # Without an output of the vocabulary head, the language model is the decoder alone.
    has_vocabulary = trainer.module.model is not trainer.module.decoder
    assert has_vocabulary == any(name in LANGUAGE_OUTPUTS for name in outputs)


@pytest.mark.parametrize("output", HEADS)
@pytest.mark.parametrize("with_logp", [False, True])
def test_head_learns_its_targets(path, output, with_logp):
    outputs = ("logp", output) if with_logp else (output,)
    trainer, objective = make_trainer(path, outputs=outputs, lr=1e-2, updates=60), regression(output, "policy")
    batch, counts = prepare_step(objective, make_batch())
    before = parameters_of(trainer)
    losses = [float(trainer.step(batch, objective, counts)[f"loss/{output}"].total) for _ in range(60)]
    assert losses[-1] < 0.1 * losses[0]
    changed = {name for name, parameter in parameters_of(trainer).items() if not torch.equal(parameter, before[name])}
    assert {f"heads.{output}.weight", f"heads.{output}.bias"} < changed


def test_heads_are_exported_beside_the_model_and_loaded_from_there(path, tmp_path):
    batch = make_scored_batch()
    trainer = make_trainer(path, outputs=OUTPUTS, top_k=TOP_K, lr=1e-2)
    for output in HEADS:
        objective = regression(output, "policy")
        step, counts = prepare_step(objective, make_batch())
        trainer.step(step, objective, counts)
    trainer.export(tmp_path)
    assert {"value_head.safetensors", "log_partition_head.safetensors"} < {file.name for file in tmp_path.iterdir()}
    loaded = make_trainer(str(tmp_path), outputs=OUTPUTS, top_k=TOP_K, seed=5)
    expected = trainer.score(batch, OUTPUTS)
    assert all(torch.equal(score, expected[name]) for name, score in loaded.score(batch, OUTPUTS).items())
    # The weights for generators do not contain the heads.
    assert not any(name.startswith("heads.") for name, _ in trainer.weights())
