"""purerl's losses and estimators inside of verl, called by verl's code, against purerl and against verl's losses."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from purerl.adapters.frameworks import verl as adapter
from purerl.adapters.frameworks import verl_plugin
from purerl.adapters.frameworks.availability import VERL, estimator_refusals, loss_refusals
from purerl.algos.algebra import keep_all
from purerl.batch import with_fields
from purerl.config.presets import presets
from purerl.errors import BatchError, ConfigError
from purerl.plugins import names

from .agreement import assert_agree
from .compositions import Result, algorithm_of, completions, result_of
from .verl_step import actor_config, gradient_of_step

core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: nox -s oracle")

NAMES = [*names("algorithm"), *presets()]
LOSSES = [name for name in NAMES if not [*loss_refusals(algorithm_of(name), VERL)]]
ESTIMATORS = [name for name in NAMES if not [*estimator_refusals(algorithm_of(name), VERL)]]

# preset -> verl's loss_mode, settings with which verl computes the same
NATIVE: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo@verl": ("vanilla", {}),
    "ppo@verl": ("vanilla", {}),
    "dapo@verl": ("vanilla", {"clip_ratio_high": 0.28, "clip_ratio_c": 10.0}),
    "gspo@verl": ("gspo", {}),
    "sapo@verl": ("sapo", {}),
    "cispo@verl": ("cispo", {}),
    "dro@verl": ("dro", {"policy_loss": {"dro_beta": 0.05}}),
}
_BYPASS = {"rollout_correction": {"bypass_mode": True}}


def _in_bypass_mode(batch: TensorDict) -> TensorDict:
    return with_fields(batch, rollout_logp=batch["old_logp"])


def _settings(name: str) -> dict[str, Any]:
    """Settings that a loss needs."""
    policy = algorithm_of(name).objectives[-1]
    return {"policy_loss": _BYPASS} if "rollout_logp" in policy.reads else {}


def _advantage(batch: TensorDict) -> torch.Tensor:
    draw = torch.Generator().manual_seed(len(batch))
    return torch.randn(batch["mask"].shape, generator=draw, dtype=torch.float64) * batch["mask"]


def _result_of_loss(name: str, batch: TensorDict, advantage: torch.Tensor) -> Result:
    """The result of purerl's loss for these advantages."""
    algorithm = algorithm_of(name)._replace(reads=(), advantage=algorithm_of("sft").advantage, select=keep_all)
    return result_of(algorithm, with_fields(batch, advantage=advantage))


# --- registration ------------------------------------------------------------------------------------------------


def test_importing_verl_has_registered_every_loss_and_estimator() -> None:
    def registered(registry: dict[str, Any]) -> set[str]:
        return {name.removeprefix("purerl:") for name in registry if name.startswith("purerl:")}

    assert registered(core_algos.POLICY_LOSS_REGISTRY) == {*LOSSES}
    assert registered(core_algos.ADV_ESTIMATOR_REGISTRY) == {*ESTIMATORS}


def test_the_numbers_of_algorithms_in_verl() -> None:
    losses, estimators = ({*found} & {*names("algorithm")} for found in (LOSSES, ESTIMATORS))
    assert (len(losses), len(estimators), len(losses & estimators)) == (51, 44, 34)


def test_the_plugin_is_an_entry_point_of_the_installed_purerl() -> None:
    [entry] = [entry for entry in entry_points(group="verl.plugins") if entry.name == "purerl"]
    assert entry.load()


