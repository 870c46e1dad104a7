"""The plan of a configuration: its table, what it assumes, suggestions, and the refusal of runs that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.algos import dpo, grpo, ppo
from purerl.algos.modifiers import kl_loss
from purerl.backends.hf.lora import Lora
from purerl.composition import Composition
from purerl.config.overrides import apply
from purerl.config.requirements import requirements_of
from purerl.config.schema import RunConfig
from purerl.errors import ConfigError
from purerl.loop.train import train
from purerl.planning import plan_memory
from purerl.planning.check import check_memory
from purerl.planning.suggest import suggest
from purerl.planning.workload import Lengths, workload_of
from purerl.recipes import resolve
from purerl.settings import Model
from purerl.system.memory_use import Workload, format_bytes
from tests.data.made import write
from tests.loop.small import fake
from tests.planning.models import write_model
from tests.recipes.made import PROBLEMS

MIB = 2**20


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """GRPO with a small model, 4 prompts and 4 completions of 40 tokens."""
    folder = tmp_path_factory.mktemp("plan")
    model = write_model(folder / "model", num_hidden_layers=1)
    rows = [{"prompt": problem["question"], "answer": "7"} for problem in PROBLEMS]
    settings = [f"model={model.path}", f"data={write(folder / 'rows.jsonl', rows)}", "data.max_prompt_tokens=24"]
    settings += ["batch_size=4", "num_minibatches=1", "rollout.samples_per_prompt=4", "rollout.max_tokens=40"]
    settings += ["trainer.max_tokens_per_microbatch=1024", "trainer.recompute=none", "trainer.device=cpu"]
    settings += ["generator.device=cpu", "trainer.mixed_precision=off", "evaluate=", "data.validation_fraction=0.0"]
    return resolve("gsm8k", settings)


def test_phases_are_sums_and_the_largest_is_the_peak(config: RunConfig) -> None:
    plan = plan_memory(config)
    assert list(plan.phases) == ["sampling", "scoring", "training", "optimizer", "weight sync"]
    for phase, total in plan.phases.items():
        assert total == sum(sizes.get(phase, 0) for sizes in plan.device.values())
    assert (plan.peak_phase, plan.peak, plan.fits) == ("training", plan.phases["training"], True)
    assert plan.assumed == ()
    parameters = plan.device["policy: parameters"]["training"]
    assert plan.device["policy: AdamW's moments"]["training"] == pytest.approx(2 * parameters, rel=0.01)
    assert "generator: parameters" not in plan.device
    assert plan.device["policy: gradients"].keys() == {"training", "optimizer"}
    assert plan.device["policy: gradients"]["training"] == pytest.approx(parameters, rel=0.01)


def test_a_plan_says_and_counts_whether_the_generator_has_a_copy(config: RunConfig) -> None:
    shared, stale = plan_memory(config), evolve(config, rollout=evolve(config.rollout, max_staleness=1))
    parameters = shared.device["policy: parameters"]["training"]
    assert shared.remarks == ("generator: samples with the weights of the trainer; there is no copy for it",)
    copied = plan_memory(stale)
    assert copied.remarks == ("generator: has a copy of the weights of the policy: rollout.max_staleness is 1",)
    assert copied.device["generator: parameters"] == dict.fromkeys(copied.phases, parameters)
    assert plan_memory(config, ranks=2).remarks == ("generator: has a copy of the weights of the policy: 2 ranks",)
    mixed = plan_memory(evolve(config, trainer=evolve(config.trainer, mixed_precision="bfloat16")))
    (remark,) = mixed.remarks
    assert remark == (
        "generator: samples with casts of the weights, which the trainer computes with; there is no copy for it"
    )
    assert mixed.device["generator: parameters"]["training"] == pytest.approx(parameters / 2, rel=0.01)


def test_a_merged_copy_and_the_weights_without_adapter_are_counted_with_lora(config: RunConfig) -> None:
    lora = evolve(config, trainer=evolve(config.trainer, lora=Lora(rank=4)))
    shared, copied = (plan_memory(each) for each in (lora, apply(lora, ["generator.copy_weights=true"])))
    added = {*copied.device} - {*shared.device}
    assert added == {"generator: parameters", "generator: weights without adapter"}
    assert (
        0
        < copied.device["generator: weights without adapter"]["training"]
        < copied.device["generator: parameters"]["training"]
    )
    assert shared.peak < copied.peak


def test_arguments_in_a_table_do_not_prevent_a_plan(config: RunConfig) -> None:
    settings = ["trainer.lr_scheduler=cosine_with_restarts", "trainer.optimizer=torch.optim:Adafactor"]
    settings += ["trainer.lr_scheduler_kwargs={num_cycles=2}", "trainer.optimizer.kwargs={decay_rate=-0.5}"]
    assert plan_memory(apply(config, settings)).peak > 0


def test_every_model_of_the_algorithm_counts(config: RunConfig) -> None:
    algorithm = Composition(ppo.Config(), (kl_loss.Config(coef=0.01),))
    plan = plan_memory(evolve(config, algorithm=algorithm))
    owners = {name.partition(":")[0] for name in plan.device}
    assert owners == {"policy", "critic", "reference", "generator", "batch", "program and libraries"}
    assert "reference: gradients" not in plan.device


def test_the_reference_of_an_adapter_shares_the_weights_of_the_policy(config: RunConfig) -> None:
    algorithm = Composition(grpo.Config(), (kl_loss.Config(coef=0.01),))
    settings = evolve(config.trainer, lora=Lora(rank=4))
    plan = plan_memory(evolve(config, algorithm=algorithm, trainer=settings))
    assert not any(name.startswith("reference") for name in plan.device)


def test_asynchronous_runs_keep_keys_and_values_while_they_train(config: RunConfig) -> None:
    plan = plan_memory(evolve(config, rollout=evolve(config.rollout, max_staleness=1)))
    keys = plan.device["generator: keys and values"]
    assert keys["training"] == keys["sampling"] > 0


def test_memory_of_an_accelerator_is_apart_from_main_memory(config: RunConfig) -> None:
    settings = evolve(config.trainer, device="auto")
    plan = plan_memory(evolve(config, trainer=settings), memory=80 * 2**30)
    assert plan.capacity.is_accelerator
    assert (list(plan.host), "batch" in plan.device) == (["program and libraries", "batch"], False)


def _workload_of(config: RunConfig, *, ranks: int = 1, prompt: int | None = None) -> tuple[Workload, list[str]]:
    options = {"ranks": ranks, "lengths": Lengths(prompt=prompt), "max_prompt_tokens": config.data.max_prompt_tokens}
    return workload_of(requirements_of(config), config.rollout, config.environment, **options)


def test_lengths_that_the_configuration_does_not_limit_are_assumed(config: RunConfig) -> None:
    unlimited = evolve(config, data=evolve(config.data, max_prompt_tokens=None))
    workload, assumed = _workload_of(unlimited, ranks=2)
    assert (workload.prompt_tokens, workload.ranks) == (512, 2)
    assert assumed == ["prompts of 512 tokens, because data.max_prompt_tokens is not set (--prompt-tokens)"]
    assert _workload_of(unlimited, prompt=100)[0].row_tokens == 140
    pairs = evolve(config, algorithm=dpo.Config(), rollout=None, generator=None)
    workload, assumed = _workload_of(pairs)
    assert (workload.rows, workload.group_size, len(assumed)) == (8, 2, 1)


def test_engines_that_cannot_plan_are_named() -> None:
    plan = plan_memory(fake(model=Model("bigrams")))
    assert plan.assumed[-1] == "the generator fake is not counted: its memory is not known"


def test_models_that_the_run_creates_cannot_be_planned() -> None:
    with pytest.raises(ConfigError, match="which the run itself creates"):
        plan_memory(fake())


@pytest.fixture
def no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program itself needs no memory. It needs more than the small models here."""
    monkeypatch.setattr("purerl.planning.plan._PROGRAM", 0)


