"""The class of a tokenizer, which is stored for the next process: it is the one that `AutoTokenizer` chooses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from purerl.errors import ConfigError
from purerl.models import cache
from purerl.models.tokenizer import load_tokenizer
from purerl.settings import Model
from tests.backends.tiny import write_model
from tests.data.tokenizers_of_kinds import tokenizer_of

CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast", "GPT2Tokenizer", "Qwen2TokenizerFast", None)


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache."""
    (tmp_path / "cache").mkdir(mode=0o700)
    monkeypatch.setattr(cache, "user_folder", lambda: tmp_path / "cache")


def _model(folder: Path, name: str | None) -> Model:
    """A model whose tokenizer_config.json has the class `name`, or none."""
    model = Model(write_model(folder))
    tokenizer_of("bytes", "byte-level").save_pretrained(model.path)
    file = Path(model.path) / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    del settings["tokenizer_class"]
    file.write_text(json.dumps(settings | ({"tokenizer_class": name} if name else {})))
    return model


def _saved(tokenizer: object, folder: Path) -> dict[str, bytes]:
    tokenizer.save_pretrained(folder)  # pyright: ignore[reportAttributeAccessIssue]
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.usefixtures("stores")
@pytest.mark.parametrize("name", CLASSES)
def test_the_next_process_loads_the_same_tokenizer_without_auto_tokenizer(
    name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _model(tmp_path / "model", name)
    expected = AutoTokenizer.from_pretrained(model.path)
    first = load_tokenizer(model)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", None)
    for number, tokenizer in enumerate((first, load_tokenizer(model))):
        assert type(tokenizer) is type(expected)
        assert tokenizer("23+4=")["input_ids"] == expected("23+4=")["input_ids"]
        assert _saved(tokenizer, tmp_path / str(number)) == _saved(expected, tmp_path / "expected")


@pytest.mark.usefixtures("stores")
def test_the_class_is_chosen_again_if_the_files_name_another_one(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    names = [type(load_tokenizer(_model(folder, name))).__name__ for name in ("TokenizersBackend", "GPT2Tokenizer")]
    assert names == ["TokenizersBackend", "GPT2Tokenizer"]


@pytest.mark.usefixtures("stores")
def test_a_tokenizer_of_a_user_is_loaded_by_auto_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import PreTrainedTokenizerFast

    class Own(PreTrainedTokenizerFast):
        """A class outside of transformers."""

    calls = list[str]()
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda path, **_: (calls.append(path), _own(path))[1])

    def _own(path: str) -> Own:
        return Own.from_pretrained(path)

    model = _model(tmp_path / "model", None)
    assert [type(load_tokenizer(model)) for _ in range(2)] == [Own, Own]
    assert len(calls) == 2


@pytest.mark.usefixtures("stores")
def test_a_damaged_tokenizer_is_refused_each_time(tmp_path: Path) -> None:
    model = _model(tmp_path / "model", None)
    (Path(model.path) / "tokenizer.json").write_text("{")
    for _ in range(2):
        with pytest.raises(ConfigError, match="no tokenizer can be loaded"):
            load_tokenizer(model)
