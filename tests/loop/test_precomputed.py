"""Log-probabilities of the reference that are computed before the first step: the same run, without the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from safetensors.torch import load, load_file

from purerl.algos import dpo, kto
from purerl.batch import collate
from purerl.config.check import check
from purerl.config.schema import Role, RunConfig
from purerl.data.settings import Data
from purerl.errors import ConfigError, EngineError
from purerl.evaluation.settings import Validation
from purerl.loop.train import train
from purerl.opening import engines, precomputed
from purerl.runs import run_config
from tests.data.made import write

from .runs import records, train_until, without_times
from .small import fake

NO_SAMPLING: dict[str, Any] = {"rollout": None, "generator": None, "rewards": (), "evaluate": None}
PAIRS = [{"prompt": f"{k}+{k}=", "chosen": f"{2 * k}", "rejected": f"{2 * k + 1}" * (1 + k % 3)} for k in range(10, 35)]
LABELS = [{"prompt": f"{k}+{k}=", "completion": f"{2 * k}", "label": k % 2 == 0} for k in range(10, 35)]
STORED = Path("precomputed") / "reference.safetensors"


def _config(folder: Path, algorithm: Any, *, precompute: bool, **changes: Any) -> RunConfig:
    has_pairs = isinstance(algorithm, dpo.Config)
    file = write(folder / "rows.jsonl", PAIRS if has_pairs else LABELS)
    validation = Validation(every=2) if has_pairs else None
    settings = {
        "algorithm": algorithm,
        "data": Data(files=(file,), validation_fraction=0.3 if has_pairs else None),
        "validation": validation,
        "roles": {"reference": Role(precompute=precompute)},
    }
    return fake(**{"max_steps": 6} | settings | NO_SAMPLING | changes)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The trainers that are opened: before the first step, and for the steps."""
    names, open_trainer = [], engines.open_trainer

    def spied(prefix: str) -> Any:
        return lambda name, *args, **kwargs: (names.append(prefix + name), open_trainer(name, *args, **kwargs))[1]

    monkeypatch.setattr(precomputed, "open_trainer", spied("before: "))
    monkeypatch.setattr(engines, "open_trainer", spied(""))
    return names


@pytest.mark.parametrize("algorithm", [dpo.Config(), kto.Config()])
def test_the_run_is_the_same_without_the_model(algorithm: Any, tmp_path: Path, opened: list[str]) -> None:
    run = tmp_path / "run"  # one directory, because the fake engine draws the weights of a model from its path
    expected = without_times(records(train(_config(tmp_path, algorithm, precompute=False), directory=run)))
    assert sorted(opened) == ["policy", "reference"]
    opened.clear()
    config = _config(tmp_path, algorithm, precompute=True)
    assert without_times(records(train(config, directory=run, fresh=True))) == expected
    assert opened == ["before: reference", "policy"]
    train_until(3, config, directory=run, fresh=True)
    opened.clear()
    assert without_times(records(train(config, directory=run))) == expected
    assert opened == ["policy"], "the resumed run reads what is stored"


def test_outputs_are_computed_again_if_the_file_is_damaged(
    tmp_path: Path, opened: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    run, config = tmp_path / "run", _config(tmp_path, dpo.Config(), precompute=True)
    train_until(3, config, directory=run)
    stored = (run / STORED).read_bytes()
    (run / STORED).write_bytes(stored[:-4] + b"\x00\x00\x00\x01")
    opened.clear()
    train_until(4, config, directory=run)
    assert opened == ["before: reference", "policy"]
    assert "is damaged, and computed again" in caplog.text
    before, after = load(stored), load_file(run / STORED)
    assert all(torch.equal(before[name], after[name]) for name in ("keys", "lengths", "values"))


def test_rows_that_the_policy_samples_are_not_known_before_the_first_step() -> None:
    with pytest.raises(ConfigError, match="roles.reference.precompute\n  got:  true\n  need: rows of data; those that"):
        check(run_config("addition", ["algorithm.kl_loss=0.1", "roles.reference.precompute=true"]))


def test_row_that_is_not_stored_is_refused(tmp_path: Path) -> None:
    stored = precomputed.StoredOutputs({}, ("logp",))
    batch = collate([{"tokens": [1, 2], "action": [False, True], "row": 0, "group": 0, "temperature": 1.0}])
    with pytest.raises(EngineError, match="got:  a row that is not stored"):
        stored.score(batch, ("logp",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"roles": {"reference": Role(precompute=True, update_every=2)}},
            "roles.reference.precompute\n  got:  true\n  need: a reference that does not change",
        ),
        (
            {"algorithm": dpo.Config(), "roles": {"critic": Role(precompute=True)}},
            "roles.critic",
        ),
    ],
)
def test_what_is_not_known_before_the_first_step_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as error:
        check(evolve(_config(tmp_path, dpo.Config(), precompute=False), **changes))
    assert str(error.value).startswith(message)
