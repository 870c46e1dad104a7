"""Rewards with settings: how they are written, where they are built, what is refused, and that they are closed."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import attrs
import pytest

from purerl.config.listing import explain
from purerl.config.overrides import apply
from purerl.config.schema import RunConfig
from purerl.config.structure import from_dict, to_dict
from purerl.errors import ConfigError
from purerl.plugins import GROUPS
from purerl.recipes.addition import addition
from purerl.rewards.adapters import RewardInput
from purerl.rewards.check import check_rewards
from purerl.rewards.kinds import format as format_kind
from purerl.rewards.runner import RewardRunner
from purerl.rewards.settings import Gate, Reward, RewardWorkers, to_rewards

from . import own_kinds

HERE = "tests.rewards.own_kinds"
THINK = "<think>9 * 8</think> 72"


def _runner(*rewards: Any, gates: Any = (), num_workers: int = 1) -> RewardRunner:
    return RewardRunner(rewards, gates, functions={}, timeout=30.0, num_workers=num_workers)


def _inputs(*completions: str, **columns: Any) -> list[RewardInput]:
    return [RewardInput(str(k), completion, columns) for k, completion in enumerate(completions)]


# --- settings ----------------------------------------------------------------------------------------------------


def test_a_kind_is_written_with_its_settings_beside_the_weight() -> None:
    rewards = 'rewards=["a:b", {kind = "format", weight = 0.5, otherwise = -1.0}]'
    config = apply(addition(), [rewards, 'gates=[{kind = "format", name = "gate"}]'])
    assert config.rewards == (Reward("a:b"), Reward(config=format_kind.Config(otherwise=-1.0), weight=0.5))
    assert config.gates == (Gate(config=format_kind.Config(), name="gate"),)
    pattern = format_kind.Config().pattern
    written = {"kind": "format", "pattern": pattern, "matched": 1.0, "otherwise": -1.0, "weight": 0.5}
    assert to_dict(config)["rewards"] == [{"function": "a:b", "weight": 1.0}, written]
    assert from_dict(RunConfig, to_dict(config)) == config


def test_purerl_config_prints_the_kind_and_its_settings() -> None:
    config = apply(addition(), ['rewards=[{kind = "format", pattern = "a", weight = 0.5}]'])
    [setting] = [setting for setting in explain(config, recipe="addition") if setting.key == "rewards"]
    assert setting.value == '[{kind = "format", pattern = "a", matched = 1.0, otherwise = 0.0, weight = 0.5}]'
    assert apply(addition(), [f"rewards={setting.value}"]) == config


def test_a_config_stands_for_its_kind_in_python() -> None:
    assert to_rewards(["m:f", own_kinds.Config()]) == (Reward("m:f"), Reward(config=own_kinds.Config()))
    assert Reward(config=own_kinds.Config()).full_name == "own_kinds"
    assert Reward(config=own_kinds.Batched.Config()).full_name == "Batched"
    assert Reward(config=own_kinds.Config(), name="length").full_name == "length"


SETTINGS = sorted({"kind", *attrs.fields_dict(Reward)} - {"config"})
SECTION = "\n  need: one that `purerl config` lists\n"


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (
            '{kind = "fromat"}',
            ("rewards.kind: unknown reward 'fromat'\n  do:   did you mean 'format'?; name a plugin of your own by its "
            "address, package.module or file.py"),
        ),
        (
            '{kind = "format", patern = "a"}',
            f"rewards.patern\n  got:  no such setting{SECTION}  do:   did you mean 'pattern'?",
        ),
        (
            '{kind = "format", wieght = 1.0}',
            f"rewards.wieght\n  got:  no such setting{SECTION}  do:   did you mean 'weight'?",
        ),
        (
            '{kind = "judge", endpoint = {url = "http://h/v1", model = "m"}, template = "{{ completion }}"}',
            f"rewards.template\n  got:  no such setting{SECTION}  do:   did you mean 'judge.template'?",
        ),
        (
            '{kind = "code", sandbox = {max_memory = "1GiB"}}',
            f"rewards.sandbox.max_memory\n  got:  no such setting{SECTION}  do:   did you mean 'limits.max_memory'?",
        ),
        (
            '{kind = "code", sandbox = {limits = {max_memory = "1 lot"}}}',
            ("rewards.sandbox.limits.max_memory\n  got:  '1 lot'\n  need: a number of MiB, at least 16, or a size such "
            'as "2GB"'),
        ),
        (
            ('{kind = "judge", endpoint = {url = "http://h/v1", model = "m"}, '
             'judge = {answer = {labels = {yes = "1"}}}}'),
            "rewards.judge.answer.labels.yes\n  got:  '1'\n  need: a number, without quotes",
        ),
        ('{kind = "format", pattern = 1}', "rewards.pattern\n  got:  1\n  need: a string\n  do:   put it in quotes"),
        (
            '{kind = "format", pattern = "("}',
            ("rewards.pattern\n  got:  '('\n  need: a regular expression of Python: missing ), unterminated "
            "subpattern at position 0"),
        ),
        (
            '{kind = "format", otherwise = 1.0}',
            "rewards.otherwise\n  got:  1.0\n  need: another number than matched",
        ),
        (
            '{kind = "format", function = "a:b"}',
            "rewards: function, kind or role\n  got:  function and kind\n  need: exactly one of them",
        ),
        ("{weight = 1.0}", "rewards: function, kind or role\n  got:  none of them\n  need: exactly one of them"),
        (
            '{function = "a:b", config = {kind = "format"}}',
            (f"rewards.config\n  got:  no such setting{SECTION}  "
            f"do:   one of: {', '.join(SETTINGS)}"),
        ),
        (
            '{function = "a:b", name = "a.b"}',
            "rewards.name\n  got:  'a.b'\n  need: at most 100 letters, digits, spaces and characters of _ and -",
        ),
        (
            f'{{kind = "{HERE}:WithWeight"}}',
            (f"rewards.kind: Config of '{HERE}:WithWeight'\n  got:  a field called weight\n  need: another name than "
                f"{', '.join(GROUPS['reward'].reserved)}: these are settings of every reward"),
        ),
    ],
)  # fmt: skip
def test_invalid_setting_of_a_kind_is_refused(reward: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply(addition(), [f"rewards=[{reward}]"])
    assert str(caught.value) == message


def test_the_names_of_settings_of_rewards_and_gates_are_reserved() -> None:
    fields = {name for cls in (Reward, Gate) for name in attrs.fields_dict(cls)}
    assert {*GROUPS["reward"].reserved} == {"kind", *fields}


def _refusal(rewards: Any, gates: Any = ()) -> str:
    with pytest.raises(ConfigError) as caught:
        check_rewards(to_rewards(rewards), [Gate(config=gate) for gate in gates], RewardWorkers(), {})
    return str(caught.value)


def test_a_string_is_a_function_and_not_a_kind() -> None:
    assert _refusal(["format"]) == (
        "reward 'format'\n  got:  a kind\n  need: a function, as module:function\n"
        "  do:   write it as a table, {kind = 'format'}"
    )


def test_two_rewards_of_one_kind_need_names() -> None:
    rewards = [format_kind.Config(), format_kind.Config(pattern="a")]
    assert _refusal(rewards) == (
        "rewards\n  got:  'format' 2 times\n  need: each function, kind or model once\n"
        '  do:   list it once, with a weight; or give each a name: name = "..."'
    )
    assert _refusal(rewards[:1], rewards[1:]) == (
        "gates\n  got:  'format', which is also another reward, or one for other data sources\n"
        "  need: names that differ from those of other rewards\n"
        '  do:   give one of them a name: name = "..."'
    )
    check_rewards(to_rewards(rewards[:1]), [Gate(config=rewards[0])], RewardWorkers(), {})


def test_the_check_of_a_kind_runs_before_the_run() -> None:
    assert _refusal([own_kinds.Batched.Config(library="other")]) == (
        "reward 'Batched'.library\n  got:  'other', which is not installed\n  need: json"
    )


def test_columns_of_a_kind_are_checked() -> None:
    runner = _runner(own_kinds.Batched.Config())
    runner.check_columns(["prompt", "solution"])
    with pytest.raises(
        ConfigError, match="reward 'Batched' reads columns .*\n.*got:  prompt\n.*also answer or solution"
    ):
        runner.check_columns(["prompt"])


# --- calls -------------------------------------------------------------------------------------------------------


def test_kinds_are_rewards_and_gates_with_components_named_after_them() -> None:
    rewards = (Reward(config=own_kinds.Config(target=4), weight=0.5), "tests.rewards.functions:length")
    with _runner(*rewards, gates=[format_kind.Config()]) as runner:
        first, second = runner.run(_inputs(THINK, "no"))
    assert first.components == {"own_kinds": len(THINK) / 4, "length": float(len(THINK)), "format": 1.0}
    assert first.reward == len(THINK) / 8 + len(THINK)
    assert (second.reward, second.components["format"]) == (0.0, 0.0)


def test_a_kind_with_a_name_has_a_component_of_this_name() -> None:
    rewards = [Reward(config=format_kind.Config(pattern=text), name=f"is {text}") for text in ("a", "b")]
    with _runner(*rewards) as runner:
        (result,) = runner.run(_inputs("a"))
    assert result.components == {"is a": 1.0, "is b": 0.0}


@pytest.mark.parametrize("kind", [own_kinds.Logged, own_kinds.LoggedAsync])
def test_a_kind_is_built_once_in_a_worker_and_closed_at_the_end(kind: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with _runner(kind.Config(log=str(log))) as runner:
        runner.run(_inputs("a"))
        runner.run(_inputs("b"))
    assert log.read_text().split() == ["built", "a", "b", "closed"]


def test_every_worker_builds_and_closes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with _runner(own_kinds.Logged.Config(log=str(log)), num_workers=2) as runner:
        runner.run(_inputs("a"))
        deadline = time.monotonic() + 60.0
        # A worker that has not yet said that it has built the functions is ended at once.
        while sum(load.closes for load in [*runner._pool._loads.values()]) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        runner.run(_inputs("b"))
    assert sorted(log.read_text().split()) == ["a", "b", "built", "built", "closed", "closed"]


def test_a_kind_that_cannot_be_closed_is_a_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with _runner(own_kinds.Logged.Config(log=str(tmp_path / "log"), fails=True)) as runner:
        assert runner.run(_inputs("a"))[0].reward == 1.0
    assert "the reward Logged was not closed:" in (errors := capfd.readouterr().err)
    assert "OSError: the resource is gone" in errors


def test_a_kind_that_cannot_be_built_fails_every_row() -> None:
    with _runner(Reward(config=own_kinds.Broken.Config(resource="x"), name="broken")) as runner:
        results = runner.run(_inputs("a", "b"))
    assert [result.failure.function for result in results] == ["broken"] * 2
    assert results[0].failure.traceback.endswith("RuntimeError: no resource x\n")


def test_a_kind_may_follow_the_convention_of_trl() -> None:
    rows = [RewardInput(str(k), "c", {"prompt": "p", "answer": "a"}) for k in range(3)]
    with _runner(own_kinds.Batched.Config()) as runner:
        results = runner.run(rows)
    assert [result.reward for result in results] == [3.0] * 3, "one call for all rows"


def test_a_kind_in_a_file_reaches_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "kind_in_file.py"
    path.write_text(Path(own_kinds.__file__).read_text())
    config = apply(addition(), [f'rewards=[{{kind = "{path}", target = 2}}]'])
    assert config.rewards[0].full_name == "kind_in_file"
    assert to_dict(config)["rewards"] == [{"kind": str(path), "target": 2, "weight": 1.0}]
    with _runner(*config.rewards) as runner:
        assert runner.run(_inputs("abc"))[0].components == {"kind_in_file": 1.5}
