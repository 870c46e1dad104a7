"""Settings of engines behind servers: what is refused, and before anything is started."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.backends.hf.lora import Lora
from purerl.backends.serving.log import reason
from purerl.backends.serving.settings import ServerSettings
from purerl.backends.sglang import generator as sglang
from purerl.backends.vllm import generator as vllm
from purerl.config.check import check
from purerl.config.generators import check_serving
from purerl.config.overrides import apply
from purerl.config.paths import resolve_paths
from purerl.errors import ConfigError
from purerl.placement.settings import Placement
from purerl.recipes.addition import addition
from purerl.settings import Model
from tests.backends.tiny import write_model
from tests.serving.interpreter import ENGINE_PYTHON


@pytest.mark.parametrize("engine", [vllm, sglang])
def test_engine_that_is_not_installed_is_refused_before_the_run(engine: Any) -> None:
    words = r"generator.server\n  got:  (vllm|sglang) is not installed in the environment of purerl"
    with pytest.raises(ConfigError, match=words):
        check(evolve(addition(), generator=engine.Config()))


def test_interpreter_without_the_engine_is_refused() -> None:
    config = vllm.Config(server=ServerSettings(python="/nowhere/python"))
    with pytest.raises(
        ConfigError, match=r"generator.server.python\n  got:  '/nowhere/python', which is not a program"
    ):
        check(evolve(addition(), generator=config))
    config = sglang.Config(server=ServerSettings(python=sys.executable))
    with pytest.raises(ConfigError, match=r"generator.server.python\n  got:  '.*', which has no sglang\n"):
        check(evolve(addition(), generator=config))
    check(evolve(addition(), generator=vllm.Config(server=ServerSettings(python=ENGINE_PYTHON))))
    check(evolve(addition(), generator=vllm.Config(server=ServerSettings(urls=("http://host:1",)))))


@pytest.mark.parametrize(
    ("engine", "arguments", "words"),
    [
        (
            vllm,
            {"gpu_memory_utilization": 0.5},
            "gpu_memory_utilization[\\s\\S]*set server.gpu_memory_utilization",
        ),
        (vllm, {"max-num-seqs": 5}, "arguments.max-num-seqs[\\s\\S]*set max_num_seqs"),
        (vllm, {"port": 5}, "arguments.port[\\s\\S]*leave it out"),
        (
            sglang,
            {"mem_fraction_static": 0.5},
            "mem_fraction_static[\\s\\S]*set server.gpu_memory_utilization",
        ),
    ],
)
def test_arguments_that_settings_decide_are_refused(engine: Any, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        engine.Config(server=ServerSettings(arguments=arguments))


@pytest.mark.parametrize("engine", [vllm, sglang])
def test_longest_sequence_is_that_of_the_model_or_shorter(engine: Any, tmp_path: Any) -> None:
    model = Model(write_model(tmp_path))
    assert engine.preview(engine.Config(), model=model).max_sequence_length == 64
    assert engine.preview(engine.Config(max_sequence_length=20), model=model).max_sequence_length == 20
    with pytest.raises(ConfigError, match="at most 64, the positions of the model"):
        engine.preview(engine.Config(max_sequence_length=65), model=model)


@pytest.mark.parametrize("engine", [vllm, sglang])
def test_servers_have_the_dtype_of_the_model_or_one_of_their_own(engine: Any, tmp_path: Any) -> None:
    model = Model(write_model(tmp_path), dtype="float32")
    for dtype, expected in ((None, "float32"), ("bfloat16", "bfloat16")):
        config = engine.Config(server=ServerSettings(dtype=dtype, device="cpu"))
        arguments = engine.command(config, model=model, host="127.0.0.1", port=1).arguments
        assert arguments[arguments.index("--dtype") + 1] == expected
    with pytest.raises(ConfigError, match=r"dtype\n  got:  'int8'\n  need: float32, bfloat16 or float16"):
        ServerSettings(dtype="int8")


@pytest.mark.parametrize(
    ("engine", "name"), [(vllm, "VLLM_CPU_OMP_THREADS_BIND"), (sglang, "SGLANG_CPU_OMP_THREADS_BIND")]
)
def test_each_part_of_a_model_on_the_cpu_has_a_core(engine: Any, name: str, tmp_path: Any) -> None:
    model = Model(write_model(tmp_path))

    def variables(**changes: Any) -> Any:
        config = engine.Config(server=ServerSettings(**{"device": "cpu", **changes}))
        return engine.command(config, model=model, host="127.0.0.1", port=1).environment

    assert variables(tensor_parallel_size=3)[name] == "0|1|2"
    assert variables(tensor_parallel_size=2, environment={name: "4|5"})[name] == "4|5"
    assert name not in variables()
    assert name not in variables(tensor_parallel_size=2, device="cuda")


def test_sglang_on_the_cpu_has_room_for_all_sequences(tmp_path: Any) -> None:
    """Otherwise it takes nearly all memory of the host, once for each part of the model."""
    config = sglang.Config(server=ServerSettings(device="cpu"), max_num_seqs=8)
    arguments = sglang.command(config, model=Model(write_model(tmp_path)), host="127.0.0.1", port=1).arguments
    assert arguments[arguments.index("--max-total-tokens") + 1] == str(8 * 64)


def test_urls_are_addresses_and_have_no_settings_of_processes() -> None:
    with pytest.raises(ConfigError, match="begin with http"):
        ServerSettings(urls=("localhost:8000",))
    changes = {
        "number": 2,
        "device": "cpu",
        "dtype": "bfloat16",
        "arguments": {"kv_cache_dtype": "fp8"},
    }
    for name, value in changes.items():
        with pytest.raises(ConfigError, match=f"{name} has no effect"):
            ServerSettings(urls=("http://localhost:8000",), **{name: value})


def test_a_run_does_not_set_the_logs_of_servers_that_run_already() -> None:
    config = evolve(addition(), generator=vllm.Config(server=ServerSettings(urls=("http://host:1",))))
    check(config)
    assert resolve_paths(config, Path("run")).generator.server.urls == ("http://host:1",)
    with pytest.raises(ConfigError, match="generator.server.logs has no effect"):
        check(apply(config, ["generator.server.logs=mine"]))


@pytest.mark.parametrize(
    ("engine", "settings", "rank", "words"),
    [
        (vllm, {}, 4, "generator.max_lora_rank\n  got:  nothing\n  need: at least 4, the rank of the adapter"),
        (vllm, {"max_lora_rank": 2}, 4, "generator.max_lora_rank\n  got:  2\n  need: at least 4, "),
        (vllm, {"max_lora_rank": 8}, None, "generator.max_lora_rank has no effect\n  got:  8\n  need: a run"),
        (sglang, {}, 4, "generator.kind\n  got:  sglang\n  need: a generator that loads the adapter"),
        (vllm, {"max_lora_rank": 8}, 4, None),
        (vllm, {"max_lora_rank": 4}, 4, None),
        (vllm, {}, None, None),
        (sglang, {}, None, None),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("interpreter_has_engines")
def test_adapter_that_an_engine_cannot_load_is_refused_before_the_run(
    engine: Any, settings: dict[str, Any], rank: int | None, words: str | None
) -> None:
    config = evolve(addition(), generator=engine.Config(server=ServerSettings(python=ENGINE_PYTHON), **settings))
    if rank is not None:
        config = evolve(config, trainer=evolve(config.trainer, lora=Lora(rank=rank)))
    with nullcontext() if words is None else pytest.raises(ConfigError, match=f"^{words}"):
        check(config)


def test_reason_is_the_first_error_and_the_last_lines(tmp_path: Any) -> None:
    lines = [
        "INFO 11-23 18:10:00 [core.py:12] loads",
        "(EngineCore pid=5) ERROR 11-23 18:10:01 [core.py:99] Traceback (most recent call last):",
        "(EngineCore pid=5) ERROR 11-23 18:10:01 [core.py:99] ValueError: No available memory for the cache blocks.",
        "[2026-11-23 18:10:02] Ignore import error when loading a model: No module named 'torchaudio'",
        "(APIServer pid=4) RuntimeError: Engine core initialization failed. See root cause above.",
        ' - leaked function "add"',
        "    ]",
    ]
    log = tmp_path / "engine.log"
    log.write_text("\n".join(lines))
    first, *others = reason(log).split("\n")
    assert first == "    ValueError: No available memory for the cache blocks."
    assert not any("leaked" in line or "root cause" in line or line.strip() == "]" for line in others)
    assert reason(tmp_path / "no.log").startswith("its log cannot be read")


@pytest.mark.usefixtures("interpreter_has_engines")
@pytest.mark.parametrize("engine", [vllm, sglang])
def test_stale_cache_needs_requests_that_run_while_weights_change(engine: Any) -> None:
    config = addition()
    config = evolve(config, generator=engine.Config(server=ServerSettings(python=ENGINE_PYTHON, stale_cache=True)))
    with pytest.raises(ConfigError, match=r"generator.server.stale_cache has no effect\n  got:  True\n"):
        check(config)
    check(evolve(config, rollout=evolve(config.rollout, order="finished", num_extra_groups=1)))


@pytest.mark.parametrize("transfer", ["cuda_ipc", "nccl"])
def test_transfer_between_devices_has_no_effect_in_actors(transfer: str) -> None:
    urls = ("http://host:1",)
    config = evolve(addition(), generator=vllm.Config(server=ServerSettings(urls=urls, weight_transfer=transfer)))
    with pytest.raises(
        ConfigError, match=rf"weight_transfer has no effect\n  got:  '?{transfer}'?\n  need: placement.kind"
    ):
        check_serving(config.generator, config.rollout, Placement(kind="ray"))
    check_serving(config.generator, config.rollout, config.placement)
