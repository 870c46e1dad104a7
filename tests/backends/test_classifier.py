"""Classifiers in the HF trainer: scores, steps and files, beside transformers' own classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos import reward_model
from purerl.algos.algebra import prepare_step
from purerl.backends.hf.lora import Lora
from purerl.backends.hf.trainer import Config, check
from purerl.batch import with_fields
from purerl.errors import ConfigError, InputError
from purerl.testing import example_batch
from tests.backends.tiny import FAMILIES, VOCAB_SIZE, make_trainer, write_model
from tests.backends.training import equal, make_batch, parameters_of

SCORE = ("classifier_score",)
CLASSIFIABLE = ("qwen3", "qwen2", "llama", "gemma2", "phi", "gpt2")  # of the others transformers has no classifier
ROUNDING = {"phi": 1e-9, "gpt2": 1e-9}  # the norms of the others round to float32
LAYOUT = tuple((group, "." * 4 + kinds) for group in (0, 5, -1) for kinds in ("aaa", "..aax."))


def load(path: Any, kind: str = "Sequence") -> Any:
    """The model at `path` as transformers' class; each text is scored at its last token."""
    import transformers

    attention = "eager" if "gemma2" in str(path) else "sdpa"
    auto = getattr(transformers, f"AutoModelFor{kind}Classification")
    model = auto.from_pretrained(path, dtype=torch.float64, attn_implementation=attention).eval()
    model.config.pad_token_id = None
    return model


def scores_of(model: Any, batch: TensorDict, value=lambda logits: logits[..., 0]) -> Tensor:
    """The score at every action token, from a text that ends with it."""
    scores = torch.zeros(batch["tokens"].shape, dtype=torch.float64)
    for row, time in batch["action"].nonzero().tolist():
        logits = model(input_ids=batch["tokens"][row, : time + 1][None]).logits.detach()
        scores[row, time] = value(logits[:, -1] if logits.ndim == 3 else logits)
    return scores


def write_classifier(directory: Path, kind: str = "Sequence", *, labels: int = 1, family: str = "qwen3") -> str:
    """Write a random classifier; return its path."""
    import transformers

    config = transformers.AutoConfig.for_model(family, **FAMILIES[family], num_labels=labels)
    torch.manual_seed(0)
    model = getattr(transformers, f"AutoModelFor{kind}Classification").from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.detach().mean()), std=0.3)
    model.double().save_pretrained(path := directory / f"{family}-{kind}-{labels}")
    return str(path)


def pairs(seed: int) -> TensorDict:
    """Pairs of rows with a common prompt, from random tokens."""
    batch = example_batch(("chosen", "temperature", "margin"), LAYOUT, seed=seed)
    tokens = torch.randint(0, VOCAB_SIZE, batch["tokens"].shape, generator=torch.Generator().manual_seed(seed))
    tokens[1::2, :4] = tokens[::2, :4]
    return with_fields(batch, tokens=torch.where(batch["attention_mask"], tokens, 0))


# --- scores --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", CLASSIFIABLE)
def test_scores_are_those_of_the_exported_model(tmp_path, family):
    tolerance = ROUNDING.get(family, 1e-5)
    trainer, batch = make_trainer(write_model(tmp_path, family), outputs=SCORE), make_batch()
    trainer.export(tmp_path / f"{family}-exported")
    expected = scores_of(load(tmp_path / f"{family}-exported"), batch)
    assert expected.std() > 0.02
    torch.testing.assert_close(trainer.score(batch, SCORE)["classifier_score"], expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "settings",
    [{"packing": True}, {"max_tokens_per_microbatch": 12}, {"share_prefixes": False}, {"recompute": "layers"}],
)
def test_scores_do_not_depend_on_how_rows_are_read(tmp_path, monkeypatch, settings):
    monkeypatch.setattr(
        "purerl.backends.hf.model.prefix._WORTHWHILE", float("inf")
    )  # prefixes are shared without settings
    path, batch = write_model(tmp_path, "gpt2"), pairs(0)
    expected = make_trainer(path, outputs=SCORE).score(batch, SCORE)["classifier_score"]
    actual = make_trainer(path, outputs=SCORE, **settings).score(batch, SCORE)["classifier_score"]
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("kind", "labels"), [("Sequence", 1), ("Token", 1), ("Token", 2), ("Sequence", 2)])
def test_a_classifier_that_is_not_trained_has_the_scores_of_transformers(tmp_path, kind, labels):
    path, batch = write_classifier(tmp_path, kind, labels=labels), make_batch()
    trainer = make_trainer(path, "rewards.good", outputs=SCORE, updates=0)
    value = (lambda logits: logits[..., 0]) if labels == 1 else (lambda logits: logits.softmax(-1)[..., 1])
    expected = scores_of(load(path, kind), batch, value)
    torch.testing.assert_close(trainer.score(batch, SCORE)["classifier_score"], expected, rtol=0, atol=1e-5)
    with pytest.raises(InputError, match="got:  logp\n  need: among classifier_score$"):
        trainer.score(batch, ("logp",))


# --- training ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"packing": True}, {"max_tokens_per_microbatch": 16}])
def test_steps_are_those_of_adamw_on_the_model_of_transformers(tmp_path, settings):
    trainer = make_trainer(write_model(tmp_path, "gpt2"), outputs=SCORE, lr=1e-2, eps=1e-2, **settings)
    trainer.export(tmp_path / "start")
    model = load(tmp_path / "start")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.999), eps=1e-2, weight_decay=0)
    [objective] = reward_model.algorithm(reward_model.Config(margin_coef=0.5, centering_coef=0.1)).objectives
    for seed in range(3):
        batch = pairs(seed)
        trainer.step(*_step(objective, batch))
        loss = torch.stack([_loss_of_pair(model, batch, row) for row in (0, 2, 4)]).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    trainer.export(tmp_path / "end")
    expected = dict(model.named_parameters())
    for name, value in load(tmp_path / "end").named_parameters():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-9, msg=name)


