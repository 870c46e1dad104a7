"""Attacks on the ports of a local Ray: every method of every service that it has, without its token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import grpc
from ray.core.generated import (
    autoscaler_pb2_grpc,
    core_worker_pb2_grpc,
    gcs_service_pb2_grpc,
    node_manager_pb2_grpc,
    ray_client_pb2_grpc,
    reporter_pb2_grpc,
)

from tests.security.attacks import speaks_http2

__all__ = ["call_services"]

_SERVICES = (
    autoscaler_pb2_grpc,
    core_worker_pb2_grpc,
    gcs_service_pb2_grpc,
    node_manager_pb2_grpc,
    ray_client_pb2_grpc,
    reporter_pb2_grpc,
)
_REFUSED = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
_ABSENT = {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE}  # another service, or no gRPC at all
_TOKENS = ((), (("authorization", "Bearer " + "0" * 64),), (("authorization", ""),))
_TIMEOUT = 5.0  # seconds


class _Methods:
    """Stands for a channel: lists the methods that a stub makes."""

    def __init__(self) -> None:
        self.names: list[tuple[str, str]] = []

    def __getattr__(self, kind: str) -> Callable[..., None]:
        return lambda name, **_: self.names.append((kind, name))


def _methods(services: ModuleType) -> Iterator[tuple[str, str]]:
    """How each method of `services` is called (unary_unary, stream_stream, ...), and its name."""
    for name, stub in vars(services).items():
        if name.endswith("Stub"):
            methods = _Methods()
            stub(methods)
            yield from methods.names


_METHODS = [method for services in _SERVICES for method in _methods(services)]


def call_services(host: str, port: int) -> list[str]:
    """Call all methods with an empty request, without a token and with wrong ones."""
    findings: list[str] = []
    if not speaks_http2(host, port):
        return findings
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        for token in _TOKENS:
            for kind, name in _METHODS:
                code = _code(channel, kind, name, token)
                if code is grpc.StatusCode.UNAVAILABLE:
                    return findings
                if code not in _REFUSED | _ABSENT:
                    findings.append(f"{name} of {host}:{port} answers {code} with the token {token}")
    return findings


def _code(channel: grpc.Channel, kind: str, name: str, token: Any) -> grpc.StatusCode:
    """The status with which the method ends."""
    call = getattr(channel, kind)(name)
    request = iter([b""]) if kind.startswith("stream") else b""
    try:
        answer = call(request, timeout=_TIMEOUT, metadata=token)
        if kind.endswith("stream"):
            next(answer, None)
    except grpc.RpcError as error:
        return error.code()  # pyright: ignore[reportAttributeAccessIssue] - the errors of calls have it
    return grpc.StatusCode.OK
