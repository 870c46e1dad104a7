"""The network that gloo uses is the one in which ranks reach each other."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from purerl.backends.serving.process import free_port
from purerl.placement import network
from purerl.placement.network import gloo_variables
from purerl.system.loopback import loopback_variables
from tests.ranks import results_of_ranks

ADDRESSES = {name: network._address(name) for _, name in socket.if_nameindex()}


def test_interfaces_are_found_by_their_addresses() -> None:
    assert ADDRESSES["lo"] == "127.0.0.1"
    assert network._interface("127.0.0.1") == "lo"
    assert network._interface("203.0.113.7") is None


def test_the_variable_names_the_network_of_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "local_address", lambda host: "192.0.2.1")
    monkeypatch.setattr(network, "_address", {"lo": "127.0.0.1", "eth1": "192.0.2.1"}.get)
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth1")])
    assert gloo_variables("198.51.100.1") == {"GLOO_SOCKET_IFNAME": "eth1"}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "no-such-host.invalid"])
def test_nothing_is_set_within_a_host_and_for_unknown_hosts(host: str) -> None:
    assert gloo_variables(host) == {}


@pytest.mark.skipif({*ADDRESSES.values()} <= {"127.0.0.1", None}, reason="needs a network beside the loopback one")
@pytest.mark.parametrize("hosts", [1, 2])
def test_ranks_meet_in_that_network(hosts: int, tmp_path: Path) -> None:
    """By the address of this host in a network. Ranks on one host use loopback then, and others this network."""
    name, address = next((name, value) for name, value in ADDRESSES.items() if value not in (None, "127.0.0.1"))
    during = loopback_variables()["GLOO_SOCKET_IFNAME"] if hosts == 1 else name
    for rank in results_of_ranks("tests.placement.meeting", tmp_path, str(address), str(free_port()), str(hosts)):
        assert rank == {"total": 2.0, "gathered": "01", "during": during, "after": None}
