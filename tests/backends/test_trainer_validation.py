"""Input validation of the HF trainer: settings, outputs and batches that it refuses; and metrics on any device."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from purerl.algos.algebra import Weighted
from purerl.backends.collective import on_host
from purerl.backends.hf.trainer import Config, check, check_model
from purerl.backends.training import OUTPUTS
from purerl.batch import collate, with_fields
from purerl.errors import BatchError, ConfigError, InputError
from purerl.ranks import Ranks
from purerl.settings import Model
from tests.backends.tiny import VOCAB_SIZE, make_trainer, write_model
from tests.backends.training import make_batch, make_step


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    return write_model(tmp_path_factory.mktemp("models"))


# --- settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        dict(lr=-1e-3),
        dict(lr=float("nan")),
        dict(lr=2.0),
        dict(lr="fast"),
        dict(betas=(0.9, 1.0)),
        dict(betas=(0.9,)),
        dict(eps=0.0),
        dict(weight_decay=-0.1),
        dict(lr_scheduler="exponential"),
        dict(warmup_steps=-1),
        dict(warmup_steps=2.5),
        dict(warmup_ratio=-0.1),
        dict(warmup_ratio=1.0),
        dict(lr_scheduler="linear", min_lr_ratio=1.5),
        dict(max_grad_norm=0.0),
        dict(max_tokens_per_microbatch=0),
        dict(mixed_precision="float16"),
        dict(recompute=True),
        dict(recompute="all"),
        dict(betas=0.9),
        dict(max_grad_norm=float("nan")),
        dict(top_k=0),
    ],
    ids=str,
)
def test_invalid_setting_is_refused(settings):
    with pytest.raises(ConfigError, match=rf"^{list(settings)[-1]}\n"):
        Config(**settings)


def test_warmup_steps_and_warmup_ratio_exclude_each_other():
    with pytest.raises(
        ConfigError, match="warmup_steps or warmup_ratio\n  got:  warmup_steps = 2, warmup_ratio = 0.1\n"
    ):
        Config(warmup_steps=2, warmup_ratio=0.1)


def test_min_lr_ratio_with_a_constant_schedule_is_refused():
    with pytest.raises(ConfigError) as error:
        Config(min_lr_ratio=0.1)
    assert str(error.value).splitlines() == [
        "min_lr_ratio has no effect",
        "  got:  0.1",
        "  need: another lr_scheduler than constant and inverse_sqrt, which have no last learning rate",
        "  do:   set it to 0",
    ]


def test_warmup_as_long_as_the_run_is_refused(path):
    message = r"warmup_steps\n  got:  10\n  need: less than the 10 optimizer steps of the run"
    with pytest.raises(ConfigError, match=message):
        make_trainer(path, warmup_steps=10, updates=10)


@pytest.mark.parametrize(
    ("settings", "updates"),
    [({"warmup_steps": 9}, 10), ({"warmup_steps": 10}, None), ({"warmup_steps": 10}, 0), ({"warmup_ratio": 0.99}, 1)],
    ids=str,
)
def test_warmup_is_accepted_if_it_is_shorter_or_the_length_is_unknown(settings, updates):
    check(Config(**settings), role="policy", outputs=("logp",), updates=updates)


@pytest.mark.parametrize(
    ("output", "remedy"),
    [("log_p", "did you mean 'logp'?"), ("score", "one of: "), ("values", "did you mean 'value'?")],
)
def test_unknown_output_is_refused_before_the_model_is_loaded(output, remedy):
    with pytest.raises(ConfigError) as error:
        make_trainer("nowhere", "critic", outputs=("logp", output))
    what, got, need, do = str(error.value).splitlines()
    assert (what, got) == ("kind", f"  got:  the algorithm needs the output '{output}' of the critic")
    assert need == f"  need: one of: {', '.join(OUTPUTS)}"
    assert do.startswith(f"  do:   {remedy}")


@pytest.mark.parametrize("outputs", [("logp",), ("logp", "topk_logp"), ("value",)], ids="+".join)
def test_top_k_without_topk_tokens_is_refused(outputs):
    """`topk_logp` alone is computed for the tokens of a teacher, whose `top_k` applies."""
    with pytest.raises(ConfigError) as error:
        check(Config(top_k=8), role="policy", outputs=outputs, updates=None)
    assert str(error.value).splitlines() == [
        "top_k has no effect",
        "  got:  8",
        "  need: a role that reports its most likely tokens, such as a teacher",
        "  do:   set it in roles.teacher.trainer",
    ]
    check(Config(top_k=8), role="teacher", outputs=("topk_tokens", "topk_logp"), updates=0)
    check(Config(), role="policy", outputs=outputs, updates=None)


def test_unknown_device_is_refused(path):
    with pytest.raises(ConfigError, match=r"device\n  got:  abacus: "):
        make_trainer(path, device="abacus")


@pytest.mark.parametrize("role", ["policy", "critic", "reward_model"])
def test_training_float16_weights_is_refused(tmp_path, role):
    """By the setting, before the model is loaded; with dtype "auto", by the files of the model."""
    float16_path = str(tmp_path / "float16")
    make_trainer(write_model(tmp_path), "reference", dtype="float16", updates=0).export(tmp_path / "float16")
    message = (
        r"^dtype\n  got:  float16, of '.*'\n"
        r"  need: float32 with trainer.mixed_precision=bfloat16, or bfloat16, for"
    )
    for path, dtype in (("nowhere", "float16"), (float16_path, "auto")):
        with pytest.raises(ConfigError, match=message):
            make_trainer(path, role, dtype=dtype)
    with pytest.raises(ConfigError, match=message):
        check_model(Config(), model=Model("nowhere", dtype="float16"), outputs=("logp",), is_trained=True)
    reference = make_trainer(float16_path, "reference", dtype="auto", updates=0)
    assert {weight.dtype for weight in reference.module.parameters()} == {torch.float16}


# --- outputs and batches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("role", "output"), [("policy", "value"), ("critic", "logp"), ("reference", "value")])
def test_output_that_was_not_requested_is_refused(path, role, output):
    message = f"an output that this trainer was not built for\n  got:  {output}\n"
    with pytest.raises(InputError, match=message):
        make_trainer(path, role).score(make_batch(), [output])


@pytest.mark.parametrize("field", ["tokens", "temperature", "advantage"])
def test_batch_without_a_required_field_is_refused(path, field):
    batch, objective, counts = make_step(0)
    with pytest.raises(BatchError, match=f"field '{field}' is missing"):
        make_trainer(path).step(batch.exclude(field), objective, counts)


@pytest.mark.parametrize("field", ["row", "attention_mask"])
@pytest.mark.parametrize("size", [1, 2])
def test_batch_without_its_structure_is_refused_on_any_number_of_ranks(path, monkeypatch, field, size):
    monkeypatch.setattr(Ranks, "gather", lambda self, value, what: [value] * self.size)
    trainer = make_trainer(path)
    trainer.mesh = trainer.mesh._replace(all=Ranks(0, size))
    with pytest.raises(BatchError, match=f"field '{field}' is missing"):
        trainer.score(make_batch().exclude(field), ["logp"])


def rows_of(*lengths: int, token: int = 1):
    rows = [
        {"tokens": [token] * n, "action": [False] + [True] * (n - 1), "row": k, "group": k, "temperature": 1.0}
        for k, n in enumerate(lengths)
    ]
    return collate(rows)


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
@pytest.mark.parametrize("role", ["policy", "critic"])
def test_rows_beyond_the_limits_of_the_model_are_refused(tmp_path, family, role):
    trainer = make_trainer(write_model(tmp_path, family), role, dtype="float32")
    assert trainer.capabilities.max_sequence_length == 64
    trainer.score(rows_of(64, 3, token=VOCAB_SIZE - 1), trainer.module.outputs)
    message = "row 1 of a batch\n  got:  65 tokens\n  need: at most 64, the number of positions"
    with pytest.raises(BatchError, match=message):
        trainer.score(rows_of(3, 65), trainer.module.outputs)
    for token in (VOCAB_SIZE, -1):
        with pytest.raises(BatchError, match=f"row 0 of a batch\n  got:  token {token}\n  need: ids from 0 to 18\n"):
            trainer.score(rows_of(3, token=token), trainer.module.outputs)


def test_error_of_an_invalid_row_names_its_example(tmp_path):
    batch = with_fields(rows_of(65), example=torch.tensor([1234]))
    with pytest.raises(BatchError, match="row 0 of a batch, from example 1,234\n"):
        make_trainer(write_model(tmp_path), dtype="float32").score(batch, ["logp"])


# --- metrics -----------------------------------------------------------------------------------------------------


class _WithoutFloat64(TorchDispatchMode):
    """Makes the device "meta" a device without float64."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and kwargs.get("device") == torch.device("cpu"):
            return torch.ones(args[0].shape, dtype=args[0].dtype)
        result = func(*args, **kwargs)
        assert not (isinstance(result, Tensor) and result.is_meta and result.dtype == torch.float64)
        return result


def test_metrics_become_float64_on_the_cpu_because_some_devices_have_no_float64():
    number, count = torch.ones((), device="meta"), torch.ones((), dtype=torch.int64, device="meta")
    with _WithoutFloat64():
        metrics = on_host(
            {"a": Weighted(number, count), "b": Weighted(2.5, torch.tensor(3)), "c": Weighted(number, 0.1)}
        )
    assert {x.dtype for metric in metrics.values() for x in metric} == {torch.float64}
    assert {name: [float(x) for x in metric] for name, metric in metrics.items()} == {
        "a": [1, 1],
        "b": [2.5, 3],
        "c": [1, 0.1],
    }
