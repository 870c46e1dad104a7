"""Runs of a mixture of experts that is trained with the experts that its generator has recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from purerl.algos import grpo, sft
from purerl.algos.modifiers import bypass
from purerl.backends.fake import generator as fake_generator
from purerl.composition import Composition
from purerl.config.check import check
from purerl.config.schema import RunConfig
from purerl.errors import BatchError, CheckpointError, ConfigError
from purerl.expert_routes import RouteStore
from purerl.loop import remaining_steps as loop
from purerl.loop.run import Run
from purerl.loop.train import train
from purerl.recipes.addition import character_tokenizer
from purerl.rollouts.settings import Rollout
from purerl.store import groups
from purerl.store.groups import read_routes, write_routes
from purerl.store.settings import Checkpoint
from tests.loop import dialogs
from tests.loop.runs import records, train_until, without_times
from tests.loop.test_replayed_routes import sevens_of_experts, write_experts

pytestmark = pytest.mark.slow

KINDS = "hf, vllm and sglang"
CHANGED = "policy/router_changed_fraction"


def config_of(max_steps: int, **settings: Any) -> RunConfig:
    config = sevens_of_experts(max_steps, **settings)
    generator = evolve(config.generator, return_routes=True)
    return evolve(config, generator=generator, trainer=evolve(config.trainer, replay_routes="generator"))


def waiting_of_experts(max_steps: int) -> RunConfig:
    """A run with a group that waits at the end of each step, and a checkpoint of every second step."""
    rollout = Rollout(samples_per_prompt=8, max_tokens=2, max_staleness=1)
    algorithm = Composition(grpo.Config(), (bypass.Config(),))
    return config_of(max_steps, rollout=rollout, algorithm=algorithm, checkpoint=Checkpoint(every=2, keep=2))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps with groups that wait, without an interruption."""
    return train(waiting_of_experts(4), directory=tmp_path_factory.mktemp("whole") / "run").directory


# --- runs ----------------------------------------------------------------------------------------------------------


def test_the_first_optimizer_step_would_choose_the_same_experts(tmp_path):
    """Trainer and generator have the same weights and precision."""
    run = train(config_of(1, num_minibatches=1), directory=tmp_path / "run")
    assert [record[CHANGED] for record in records(run)[1:]] == [0]
    assert records(run)[1]["mismatch/logp_abs_diff_max"] < 1e-5
    assert not [*(tmp_path / "run" / "routes").iterdir()], "records of rows that have been trained are removed"


def test_later_optimizer_steps_would_choose_others(tmp_path):
    run = train(config_of(3, num_minibatches=4), directory=tmp_path / "run")
    changed = [record[CHANGED] for record in records(run)[1:]]
    assert len(changed) == 3
    assert 0 < max(changed) < 1


def test_records_of_another_row_are_noticed(monkeypatch, tmp_path):
    """The first optimizer step would choose others."""
    write = RouteStore.write
    monkeypatch.setattr(RouteStore, "write", lambda self, number, record: write(self, (number - 1 ^ 1) + 1, record))
    run = train(config_of(1, num_minibatches=1), directory=tmp_path / "run")
    assert records(run)[1][CHANGED] > 0


def prepare_rewritten(folder: Path, seed: int) -> None:
    """Prompts with messages, a chat template that changes earlier turns, and a mixture of experts."""
    dialogs.prepare(folder, seed)
    write_experts(folder, seed)


def prepare_appended(folder: Path, seed: int) -> None:
    """The same with a chat template that changes no earlier turn."""
    prepare_rewritten(folder, seed)
    tokenizer = character_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder / "model")


TEMPLATE = """\
{%- for message in messages -%}
{{ message.content + ('<eos>' if message.role == 'assistant' else '=') }}
{%- endfor -%}"""


@pytest.mark.parametrize("history", ["append", "rerender"])
@pytest.mark.parametrize("max_cached_tokens", [0, 4096])
def test_turns_of_episodes_have_the_experts_that_sampled_them(tmp_path, history, max_cached_tokens):
    """In one row, whose beginning the generator has kept or reads again; or in several rows."""
    prepare = "appended" if history == "append" else "rewritten"
    config = dialogs.rerendered(
        environment=dialogs.game(history=history),
        prepare_data=f"tests.loop.test_sampled_routes:prepare_{prepare}",
        num_minibatches=1,
        max_steps=1,
    )
    generator = evolve(config.generator, return_routes=True, max_cached_tokens=max_cached_tokens)
    trainer = evolve(config.trainer, replay_routes="generator", warmup_steps=0)
    run = train(evolve(config, generator=generator, trainer=trainer), directory=tmp_path / "run")
    [record] = records(run)[1:]
    assert record["environment/turns"] == 3
    assert (record["environment/rows"] > 1) == (history == "rerender")
    assert record[CHANGED] == 0