@pytest.mark.slow
@pytest.mark.usefixtures("no_program")
def test_suggestions_can_be_pasted_and_lower_the_peak(config: RunConfig) -> None:
    now = plan_memory(config)
    memory = now.peak - now.peak // 8
    found = suggest(config, memory=memory)
    assert found[0].plan.fits
    assert ("trainer.recompute=layers",) in [each.settings for each in found]
    for each in found:
        assert plan_memory(apply(config, list(each.settings)), memory=memory).peak == each.plan.peak < now.peak


def test_changes_are_combined_if_one_does_not_suffice(config: RunConfig) -> None:
    best = suggest(config, memory=2**40)[0].plan.peak
    found = suggest(config, memory=best - 1)
    assert len(found[0].settings) > 1
    assert found[0].plan.peak < best


@pytest.mark.usefixtures("no_program")
@pytest.mark.parametrize(("memory", "remedy"), [(12, "--set "), (4, "more ranks or a smaller model: --set ")])
def test_a_run_that_does_not_fit_is_refused_before_a_model_is_loaded(
    memory: int, remedy: str, config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("purerl.backends.hf.model.load.load_model", load)
    monkeypatch.setattr("purerl.planning.capacity.host_memory", lambda: memory * MIB)
    with pytest.raises(ConfigError) as caught:
        train(config, directory=tmp_path / "run")
    lines = str(caught.value).splitlines()
    assert lines[0] == "too little memory"
    assert (
        lines[1] == f"  got:  {format_bytes(plan_memory(config).peak)} on each rank in the phase training, by the plan"
    )
    assert lines[2] == f"  need: at most {memory}.0 MiB: main memory"
    assert lines[3].startswith(f"  do:   {remedy}")
    assert ("is not enough; " in lines[3]) == (memory == 4)
    assert lines[3].endswith("`purerl plan` shows everything; placement.check_memory=false runs nevertheless")
    unchecked = evolve(config, placement=evolve(config.placement, check_memory=False))
    assert check_memory(unchecked, requirements_of(unchecked), 1) is None


def test_small_models_are_not_planned(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a small model was planned")

    monkeypatch.setattr("purerl.planning.check.plan_memory", plan)
    assert check_memory(config, requirements_of(config), 1) is None
