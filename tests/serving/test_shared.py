"""Two ranks that share servers: real processes with gloo, and toy engines."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ranks import results_of_ranks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results of the cases of `shared_ranks` on each rank."""
    return results_of_ranks("tests.serving.shared_ranks", tmp_path_factory.mktemp("ranks"))


def test_both_ranks_sample_from_the_servers_of_rank_0(results: list[dict[str, Any]]) -> None:
    for result in (result["sample"] for result in results):
        assert result["tokens"] == [[1, 2, 3, 4]] * 20
        assert result["versions"] == [[1] * 4] * 20
        first, second = result["urls"]
        assert len(first) == 2
        assert first == second
    assert [result["sample"]["processes"] for result in results] == [2, 0]
    assert [result["sample"]["left"] for result in results] == [0, 0]


@pytest.mark.parametrize("case", ["load, requests stay", "load, requests are sent again"])
def test_weights_are_loaded_once_and_reach_the_requests_of_all_ranks(results: list[dict[str, Any]], case: str) -> None:
    for result in (result[case] for result in results):
        assert result["tokens"] == [[*range(1, 301)]] * 4
        for versions in result["versions"]:
            assert versions == sorted(versions)
            assert set(versions) == {1, 2, 3}
    assert [result[case]["loaded"] for result in results] == [3, 0]


@pytest.mark.parametrize("case", ["killed", "stopped"])
def test_server_that_fails_for_another_rank_is_started_again_with_its_weights(
    results: list[dict[str, Any]], case: str
) -> None:
    first, second = (result[case] for result in results)
    assert second["tokens"] == [[*range(1, 61)]] * 8
    assert second["versions"] == [[7] * 60] * 8
    assert second["finish"] == {"length"}
    assert (first["restarts"], second["restarts"]) == (1, 1)


def test_server_that_fails_for_good_is_an_error_on_every_rank(results: list[dict[str, Any]]) -> None:
    assert all("has failed" in result["failed"] for result in results)


def test_servers_sleep_for_all_ranks(results: list[dict[str, Any]]) -> None:
    for result in (result["sleep"] for result in results):
        assert result["early"] == 0
        assert result["versions"] == [[2] * 4] * 4


def test_ranks_have_one_lease_of_a_server_that_runs_already(results: list[dict[str, Any]]) -> None:
    for result in (result["given"] for result in results):
        assert result["tokens"] == [[1, 2, 3, 4]] * 20
        assert result["versions"] == [[1] * 4] * 20
        assert ["is used by another run" in text for text in result["refused"]] == [True]
        assert result["free"]


def test_weights_of_another_model_are_refused_on_every_rank(results: list[dict[str, Any]]) -> None:
    assert all("unknown weight 'unknown'" in result["refuse"] for result in results)
