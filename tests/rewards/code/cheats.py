"""Modules for `problems.ADD` whose function does not add, and that try to get a reward all the same."""

from __future__ import annotations

__all__ = ["CHEATS", "FOOLING"]

_REPORT = b'done {"passed": 1, "total": 1, "reason": "", "is_valid": true}'
_FLOOD = f"""
import os, struct
def flood():
    report = {_REPORT!r}
    for data in (report, b"value [[3], []]", struct.pack("!i", 0), struct.pack("!Q", len(report)) + report):
        for descriptor in range(1, 64):
            try:
                os.set_blocking(descriptor, False)
                os.write(descriptor, data)
            except OSError:
                pass
"""

FOOLING = {
    "exits before the tests": "import os\nos._exit(0)",
    "exits in the function": "import os\ndef add(a, b): os._exit(0)",
    "calls sys.exit": "import sys\ndef add(a, b): sys.exit(0)",
    "exits while it is imported": "raise SystemExit(0)",
    "calls quit": "def add(a, b): quit()",
    "starts another program": "import os\ndef add(a, b): os.execv('/bin/true', ['true'])",
    "returns an object that equals everything": """
class Equal:
    def __eq__(self, other): return True
def add(a, b): return Equal()
""",
    "returns an integer that equals everything": """
class Equal(int):
    def __eq__(self, other): return True
    __hash__ = None
def add(a, b): return Equal(-1)
""",
    "returns a string that equals everything": """
class Equal(str):
    def __eq__(self, other): return True
    __hash__ = None
def add(a, b): return Equal("x")
""",
    "returns a list that equals everything": """
class Equal(list):
    def __eq__(self, other): return True
def add(a, b): return Equal([1])
""",
    "returns ANY": "from unittest.mock import ANY\ndef add(a, b): return ANY",
    "returns an object whose class lies": """
class Equal:
    __class__ = int
    def __eq__(self, other): return True
    def __int__(self): return 3
    def __index__(self): return 3
def add(a, b): return Equal()
""",
    "replaces the tests": """
import sys
def add(a, b):
    frame = sys._getframe(1)
    while frame:
        if "check" in frame.f_globals: frame.f_globals["check"] = lambda candidate: None
        frame.f_code = None
        frame = frame.f_back
try:
    import __main__
    __main__.__dict__["check"] = None
except Exception: pass
raise SystemExit
""",
    "ends the process of the tests by a thread": """
import os, threading
threading.Timer(0.01, os._exit, [0]).start()
def add(a, b):
    import time
    time.sleep(0.2)
""",
    "exits when the interpreter ends": """
import atexit, os
atexit.register(os._exit, 0)
def add(a, b): return None
""",
    "replaces the exception": """
import builtins, sys
sys.excepthook = lambda *args: __import__("os")._exit(0)
def add(a, b): return None
""",
}
"""Cheats that fool a harness that runs the tests in the same process."""

