"""A head that is split by rows over two real gloo processes: values and gradients are those of the reference."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from purerl.kernels.logp import reference
from tests.kernels.logp_ranks import CASES, RANKS, cases_of, run
from tests.ranks import results_of_ranks

pytestmark = pytest.mark.parallel


def run_ranks(path: str, directory: Path) -> list[dict[str, Any]]:
    """The result of `logp_ranks` on each of two ranks. Triton reads its variable when it is imported."""
    options = {"environment": {"TRITON_INTERPRET": "1"}, "create": subprocess.Popen} if path == "fused" else {}
    return results_of_ranks("tests.kernels.logp_ranks", directory, path, ranks=RANKS, **options)


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> list[dict[str, Any]]:
    return run_ranks("chunked", tmp_path_factory.mktemp("ranks"))


def joined(parts: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The results of all ranks as those of one process: their slices of the gradients of the head are joined."""
    heads = {"gradient 1", "gradient 2"}
    for name in parts[0].keys() - heads:
        assert all(torch.equal(part[name], parts[0][name]) for part in parts), f"{name} differs between ranks"
    return {name: torch.cat([part[name] for part in parts]) if name in heads else x for name, x in parts[0].items()}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_equal_the_reference(results, name):
    actual, expected = joined([result["cases"][name] for result in results]), run(CASES[name], reference.token_outputs)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_triton_kernels_take_a_shard(tmp_path):
    """In the interpreter. Without the k most likely tokens, which they do not compute."""
    pytest.importorskip("triton")
    results = run_ranks("fused", tmp_path)
    for name, case in cases_of("fused").items():
        actual = joined([result["cases"][name] for result in results])
        torch.testing.assert_close(actual, run(case, reference.token_outputs), rtol=1e-12, atol=1e-12)


def test_public_function_takes_a_shard(results):
    actual = joined([result["public"] for result in results])
    expected = run(CASES["all of choices"], reference.token_outputs)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_rows_are_those_of_dtensor(results):
    for size in results[0]["rows"]:
        rows = [torch.arange(size)[result["rows"][size]].tolist() for result in results]
        assert rows == [chunk.tolist() for chunk in torch.arange(size).chunk(RANKS)]


def test_no_rank_has_logits_of_all_tokens_or_of_the_whole_vocabulary(results):
    """40 tokens, vocabulary 50, chunks of 7: logits of 7 tokens and 25 columns are the largest tensors."""
    assert [result["largest tensor"] for result in results] == [7 * 25] * RANKS


def test_messages(results):
    split, rows = results[1]["errors"]
    assert results[0]["errors"][0] == split
    assert split == (
        "the head cannot be split by rows\n"
        "  got:  1 tokens in the vocabulary, 2 ranks\n"
        "  need: at least one row for each rank\n"
        "  do:   use fewer ranks"
    )
    assert rows == (
        "token_outputs: weight\n"
        "  got:  17 rows\n"
        "  need: 8 rows, 9 to 16 of 17\n"
        "  do:   pass the rows of this rank: weight[shard.rows]"
    )