def _step(objective, batch):
    step, counts = prepare_step(objective, batch)
    return step, objective, counts


def _loss_of_pair(model, batch, row):
    """-log sigmoid(d - 0.5 m) + 0.1 t^2 of the rows `row` and `row` + 1, scored at their last counted tokens."""
    rows = (row, row + 1) if batch["chosen"][row] else (row + 1, row)
    ends = [int(batch["mask"][k].nonzero()[-1]) for k in rows]
    chosen, rejected = (
        model(input_ids=batch["tokens"][k, : end + 1][None]).logits[0, 0] for k, end in zip(rows, ends, strict=True)
    )
    margin = 0.5 * batch["margin"][rows[0]]
    return -torch.nn.functional.logsigmoid(chosen - rejected - margin) + 0.1 * (chosen + rejected) ** 2


def test_a_new_head_depends_only_on_the_seed(tmp_path):
    path = write_model(tmp_path)
    heads = [make_trainer(path, outputs=SCORE, seed=seed).module.classifier.weight for seed in (0, 0, 1)]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def test_training_continues_with_the_head_of_a_reward_model(tmp_path):
    first = make_trainer(write_model(tmp_path), outputs=SCORE, seed=3)
    first.export(tmp_path / "first")
    assert equal(parameters_of(make_trainer(str(tmp_path / "first"), outputs=SCORE)), parameters_of(first))


def test_a_checkpoint_has_the_head(tmp_path):
    (tmp_path / "saved").mkdir()
    trainer = make_trainer(write_model(tmp_path), outputs=SCORE, lr=1e-2)
    [objective] = reward_model.algorithm().objectives
    trainer.step(*_step(objective, pairs(0)))
    trainer.save(tmp_path / "saved")
    loaded = make_trainer(write_model(tmp_path), outputs=SCORE, lr=1e-2, seed=1)
    loaded.load(tmp_path / "saved")
    assert equal(parameters_of(loaded), parameters_of(trainer))


def test_with_lora_the_head_is_trained_and_everything_is_exported_as_one_model(tmp_path):
    trainer = make_trainer(write_model(tmp_path, "phi"), outputs=SCORE, lora=Lora(rank=2), lr=1e-2)
    before, [objective] = parameters_of(trainer), reward_model.algorithm().objectives
    for seed in range(2):
        trainer.step(*_step(objective, pairs(seed)))
    changed = {name for name, value in parameters_of(trainer).items() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if ".lora_" in name or name == "model.score.weight"}
    trainer.export(tmp_path / "merged")
    expected = scores_of(load(tmp_path / "merged"), pairs(2))
    torch.testing.assert_close(trainer.score(pairs(2), SCORE)["classifier_score"], expected, rtol=0, atol=1e-7)


# --- refusals ------------------------------------------------------------------------------------------------------


def refusal(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(ConfigError) as error:
        make_trainer(*args, outputs=SCORE, **kwargs)
    return str(error.value)


def test_a_language_model_is_no_classifier(tmp_path):
    path = write_model(tmp_path)
    assert refusal(path, "rewards.good", updates=0) == (
        f"{path!r} is no classifier\n"
        "  got:  Qwen3ForCausalLM\n"
        "  need: ...ForSequenceClassification or ...ForTokenClassification, with 1 label, or 2 of which the second is "
        "the positive one\n"
        "  do:   name a classifier; purerl train reward_model makes one from a language model"
    )


def test_a_classifier_of_several_classes_has_no_score(tmp_path):
    path = write_classifier(tmp_path, labels=3)
    assert "\n  got:  Qwen3ForSequenceClassification with 3 labels\n" in refusal(path, "rewards.good", updates=0)


def test_a_classifier_of_tokens_is_not_trained(tmp_path):
    path = write_classifier(tmp_path, "Token")
    assert refusal(path) == (
        f"{path!r} cannot be trained as a reward model\n"
        "  got:  Qwen3ForTokenClassification with 1 labels\n"
        "  need: a language model, or ...ForSequenceClassification with 1 label\n"
        "  do:   start from the language model"
    )


def test_a_model_without_a_class_of_classifiers_is_not_trained(tmp_path):
    message = refusal(write_model(tmp_path, "cohere"))
    assert message.endswith(
        "\n  got:  cohere\n  need: a type of model of which transformers has a class ...ForSequenceClassification"
    )


def test_a_classifier_that_reads_in_both_directions_is_refused(tmp_path):
    import transformers

    config = transformers.BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        num_labels=1,
    )
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "bert")
    message = refusal(str(tmp_path / "bert"), "rewards.good", updates=0)
    assert message.startswith("BertForSequenceClassification cannot be used: its logits are computed in a way that")


def test_other_outputs_of_a_classifier_are_refused():
    with pytest.raises(ConfigError, match="^classifier_score\n  got:  also logp\n  need: no other output of the same"):
        check(Config(), role="policy", outputs=("logp", "classifier_score"), updates=1)


def test_an_adapter_of_a_classifier_is_not_written_alone():
    with pytest.raises(ConfigError, match="^lora.export\n  got:  adapter\n  need: merged: the head of a classifier"):
        check(Config(lora=Lora(export="adapter")), role="policy", outputs=SCORE, updates=1)
