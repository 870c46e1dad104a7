"""Sampling parameters in the requests and answers of engines behind servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.backends.requests import PendingRequest
from purerl.backends.serving.settings import ServerSettings
from purerl.backends.sglang import generator as sglang
from purerl.backends.sglang.api import SGLangApi
from purerl.backends.vllm import generator as vllm
from purerl.backends.vllm.api import VLLMApi
from purerl.config.check import check
from purerl.config.overrides import apply
from purerl.errors import ConfigError, InputError
from purerl.protocols import SAMPLING_PARAMETERS, Request, Sampling
from purerl.recipes.addition import addition
from purerl.settings import Model
from tests.backends.tiny import VOCAB_SIZE, write_model
from tests.rollouts.runtimes import wait_until
from tests.serving.toys import WEIGHTS, Toy, completions, requests, sampled, toys

VLLM = VLLMApi(Model("m"), {}, {}, None, stale_cache=False, is_streamed=False)
SGLANG = SGLangApi(Model("m"), {}, {}, None, stale_cache=False, is_streamed=False, vocab_size=1000)
ALL = dict(top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.2, min_tokens=7, max_tokens=9)


def _pending(sampling: Sampling) -> PendingRequest:
    return PendingRequest(Request("a", [1, 2], sampling, seed=0))


def body(api: Any, sampled: int = 0, **sampling: Any) -> dict[str, Any]:
    pending = _pending(Sampling(stop_tokens=(3,), **sampling))
    pending.add([4] * sampled, [-1.0] * sampled, 0)
    return api.request(pending, "identity", None).body


def test_parameters_without_effect_are_not_sent() -> None:
    assert not body(VLLM)["sampling_params"].keys() & {*ALL} - {"max_tokens"}
    assert not body(SGLANG)["sampling_params"].keys() & {*ALL, "min_new_tokens"}
    assert "return_sampling_mask" not in body(SGLANG)


def test_vllm_gets_its_own_names() -> None:
    sent = body(VLLM, **ALL)["sampling_params"]
    assert {name: sent[name] for name in ALL} == ALL
    assert "structured_outputs" not in sent
    assert body(VLLM, regex="a|b")["sampling_params"]["structured_outputs"] == {"regex": "a|b"}
    schema = body(VLLM, json_schema='{"type": "object"}')["sampling_params"]["structured_outputs"]
    assert schema == {"json": {"type": "object"}}


def test_sglang_gets_its_own_names() -> None:
    sent = body(SGLANG, regex="a|b")["sampling_params"]
    assert (sent["regex"], sent["json_schema"]) == ("a|b", None)
    sent = body(SGLANG, json_schema="{}")["sampling_params"]
    assert (sent["regex"], sent["json_schema"]) == (None, "{}")


def test_the_end_token_of_the_model_ends_a_completion_that_has_to_match() -> None:
    """SGLang permits no other token after a match. Without a regex, the request is sent again."""
    info = {
        "finish_reason": {"type": "stop", "matched": 7},
        "output_token_logprobs": [[-2.0, 7, None]],
        "weight_versions": [{"version": "0", "start": 0, "end": 1}],
    }
    response = {"output_ids": [7], "meta_info": info}
    assert SGLANG.answer(response, _pending(Sampling(stop_tokens=(3,), regex="a"))).finish == "stop"
    assert SGLANG.answer(response, _pending(Sampling(stop_tokens=(3,)))).finish == "interrupted"


@pytest.mark.parametrize("keeps", [True, False])
def test_a_completion_that_has_to_match_starts_again_after_it_was_interrupted(tmp_path: Path, keeps: bool) -> None:
    with toys(tmp_path, Toy(("--limit", "60", "--limited-version", "1"), keeps=keeps)) as generator:
        generator.capabilities = evolve(generator.capabilities, sampling=SAMPLING_PARAMETERS)
        sampling = Sampling(max_tokens=100, stop_tokens=(999,), regex="a*")
        generator.load_weights(WEIGHTS, version=1)
        generator.submit([Request("0", [100], sampling, seed=0)])
        wait_until(lambda: sampled(generator) == 60)
        generator.load_weights(WEIGHTS, version=2)
        completion = completions(generator, 1)["0"]
    assert completion.tokens == tuple(range(1, 101))
    assert set(completion.version) == ({1, 2} if keeps else {2})


@pytest.mark.parametrize(("api", "name"), [(VLLM, "min_tokens"), (SGLANG, "min_new_tokens")])
def test_min_tokens_of_a_request_that_is_sent_again_is_what_is_missing(api: Any, name: str) -> None:
    limits = dict(min_tokens=5, max_tokens=9)
    assert body(api, sampled=2, **limits)["sampling_params"][name] == 3
    assert name not in body(api, sampled=5, **limits)["sampling_params"]


@pytest.mark.parametrize(("top_k", "sent"), [(0, 1000), (5, 5), (5000, 1000)])
def test_sglang_gets_a_finite_top_k_and_returns_the_log_probabilities_of_what_is_kept(top_k: int, sent: int) -> None:
    """Without a finite top_k it refuses the request."""
    filters = dict(top_k=top_k) if top_k else dict(top_p=0.9)
    whole = body(SGLANG, **filters)
    assert whole["sampling_params"]["top_k"] == sent
    assert whole["return_sampling_mask"]
    info = {
        "finish_reason": {"type": "length"},
        "output_token_logprobs": [[-2.0, 7, None]],
        "output_token_sampling_logprobs": [-1.5],
        "weight_versions": [{"version": "0", "start": 0, "end": 1}],
    }
    response = {"output_ids": [7], "meta_info": info}
    assert SGLANG.answer(response, _pending(Sampling(**filters))).logp == [-1.5]
    assert SGLANG.answer(response, _pending(Sampling())).logp == [-2.0]


def test_greedy_decoding_of_sglang_has_no_filters() -> None:
    """It would return log-probabilities of 0."""
    assert "return_sampling_mask" not in body(SGLANG, temperature=0.0, **ALL)
    assert "top_k" not in body(SGLANG, temperature=0.0, **ALL)["sampling_params"]


def test_server_of_sglang_returns_masks_of_any_size(tmp_path: Path) -> None:
    model = Model(write_model(tmp_path))
    arguments = sglang.command(sglang.Config(), model=model, host="h", port=1).arguments
    assert arguments[arguments.index("--sampling-mask-max-tokens") + 1] == str(VOCAB_SIZE)


@pytest.mark.parametrize("name", ["sampling_mask_max_tokens", "preferred_sampling_params"])
def test_arguments_of_sglang_that_change_the_sampling_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"server.arguments.{name}\n  got:  an argument that purerl sets itself"):
        sglang.Config(server=ServerSettings(arguments={name: 1}))


def test_capabilities_of_engines() -> None:
    assert vllm.capabilities().sampling == SAMPLING_PARAMETERS
    lacking = {"repetition_penalty", "top_p with top_k", "top_p with min_p", "min_tokens with stop_strings"}
    assert sglang.capabilities().sampling == SAMPLING_PARAMETERS - lacking


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("evaluate.repetition_penalty=1.1",), "evaluate.repetition_penalty\n  got:  1.1\n"),
        (
            ("evaluate.temperature=1.0", "evaluate.top_p=0.9", "evaluate.top_k=20"),
            "evaluate.top_p with top_k\n  got:  0.9 and 20\n",
        ),
        (
            ("evaluate.min_tokens=2", 'evaluate.stop_strings=["a"]'),
            "evaluate.min_tokens with stop_strings\n  got:  2 and ('a',)\n",
        ),
    ],
)
def test_what_sglang_lacks_is_refused_in_the_configuration(settings: tuple[str, ...], message: str) -> None:
    config = apply(addition(), ["generator.kind=sglang", 'generator.server.urls=["http://host:1"]', *settings])
    with pytest.raises(ConfigError) as caught:
        check(config)
    need = (
        "  need: a sampling parameter of the generator 'sglang': json_schema, min_p, min_tokens, regex, top_k, top_p\n"
    )
    do = "  do:   leave it out, or choose another generator: `purerl doctor` lists what each of them has"
    assert str(caught.value) == message + need + do


def test_generator_refuses_a_request_with_a_parameter_that_its_engine_lacks(tmp_path: Path) -> None:
    [request] = requests(1)
    with toys(tmp_path) as generator, pytest.raises(InputError, match=r"request 'a'\n  got:  top_k\n  need: sampling"):
        generator.submit([Request("a", request.tokens, Sampling(top_k=3), seed=0)])
