"""A dry run refuses what the run would refuse, also what neither the type of a setting nor its section can say."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from purerl.config.structure import dumps
from purerl.errors import PurerlError
from purerl.loop.train import train
from purerl.recipes import resolve
from purerl_cli.main import app
from tests.data.made import user, write
from tests.recipes.made import write_model

ROWS = [{"prompt": [user(f"{k}+1?")], "answer": f"{k + 1}"} for k in range(8)]
SMALL = ("batch_size=2", "num_minibatches=1", "rollout.samples_per_prompt=2", "rollout.max_tokens=4")
PYTHON = "a function of Python\n  need: a function that is written for this"
REFUSED = {
    "mesh without ranks": (["trainer.mesh.tensor=2"], "trainer.mesh\n  got:  tensor 2 = 2, with 1 rank"),
    "mesh that the ranks do not fit": (["trainer.mesh.shard=4"], "trainer.mesh\n  got:  shard 4 = 4, with 1 rank"),
    "no layer": (['trainer.lora.target_modules=["nope"]'], "trainer.lora.target_modules\n  got:  nope: "),
    "a layer and none": (
        ['trainer.lora.target_modules=["q_proj", "nope"]'],
        "got:  q_proj, nope: 'nope', which is no layer of the model",
    ),
    "the end of a name": (['trainer.lora.target_modules=["proj"]'], "trainer.lora.target_modules"),
    "frozen names": (['trainer.freeze=["nope"]'], "trainer.freeze\n  got:  'nope', which no parameter matches"),
    "all frozen": (['trainer.freeze=["*"]'], "trainer.freeze\n  got:  all parameters of the model"),
    "bypass after importance_weight": (
        ["algorithm.importance_weight.max_ratio=3.0", "algorithm.bypass.kind=bypass"],
        "algorithm",
    ),
    "preparation that removes": (['prepare_data="shutil:rmtree"'], f"prepare_data\n  got:  'shutil:rmtree', {PYTHON}"),
    "preparation that evaluates": (['prepare_data="builtins:eval"'], PYTHON),
    "class of Python": (['prepare_data="pathlib:Path"'], PYTHON),
    "module of Python": (['prepare_data="shutil"'], PYTHON),
    "preparation that is a value": (['prepare_data="purerl:__version__"'], "got:  a value of type str"),
    "preparation with one parameter": (['prepare_data="purerl.algos.grpo:algorithm"'], "need: a function of (dir"),
    "reward that removes": (['rewards=["shutil:rmtree"]'], f"rewards\n  got:  'shutil:rmtree', {PYTHON}"),
    "reward that evaluates": (['rewards=["builtins:eval"]'], PYTHON),
    "reward that runs a command": (['rewards=["subprocess:call"]'], PYTHON),
    "gate of Python": (['gates=["operator:truth"]'], PYTHON),
    "answer of Python": (['evaluate.answer_extractor="copy:copy"', "evaluate.samples_per_prompt=2",
                          "evaluate.temperature=1.0"], PYTHON),
    "subnormal temperature": (["rollout.temperature=1e-320"], "rollout.temperature\n  got:  1e-320\n  need: from 0.00"),
    "tiny temperature": (["rollout.temperature=1e-40"], "rollout.temperature"),
    "huge temperature": (["rollout.temperature=1e308"], "rollout.temperature"),
    "subnormal temperature of evaluations": (["evaluate.temperature=5e-324"], "evaluate.temperature"),
    "no number": (["trainer.max_grad_norm=nan"], "trainer.max_grad_norm\n  got:  nan"),
    "too many samples": (["rollout.samples_per_prompt=2147483648"], "rollout.samples_per_prompt\n  got:  2147483648"),
    "too many prompts": (["batch_size=2147483648"], "batch_size\n  got:  2147483648"),
    "too many players": (["environment.players=2147483648"], "environment.players\n  got:  2147483648"),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dry")
    write_model(path / "model")
    write(path / "rows.jsonl", ROWS)
    return path


def _settings(folder: Path, name: str) -> list[str]:
    model, data = f"model={folder / 'model'}", f"data={folder / 'rows.jsonl'}"
    given = REFUSED[name][0]
    keys = {setting.partition("=")[0] for setting in given}
    return [model, data, *(each for each in SMALL if each.partition("=")[0] not in keys), *given]


@pytest.mark.parametrize("name", REFUSED)
def test_dry_run_refuses_what_the_run_refuses(name: str, folder: Path, tmp_path: Path) -> None:
    options = [part for setting in _settings(folder, name) for part in ("--set", setting)]
    directory = tmp_path / "run"
    result = CliRunner().invoke(app, ["train", "gsm8k", "--dry-run", "--directory", str(directory), *options])
    assert (result.exit_code, isinstance(result.exception, SystemExit)) == (2, True), result.output
    assert REFUSED[name][1] in result.stderr
    with pytest.raises(PurerlError) as caught:
        train(resolve("gsm8k", _settings(folder, name)), directory=directory)
    assert str(caught.value).partition("\n")[0] in result.stderr
    assert not (directory / "metrics.jsonl").exists()


@pytest.mark.parametrize("name", ["preparation that removes", "reward that removes", "gate of Python"])
def test_functions_of_python_are_refused_in_a_file_of_somebody_else(name: str, folder: Path, tmp_path: Path) -> None:
    good = resolve("gsm8k", _settings(folder, name))
    (tmp_path / "run.toml").write_text(dumps(good))
    result = CliRunner().invoke(app, ["train", str(tmp_path / "run.toml"), "--dry-run"])
    assert (result.exit_code, PYTHON in result.stderr) == (2, True), result.output


def test_file_with_the_name_of_a_module_of_python_is_accepted(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "my_reward.py").write_text("def reward(completion, example):\n    return 1.0\n")
    settings = [f"model={folder / 'model'}", f"data={folder / 'rows.jsonl'}", *SMALL]
    settings += [f'rewards=["{tmp_path}/my_reward.py:reward"]', "trainer.max_grad_norm=inf", "evaluate.every=1"]
    settings += ["data.validation_fraction=0.5"]
    options = [part for setting in settings for part in ("--set", setting)]
    result = CliRunner().invoke(app, ["train", "gsm8k", "--dry-run", "--directory", str(tmp_path / "run"), *options])
    assert result.exit_code == 0, result.output
