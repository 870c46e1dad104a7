"""The script and the command of the migration pages in small, in their own library and in purerl, with their numbers.

    .nox/oracle/bin/python -m benchmarks.migration MODEL [--only trl verl]
    python -m benchmarks.migration --tables

MODEL is the directory of a model with a chat template. `nox -s oracle` creates the environment, which has TRL and verl.
The files are those of docs/how-to/migrate_from_trl.md and migrate_from_verl.md with the smaller sizes in `SMALL`, and
with problems that a small model solves at times. The results are written to benchmarks/results/migration.json, and the
second command prints the tables of the pages from it.

    trl   `python train.py` with TRL's own trainer; `purerl import trl`, and `purerl train` on its result
    verl  `purerl import verl` and `purerl train`. verl's trainer does not start without a GPU. Its own functions
          compute the advantages, the loss and the gradient of the batch of each step, to be compared with those of
          purerl. The log-probabilities are those of the trained model: ratios are clipped, the KL penalty is not 0
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "migration.json"
MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
STEPS = {"trl": 5, "verl": 4}
SMALL = {
    "trl": {
        "max_steps=200": f"max_steps={STEPS['trl']}",
        "per_device_train_batch_size=16": "per_device_train_batch_size=8",
        "gradient_accumulation_steps=8": "gradient_accumulation_steps=2",
        "max_completion_length=512": "max_completion_length=32",
        "warmup_steps=10": "warmup_steps=2",
        "learning_rate=1e-5": "learning_rate=1e-4",
        "bf16=True": "bf16=True,\n    use_cpu=True",
    },
    "verl": {
        "data.train_batch_size=256": "data.train_batch_size=4",
        "ppo_mini_batch_size=64": "ppo_mini_batch_size=2",
        "ppo_micro_batch_size_per_gpu=16": "ppo_micro_batch_size_per_gpu=10",
        "data.max_response_length=1024": "data.max_response_length=12",
        "trainer.total_epochs=15": f"trainer.total_epochs=1 trainer.total_training_steps={STEPS['verl']}",
    },
}
"""Changes of the files of the pages."""

_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def page_files(name: str) -> dict[str, str]:
    """The files of the user on the page of `name`, in small."""
    page = (ROOT / "docs" / "how-to" / f"migrate_from_{name}.md").read_text(encoding="utf-8")
    names = {"trl": ["rewards.py", "train.py"], "verl": ["run.sh"]}[name]
    files = dict(zip(names, (code for _, code in _BLOCK.findall(page)), strict=False))
    for old, new in SMALL[name].items():
        if old not in files[names[-1]]:
            raise LookupError(f"{names[-1]} of the page has no {old}")
        files[names[-1]] = files[names[-1]].replace(old, new)
    return files


def problems(name: str, count: int = 64) -> Iterator[dict[str, Any]]:
    """Sums of two numbers: in words for TRL, and for verl after two examples in the format of its reward for GSM8K."""
    rng = random.Random(0)
    for _ in range(count):
        a, b = rng.randint(2, 9), rng.randint(2, 9)
        if name == "trl":
            text = f"Ann has {a} pens and buys {b} more pens. How many pens does she have now?"
            yield {"prompt": [{"role": "user", "content": text}], "answer": str(a + b)}
            continue
        turns = [("user", "3 + 4 = ?"), ("assistant", "#### 7"), ("user", "8 + 2 = ?"), ("assistant", "#### 10")]
        prompt = [{"role": role, "content": text} for role, text in (*turns, ("user", f"{a} + {b} = ?"))]
        truth = {"style": "rule", "ground_truth": str(a + b)}
        yield {"data_source": "openai/gsm8k", "prompt": prompt, "reward_model": truth}


def write_files(name: str, model: str, folder: Path) -> None:
    """Write the files of the page, in small and with `model`, and the data that they name."""
    for file, text in page_files(name).items():
        (folder / file).write_text(text.replace(MODEL, model), encoding="utf-8")
    rows = [*problems(name)]
    if name == "trl":
        (folder / "problems.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        return
    import pyarrow as pa
    import pyarrow.parquet as parquet

    (folder / "gsm8k").mkdir()
    for split, part in {"train": rows[:-8], "test": rows[-8:]}.items():
        parquet.write_table(pa.Table.from_pylist(part), folder / "gsm8k" / f"{split}.parquet")


def run(arguments: list[str], folder: Path) -> dict[str, float]:
    """Run a command in `folder`; return its CPU seconds and its wall seconds, with those of its imports."""
    paths = (str(ROOT), str(ROOT / "cli"), os.environ.get("PYTHONPATH"))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "HF_HUB_OFFLINE": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
    }
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)}\n{done.stdout}{done.stderr}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu": round(cpu, 1), "wall": round(time.perf_counter() - start, 1)}


def run_purerl(name: str, source: str, folder: Path, *settings: str) -> dict[str, Any]:
    """Import the file `source` of the page, and train; return seconds, and the reward and the loss of each step."""
    command = [sys.executable, "-m", "purerl_cli"]
    run([*command, "import", name, source, "--output", "run.toml"], folder)
    seconds = run([*command, "train", "run.toml", "--directory", "run", *settings], folder)
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [record for record in map(json.loads, lines) if record["step"]]
    loss = [sum(v for key, v in record.items() if key.startswith("policy/loss/")) for record in records]
    return {**seconds, "reward": _rounded(r["reward/mean"] for r in records), "loss": _rounded(loss)}


def run_trl(folder: Path) -> dict[str, Any]:
    """Run the script with TRL's trainer; one line more writes its log."""
    script, log = folder / "train.py", folder / "log.json"
    end = f"\nimport json\nopen({str(log)!r}, 'w').write(json.dumps(trainer.state.log_history))\n"
    (folder / "logged.py").write_text(script.read_text(encoding="utf-8") + end, encoding="utf-8")
    seconds = run([sys.executable, "logged.py"], folder)
    records = [record for record in json.loads(log.read_text(encoding="utf-8")) if "reward" in record]
    return {**seconds, "reward": _rounded(r["reward"] for r in records), "loss": _rounded(r["loss"] for r in records)}


