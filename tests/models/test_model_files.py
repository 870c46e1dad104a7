"""Files of models with any content: each is refused with a message, and nothing outside of the directory is read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from purerl.backends.hf.decoder.loading import load_model
from purerl.backends.hf.decoder.preview import without_weights
from purerl.errors import ConfigError
from purerl.models.config_file import check_model_files
from purerl.models.tokenizer import end_tokens, load_tokenizer
from purerl.settings import Model
from tests.recipes.made import write_model


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    write_model(folder)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy of a small model."""
    return Path(shutil.copytree(written, tmp_path / "model"))


def _change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def _open(folder: Path) -> None:
    """Open everything of the model that a dry run opens."""
    model = Model(str(folder))
    load_tokenizer(model)
    end_tokens(model)
    without_weights(model, device="cpu")


ROPE = {"rope_type": "default", "rope_theta": 10000.0}
CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"num_attention_heads": 0}, "config.json': num_attention_heads\n  got:  0\n  need: a number from 1 to 2,147"),
    ({"num_key_value_heads": 0}, "num_key_value_heads\n  got:  0"),
    ({"num_attention_heads": -1}, "num_attention_heads\n  got:  -1"),
    ({"head_dim": 0}, "got:  ZeroDivisionError: "),
    ({"head_dim": -2}, "head_dim\n  got:  -2"),
    ({"hidden_size": 2**62}, "hidden_size\n  got:  4611686018427387904"),
    ({"intermediate_size": 2**70}, "intermediate_size\n  got:  118"),
    ({"vocab_size": 0}, "vocab_size\n  got:  0"),
    ({"num_hidden_layers": 10**7, "layer_types": None}, "num_hidden_layers\n  got:  10000000\n  need: .* 10,000"),
    ({"max_position_embeddings": -1}, "max_position_embeddings\n  got:  -1"),
    ({"text_config": {"hidden_size": 0}}, "text_config.hidden_size\n  got:  0"),
    ({"rope_parameters": {**ROPE, "rope_type": "spiral"}}, "got:  .*'spiral'.*\n  need: one of .*yarn"),
    ({"rope_parameters": {**ROPE, "rope_theta": "x"}}, "got:  .*rope_theta = 'x'.*\n  need: a number"),
    ({"rope_parameters": {**ROPE, "rope_type": "yarn"}}, "got:  KeyError: .*'factor'"),
    ({"dtype": "float99"}, "dtype\n  got:  'float99'\n  need: one of auto, float32"),
    ({"dtype": "cat"}, "dtype\n  got:  'cat'"),
    ({"dtype": 3}, "dtype\n  got:  3"),
    ({"hidden_act": "nope"}, "got:  KeyError: 'nope'"),
    ({"quantization_config": "x"}, "got:  AttributeError: "),
    ({"pad_token_id": 10**9}, "got:  AssertionError: Padding_idx"),
    ({"id2label": [1]}, "got:  AttributeError: "),
]  # fmt: skip


@pytest.mark.parametrize(("values", "message"), CONFIGS, ids=[str(values)[:50] for values, _ in CONFIGS])
def test_nonsense_in_a_configuration_is_refused(folder: Path, values: dict[str, Any], message: str) -> None:
    _change(folder / "config.json", **values)
    with pytest.raises(ConfigError, match=message):
        _open(folder)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "model.safetensors.index.json"])
@pytest.mark.parametrize(
    ("text", "got"),
    [("[]", r"\[\]"), ("null", "None"), ("\0", "Expecting value"), ("[" * 10**5, "more than 100 lists and objects")],
)
def test_file_without_an_object_is_refused(folder: Path, name: str, text: str, got: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(ConfigError, match=rf"{name}'\n  got:  {got}.*\n  need: an object of JSON"):
        _open(folder)


@pytest.mark.parametrize("value", ["x", [1, "a"], [None], [[1]], 1.5, True, {"a": 1}])
def test_stop_token_that_is_no_id_is_refused(folder: Path, value: Any) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    with pytest.raises(
        ConfigError, match=r"eos_token_id in generation_config.json .*\n.*\n  need: a token id, or a list"
    ):
        end_tokens(Model(str(folder)))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_max_length": "x"}, "TypeError"),
        ({"added_tokens_decoder": {"a": 1}}, "TypeError"),
        ({"eos_token": 3}, ""),
    ],
)
def test_nonsense_in_a_tokenizer_is_refused(folder: Path, values: dict[str, Any], message: str) -> None:
    _change(folder / "tokenizer_config.json", **values)
    with pytest.raises(ConfigError, match=f"no tokenizer can be loaded from .*\n  got:  {message}"):
        _open(folder)


OUTSIDE = [
    "../outside/a.safetensors",
    "{other}/a.safetensors",
    "sub/../../outside/a",
    "/dev/zero",
    ".",
    "",
    "..\\a",
    "C:a",
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_weights_outside_of_the_directory_are_never_opened(folder: Path, tmp_path: Path, name: str) -> None:
    other = tmp_path / "outside"
    other.mkdir()
    os.mkfifo(other / "a.safetensors")  # opening it would wait for ever
    (folder / "model.safetensors").unlink()
    names = {"model.norm.weight": name.format(other=other)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    with pytest.raises(ConfigError, match=r"index.json'\n  got:  the file of weights .*\n  need: files in .*/model'"):
        load_model(Model(str(folder)))


def test_links_and_folders_in_the_directory_may_have_weights(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").rename(tmp_path / "blob")  # as in the cache of huggingface_hub
    (folder / "parts").mkdir()
    (folder / "parts" / "a.safetensors").symlink_to(tmp_path / "blob")
    model = without_weights_in_one_file(folder)
    assert load_model(Model(str(folder))).num_parameters() == model


def without_weights_in_one_file(folder: Path) -> int:
    """Write the index of weights in parts/a.safetensors, and return the number of parameters."""
    from safetensors import safe_open

    with safe_open(folder / "parts" / "a.safetensors", "pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}
    index = {"metadata": {}, "weight_map": dict.fromkeys(shapes, "parts/a.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return sum(int.__mul__(*shape) if len(shape) == 2 else shape[0] for shape in shapes.values())


def test_truncated_weights_are_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ConfigError, match=r"no model can be loaded .*\n  got:  SafetensorError: "):
        load_model(Model(str(folder)))


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_file_that_is_none_is_refused(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(ConfigError, match=rf"{name}'\n  got:  no regular file"):
        _open(folder)


@pytest.mark.slow
def test_published_configurations_are_accepted() -> None:
    """In a process of its own: it imports hundreds of modules of transformers."""
    code = """
import json, sys, tempfile
from pathlib import Path
from transformers import CONFIG_MAPPING
from purerl.models.config_file import check_model_files
folder, count = Path(tempfile.mkdtemp()), 0
for name in CONFIG_MAPPING:
    try:
        config = CONFIG_MAPPING[name]()
    except Exception:
        continue  # it needs arguments or another package
    (folder / "config.json").write_text(config.to_json_string(use_diff=False))
    check_model_files(folder)
    count += 1
print(count)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(process.stdout.split()[-1]) > 300


def test_directory_without_files_is_left_to_transformers(tmp_path: Path) -> None:
    check_model_files(tmp_path)
