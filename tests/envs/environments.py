"""Environments and tools for tests: good ones, and ones that fail in various ways."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

from purerl.envs.protocol import Observation


def user(text):
    return {"role": "user", "content": text}


class Guess:
    """The model guesses a number of at most `limit`; the state is what is known about it."""

    def __init__(self, limit=8):
        self._limit = limit

    def reset(self, example, seed):
        self._number, self._is_over = random.Random(seed).randint(1, self._limit), False
        self._low, self._high = 1, self._limit
        return Observation(messages=[user(f"Guess from 1 to {self._limit}.")], state=self._state())

    def step(self, text, calls):
        if self._is_over:
            raise RuntimeError("the game is over")
        guess = int(text) if text.isdigit() else 0
        if guess == self._number:
            self._is_over = True
            return Observation(reward=1.0, done=True)
        if guess < self._number:
            self._low = max(self._low, guess + 1)
        else:
            self._high = min(self._high, guess - 1)
        answer = "higher" if guess < self._number else "lower"
        return Observation(messages=[user(answer)], reward=0.0, state=self._state())

    def _state(self):
        return f"{self._low}-{self._high}"

    def close(self):
        pass


class SlowToCreate(Guess):
    """It writes what happens to the file `log`, and is created when there is a file "go on" beside it."""

    def __init__(self, log):
        super().__init__()
        self._log = Path(log)
        self._log.write_text("")
        while not self._log.with_name("go on").exists():
            time.sleep(0.01)
        self._write("created")

    def close(self):
        self._write("closed")

    def _write(self, what):
        with self._log.open("a") as file:
            file.write(f"{what}\n")


class HangsInClose(Guess):
    def close(self):
        time.sleep(1000)


class Ends(Guess):
    """Its `end` gives the length of the text as the reward; without room for another turn, it gives nothing."""

    async def end(self, reason, text):
        if reason == "tokens":
            return None
        return Observation(messages=[user("ignored")], reward=float(len(text)), components={"low": self._low})


class EndsWrongly(Guess):
    def end(self, reason, text):
        return {"turns": 1.0}[reason]


class AsyncGuess(Guess):
    """The same with coroutines. It also says in which process and how many at once it is."""

    running = 0
    most = 0

    async def reset(self, example, seed):
        await asyncio.sleep(0)
        return super().reset(example, seed)

    async def step(self, text, calls):
        AsyncGuess.running += 1
        AsyncGuess.most = max(AsyncGuess.most, AsyncGuess.running)
        await asyncio.sleep(0.2)
        AsyncGuess.running -= 1
        observation = super().step(text, calls)
        return Observation(messages=[user(f"{AsyncGuess.most}")], state=observation.state)

    async def close(self):
        pass


class Obeys:
    """Does what the model writes. `example["log"]` is a file to which `close` appends a line."""

    def reset(self, example, seed):
        self._log = example.get("log")
        return Observation(messages=[user(example.get("text", "hello"))])

    def step(self, text, calls):
        command, _, argument = text.partition(" ")
        return getattr(self, f"do_{command}")(argument) or Observation(messages=[user(text)])

    def close(self):
        if self._log:
            with Path(self._log).open("a") as file:
                file.write("closed\n")

    def do_say(self, text):
        return Observation(messages=[user(text)])

    def do_pid(self, text):
        return Observation(messages=[user(str(os.getpid()))])

    def do_thread(self, text):
        return Observation(messages=[user(threading.current_thread().name)])

    def do_random(self, text):
        return Observation(messages=[user(str(random.random()))])

    def do_raise(self, text):
        raise ZeroDivisionError(text)

    def do_exit(self, text):
        sys.exit(3)

    def do_sleep(self, seconds):
        time.sleep(float(seconds))

    def do_loop(self, text):
        while True:
            pass

    def do_hold(self, text):
        """Sleep in C with the interpreter's lock."""
        ctypes.PyDLL(None).sleep(600)

    def do_crash(self, text):
        os._exit(9)

    def do_memory(self, text):
        return Observation(messages=[user(str(len(bytearray(2**30))))])

    def do_invalid(self, text):
        return {"reward": 1}

    def do_daemon(self, path):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        Path(path).write_text(str(child.pid))


class AsyncObeys(Obeys):
    async def reset(self, example, seed):
        return super().reset(example, seed)

    async def step(self, text, calls):
        if text == "wait":
            await self._wait()
        if text == "cancel":
            raise asyncio.CancelledError
        return super().step(text, calls)

    async def _wait(self):
        await asyncio.sleep(600)

    async def close(self):
        super().close()


class FailsToStart:
    def __init__(self):
        raise RuntimeError("no display")

    def reset(self, example, seed): ...

    def step(self, text, calls): ...

    def close(self): ...


class WithoutStep:
    def reset(self, example, seed): ...

    def close(self): ...


class WrongParameters:
    def reset(self, seed): ...

    def step(self, text, calls): ...

    def close(self): ...


def makes_guess(limit: int = 8):
    return Guess(limit)


not_callable = 3


# --- tools -------------------------------------------------------------------------------------------------------


def add(first: int, second: int = 1) -> int:
    """Add two numbers."""
    return first + second


async def add_later(first: int, second: int) -> dict:
    """Add two numbers after a moment."""
    await asyncio.sleep(0.01)
    return {"sum": first + second}


def divide(first: int, second: int) -> float:
    """Divide a number by another one."""
    return first / second


def sleeps(seconds: float) -> str:
    """Sleep."""
    time.sleep(seconds)
    return "awake"


def crashes() -> str:
    """End the process."""
    os._exit(9)


def draw() -> float:
    """A random number."""
    return random.random()


def without_hints(first, second):
    """Add."""
    return first + second


class Refuses:
    """A tool whose object cannot be made."""

    error = ValueError

    def __init__(self):
        raise self.error("no key for the service")

    def add(self, first: int) -> int:
        """Add nothing."""
        return first


class Exits(Refuses):
    error = SystemExit


class Notes:
    """Tools with a state for each episode."""

    def __init__(self):
        self._lines = []

    def write(self, line: str) -> str:
        """Write a line."""
        self._lines.append(line)
        return f"{len(self._lines)} lines"

    def read(self) -> list:
        """All lines."""
        return self._lines


class NoMethods:
    pass


class Box(contextlib.AbstractContextManager):
    """Tools that write to the file whose name the environment variable BOX has when they are closed."""

    def look(self) -> str:
        """Look into the box."""
        return "nothing"

    def __exit__(self, *_):
        Path(os.environ["BOX"]).touch()


def look() -> str:
    """Look around."""
    return "a box"