def _rounded(values: Any) -> list[float]:
    return [round(float(value), 5) for value in values]


# --- verl's functions ---------------------------------------------------------------------------------------------


def compare_with_verl(directory: Path) -> dict[str, list[float]]:
    """Advantages, loss and gradient of the batch of each step of the run in `directory`, by verl and by purerl."""
    import torch

    from purerl.batch import with_fields
    from purerl.composition import build_algorithm
    from purerl.recipes import resolve
    from purerl.store.rollouts import read_batch
    from tests.oracle.compositions import result_of
    from tests.oracle.verl_step import actor_config, gradient_of_step

    algorithm = build_algorithm(resolve(str(directory / "config.toml")).algorithm)
    kl = {"use_kl_loss": True, "kl_loss_coef": 0.001, "kl_loss_type": "low_var_kl"}
    actor = actor_config("vanilla", clip_ratio_high=0.28, **kl)
    found: dict[str, list[float]] = {"verl": [], "purerl": [], "advantage": [], "gradient": []}
    for step in range(1, STEPS["verl"] + 1):
        recorded = read_batch(directory / "rollouts", step)
        batch = recorded.apply(lambda value: value.double() if value.is_floating_point() else value)
        logp = _log_probabilities(directory / "final", batch)
        batch = with_fields(batch, logp=logp, entropy=torch.zeros_like(logp))
        advantage, _ = import_module("verl.trainer.ppo.core_algos").get_adv_estimator_fn("grpo")(
            token_level_rewards=batch["reward"].clone(),
            response_mask=batch["mask"].double(),
            index=batch["group"].numpy().astype(object),
        )
        loss, gradient = gradient_of_step(actor, batch, advantage)
        own = result_of(algorithm, batch)
        found["verl"].append(loss.item())
        found["purerl"].append(own.loss.item())
        found["advantage"].append((own.advantage - advantage)[batch["mask"]].abs().max().item())
        found["gradient"].append(((own.gradient - gradient).abs().max() / gradient.abs().max()).item())
    return found


def _log_probabilities(model: Path, batch: Any) -> Any:
    """Log-probabilities of the tokens of `batch` under the model in the directory `model`, at temperature 1."""
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        logits = loaded(batch["tokens"].long(), attention_mask=batch["attention_mask"].long()).logits
    chosen = logits[:, :-1].double().log_softmax(-1).gather(-1, batch["tokens"].long()[:, 1:, None])[..., 0]
    return torch.cat([torch.zeros_like(chosen[:, :1]), chosen], -1) * batch["action"]


# --- tables -------------------------------------------------------------------------------------------------------


def tables(results: Mapping[str, Any]) -> dict[str, str]:
    """The table of each page, as Markdown."""
    found = {}
    if "trl" in results:
        theirs, ours = results["trl"]["TRL"], results["trl"]["purerl"]
        head = ["step", "reward, TRL", "reward, purerl", "loss, TRL", "loss, purerl"]
        columns = [theirs["reward"], ours["reward"], theirs["loss"], ours["loss"]]
        found["trl"] = _table(head, [".3f", ".3f", ".4f", ".4f"], columns)
    if "verl" in results:
        own, functions = results["verl"]["purerl"], results["verl"]["functions"]
        head = [
            "step",
            "reward, purerl",
            "loss, verl's functions",
            "loss, purerl",
            "advantages differ by",
            "gradients by",
        ]
        columns = [own["reward"], *(functions[name] for name in ("verl", "purerl", "advantage", "gradient"))]
        found["verl"] = _table(head, [".3f", ".6f", ".6f", ".0e", ".0e"], columns)
    return found


def _table(head: list[str], formats: list[str], columns: list[list[float]]) -> str:
    rows = [[str(step), *map(format, values, formats)] for step, values in enumerate(zip(*columns, strict=True), 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def main() -> None:
    """Measure, and write the results; or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--only", nargs="+", choices=SMALL, default=[*SMALL])
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--tables", action="store_true", help="print the tables of the results")
    options = parser.parse_args()
    results = json.loads(options.output.read_text(encoding="utf-8")) if options.output.exists() else {}
    if options.tables:
        print("\n\n".join(tables(results).values()))
        return
    model = str(Path(options.model).resolve())
    for name in options.only:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            write_files(name, model, folder)
            if name == "trl":
                results[name] = {"TRL": run_trl(folder), "purerl": run_purerl(name, "train.py", folder)}
            else:
                own = run_purerl(name, "run.sh", folder, "generator=hf")
                results[name] = {"purerl": own, "functions": compare_with_verl(folder / "run")}
        options.output.write_text(f"{json.dumps(results, indent=1)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
