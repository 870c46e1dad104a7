"""No attack gets a reward, harms the host, or outlives its limits. They run as root and as an ordinary user."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from purerl.rewards.code.grades import Grade
from purerl.rewards.kinds.code import Code, Config, build
from purerl.sandbox import Limits, Pool, SandboxSettings
from tests.sandbox.attacks import marker, wait_until_gone

from .cheats import CHEATS, FOOLING
from .exploits import EXPLOITS, LIMITS, Host, completion, marked, program
from .problems import ADD, BODY, PROGRAM, SUM

pytestmark = pytest.mark.slow
_SANDBOX = SandboxSettings(limits=Limits(max_memory=128, max_processes=20, max_output=10**5, max_disk=16))
_REPOSITORY = str(Path(__file__).parents[3])
_TIMEOUT, _SHORT_TIMEOUT = 20.0, 0.5  # long, so that a busy computer is not mistaken for a protection


class _Attacked(NamedTuple):
    """The grades of attacks by name, and how long the slowest one took."""

    grades: Mapping[str, Grade]
    seconds: float


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A file, an environment variable and servers, none of which anybody may reach."""
    folder, word = tmp_path_factory.mktemp("host"), marker()
    path = folder / "file"
    path.write_text(word)
    path.chmod(0o666)
    abstract = f"purerl-{word}"
    with (
        pytest.MonkeyPatch.context() as patch,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        patch.setenv("PURERL_SECRET", word)
        unix.bind(f"\0{abstract}")
        unix.listen()
        yield Host(word, str(path), server.getsockname()[1], abstract, _REPOSITORY)
        for listening in (server, unix):
            listening.setblocking(False)
            with pytest.raises(BlockingIOError):
                listening.accept()
    assert path.read_text() == word


def _attack(
    code: Code, example: Mapping[str, Any], make: Callable[[str, str], str], sources: Mapping[str, str]
) -> _Attacked:
    """Grade all `sources`, several at the same time. None of their processes may be left."""
    slowest = 0.0

    def grade(name: str) -> Grade:
        nonlocal slowest
        word, start = marker(), time.monotonic()
        result = code.grade(make(sources[name], word), example)
        slowest = max(slowest, time.monotonic() - start)
        wait_until_gone(word)
        return result

    with ThreadPoolExecutor(4) as executor:
        return _Attacked(dict(zip(sources, executor.map(grade, sources), strict=True)), slowest)


def _code(tests: Any, timeout: float) -> Code:
    return build(Config(tests=tests, timeout=timeout, partial_credit=False, sandbox=_SANDBOX))


@pytest.fixture(scope="module")
def functions(host: Host) -> Iterator[Code]:
    with closing(_code("function", _TIMEOUT)) as code:
        yield code
        assert code.grade(BODY, ADD) == Grade(1.0), "still works"


@pytest.fixture(scope="module")
def programs(host: Host) -> Iterator[Code]:
    with closing(_code("stdin", _TIMEOUT)) as code:
        yield code
        assert code.grade(PROGRAM, SUM) == Grade(1.0), "still works"


# --- the host, and the tests -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exploits_of_functions(functions: Code, host: Host) -> _Attacked:
    return _attack(functions, ADD, lambda source, word: completion(source, word, host), EXPLOITS)


@pytest.fixture(scope="module")
def exploits_of_programs(programs: Code, host: Host) -> _Attacked:
    return _attack(programs, SUM, lambda source, word: program(source, word, host), EXPLOITS)


@pytest.mark.parametrize("name", EXPLOITS)
def test_an_exploit_in_a_function_fails(name: str, exploits_of_functions: _Attacked) -> None:
    assert exploits_of_functions.grades[name] == Grade(0.0, "AssertionError: ")


@pytest.mark.parametrize("name", EXPLOITS)
def test_an_exploit_in_a_program_fails(name: str, exploits_of_programs: _Attacked) -> None:
    assert exploits_of_programs.grades[name] == Grade(0.0, "test 0: another output than expected")


_PLANTED = "kept = b''.join([b'assert cand', b'idate(1, 2)'])\n" + EXPLOITS["finds the tests in its memory"]


@pytest.mark.parametrize("exploit", ["return True", _PLANTED])
def test_an_exploit_that_succeeds_would_get_a_reward(exploit: str, functions: Code, programs: Code, host: Host) -> None:
    assert functions.grade(completion(exploit, marker(), host), ADD) == Grade(1.0)
    assert programs.grade(program(exploit, marker(), host), SUM) == Grade(1.0)


# --- results that are wrong --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cheats(functions: Code) -> _Attacked:
    return _attack(functions, ADD, marked, CHEATS)


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_gets_nothing(name: str, cheats: _Attacked) -> None:
    assert cheats.grades[name].score == 0.0
    assert cheats.grades[name].reason


@pytest.fixture(scope="module")
def plain() -> Iterator[Pool]:
    with Pool(_SANDBOX) as pool:
        yield pool


@pytest.mark.parametrize("name", FOOLING)
def test_the_same_cheat_fools_a_harness_in_one_process(name: str, plain: Pool) -> None:
    assert plain.run_python(f"{FOOLING[name]}\n{ADD['test']}\ncheck(add)\n").status == "ok"


def test_a_wrong_function_does_not_fool_a_harness_in_one_process(plain: Pool) -> None:
    assert plain.run_python(f"def add(a, b): return 3\n{ADD['test']}\ncheck(add)\n").status == "error"


# --- limits ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def limited_functions(host: Host) -> Iterator[_Attacked]:
    with closing(_code("function", _SHORT_TIMEOUT)) as code:
        yield _attack(code, ADD, lambda source, word: completion(source, word, host), LIMITS)


@pytest.fixture(scope="module")
def limited_programs(host: Host) -> Iterator[_Attacked]:
    with closing(_code("stdin", _SHORT_TIMEOUT)) as code:
        yield _attack(code, SUM, lambda source, word: program(source, word, host), LIMITS)


@pytest.mark.parametrize("name", LIMITS)
def test_a_function_cannot_exceed_its_limits(name: str, limited_functions: _Attacked) -> None:
    assert limited_functions.grades[name].score == 0.0


@pytest.mark.parametrize("name", LIMITS)
def test_a_program_cannot_exceed_its_limits(name: str, limited_programs: _Attacked) -> None:
    assert limited_programs.grades[name].score == 0.0


def test_nothing_takes_much_longer_than_its_limits(
    limited_functions: _Attacked, limited_programs: _Attacked, cheats: _Attacked
) -> None:
    assert max(limited_functions.seconds, limited_programs.seconds) < 20
    assert cheats.seconds < _TIMEOUT


def test_this_process_has_no_more_threads_and_descriptors_after_attacks() -> None:
    with closing(_code("function", _TIMEOUT)) as code:
        code.grade(BODY, ADD)
        before = len([*Path("/proc/self/fd").iterdir()]), threading.active_count()
        for name in ("exits in the function", "kills everything", "returns a huge string"):
            assert code.grade(CHEATS[name], ADD).score == 0.0
        assert (len([*Path("/proc/self/fd").iterdir()]), threading.active_count()) == before