CHEATS = FOOLING | {
    "prints what a harness prints": f"""
print("passed", "OK", "1.0", {_REPORT.decode()!r}, sep="\\n", flush=True)
def add(a, b): print(3)
""",
    "writes to every descriptor": f"{_FLOOD}\nflood()\ndef add(a, b):\n    flood()\n    return None",
    "writes to every descriptor by a thread": f"""{_FLOOD}
import threading, time
def loop():
    while True:
        flood()
        time.sleep(0.001)
threading.Thread(target=loop, daemon=True).start()
def add(a, b):
    time.sleep(0.01)
""",
    "writes to every descriptor by a process": f"""{_FLOOD}
import time
if os.fork() == 0:
    os.setsid()
    while True:
        flood()
        time.sleep(0.001)
def add(a, b):
    time.sleep(0.01)
""",
    "writes to the descriptors of others": """
import os
def add(a, b):
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            for name in os.listdir(f"/proc/{pid}/fd"):
                try:
                    with open(f"/proc/{pid}/fd/{name}", "wb", 0) as file: file.write(b"done 1")
                except OSError: pass
""",
    "closes every descriptor": "import os\nos.closerange(0, 256)\ndef add(a, b): return a + b",
    "replaces every descriptor": """
import os
pipe = os.pipe()
for descriptor in range(3, 64):
    if descriptor not in pipe:
        try: os.dup2(pipe[1], descriptor)
        except OSError: pass
def add(a, b): return a + b
""",
    "asks for the expected result": """
import os
def add(a, b):
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"done ")
            os.set_blocking(descriptor, False)
            if str(a + b).encode() in os.read(descriptor, 10**6): return a + b
        except OSError: pass
""",
    "writes __del__": f"""{_FLOOD}
class Last:
    def __del__(self): flood()
def add(a, b): return [Last()]
""",
    "replaces builtins": """
import builtins
for name in ("len", "all", "any", "abs", "sum", "sorted", "isinstance", "repr", "compile", "exec", "open", "type"):
    setattr(builtins, name, lambda *args, **kwargs: True)
builtins.AssertionError = builtins.Exception = type("Fine", (BaseException,), {})
def add(a, b): return None
""",
    "removes builtins": "import builtins\nbuiltins.__dict__.clear()\ndef add(a, b): return None",
    "replaces json": """
import json
json.dumps = lambda *args, **kwargs: "true"
json.loads = lambda *args, **kwargs: [[[[1, 2], {}]], []]
json.JSONEncoder.encode = json.dumps
def add(a, b): return None
""",
    "replaces the code of the harness": """
import sys
for name, module in list(sys.modules.items()):
    if "inside" in name:
        for key in list(module.__dict__):
            if callable(module.__dict__[key]):
                module.__dict__[key] = lambda *args, **kwargs: b"value [[3], []]"
def add(a, b): return None
""",
    "answers for the harness": """
import os, sys
def add(a, b):
    for name, module in list(sys.modules.items()):
        if name.endswith("inside.candidate"):
            os.write(module._output[0], b"value [[3], []]")
            module.write_all = lambda *args: None
""",
    "reports for the harness": f"""
import os, sys
def add(a, b):
    for name, module in list(sys.modules.items()):
        if name.endswith("inside.candidate"):
            os.write(module._output[0], {_REPORT!r})
            module.write_all = lambda *args: None
""",
    "clears sys.modules": "import sys\nsys.modules.clear()\ndef add(a, b): return None",
    "replaces sys.modules": "import sys\nsys.modules['json'] = sys.modules['os'] = None\ndef add(a, b): return None",
    "imports its own json": """
import sys
open("json.py", "w").write("def loads(*a): return []\\ndef dumps(*a): return ''")
sys.path.insert(0, ".")
sys.modules.pop("json")
import json
def add(a, b): return None
""",
    "traces every line": """
import sys, threading
def trace(frame, event, arg):
    frame.f_locals.update(problem=None, passed=1)
    return trace
sys.settrace(trace)
sys.setprofile(trace)
threading.settrace(trace)
def add(a, b): return None
""",
    "changes True and small integers": """
import ctypes
def add(a, b):
    ctypes.memmove(id(3) + 24, (10).to_bytes(4, "little"), 4)
    return 10
""",
    "changes the result of a comparison": """
import ctypes
ctypes.pythonapi.PyObject_RichCompare = None
def add(a, b):
    ctypes.memset(id(None), 0, 16)
    return None
""",
    "replaces the clock": "import time\ntime.time = time.monotonic = lambda: 0.0\ndef add(a, b): return 0",
    "handles every signal": """
import signal
for number in signal.valid_signals():
    try: signal.signal(number, lambda *args: None)
    except (OSError, ValueError): pass
def add(a, b): return None
""",
    "kills itself": "import os\ndef add(a, b): os.kill(os.getpid(), 9)",
    "kills everything": "import os\ndef add(a, b):\n    os.kill(-1, 9)\n    os.kill(1, 9)",
    "aborts": "import os\ndef add(a, b): os.abort()",
    "crashes the interpreter": "import ctypes\ndef add(a, b): ctypes.string_at(0)",
    "overflows the stack": "import sys\nsys.setrecursionlimit(10**9)\ndef add(a, b): return add(a, b)",
    "returns NaN": "def add(a, b): return float('nan')",
    "returns True": "def add(a, b): return True",
    "returns a function": "def add(a, b): return lambda *args: True",
    "returns a class": "def add(a, b): return int",
    "returns a module": "import os\ndef add(a, b): return os",
    "returns a coroutine": "async def add(a, b): return a + b",
    "returns a memory view": "def add(a, b): return memoryview(b'3')",
    "returns an object that is unpickled": """
import os
class Reduced:
    def __reduce__(self): return os._exit, (0,)
def add(a, b): return Reduced()
""",
    "returns an object that raises": """
class Raising:
    def __getattribute__(self, name): raise KeyboardInterrupt
def add(a, b): return Raising()
""",
    "returns an iterator without end": "import itertools\ndef add(a, b): return itertools.count()",
    "returns a list with many levels": "def add(a, b):\n    x = []\n    for _ in range(10**5): x = [x]\n    return x",
    "returns a tuple with many levels": "def add(a, b):\n    x = ()\n    for _ in range(10**5): x = (x,)\n    return x",
    "returns a set of many levels": "def add(a, b):\n    x = ()\n    for _ in range(500): x = (x,)\n    return {x}",
    "returns a list that contains itself": "def add(a, b):\n    x = []\n    x.append(x)\n    return x",
    "returns a list of shared parts": "def add(a, b):\n    x = []\n    for _ in range(60): x = [x, x]\n    return x",
    "returns a huge integer": "def add(a, b): return 1 << 10**6",
    "returns a huge string": "def add(a, b): return 'x' * 10**8",
    "returns a huge list": "def add(a, b): return list(range(10**6))",
    "returns a string that is no Unicode": "def add(a, b): return '\\ud800'",
    "returns bytes": "def add(a, b): return bytes(range(256))",
    "raises an AssertionError": "def add(a, b): raise AssertionError",
    "raises StopIteration": "def add(a, b): raise StopIteration(3)",
    "raises GeneratorExit": "def add(a, b): raise GeneratorExit",
    "raises KeyboardInterrupt": "def add(a, b): raise KeyboardInterrupt",
    "raises a class of its own": "class Mine(BaseException): pass\ndef add(a, b): raise Mine",
    "raises an exception without a text": """
class Silent(Exception):
    def __str__(self): raise ValueError
    __repr__ = __str__
def add(a, b): raise Silent(Silent())
""",
    "raises an exception with a huge text": "def add(a, b): raise ValueError('x' * 10**7)",
    "raises a MemoryError": "def add(a, b): raise MemoryError",
    "raises a RecursionError": "def add(a, b): return add(a, b)",
    "raises while it is imported": "raise ValueError('no')",
    "has no function": "x = 3",
    "is no program": "I think that the answer is 3.",
    "is empty": "",
    "has a null byte": "def add(a, b): return a + b\0",
    "is no Unicode": "def add(a, b): return '\udcff'",
    "has a declaration of another encoding": "# -*- coding: utf-7 -*-\ndef add(a, b): return None",
    "has many parentheses": "def add(a, b): return " + "(" * 10**5 + ")" * 10**5,
    "has many operators": "def add(a, b): return " + "-" * 10**6 + "1",
}
