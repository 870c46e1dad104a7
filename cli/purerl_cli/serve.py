"""`purerl serve`: a model behind an OpenAI-compatible interface, by an engine."""

from __future__ import annotations

import os
import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from purerl.errors import ConfigError
from purerl_cli.output import with_debug

__all__ = ["serve"]


@partial(with_debug, hint="nothing was started")
def serve(
    model: Annotated[
        str,
        typer.Argument(
            help="A run directory, a directory in Hugging Face's format, or a name on the hub.", show_default=False
        ),
    ],
    step: Annotated[
        str | None,
        typer.Option(metavar="N|latest|best", help="Step of the checkpoint of a run.", show_default="the final model"),
    ] = None,
    generator_settings: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Setting of the section generator, such as kind=sglang or server.python=PATH; repeatable.",
        ),
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="Of the weights: float32, bfloat16, ..., auto.")] = "auto",
    host: Annotated[
        str, typer.Option(help="Address on which the server listens; other ones than loopback need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on which the server listens.")] = 8000,
) -> None:
    """Serve a model with an OpenAI-compatible interface, until Ctrl-C, by vLLM or another engine.

    Every request needs a token, which clients send as their API key. It is that of the environment variable
    PURERL_SERVER_TOKEN, or of the file that PURERL_SERVER_TOKEN_FILE names. Without them, a server on loopback makes
    one, and prints the path of the file that has it.
    """
    from purerl.backends.plugin import generator_plugin
    from purerl.backends.serving.access import private_environment
    from purerl.backends.vllm import generator as vllm
    from purerl.config.check import check_generator
    from purerl.config.generators import change_generator
    from purerl.plugins import kind_of
    from purerl.settings import Model

    config = change_generator(vllm.Config(), {}, generator_settings or ())
    check_generator(config)
    command = generator_plugin(config).command
    if command is None:
        raise ConfigError(
            "kind", got=kind_of(config), need="an engine that is a server", do="set kind=vllm or kind=sglang"
        )
    if getattr(config.server, "urls", ()):
        raise ConfigError("server.urls has no effect", need="a server that is started", do="leave server.urls out")
    token, token_file = _token(host, port)
    path = _path_of(model, step)
    program = command(config, model=Model(path, dtype=dtype), host=host, port=port)
    typer.echo(" ".join(program.arguments), err=True)
    typer.echo(_example(host, port, token_file), err=True)
    with private_environment(program.environment, token) as private:
        os.execvpe(program.arguments[0], [*program.arguments], {**os.environ, **private})  # noqa: S606 - no shell is meant


def _check_port(host: str, port: int) -> None:
    """Raise ConfigError if the engine could not listen there: it would say so after it has loaded the model."""
    import socket

    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        socket.create_server(address[:2], family=family).close()
    except OSError as error:
        need, do = "an address of this host, and a port that is free", "set --port to another one, or correct --host"
        raise ConfigError(f"--host {host} --port {port}", got=error, need=need, do=do) from error


def _token(host: str, port: int) -> tuple[str, Path | None]:
    """The token of the server, and the file in which it is if it is a new one. Raises ConfigError if it needs one."""
    from purerl.backends.serving.access import TOKEN
    from purerl.system.access_tokens import given_token, is_loopback, write_loopback_token

    token = given_token(TOKEN)
    if token is None and not is_loopback(host):
        need = "a token, without which everybody who reaches the port could use the model and change its weights"
        do = f"set {TOKEN}, or set {TOKEN}_FILE to a file with one: openssl rand -hex 32 makes one"
        raise ConfigError(f"--host {host}", got="no token", need=need, do=do)
    _check_port(host, port)  # before a server that has it loses its token
    return (token, None) if token is not None else write_loopback_token(port)


def _example(host: str, port: int, token_file: Path | None) -> str:
    """A command that asks the server for its models."""
    from purerl.backends.serving.access import TOKEN

    token = f"$(cat {shlex.quote(str(token_file))})" if token_file else f"${TOKEN}"
    address = {"0.0.0.0": "localhost", "::": "localhost"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104 - compared
    return f'when it is ready: curl -H "Authorization: Bearer {token}" http://{address}:{port}/v1/models'


def _path_of(model: str, step: str | None) -> str:
    """The directory of the model of a run, which is exported if it is not there yet; or `model` itself."""
    run = Path(model)
    if not (run / "config.toml").exists():
        if step is not None:
            need = "a run directory, which has checkpoints"
            raise ConfigError("--step has no effect", got=repr(model), need=need, do="leave --step out")
        return model
    if step is None and (run / "final").exists():
        return str(run / "final")
    from purerl.opening.start_checkpoint import StartCheckpoint, find_checkpoint
    from purerl.runs.export import export_model

    folder = run / "export" / find_checkpoint(StartCheckpoint(run, step or "latest")).name
    return str(folder if folder.exists() else export_model(run, step or "latest"))
