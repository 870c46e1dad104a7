"""The summary of a run, and the files and models that it needs."""

from __future__ import annotations

from attrs import evolve

from purerl.config.overrides import apply
from purerl.config.plan import plan
from purerl.recipes import resolve
from purerl.recipes.addition import addition
from tests.data.test_settings import MIXED


def test_plan_has_the_totals_of_both_runs() -> None:
    lines = plan(addition()).splitlines()
    assert lines[0] == "addition, initial run: sft, 600 steps"
    correct = "a completion is correct if purerl.rewards.exact:exact_match gives at least 1"
    assert lines[7] == f"  accuracy     {correct}"
    assert lines[10:] == [
        "addition: dapo, 240 steps",
        "  prepare data  purerl.recipes.addition:prepare",
        "  data          {run}/prepared/train.parquet",
        "  models        policy (hf)",
        "  generator     hf",
        "  step          128 prompts x 8 completions of at most 4 tokens: 1,024 rows; optimizer steps: 2",
        "  total         at most 245,760 rows; optimizer steps: 480",
        "  evaluation    every 40 steps: all problems of {run}/prepared/held_out.parquet",
        f"  accuracy      {correct}",
        "  checkpoints   every 20 steps; the newest 2 are kept",
    ]


def test_plan_of_epochs_has_no_totals() -> None:
    lines = plan(resolve("gsm8k", ["model=m", "data=d", "num_epochs=0.5"])).splitlines()
    assert lines[0] == "gsm8k: grpo, epochs: 0.5"
    assert not any(line.startswith("  total") for line in lines)


def test_plan_names_every_model_and_its_engine() -> None:
    config = apply(addition(), ["algorithm.kind=ppo", "roles.critic.trainer.kind=fake"])
    assert "  models        critic (fake), policy (hf)" in plan(config).splitlines()


def test_plan_has_the_optimizer_steps_of_each_model_if_they_differ() -> None:
    lines = plan(apply(addition(), ["algorithm=ppo", "roles.critic.ppo_epochs=2"])).splitlines()
    assert lines[-5].endswith("1,024 rows; optimizer steps: 4 of the critic, 2 of the policy")
    assert lines[-4].endswith("optimizer steps: 960 of the critic, 480 of the policy")


def test_plan_names_the_model_of_an_adapter_once() -> None:
    settings = ["model=m", "data=d", "algorithm.kl_loss=0.01"]
    [whole] = [line.split("  ") for line in plan(resolve("gsm8k", settings)).splitlines() if "models" in line]
    assert whole[-1].strip() == "policy (hf), reference (hf)"
    adapter = plan(resolve("gsm8k", [*settings, "trainer.lora.rank=8"]))
    [once] = [line.split("  ") for line in adapter.splitlines() if "models" in line]
    assert once[-1].strip() == "policy (hf; without its adapter: reference)"


def test_plan_describes_mixtures_and_the_validation_set() -> None:
    lines = plan(evolve(addition(), data=MIXED)).splitlines()
    assert "  data          a.parquet (75%), b.jsonl (25%); prompts of at most 512 tokens" in lines
    config = apply(addition(), ["data.validation_fraction=0.05", "evaluate.data={}", "evaluate.max_examples=100"])
    lines = plan(config).splitlines()
    assert "  data          {run}/prepared/train.parquet; 5.0% for validation" in lines
    assert "  evaluation    every 40 steps: the first 100 problems of the validation set" in lines
