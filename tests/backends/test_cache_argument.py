"""Models get their cache under the name that their forward pass has for it."""

from __future__ import annotations

import pytest
from torch import nn
from transformers import Cache

from purerl.backends.hf.model.past_cache import cache_argument
from purerl.protocols import Request, Sampling, generate
from tests.backends.generators import make_generator, tiny_model
from tests.backends.tiny import FAMILIES, make_trainer
from tests.backends.training import train


class _Renamed(nn.Module):
    def forward(self, *, cache=None, **options):
        return cache, options


class _Earlier(nn.Module):
    def forward(self, *, past_key_values=None, **options):
        return past_key_values, options


@pytest.mark.parametrize("kind", [_Renamed, _Earlier])
def test_cache_arrives_under_the_name_of_the_model(kind):
    cache = Cache(layers=[])
    assert kind()(**cache_argument(kind(), cache), use_cache=True) == (cache, {"use_cache": True})


@pytest.mark.filterwarnings("error::FutureWarning", "error::DeprecationWarning")
@pytest.mark.parametrize("family", FAMILIES)
def test_engines_call_models_without_deprecated_arguments(tmp_path, family):
    model = tiny_model(tmp_path, family)
    requests = [Request(f"{k}", (2, 3, 5, k), Sampling(max_tokens=4), seed=k) for k in range(3)]
    assert len(generate(make_generator(model), requests)) == 3
    dtype = "float32" if "moe" in family else "float64"  # transformers computes experts in float32 at most
    assert len(train(make_trainer(model.path, share_prefixes=True, dtype=dtype))) == 1