def test_importing_verl_prints_one_line_of_what_is_registered(tmp_path: Path) -> None:
    path = tmp_path / "variants.toml"
    path.write_text('[mine]\nkind = "gspo"\nclip_high = 0.001\n[with_critic]\nkind = "ppo"\n')
    environment = {"PURERL_VERL": str(path), "PATH": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", "import verl"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in run.stderr.splitlines() if line.startswith("purerl ")]
    assert run.returncode == 0, run.stderr
    [line] = lines
    count = f"{len(LOSSES) + 2} policy losses and {len(ESTIMATORS) + 1} advantage estimators, named purerl:NAME"
    assert line.endswith(f"in verl: {count}; variants in {path}: mine, with_critic (loss only)")


def test_an_error_while_loading_is_printed_although_verl_hides_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "purerl.adapters.frameworks.verl", None)
    with pytest.raises(ImportError):
        verl_plugin.load()
    printed = capsys.readouterr().err
    assert printed.startswith("purerl cannot be used in verl, because of this error\nTraceback")
    assert "purerl.adapters.frameworks.verl" in printed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]\nkind = 'gspoo'", "did you mean 'gspo'?"),
        ("[a]\nkind = 'gspo'\nclip_hihg = 1.0", "did you mean 'clip_high'?"),
        ("[gspo]\nkind = 'gspo'", "got:  the name of an algorithm of purerl"),
        ("a = 1", "need: a table"),
        ("[a]\nkind = 'dpo'", "it computes no advantage; its loss reads ref_logp, chosen"),
        ("[a", "need: a TOML file"),
    ],
)
def test_an_invalid_file_of_variants_ends_the_process(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "variants.toml"
    path.write_text(text)
    monkeypatch.setenv("PURERL_VERL", str(path))
    with pytest.raises(SystemExit) as ended:
        verl_plugin.load()
    assert message in str(ended.value)
    assert str(path) in str(ended.value)


# --- losses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_in_verl_has_the_value_and_gradient_of_purerl(name: str) -> None:
    batch = _in_bypass_mode(completions(1))
    advantage = _advantage(batch)
    ours = _result_of_loss(name, batch, advantage)
    config = actor_config(f"purerl:{name}", **_settings(name))
    for ranks, micro_batches in ((1, 1), (1, 5), (2, 2)):
        loss, gradient = gradient_of_step(config, batch, advantage, ranks=ranks, micro_batches=micro_batches)
        assert_agree("verl's loss of purerl", ours, Result(ours.advantage, loss, gradient))
    assert gradient.abs().max() > 0


@pytest.mark.parametrize("name", NATIVE)
def test_a_preset_in_verl_has_the_value_and_gradient_of_verls_own_loss(name: str) -> None:
    mode, settings = NATIVE[name]
    for seed in range(3):
        batch = completions(seed)
        advantage = _advantage(batch)
        for ranks, micro_batches in ((1, 1), (2, 3)):
            run = partial(gradient_of_step, batch=batch, advantage=advantage, ranks=ranks, micro_batches=micro_batches)
            theirs, ours = run(actor_config(mode, **settings)), run(actor_config(f"purerl:{name}"))
            assert_agree("verl", Result(advantage, *ours), Result(advantage, *theirs))


def test_importance_weights_of_verl_multiply_the_policy_loss() -> None:
    batch, weight = completions(3), 0.5 + torch.rand(completions(3)["mask"].shape, dtype=torch.float64)
    advantage, mask = _advantage(batch), batch["mask"]
    arguments = (batch["old_logp"], batch["logp"], advantage, mask)
    for ours, theirs in (("purerl:grpo@verl", "vanilla"), ("purerl:cispo@verl", "cispo")):
        losses = [
            core_algos.get_policy_loss_fn(mode)(*arguments, "token-mean", actor_config(mode), rollout_is_weights=weight)
            for mode in (ours, theirs)
        ]
        torch.testing.assert_close(losses[0][0], losses[1][0], rtol=1e-12, atol=0)


def test_a_loss_reports_its_metrics_under_verls_names_too() -> None:
    batch = completions(0)
    arguments = (batch["old_logp"], batch["logp"], _advantage(batch), batch["mask"])
    functions = [core_algos.get_policy_loss_fn(mode) for mode in ("purerl:grpo@verl", "vanilla")]
    (_, ours), (_, theirs) = (function(*arguments, config=actor_config("vanilla")) for function in functions)
    assert ours["actor/ppo_kl"] == pytest.approx(theirs["actor/ppo_kl"], rel=1e-9)
    assert {"actor/approx_kl", "actor/ratio", "actor/clip_fraction", "actor/pg_clipfrac"} <= {*ours}
    assert not [name for name in ours if "entropy" in name or "loss" in name]


@pytest.mark.parametrize(
    ("mode", "settings", "message"),
    [
        ("purerl:grpo", {"clip_ratio_high": 0.28}, "actor.clip_ratio_high"),
        ("purerl:grpo", {"clip_ratio": 0.1}, "actor.clip_ratio"),
        ("purerl:dro", {"policy_loss": {"dro_beta": 0.1}}, "actor.policy_loss.dro_beta"),
        ("purerl:gspo", {"loss_agg_mode": "token-sum"}, "seq-mean-token-mean or token-mean"),
        ("purerl:dppo", {}, "bypass_mode=True"),
    ],
)
def test_settings_of_verl_without_effect_are_refused(mode: str, settings: dict[str, Any], message: str) -> None:
    batch = completions(0)
    with pytest.raises(ConfigError, match=message):
        gradient_of_step(actor_config(mode, **settings), batch, _advantage(batch))


def test_counts_of_the_mini_batch_are_needed_on_several_ranks() -> None:
    batch, config = completions(0), actor_config("purerl:grpo")
    config.global_batch_info["dp_size"] = 2
    with pytest.raises(ConfigError, match="the counts of the whole mini-batch"):
        core_algos.get_policy_loss_fn("purerl:grpo")(
            batch["old_logp"], batch["logp"], _advantage(batch), batch["mask"], config=config
        )


def test_losses_with_the_default_configuration_of_verl() -> None:
    """The values in verl's YAML files are the defaults of its dataclasses, and its command line accepts the names."""
    overrides = ["algorithm.adv_estimator=purerl:rloo", "actor_rollout_ref.actor.policy_loss.loss_mode=purerl:grpo@trl"]
    hydra = import_module("hydra")
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        config = hydra.compose("ppo_trainer", [*overrides, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"])
    actor = import_module("verl.utils.config").omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    batch = completions(2)
    expected = _result_of_loss("grpo@trl", batch, _advantage(batch))
    loss, gradient = gradient_of_step(actor, batch, _advantage(batch))
    assert_agree("verl's loss of purerl", expected, Result(expected.advantage, loss, gradient))
    estimator = core_algos.get_adv_estimator_fn(config.algorithm.adv_estimator)
    advantage, returns = estimator(
        token_level_rewards=batch["reward"],
        response_mask=batch["mask"],
        config=config.algorithm,
        index=batch["group"].numpy().astype(str).astype(object),
    )
    torch.testing.assert_close(advantage, result_of(algorithm_of("rloo"), batch).advantage)
    assert returns is advantage


# --- estimators --------------------------------------------------------------------------------------------------


def _estimate(name: str, batch: TensorDict, config: Any = None) -> torch.Tensor:
    estimator = core_algos.get_adv_estimator_fn(f"purerl:{name}")
    labels = np.array([f"prompt {group}" for group in batch["group"].tolist()], dtype=object)
    advantage, _ = estimator(
        token_level_rewards=batch["reward"], response_mask=batch["mask"].long(), config=config, index=labels
    )
    return advantage


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_in_verl_has_the_advantages_of_purerl(name: str) -> None:
    batch = completions(4, prompts=2, samples=6)
    batch = with_fields(
        batch, reward=batch["reward"] * (1 + batch["row"] / 100).unsqueeze(-1)
    )  # one of each group is best
    filters = {"filter_groups": {"enable": True}}
    algorithm = algorithm_of(name)
    advantage = _estimate(name, batch, filters if algorithm.select is not keep_all else None)
    expected = algorithm_of("grpo")._replace(reads=algorithm.reads, advantage=algorithm.advantage)
    torch.testing.assert_close(advantage, result_of(expected, batch).advantage)
    assert advantage.abs().max() > 0


@pytest.mark.parametrize("name", ["grpo", "rloo", "opo", "reinforce_plus_plus_baseline"])
def test_an_estimator_of_a_preset_has_the_advantages_of_verls_own(name: str) -> None:
    batch = completions(5)
    theirs, _ = core_algos.get_adv_estimator_fn(name)(
        token_level_rewards=batch["reward"].clone(),
        response_mask=batch["mask"].double(),
        index=batch["group"].numpy().astype(object),
    )
    torch.testing.assert_close(_estimate(f"{name}@verl", batch), theirs * batch["mask"], rtol=1e-6, atol=1e-8)


def test_settings_of_verl_without_effect_on_an_estimator_are_refused() -> None:
    for name, value in {"gamma": 0.9, "lam": 0.9, "norm_adv_by_std_in_grpo": False}.items():
        with pytest.raises(ConfigError, match=f"algorithm.{name}"):
            _estimate("grpo", completions(0), {name: value})


def test_an_estimator_that_selects_groups_needs_verls_filter() -> None:
    with pytest.raises(ConfigError, match="filter_groups.enable=True"):
        _estimate("dapo", completions(0), {"filter_groups": {"enable": False}})


def test_groups_that_are_too_small_are_refused() -> None:
    with pytest.raises(BatchError, match="every advantage is 0"):
        _estimate("pass_k", completions(0, samples=4))
    with pytest.raises(BatchError, match="rows without labels"):
        core_algos.get_adv_estimator_fn("purerl:grpo")(completions(0)["reward"], completions(0)["mask"])


def test_registering_again_changes_nothing() -> None:
    before = dict(core_algos.POLICY_LOSS_REGISTRY)
    assert {*adapter.register().losses} == {*LOSSES}
    assert before == core_algos.POLICY_LOSS_REGISTRY
