"""Bytes of others never become code: names that may do that are used in a list of modules only, with reasons.

test_modules.py compares the list with every module.
"""

from __future__ import annotations

from tests.library.unpickling_rules import PERMITTED, names_in


def test_every_permission_has_a_reason() -> None:
    assert [path for path, permission in PERMITTED.items() if len(permission.reason) < 30 or not permission.names] == []


UNSAFE = {
    "import pickle\npickle.loads(data)": "pickle.loads",
    "import pickle as p\nread = p.load": "pickle.load",
    "from pickle import loads as read\nread(data)": "pickle.loads",
    "import pickle\nclass Reader(pickle.Unpickler): ...": "pickle.Unpickler",
    "from pickle import Unpickler": "pickle.Unpickler",
    "import pickle\ngetattr(pickle, name)(data)": "pickle",
    "import importlib\nimportlib.import_module('pickle').loads(data)": "pickle",
    "__import__('marshal').loads(data)": "marshal",
    "import cloudpickle\ncloudpickle.dumps(f)": "cloudpickle.dumps",
    "import dill\ndill.load(file)": "dill.load",
    "def f():\n    import marshal\n    return marshal.loads(data)": "marshal.loads",
    "import shelve\nshelve.open(path)": "shelve.open",
    "import joblib\njoblib.load(path)": "joblib.load",
    "import torch\ntorch.load(path)": "torch.load",
    "import torch\ntorch.load(path, weights_only=False)": "torch.load",
    "import torch\ntorch.load(path, weights_only=safe)": "torch.load",
    "import torch as t\nt.load(path, map_location='cpu')": "torch.load",
    "from torch import load\nload(path)": "torch.load",
    "from torch.serialization import load as read\nread(path)": "torch.load",
    "import torch\nmap(torch.load, paths)": "torch.load",
    "import numpy as np\nnp.load(path, allow_pickle=True)": "allow_pickle",
    "import numpy as np\nnp.load(path, allow_pickle=unsafe)": "allow_pickle",
    "import pandas as pd\npd.read_pickle(path)": "read_pickle",
    "import torch.distributed as dist\ndist.all_gather_object(values, value)": "all_gather_object",
    "from torch.distributed import gather_object": "gather_object",
    "group.broadcast_object_list(values)": "broadcast_object_list",
    "from torch import distributed\ndistributed.scatter_object_list(a, b)": "scatter_object_list",
    "dist.send_object_list(values)": "send_object_list",
    "dist.recv_object_list(values)": "recv_object_list",
    "from torch.distributed import TCPStore": "TCPStore",
    "import torch\nstore = torch.distributed.TCPStore('127.0.0.1', 0)": "TCPStore",
    "from multiprocessing.connection import Connection": "multiprocessing.Connection",
    "from multiprocessing.connection import Client, wait": "multiprocessing.Client",
    "import multiprocessing as mp\nmp.Queue()": "multiprocessing.Queue",
    "from torch import multiprocessing\nmultiprocessing.Manager()": "multiprocessing.Manager",
    "from multiprocessing import get_context\ncontext = get_context('spawn')\ncontext.Pipe()": "multiprocessing.Pipe",
    "from multiprocessing import get_context\nget_context('spawn').Queue()": "multiprocessing.Queue",
    "from multiprocessing.managers import SyncManager\nfrom multiprocessing import Manager": "multiprocessing.Manager",
    "from multiprocessing import reduction\nreduction.ForkingPickler.loads(data)": "ForkingPickler",
    "socket.recv_pyobj()": "recv_pyobj",
    "import yaml\nyaml.load(text, yaml.Loader)": "yaml.load",
    "import yaml\nyaml.unsafe_load(text)": "yaml.unsafe_load",
    "from yaml import unsafe_load": "yaml.unsafe_load",
    "eval(text)": "eval",
    "exec(compile(text, 'name', 'exec'))": "exec",
    "import builtins\nbuiltins.eval(text)": "eval",
    "run = exec": "exec",
    "SCRIPT = '''\nimport pickle, sys\nvalue = pickle.loads(sys.stdin.buffer.read())\n'''": "pickle.loads",
    "SCRIPT = f'''\nimport {library}\npickle.loads(a)\n'''": "pickle.loads",
    "SCRIPT = f'''\nimport sys\nexec(sys.argv[{index}])\n'''": "exec",
}


def test_names_are_found_however_they_are_imported() -> None:
    assert {code: name for code, name in UNSAFE.items() if name not in names_in(code)} == {}


SAFE = [
    "import torch\ntorch.load(path, weights_only=True)",
    "import numpy as np\nnp.load(path)\nnp.load(path, allow_pickle=False)",
    "import json\njson.loads(text)",
    "import tomllib\ntomllib.load(file)",
    "from pickle import UnpicklingError",
    "import pickle\ntry: ...\nexcept pickle.PicklingError: ...",
    "import yaml\nyaml.safe_load(text)",
    "model.eval()",
    "import queue\nqueue.Queue()",
    "import asyncio\nasyncio.Queue()",
    "from purerl.rewards.jobs import Queue\nQueue(jobs)",
    "from multiprocessing.connection import wait\nwait([1])",
    "import httpx\nhttpx.Client()",
    "'''A text about pickle.loads and exec().'''",
    "names = ['pickle']",
]


def test_safe_names_need_no_permission() -> None:
    assert {code: names_in(code) for code in SAFE if names_in(code)} == {}
