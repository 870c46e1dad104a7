"""Results that are stored for the next process: when one is used, and when it is computed again."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from attrs import evolve

from purerl.backends.hf.settings import GeneratorConfig
from purerl.errors import ConfigError
from purerl.models import cache
from purerl.models.cache import stored_result
from purerl.protocols import Capabilities
from purerl.settings import Model
from purerl.system.memory_use import MemoryUse

USE = MemoryUse(states={"parameters": 4}, transient={"training": {"activations": 8}}, assumed=("rows of 4 tokens",))
CAPABILITIES = Capabilities(max_sequence_length=8, outputs=frozenset({"logp"}), notes=("a note",), seeded=True)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """A model with a configuration, and an empty cache."""
    (tmp_path / "cache").mkdir(mode=0o700)
    monkeypatch.setattr(cache, "user_folder", lambda: tmp_path / "cache")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return Model(str(tmp_path / "model"))


class Counter:
    """Returns `result`, and counts the calls."""

    def __init__(self, result: object = True) -> None:
        self.calls, self.result = 0, result

    def __call__(self) -> object:
        self.calls += 1
        return self.result


def _is_stored(model: Model, settings: object = GeneratorConfig(), arguments: object = ()) -> bool:
    counter = Counter()
    assert stored_result(bool, counter, model=model, settings=settings, arguments=arguments)
    return counter.calls == 0


@pytest.mark.parametrize(("cls", "result"), [(bool, True), (MemoryUse, USE), (Capabilities, CAPABILITIES)])
def test_result_of_an_earlier_process_is_equal(cls: type, result: object, model: Model) -> None:
    counter = Counter(result)
    results = [stored_result(cls, counter, model=model, settings=GeneratorConfig(), arguments=()) for _ in range(2)]
    assert results == [result, result]
    assert counter.calls == 1


def test_whatever_changes_is_computed_again(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(model.path)
    assert not _is_stored(model)
    assert _is_stored(model)
    assert not _is_stored(evolve(model, dtype="bfloat16"))
    assert not _is_stored(model, settings=GeneratorConfig(max_num_seqs=3))
    assert not _is_stored(model, arguments=("memory",))
    (folder / "config.json").write_text('{"hidden_size": 8}')
    assert not _is_stored(model)
    (folder / "model.safetensors").touch()
    assert not _is_stored(model)
    assert _is_stored(model)
    monkeypatch.setattr(cache, "_code", lambda: ("other code",))
    assert not _is_stored(model)


def test_code_of_others_is_called_each_time(model: Model) -> None:
    class Config:
        """Settings of a plugin outside of purerl."""

    for _ in range(2):
        assert not _is_stored(model, settings=Config())
        assert not _is_stored(evolve(model, trust_remote_code=True))


def test_exception_is_not_stored(model: Model) -> None:
    def fail() -> bool:
        raise ConfigError("a model")

    for _ in range(2):
        with pytest.raises(ConfigError):
            stored_result(bool, fail, model=model, settings=GeneratorConfig(), arguments=())


def test_damaged_file_is_replaced(model: Model, tmp_path: Path) -> None:
    assert not _is_stored(model)
    [file] = (tmp_path / "cache" / "models").iterdir()
    file.write_text("{")
    assert not _is_stored(model)
    assert _is_stored(model)


def test_files_are_private_and_few(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_MAX_FILES", 2)
    assert [_is_stored(model, arguments=k) for k in range(4)] == [False] * 4
    files = [*(tmp_path / "cache" / "models").iterdir()]
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600, 0o600]
    assert _is_stored(model, arguments=3)


def test_without_a_private_folder_nothing_is_stored(model: Model, tmp_path: Path) -> None:
    (tmp_path / "cache" / "models").mkdir(mode=0o755)
    (tmp_path / "cache" / "models").chmod(0o755)
    assert [_is_stored(model) for _ in range(2)] == [False, False]