# --- groups that wait ----------------------------------------------------------------------------------------------


def test_records_live_as_long_as_their_rows(monkeypatch, tmp_path):
    advance, found = loop.advance, list[tuple[set[str], set[str]]]()

    def observed(run: Run, *args: Any) -> Any:
        result = advance(run, *args)
        waiting = {f"{t.fields['routes']}.npy" for group in run.source.window.waiting for t in group.trajectories}
        found.append(({path.name for path in (tmp_path / "run" / "routes").iterdir()}, waiting))
        return result

    monkeypatch.setattr(loop, "advance", observed)
    train(waiting_of_experts(3), directory=tmp_path / "run")
    assert all(files == waiting for files, waiting in found)
    assert any(waiting for _, waiting in found)


def test_a_run_that_resumes_replays_the_same_experts(whole, tmp_path):
    train_until(3, waiting_of_experts(4), directory=tmp_path / "run")
    run = train(waiting_of_experts(4), directory=tmp_path / "run")
    assert without_times(records(run)) == without_times(records(whole))
    final = Path("final", "model.safetensors")
    assert (run.directory / final).read_bytes() == (whole / final).read_bytes()


def test_a_run_that_resumes_with_other_experts_is_noticed(monkeypatch, whole, tmp_path):
    train_until(3, waiting_of_experts(4), directory=tmp_path / "run")
    monkeypatch.setattr(groups, "read_routes", lambda path: {n: 3 - record for n, record in read_routes(path).items()})
    run = train(waiting_of_experts(4), directory=tmp_path / "run")
    assert without_times(records(run)) != without_times(records(whole))


def test_a_run_that_resumes_without_the_records_is_refused(monkeypatch, tmp_path):
    train_until(3, waiting_of_experts(4), directory=tmp_path / "run")
    monkeypatch.setattr(groups, "read_routes", lambda path: {})
    with pytest.raises(BatchError, match="^field 'routes'\n  got:  record [0-9]+: "):
        train(waiting_of_experts(4), directory=tmp_path / "run")


def test_records_are_read_as_they_were_written(tmp_path):
    found = {3: np.arange(12, dtype=np.int16).reshape(3, 2, 2), 2**40: np.full((1, 2, 2), -1, np.int16)}
    write_routes(tmp_path / "routes", found)
    again = read_routes(tmp_path / "routes")
    assert again.keys() == found.keys()
    for number, record in found.items():
        np.testing.assert_array_equal(again[number], record)
        assert again[number].dtype == np.int16


def test_damaged_records_are_refused(tmp_path):
    (tmp_path / "routes").write_bytes(b"{}")
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        read_routes(tmp_path / "routes")


# --- settings ------------------------------------------------------------------------------------------------------


def message(config: RunConfig) -> list[str]:
    with pytest.raises(ConfigError) as error:
        check(config)
    return str(error.value).splitlines()


def test_records_that_nobody_replays_are_refused():
    config = sevens_of_experts(2)
    assert message(evolve(config, generator=evolve(config.generator, return_routes=True))) == [
        "generator.return_routes has no effect",
        "  got:  True",
        "  need: a trainer that replays them: trainer.replay_routes=generator; 'old_logp' does not",
        "  do:   leave generator.return_routes out",
    ]


@pytest.mark.parametrize("generator", [None, fake_generator.Config()], ids=["hf", "fake"])
def test_a_generator_that_returns_no_experts_is_refused(generator):
    config = config_of(2)
    kind, other = ("fake", generator) if generator else ("hf", evolve(config.generator, return_routes=False))
    assert message(evolve(config, generator=other)) == [
        "trainer.replay_routes=generator",
        f"  got:  generator.kind={kind}, which does not return them as it is set",
        "  need: a generator that returns the experts of each token",
        f"  do:   set generator.return_routes=true, which the kinds {KINDS} have, or trainer.replay_routes=old_logp",
    ]


def test_a_run_on_data_is_refused():
    config = config_of(2, algorithm=Composition(sft.Config()), rollout=None, rewards=())
    assert message(evolve(config, generator=None))[:2] == [
        "trainer.replay_routes=generator",
        "  got:  a run on data",
    ]


def test_recorded_completions_are_refused():
    config = config_of(2)
    rollout = evolve(config.rollout, recorded="nowhere")
    assert message(evolve(config, generator=None, rollout=rollout))[:2] == [
        "trainer.replay_routes=generator",
        "  got:  recorded completions, whose experts are not stored",
    ]


def test_a_model_without_experts_is_refused_before_it_is_loaded(tmp_path):
    config = config_of(2, prepare_data="tests.loop.lora_task:prepare")
    with pytest.raises(ConfigError, match=r"^model: trainer\.replay_routes\n  got:  Qwen3Model: no experts\n"):
        train(config, directory=tmp_path / "run")
