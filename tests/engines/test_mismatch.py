"""The training-inference mismatch of the real engine: none in the same dtype, and one that is corrected in another."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.algos import grpo
from purerl.algos.modifiers import importance_weight
from purerl.composition import Composition
from purerl.loop.train import train
from tests.engines.conftest import settings
from tests.loop.runs import records
from tests.loop.small import small_real

NAMES = ("logp_abs_diff", "logp_abs_diff_max", "k3_kl", "perplexity_ratio", "effective_sample_size")
SAME = dict(logp_abs_diff=1e-5, logp_abs_diff_max=1e-4, k3_kl=1e-9, perplexity_ratio=1e-5, effective_sample_size=1e-6)
"""The tolerance of each metric around its value without mismatch, in float32."""


def steps_of(
    folder: Path, *, lr: float, max_steps: int, server: dict[str, Any], **changes: Any
) -> list[dict[str, Any]]:
    """The metrics of each step of a run whose trainer has float32. Each step has two optimizer steps."""
    trainer = evolve(small_real().trainer, lr=lr, lr_scheduler="constant", warmup_steps=None)
    generator = settings(folder / "logs", max_num_seqs=64, **server)
    config = small_real(max_steps, trainer=trainer, generator=generator, evaluate=None, **changes)
    steps = records(train(config, directory=folder / "run"))[1:]
    assert len(steps) == max_steps
    return steps


def test_metrics_stay_at_their_values_without_mismatch(tmp_path: Path) -> None:
    """The learning rate is 0, and the weights are transferred in each step."""
    nothing = dict(logp_abs_diff=0, logp_abs_diff_max=0, k3_kl=0, perplexity_ratio=1, effective_sample_size=1)
    for step in steps_of(tmp_path, lr=0.0, max_steps=10, server={}):
        for name, expected in nothing.items():
            assert step[f"mismatch/{name}"] == pytest.approx(expected, abs=SAME[name]), (step["step"], name)


@pytest.mark.soak
def test_mismatch_of_a_sampler_in_bfloat16_is_larger_and_corrected(tmp_path: Path) -> None:
    algorithm = Composition(grpo.Config(), (importance_weight.Config(),))
    for step in steps_of(tmp_path, lr=1e-3, max_steps=6, server={"dtype": "bfloat16"}, algorithm=algorithm):
        values = {name: step[f"mismatch/{name}"] for name in NAMES}
        assert 10 * SAME["logp_abs_diff"] < values["logp_abs_diff"] < values["logp_abs_diff_max"] < 0.5
        assert 0 < values["k3_kl"] < 0.05
        assert 0.9 < values["effective_sample_size"] < 1
        weight, square = step["policy/weight"], step["policy/weight_square"]
        assert square > weight**2 + 1e-8  # the weights are not all 1
        assert weight == pytest.approx(1, abs=0.1)
        assert step["policy/skipped/nonfinite_gradient"] == 0
        assert math.isfinite(step["policy/loss/policy"])
