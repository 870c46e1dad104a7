"""What comes into the embedded trainer and leaves it: rows and weights that it refuses, metrics that it gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from purerl.algos.algebra import Weighted
from purerl.backends.hf.trainer import _on_host
from purerl.batch import collate, with_fields
from purerl.errors import BatchError, ConfigError
from tests.backends.tiny import VOCABULARY, trainer, write_model


def _rows(*lengths: int, token: int = 1):
    rows = [
        {"tokens": [token] * n, "action": [False] + [True] * (n - 1), "row": k, "group": k, "temperature": 1.0}
        for k, n in enumerate(lengths)
    ]
    return collate(rows)


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
@pytest.mark.parametrize("role", ["policy", "critic"])
def test_rows_that_the_model_has_no_positions_or_ids_for_are_refused(tmp_path, family, role):
    made = trainer(write_model(tmp_path, family), role, dtype="float32")
    assert made.longest == 64
    made.score(_rows(64, 3, token=VOCABULARY - 1), made.module.outputs)
    with pytest.raises(BatchError, match="row 1 of a batch\n  got:  65 tokens\n  need: at most 64, which"):
        made.score(_rows(3, 65), made.module.outputs)
    for token in (VOCABULARY, -1):
        with pytest.raises(BatchError, match=f"row 0 of a batch\n  got:  token {token}\n  need: ids from 0 to 18\n"):
            made.score(_rows(3, token=token), made.module.outputs)


def test_a_row_that_is_refused_names_its_example(tmp_path):
    rows = with_fields(_rows(65), example=torch.tensor([1234]))
    with pytest.raises(BatchError, match="row 0 of a batch, made of example 1,234\n"):
        trainer(write_model(tmp_path), dtype="float32").score(rows, ["logp"])


@pytest.mark.parametrize("role", ["policy", "critic", "reward_model"])
def test_float16_does_not_train(tmp_path, role):
    """By its name before the model is loaded, and where the files say so."""
    narrow = str(tmp_path / "narrow")
    trainer(write_model(tmp_path), "reference", dtype="float16").export(tmp_path / "narrow")
    wanted = (
        r"^model.dtype\n  got:  float16, of '.*'\n"
        r"  need: float32 with trainer.mixed_precision=bfloat16, or bfloat16, for"
    )
    for where, dtype in (("nowhere", "float16"), (narrow, "auto")):
        with pytest.raises(ConfigError, match=wanted):
            trainer(where, role, dtype=dtype)
    frozen = trainer(narrow, "reference", dtype="auto")
    assert {weight.dtype for weight in frozen.module.parameters()} == {torch.float16}


class _WithoutFloat64(TorchDispatchMode):
    """The device "meta" as one that knows no float64."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and kwargs.get("device") == torch.device("cpu"):
            return torch.ones(args[0].shape, dtype=args[0].dtype)
        result = func(*args, **kwargs)
        assert not (isinstance(result, Tensor) and result.is_meta and result.dtype == torch.float64)
        return result


def test_metrics_are_widened_on_the_host_for_not_every_device_knows_float64():
    there, count = torch.ones((), device="meta"), torch.ones((), dtype=torch.int64, device="meta")
    with _WithoutFloat64():
        found = _on_host({"a": Weighted(there, count), "b": Weighted(2.5, torch.tensor(3)), "c": Weighted(there, 0.1)})
    assert {x.dtype for metric in found.values() for x in metric} == {torch.float64}
    assert {name: [float(x) for x in metric] for name, metric in found.items()} == {
        "a": [1, 1],
        "b": [2.5, 3],
        "c": [1, 0.1],
    }
