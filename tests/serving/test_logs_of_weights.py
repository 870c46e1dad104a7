"""Lines in the log of an engine about weights that were not loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from purerl.backends.serving.log import not_loaded

LINES = """
(Worker pid=7) INFO 11-29 13:41:20 [layerwise.py:9] Reloading weights inplace...
(Worker pid=7) WARNING 11-29 13:41:20 [layerwise.py:276] ParallelLMHead: Failed to load weights
(Worker pid=7) WARNING 11-29 13:41:20 [layerwise.py:276] RoutedExperts: Failed to load weights
(Worker pid=7) WARNING 11-29 13:41:29 [layerwise.py:276] RoutedExperts: Failed to load weights
(Worker pid=7) WARNING 11-29 13:41:29 [layerwise.py:276] Llama3RotaryEmbedding: Failed to load weights
(Worker pid=7) WARNING 11-29 13:41:29 [inplace.py:99] Following weights were not loaded from checkpoint: {'a.b'}
"""


@pytest.mark.parametrize("is_packed", [False, True])
def test_layers_that_the_receiver_has_packed_are_left_out(tmp_path: Path, is_packed: bool) -> None:
    log = tmp_path / "vllm-0.log"
    log.write_text(LINES + ("purerl has packed the weight of ParallelLMHead again\n" if is_packed else ""))
    head = [] if is_packed else ["ParallelLMHead: Failed to load weights"]
    others = ["RoutedExperts: Failed to load weights", "Following weights were not loaded from checkpoint: {'a.b'}"]
    assert not_loaded(log) == [*head, *others]


def test_a_log_without_such_lines_has_none(tmp_path: Path) -> None:
    log = tmp_path / "vllm-0.log"
    log.write_text("INFO all weights are loaded\n")
    assert not_loaded(log) == []
