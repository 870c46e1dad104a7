"""Training that starts from adapters of peft: some initializations change the model, and are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from purerl.backends.hf.decoder.loading import load_model
from purerl.backends.hf.lora import CONFIG_FILE, Lora, notes_of
from purerl.errors import ConfigError
from purerl.settings import Model
from tests.backends.tiny import make_trainer, write_model
from tests.backends.training import make_batch

_RANK, _ALPHA = 4, 6


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("models"))


def _adapter(path: str, directory: Path, *, dtype: str = "float64", **settings: Any) -> Any:
    """An adapter of peft with random matrices, saved in `directory`; the model with it."""
    from peft import LoraConfig, get_peft_model

    options = {"r": _RANK, "lora_alpha": _ALPHA, "target_modules": ["q_proj", "down_proj"], **settings}
    model = get_peft_model(load_model(Model(path, dtype=dtype)), LoraConfig(**options))
    _disturb(model)
    model.save_pretrained(directory)
    return model.eval()


def _disturb(model: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.data += 0.1 * noise.to(parameter.dtype)


def _edit(directory: Path, **settings: Any) -> None:
    file = directory / CONFIG_FILE
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


def _lora(directory: Path, **changes: Any) -> Lora:
    settings = {"rank": _RANK, "alpha": _ALPHA, "target_modules": ("q_proj", "down_proj")}
    return Lora(**{**settings, **changes}, initial=str(directory))


def _logp(model: Any) -> torch.Tensor:
    batch = make_batch()
    logits = model(input_ids=batch["tokens"], attention_mask=batch["attention_mask"].long()).logits
    logits = logits / torch.where(batch["temperature"] > 0, batch["temperature"], 1)[:, None, None]
    logp = logits.log_softmax(-1)[:, :-1].gather(-1, batch["tokens"][:, 1:, None])[..., 0]
    return torch.nn.functional.pad(logp, (1, 0)) * batch["action"]


def _check_equal(path: str, lora: Lora, model: Any, *, atol: float = 1e-6) -> None:
    ours = make_trainer(path, lora=lora).score(make_batch(), ["logp"])["logp"]
    torch.testing.assert_close(ours, _logp(model).double(), rtol=0, atol=atol)


@pytest.mark.parametrize("initialization", [True, False, "gaussian", "orthogonal"])
def test_an_adapter_computes_what_peft_computes(path: str, tmp_path: Path, initialization: bool | str) -> None:
    _check_equal(path, _lora(tmp_path), _adapter(path, tmp_path, init_lora_weights=initialization))


def test_an_adapter_whose_matrices_come_from_data_leaves_the_model_as_it_is(path: str, tmp_path: Path) -> None:
    from peft import PeftModel

    _adapter(path, tmp_path)
    _edit(tmp_path, init_lora_weights="eva")
    model = PeftModel.from_pretrained(load_model(Model(path, dtype="float64")), tmp_path).eval()
    _check_equal(path, _lora(tmp_path), model)


@pytest.mark.parametrize("initialization", ["pissa", "pissa_niter_4", "olora", "loftq", "corda", "lora_ga", "mica"])
def test_an_initialization_that_changes_the_model_is_refused(path: str, tmp_path: Path, initialization: str) -> None:
    _adapter(path, tmp_path)
    _edit(tmp_path, init_lora_weights=initialization)
    with pytest.raises(ConfigError, match=rf"init_lora_weights {initialization}\n(.*\n)*.*path_initial_model"):
        make_trainer(path, lora=_lora(tmp_path))


@pytest.mark.parametrize("initialization", ["pissa", "olora"])
def test_the_remedy_for_such_an_adapter_gives_what_it_computes(path: str, tmp_path: Path, initialization: str) -> None:
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(r=_RANK, lora_alpha=_ALPHA, target_modules=["q_proj"], init_lora_weights=initialization)
    model = get_peft_model(load_model(Model(path, dtype="float32")), settings)
    model.save_pretrained(tmp_path / "initial")
    _disturb(model)
    model.save_pretrained(tmp_path / "plain", path_initial_model_for_weight_conversion=str(tmp_path / "initial"))
    plain = json.loads((tmp_path / "plain" / CONFIG_FILE).read_text())
    changes = {"rank": plain["r"], "alpha": plain["lora_alpha"], "target_modules": ("q_proj",)}
    _check_equal(path, _lora(tmp_path / "plain", **changes), model.double().eval(), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bias", "lora_only"),
        ("use_dora", True),
        ("use_qalora", True),
        ("arrow_config", {"top_k": 2}),
        ("a_setting_of_next_year", 3),
    ],
)
def test_settings_that_are_not_read_are_refused_by_name(path: str, tmp_path: Path, name: str, value: Any) -> None:
    _adapter(path, tmp_path)
    _edit(tmp_path, **{name: value})
    with pytest.raises(ConfigError, match=f"got: .*{name} "):
        make_trainer(path, lora=_lora(tmp_path))


def test_the_dropout_of_an_adapter_is_a_note(path: str, tmp_path: Path) -> None:
    _adapter(path, tmp_path, lora_dropout=0.25)
    trainer = make_trainer(path, lora=_lora(tmp_path))
    expected = f"lora_dropout 0.25 of {str(tmp_path)!r} is not used: dropout is off in training"
    assert trainer.capabilities.notes == (expected,)
    assert notes_of(Lora()) == notes_of(None) == ()


def test_layers_that_the_adapter_does_not_have_are_refused(path: str, tmp_path: Path) -> None:
    _adapter(path, tmp_path)
    with pytest.raises(ConfigError, match=r"set lora.target_modules to the layers that the adapter has"):
        make_trainer(path, lora=_lora(tmp_path, target_modules=("all-linear",)))
