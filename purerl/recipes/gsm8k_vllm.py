r"""GRPO on GSM8K with vLLM, on one GPU that trainer and engine share.

    python3 -m venv engines/vllm && engines/vllm/bin/pip install 'vllm==0.32.*'
    purerl data convert gsm8k SOURCE gsm8k      SOURCE: the directory of train.jsonl and test.jsonl, as published
    purerl train gsm8k_vllm --set model=Qwen/Qwen2.5-0.5B-Instruct --set data=gsm8k/train.parquet \
        --set python=engines/vllm/bin/python

The data, `test` and the settings are those of the recipe `gsm8k`, except for these:

    sleep_level 2                 vLLM releases the memory of the GPU while the trainer trains. Every step sends it all
                                  weights, so it keeps no copy
    40 % of the memory            for vLLM, beside weights, gradients and AdamW's states of the trainer, which are 8 GB
                                  with half a billion parameters; `purerl plan` has the number for your model
    bfloat16 in vLLM              half the memory. The trainer keeps all digits of the weights, in float32
    importance_weight             corrects for the difference between the two dtypes
    1,024 positions               prompts and completions are short; vLLM reserves memory for the longest sequence
"""

from __future__ import annotations

from typing import Annotated

from attrs import evolve

from purerl.algos.modifiers import importance_weight
from purerl.backends.serving.settings import ServerSettings
from purerl.backends.vllm import generator
from purerl.config.schema import RunConfig
from purerl.data.settings import Data
from purerl.recipes.gsm8k import gsm8k
from purerl.settings import Model

__all__ = ["gsm8k_vllm"]


def gsm8k_vllm(
    model: str | Model,
    data: str | Data,
    python: Annotated[
        str | None, "the Python interpreter of the environment of vLLM, if it is not that of purerl"
    ] = None,
    test: Annotated[str | None, "a file of problems to evaluate on, instead of a fraction of the data"] = None,
    max_steps: int | None = None,
    num_epochs: float | None = None,
) -> RunConfig:
    """GRPO on grade-school math problems with vLLM on the GPU of the trainer, two epochs by default.

    >>> gsm8k_vllm(model="Qwen/Qwen2.5-0.5B-Instruct", data="gsm8k/train.parquet").generator.server.sleep_level
    2
    """
    config = gsm8k(model, data, test, max_steps, num_epochs)
    server = ServerSettings(
        python=python, device="accelerator", dtype="bfloat16", sleep_level=2, gpu_memory_utilization=0.4
    )
    return evolve(
        config,
        name="gsm8k_vllm",
        algorithm=evolve(config.algorithm, modifiers=(importance_weight.Config(),)),
        generator=generator.Config(server=server, max_num_seqs=512, max_sequence_length=1024),
    )
