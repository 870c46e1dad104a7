"""Teachers that have more token ids than the policy: sizes of vocabularies are padded differently."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from attrs import evolve

from purerl.algos import gkd, opd_top_k
from purerl.backends.fake import trainer as fake_trainer
from purerl.composition import Composition
from purerl.config.requirements import requirements_of
from purerl.config.schema import Role, RunConfig
from purerl.errors import BatchError, ConfigError
from purerl.loop.train import train
from purerl.opening.model_notes import limit_vocabularies, model_notes
from purerl.protocols import Capabilities
from purerl.runs.dry_run import dry_run
from tests.backends.tiny import VOCAB_SIZE, make_trainer, write_model
from tests.backends.training import make_batch

from .runs import records
from .small import small_real

_EXTRA = 7
_OUTPUTS = ("logp", "topk_tokens", "topk_logp")


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("padded"), vocab_size=VOCAB_SIZE + _EXTRA)


def test_ids_that_the_policy_does_not_have_get_no_probability(padded: str) -> None:
    """The outputs are those of the model with a smaller head."""
    small, whole = (make_trainer(padded, "teacher", outputs=_OUTPUTS, updates=0, top_k=6) for _ in range(2))
    assert small.capabilities.vocab_size == VOCAB_SIZE + _EXTRA
    small.limit_vocabulary(VOCAB_SIZE)
    head = whole.module.model.get_output_embeddings()
    head.weight.data = head.weight.data[:VOCAB_SIZE]
    batch = make_batch()
    scores = [each.score(batch, _OUTPUTS) for each in (small, whole)]
    assert all(torch.equal(scores[0][name], scores[1][name]) for name in _OUTPUTS)
    assert int(scores[0]["topk_tokens"].max()) < VOCAB_SIZE


def test_all_ids_of_the_policy_together_have_the_probability_1(padded: str) -> None:
    trainer, batch = make_trainer(padded, "teacher", outputs=_OUTPUTS, updates=0, top_k=VOCAB_SIZE), make_batch()
    trainer.limit_vocabulary(VOCAB_SIZE)
    sums = trainer.score(batch, ["topk_logp"])["topk_logp"].exp().sum(-1)[batch["action"]]
    torch.testing.assert_close(sums, torch.ones_like(sums))


def test_more_choices_than_the_policy_has_ids_are_refused(padded: str) -> None:
    trainer = make_trainer(padded, "teacher", outputs=_OUTPUTS, updates=0, top_k=VOCAB_SIZE + 1)
    with pytest.raises(ConfigError, match=rf"trainer.top_k\n  got:  {VOCAB_SIZE + 1}\n  need: at most {VOCAB_SIZE},"):
        trainer.limit_vocabulary(VOCAB_SIZE)


def test_choices_that_the_policy_does_not_have_are_refused_by_row(padded: str, tmp_path: Path) -> None:
    """If two trainers are used without a run, which limits the ids."""
    teacher = make_trainer(padded, "teacher", outputs=_OUTPUTS, updates=0, top_k=VOCAB_SIZE + _EXTRA)
    policy, batch = make_trainer(write_model(tmp_path), outputs=("topk_logp",), updates=0), make_batch()
    scores = teacher.score(batch, ["topk_tokens"])
    refusal = rf"teacher_topk_tokens\n  got:  token \d+\n  need: ids from 0 to {VOCAB_SIZE - 1}"
    with pytest.raises(BatchError, match=refusal):
        policy.score(batch.set("teacher_topk_tokens", scores["topk_tokens"]), ["topk_logp"])


def _padded_copy(model: Path, folder: Path) -> str:
    """`model` with more token ids, which it finds likely."""
    from transformers import AutoModelForCausalLM

    shutil.copytree(model, folder)
    causal = AutoModelForCausalLM.from_pretrained(folder)
    size = causal.config.vocab_size
    causal.resize_token_embeddings(size + _EXTRA)
    with torch.no_grad():
        head = causal.get_output_embeddings().weight
        head[size:] = 3 * head[: len(head) - size]
    causal.save_pretrained(folder)
    return str(folder)


def _config(teacher: str, algorithm: object, **trainer: object) -> RunConfig:
    settings = small_real()
    role = Role(model=teacher, trainer=evolve(settings.trainer, top_k=8, **trainer))
    return small_real(algorithm=algorithm, evaluate=None, roles={"teacher": role})


@pytest.mark.parametrize("algorithm", [gkd, opd_top_k])
def test_a_run_learns_from_such_a_teacher_and_says_so(
    algorithm: object, other_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher = _padded_copy(other_model, tmp_path / "teacher")
    config = evolve(_config(teacher, algorithm.Config()), num_minibatches=1, max_steps=4)
    summary = train(config, directory=tmp_path / "run")
    note = f"teacher: {_EXTRA} token ids that the policy does not have get no probability"
    assert note in capsys.readouterr().out
    assert records(summary)[-1]["policy/grad_norm"] > 0


def test_the_dry_run_says_so_too(other_model: Path, tmp_path: Path) -> None:
    teacher = _padded_copy(other_model, tmp_path / "teacher")
    config = _config(teacher, gkd.Config())
    lines = dry_run(evolve(config, model=evolve(config.model, path=str(other_model))), tmp_path / "run")
    assert "attention: sdpa" in lines
    assert f"models: teacher: {_EXTRA} token ids that the policy does not have get no probability" in lines


def test_a_trainer_that_cannot_leave_ids_out_is_refused() -> None:
    config = small_real(algorithm=Composition(opd_top_k.Config(), ()), roles={"teacher": Role(model="other")})
    roles = requirements_of(config).models
    policy, teacher = (
        fake_trainer.build(fake_trainer.Config(), model=config.model, role=name, outputs=("logp",), updates=0, seed=0)
        for name in ("policy", "teacher")
    )
    policy.capabilities, teacher.capabilities = Capabilities(vocab_size=10), Capabilities(vocab_size=12)
    assert model_notes(roles, {"policy": policy.capabilities, "teacher": teacher.capabilities}) == [
        "teacher: 2 token ids that the policy does not have get no probability"
    ]
    with pytest.raises(ConfigError, match=r"roles.teacher.model\n  got:  2 token ids more than the policy has"):
        limit_vocabularies(roles, {"policy": policy, "teacher": teacher})
