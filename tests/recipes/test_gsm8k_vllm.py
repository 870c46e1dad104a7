"""`gsm8k_vllm`: what it changes in `gsm8k`, and what it refuses. tests/engines/test_runs.py trains it."""

from __future__ import annotations

import pytest
from attrs import evolve

from purerl.config.check import check
from purerl.errors import ConfigError
from purerl.recipes import resolve
from tests.accelerators import simulate
from tests.serving.interpreter import ENGINE_PYTHON

SETTINGS = ("model=m", "data=d.parquet")


def test_only_the_generator_and_the_correction_differ_from_gsm8k() -> None:
    config, plain = resolve("gsm8k_vllm", SETTINGS), resolve("gsm8k", SETTINGS)
    assert str(config.algorithm) == "grpo + importance_weight"
    assert config.algorithm.base == plain.algorithm.base
    assert evolve(config, name="gsm8k", generator=plain.generator, algorithm=plain.algorithm) == plain


def test_sharing_a_gpu_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch, "cuda")
    check(resolve("gsm8k_vllm", [*SETTINGS, f"python={ENGINE_PYTHON}"]))
    with pytest.raises(ConfigError, match=r"generator.server\n  got:  vllm is not installed"):
        check(resolve("gsm8k_vllm", SETTINGS))
    with pytest.raises(ConfigError, match="rollout.max_staleness"):
        check(resolve("gsm8k_vllm", [*SETTINGS, f"python={ENGINE_PYTHON}", "rollout.max_staleness=1"]))
