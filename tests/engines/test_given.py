"""A real engine as a server that runs already: one run at a time, and only with its own model and tokenizer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from purerl.errors import EngineError
from purerl.protocols import Request, Sampling, generate
from purerl.settings import Model
from tests.backends.generators import text_of, tiny_model
from tests.backends.tiny import VOCAB_SIZE
from tests.engines.conftest import SIZES, build, check_running


def test_run_that_uses_a_server_keeps_others_away(url: str, models: tuple[Model, Model], tmp_path: Path) -> None:
    run = build(models[0], tmp_path, urls=(url,), logs=str(tmp_path / "run/servers"))
    try:
        for refused in (build, check_running):
            with pytest.raises(EngineError) as caught:
                refused(models[1], tmp_path, urls=(url,))
            assert re.search(rf"is used by another run\n  got:  {tmp_path / 'run'}, process", str(caught.value))
        [completion] = generate(run, [Request("0", [1, 2, 3], Sampling(max_tokens=4), 0)])
        assert completion.finish == "length"
        assert set(completion.version) == {0}
    finally:
        run.close()


def test_server_of_another_model_or_tokenizer_is_refused_before_it_gets_weights(
    url: str, models: tuple[Model, Model], tmp_path: Path
) -> None:
    larger = tiny_model(tmp_path / "larger", **{**SIZES, "hidden_size": 128})
    other = tiny_model(tmp_path / "other", **{**SIZES, "rope_parameters": {"rope_type": "default", "rope_theta": 5.0}})
    family = tiny_model(tmp_path / "family", "llama", **SIZES)
    letters = tiny_model(tmp_path / "letters", letters=text_of(range(VOCAB_SIZE))[::-1], **SIZES)
    problems = {
        larger: "another model than .*: its hidden_size is 64 in place of 128",
        other: "another model than .*: its rope_parameters.rope_theta is .* in place of 5.0",
        family: "another model than .*: its architecture is 'qwen3' in place of 'llama'",
        letters: f"another tokenizer than that of .*: its {VOCAB_SIZE} ids mean other tokens",
    }
    for model, words in problems.items():
        with pytest.raises(EngineError, match=rf"server at {url} cannot be used\n  got:  {words}"):
            build(model, tmp_path, urls=(url,))
    check_running(models[1], tmp_path, urls=(url,))
    build(models[1], tmp_path, urls=(url,)).close()
