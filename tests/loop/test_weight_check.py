"""The check before the first step: an engine that keeps old values of any kind of weight is found, and names them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import Tensor

from purerl.backends.hf import generator as hf_generator
from purerl.backends.hf import trainer as hf_trainer
from purerl.backends.hf.lora import Lora
from purerl.backends.hf.sampling.engine import HFGenerator
from purerl.backends.hf.training.engine import HFTrainer
from purerl.backends.serving.generator import ServedGenerator
from purerl.config.schema import RunConfig
from purerl.errors import EngineError
from purerl.loop.train import train
from purerl.opening.weight_check import check_updates
from purerl.protocols import Completion, Request, Weights
from purerl.ranks import ONE_RANK
from purerl.settings import Model
from tests.backends.generators import tiny_model
from tests.backends.tiny import VOCAB_SIZE
from tests.loop.runs import records
from tests.loop.small import small_real

pytestmark = pytest.mark.slow

TOKENS = range(VOCAB_SIZE)


class Partly:
    """`weights` with the values `old` in place of those of the same names."""

    def __init__(self, weights: Weights, old: Mapping[str, Tensor]) -> None:
        self._weights, self._old, self.adapter, self.metadata = weights, old, weights.adapter, weights.metadata

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, self._old.get(name, value)) for name, value in self._weights)


def values_of(weights: Weights, names: Collection[str]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in weights if name in names}


class Keeping:
    """`generator`, which keeps the first values of the weights in `stale`."""

    def __init__(self, generator: HFGenerator | ServedGenerator, stale: Collection[str]) -> None:
        self._generator, self._stale, self.transfers = generator, stale, 0
        self._old: dict[str, Tensor] = {}
        self.capabilities = generator.capabilities

    def submit(self, requests: list[Request]) -> None:
        self._generator.submit(requests)

    def collect(self, timeout: float | None = None) -> list[Completion]:
        return self._generator.collect(timeout)

    def cancel(self, keys: list[str]) -> None:
        self._generator.cancel(keys)

    def load_weights(self, weights: Weights, *, version: int) -> None:
        self.transfers += 1
        self._old = self._old or values_of(weights, self._stale)
        self._generator.load_weights(Partly(weights, self._old), version=version)

    def close(self) -> None:
        self._generator.close()


def policy_of(model: Model, **settings: Any) -> HFTrainer:
    config = hf_trainer.Config(device="cpu", **settings)
    return hf_trainer.build(config, model=model, role="policy", outputs=("logp",), updates=2, seed=0)


def generator_of(model: Model, stale: Collection[str] = ()) -> Keeping:
    return Keeping(hf_generator.build(hf_generator.Config(device="cpu"), model=model, seed=0), stale)


def check(model: Model, stale: Collection[str] = (), **settings: Any) -> float | None:
    return check_updates(policy_of(model, **settings), generator_of(model, stale), TOKENS, ranks=ONE_RANK, seed=0)


FAMILIES = ("qwen3", "qwen2", "llama", "gemma2", "qwen3_moe", "gpt2")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_generator_that_uses_all_weights_is_at_the_level_of_rounding(tmp_path: Path, family: str) -> None:
    level = check(tiny_model(tmp_path, family))
    assert level is not None
    assert level < 1e-5


def test_a_generator_with_the_tensors_of_the_trainer_is_sent_nothing_to_follow(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, "qwen3")
    policy = policy_of(model)
    shared = hf_generator.build_shared(hf_generator.Config(device="cpu"), trainer=policy, model=model, seed=0)
    generator = Keeping(shared, ())
    before = {name: value.clone() for name, value in policy.parameters.items()}
    level = check_updates(policy, generator, TOKENS, ranks=ONE_RANK, seed=0, is_shared=True)
    assert level is not None
    assert level < 1e-5
    assert generator.transfers == 1
    assert all(torch.equal(value, before[name]) for name, value in policy.parameters.items())


@pytest.mark.parametrize(
    ("changes", "transfers"),
    [({}, 1), ({"lora": Lora(rank=2)}, 2), ({"mixed_precision": "bfloat16"}, 2)],
)
def test_a_run_changes_its_weights_before_the_first_step_only_if_something_has_to_follow_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], transfers: int
) -> None:
    load, versions = HFGenerator.load_weights, list[int]()

    def counted(self: HFGenerator, weights: Weights, *, version: int) -> None:
        versions.append(version)
        load(self, weights, version=version)

    monkeypatch.setattr(HFGenerator, "load_weights", counted)
    config = small_real(1)
    train(evolve(config, trainer=evolve(config.trainer, **changes)), directory=tmp_path / "run")
    assert versions[: transfers + 1] == [0] * (transfers + 1), "those of the check, and the first ones of the run"
    assert versions.count(0) == transfers + 1


STALE = [
    ("qwen3", "model.embed_tokens.weight", "model.embed_tokens.weight"),
    ("qwen3", "lm_head.weight", "lm_head.weight"),
    ("llama", "model.embed_tokens.weight", "model.embed_tokens.weight"),  # tied to the head
    ("qwen3", "model.norm.weight", "model.norm.weight"),
    ("qwen3", "model.layers.1.input_layernorm.weight", "model.layers.*.input_layernorm.weight"),
    ("qwen3", "model.layers.0.self_attn.q_norm.weight", "model.layers.*.self_attn.q_norm.weight"),
    ("qwen3", "model.layers.1.self_attn.k_norm.weight", "model.layers.*.self_attn.k_norm.weight"),
    ("qwen2", "model.layers.1.self_attn.v_proj.bias", "model.layers.*.self_attn.v_proj.bias"),
    ("qwen2", "model.layers.0.mlp.down_proj.weight", "model.layers.*.mlp.down_proj.weight"),
    ("qwen3_moe", "model.layers.1.mlp.gate.weight", "model.layers.*.mlp.gate.weight"),
]


@pytest.mark.parametrize(("family", "stale", "named"), STALE)
def test_a_stale_tensor_of_any_kind_is_named(tmp_path: Path, family: str, stale: str, named: str) -> None:
    with pytest.raises(EngineError, match="does not use new values of") as raised:
        check(tiny_model(tmp_path, family), {stale})
    of_all = {"*": "1 of 2"}.get("*" if "*" in named else "", "1 of 1")
    assert str(raised.value).splitlines()[0] == f"the generator does not use new values of {named} ({of_all})"


def test_stale_experts_are_named(tmp_path: Path) -> None:
    """The model has the experts of a layer in one tensor, and its files have one for each."""
    model = tiny_model(tmp_path, "qwen3_moe")
    files = [name for name in policy_of(model).weights().metadata if "layers.1.mlp.experts" in name and "down" in name]
    assert len(files) == 4
    with pytest.raises(EngineError, match=r"new values of model\.layers\.\*\.mlp\.experts\.down_proj \(1 of 2\)"):
        check(model, set(files))


def test_several_stale_kinds_are_named(tmp_path: Path) -> None:
    norms = {f"model.layers.{layer}.self_attn.q_norm.weight" for layer in (0, 1)}
    with pytest.raises(EngineError) as raised:
        check(tiny_model(tmp_path), {*norms, "lm_head.weight"})
    kinds = "lm_head.weight (1 of 1), model.layers.*.self_attn.q_norm.weight (2 of 2)"
    assert str(raised.value).splitlines()[0] == f"the generator does not use new values of {kinds}"


def test_a_generator_that_takes_no_weights_at_all_is_found(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    names = set(policy_of(model).weights().metadata) - {"model.norm.weight"}
    with pytest.raises(EngineError, match="does not use new values of lm_head"):
        check(model, names)


def test_a_stale_matrix_of_an_adapter_is_named(tmp_path: Path) -> None:
    model, lora = tiny_model(tmp_path), Lora(rank=2, target_modules=("q_proj", "v_proj"))
    assert check(model, lora=lora) is not None
    names = [name for name in policy_of(model, lora=lora).weights().metadata if "layers.0" in name and "q_proj" in name]
    with pytest.raises(EngineError, match=r"layers\.\*\.self_attn\.q_proj\.lora_\*\.weight \([12] of 4\)"):
        check(model, set(names), lora=lora)
    with pytest.raises(EngineError, match=r"new values of some of .*q_proj\.lora_\*"):  # seen with changed B
        check(model, {name for name in names if "lora_A" in name}, lora=lora)


def test_frozen_weights_are_not_sent_and_not_needed(tmp_path: Path) -> None:
    frozen = ("model.layers.0.*",)
    names = {"model.layers.0.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.weight"}
    assert check(tiny_model(tmp_path), names, freeze=frozen) is not None


@pytest.mark.parametrize("stale", [(), ("model.norm.weight",)])
def test_weights_and_the_first_step_are_as_without_the_check(tmp_path: Path, stale: tuple[str, ...]) -> None:
    model = tiny_model(tmp_path)
    policy, generator = policy_of(model), generator_of(model, stale)
    before = {name: value.clone() for name, value in policy.weights()}
    try:
        check_updates(policy, generator, TOKENS, ranks=ONE_RANK, seed=0)
    except EngineError:
        assert stale
    assert all(torch.equal(value, before[name]) for name, value in policy.weights())
    assert not policy.replaced


def test_another_model_is_refused(tmp_path: Path) -> None:
    policy, other = policy_of(tiny_model(tmp_path / "a")), generator_of(tiny_model(tmp_path / "b", seed=1))
    other.load_weights = lambda weights, *, version: None  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(EngineError) as raised:
        check_updates(policy, other, TOKENS, ranks=ONE_RANK, seed=0)
    what, got, need, do = str(raised.value).splitlines()
    assert what == "the generator computes another model than the trainer"
    assert re.fullmatch(r"  got:  [1-9]\S* nats between their log-probabilities with the same weights", got)
    assert need == "  need: at most 1 nat before the first step"
    assert do.startswith("  do:   set generator.kind to hf")


class Failing(Keeping):
    """A generator that completes no request."""

    def collect(self, timeout: float | None = None) -> list[Completion]:
        return [evolve(each, finish="error", error="a bug") for each in super().collect(timeout)]


def test_a_generator_that_completes_no_prompt_is_refused(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    failing = Failing(hf_generator.build(hf_generator.Config(device="cpu"), model=model, seed=0), ())
    with pytest.raises(EngineError, match=r"^the generator completes no prompt\n  got:  a bug$"):
        check_updates(policy_of(model), failing, TOKENS, ranks=ONE_RANK, seed=0)


class Copies(Keeping):
    """Several generators as one, of which some keep the first values of the weights in `stale`."""

    def __init__(self, model: Model, number: int, stale: Mapping[int, Collection[str]]) -> None:
        super().__init__(hf_generator.build(hf_generator.Config(device="cpu"), model=model, seed=0), ())
        self.parts = [generator_of(model, stale.get(copy, ())) for copy in range(number)]
        self.asked = [0] * number

    def copies(self) -> list[str]:
        return [f"copy {number}" for number in range(len(self.parts))]

    def submit_to(self, copy: int, requests: list[Request]) -> None:
        self.asked[copy] += len(requests)
        self.parts[copy].submit(requests)

    def submit(self, requests: list[Request]) -> None:
        raise AssertionError("the check asks each copy")

    def collect(self, timeout: float | None = None) -> list[Completion]:
        return [completion for part in self.parts for completion in part.collect(timeout)]

    def load_weights(self, weights: Weights, *, version: int) -> None:
        self.transfers += 1
        for part in self.parts:
            part.load_weights(weights, version=version)


@pytest.mark.parametrize(("number", "of_each"), [(1, 8), (3, 2), (8, 1), (11, 1)])
def test_every_copy_of_the_weights_is_asked(tmp_path: Path, number: int, of_each: int) -> None:
    model = tiny_model(tmp_path)
    generator = Copies(model, number, {})
    level = check_updates(policy_of(model), generator, TOKENS, ranks=ONE_RANK, seed=0)
    assert level is not None
    assert level < 1e-5
    assert generator.asked == [2 * of_each] * number


def test_one_stale_copy_of_eleven_is_named(tmp_path: Path) -> None:
    """The mean over the copies would hide it: the difference in one of them is below eleven times the limit."""
    model, name = tiny_model(tmp_path), "model.layers.1.input_layernorm.weight"
    generator = Copies(model, 11, {9: [name]})
    with pytest.raises(EngineError) as raised:
        check_updates(policy_of(model), generator, TOKENS, ranks=ONE_RANK, seed=0)
    what, got, *_ = str(raised.value).splitlines()
    assert what == "the generator does not use new values of model.layers.*.input_layernorm.weight (1 of 2)"
    assert "the trainer's, in 1 of 11 copies of the weights (copy 9); " in got


def test_a_copy_of_another_model_is_named(tmp_path: Path) -> None:
    generator = Copies(tiny_model(tmp_path / "a"), 3, {})
    other = generator.parts[1] = generator_of(tiny_model(tmp_path / "b", seed=1))
    other.load_weights = lambda weights, *, version: None  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(EngineError, match=r"with the same weights, in 1 of 3 copies of the weights \(copy 1\)"):
        check_updates(policy_of(tiny_model(tmp_path / "a")), generator, TOKENS, ranks=ONE_RANK, seed=0)


class Rounding(Keeping):
    """A generator whose log-probabilities are rounded more, the more weights are changed."""

    def __init__(self, policy: HFTrainer, generator: HFGenerator, noise: float) -> None:
        super().__init__(generator, ())
        self._first = {name: value.clone() for name, value in policy.weights()}
        self._noise, self._changed = noise, 0.0

    def load_weights(self, weights: Weights, *, version: int) -> None:
        super().load_weights(weights, version=version)
        self._changed = sum(not torch.equal(value, self._first[name]) for name, value in weights) / len(self._first)

    def collect(self, timeout: float | None = None) -> list[Completion]:
        error = self._noise * self._changed
        return [evolve(each, logp=[x + error for x in each.logp]) for each in super().collect(timeout)]


def test_rounding_that_only_all_changes_together_show_is_no_stale_weight(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    policy = policy_of(model)
    generator = Rounding(policy, hf_generator.build(hf_generator.Config(device="cpu"), model=model, seed=0), 1.5e-4)
    assert check_updates(policy, generator, TOKENS, ranks=ONE_RANK, seed=0) is not None
    assert generator.transfers == 4  # before, all, and two halves


def test_a_policy_without_log_probabilities_is_not_checked(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    config = hf_trainer.Config(device="cpu")
    policy = hf_trainer.build(config, model=model, role="critic", outputs=("value",), updates=2, seed=0)
    generator = generator_of(model)
    assert check_updates(policy, generator, TOKENS, ranks=ONE_RANK, seed=0) is None
    assert generator.transfers == 0


def with_copy(max_steps: int = 2, **changes: Any) -> RunConfig:
    """A small run whose generator has a copy of the weights, which can be old."""
    config = small_real(max_steps, **changes)
    return evolve(config, generator=evolve(config.generator, copy_weights=True))


def test_a_run_whose_engine_keeps_a_weight_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load, old = HFGenerator.load_weights, dict[str, Tensor]()

    def stale(self: HFGenerator, weights: Weights, *, version: int) -> None:
        old.update(old or values_of(weights, {"model.norm.weight"}))
        load(self, Partly(weights, old), version=version)

    monkeypatch.setattr(HFGenerator, "load_weights", stale)
    with pytest.raises(EngineError, match=r"new values of model\.norm\.weight \(1 of 1\)"):
        train(with_copy(), directory=tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_run_whose_engine_becomes_stale_is_warned_of_and_ends_by_a_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From version 1 on, the engine takes no new values of the head: d grows from 1e-7 to above 0.001."""
    load, old = HFGenerator.load_weights, dict[str, Tensor]()

    def stale(self: HFGenerator, weights: Weights, *, version: int) -> None:
        if version == 0:
            old.update(values_of(weights, {"lm_head.weight"}))
        load(self, Partly(weights, old if version else {}), version=version)

    monkeypatch.setattr(HFGenerator, "load_weights", stale)
    trainer = evolve(small_real().trainer, lr=0.02, lr_scheduler="constant", warmup_steps=None)
    config = with_copy(8, trainer=trainer, evaluate=None)
    found = records(train(config, directory=tmp_path / "warned"))
    assert max(record.get("mismatch/logp_abs_diff", 0) for record in found) > 1e-3
    assert "before the first step" in capsys.readouterr().out
    limited = evolve(config, generator=evolve(config.generator, max_mismatch_growth=10.0))
    with pytest.raises(EngineError, match="in each of the last 3 steps"):
        train(limited, directory=tmp_path / "ended")
