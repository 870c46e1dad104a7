"""Attacks on the ports of a local Ray: every method of every service that it has, without its token."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from tests.security.attacks import speaks_http2

__all__ = ["call_services"]

_SERVICES = ("autoscaler", "core_worker", "gcs_service", "node_manager", "ray_client", "reporter")
_REFUSED = ("UNAUTHENTICATED", "PERMISSION_DENIED")
_ABSENT = ("UNIMPLEMENTED", "UNAVAILABLE")  # another service, or no gRPC at all
_CANCELED = "CANCELLED"  # the process ended the call without an answer: because it ends, or has no time for it
_TOKENS = ((), (("authorization", "Bearer " + "0" * 64),), (("authorization", ""),))
_TIMEOUT = 5.0  # seconds
_TRIES = 4  # of a call that was canceled, one second apart


class _Methods:
    """Stands for a channel: lists the methods that a stub makes."""

    def __init__(self) -> None:
        self.names: list[tuple[str, str]] = []

    def __getattr__(self, kind: str) -> Callable[..., None]:
        return lambda name, **_: self.names.append((kind, name))


def _methods(services: ModuleType) -> Iterator[tuple[str, str]]:
    """The kind of call of each method of `services` (unary_unary, stream_stream, ...), and its name."""
    for name, stub in vars(services).items():
        if name.endswith("Stub"):
            methods = _Methods()
            stub(methods)
            yield from methods.names


def call_services(host: str, port: int) -> list[str]:
    """Call all methods with an empty request, without a token and with wrong ones."""
    grpc = pytest.importorskip("grpc")
    findings: list[str] = []
    if not speaks_http2(host, port):
        return findings
    services = [import_module(f"ray.core.generated.{name}_pb2_grpc") for name in _SERVICES]
    methods = [method for each in services for method in _methods(each)]
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        for token in _TOKENS:
            for kind, name in methods:
                code = _final_code(channel, kind, name, token)
                if code == "UNAVAILABLE":
                    return findings
                if code not in _REFUSED + _ABSENT:
                    findings.append(f"{name} of {host}:{port} answers {code} with the token {token}")
    return findings


def _final_code(channel: Any, kind: str, name: str, token: Any) -> str:
    """The status of the method; a call that was canceled says nothing about who may call, and is repeated."""
    for _ in range(_TRIES):
        code = _code(channel, kind, name, token)
        if code != _CANCELED:
            break
        time.sleep(1.0)
    return code


def _code(channel: Any, kind: str, name: str, token: Any) -> str:
    """The name of the status with which the method ends."""
    grpc = import_module("grpc")
    call = getattr(channel, kind)(name)
    request = iter([b""]) if kind.startswith("stream") else b""
    try:
        answer = call(request, timeout=_TIMEOUT, metadata=token)
        if kind.endswith("stream"):
            next(answer, None)
    except grpc.RpcError as error:
        return error.code().name
    return "OK"
