"""`purerl serve`: a model behind an OpenAI-compatible interface, by an engine."""

from __future__ import annotations

import os
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
    host: Annotated[str, typer.Option(help="Address on which the server listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on which the server listens.")] = 8000,
) -> None:
    """Serve a model with an OpenAI-compatible interface, until Ctrl-C, by vLLM or another engine."""
    from purerl.backends.vllm import generator as vllm
    from purerl.config.check import check_generator
    from purerl.loop.generators import change_generator
    from purerl.plugins import find, kind_of
    from purerl.settings import Model

    config = change_generator(vllm.Config(), {}, generator_settings or ())
    check_generator(config)
    kind = kind_of(config)
    command = getattr(find("generator", kind), "command", None)
    if command is None:
        raise ConfigError("kind", got=kind, need="an engine that is a server", do="set kind=vllm or kind=sglang")
    if getattr(config.server, "urls", ()):
        raise ConfigError("server.urls has no effect", need="a server that is started", do="leave server.urls out")
    path = _path_of(model, step)
    program = command(config, model=Model(path, dtype=dtype), host=host, port=port)
    typer.echo(" ".join(program.arguments), err=True)
    environment = {**os.environ, **program.environment}
    os.execvpe(program.arguments[0], [*program.arguments], environment)  # noqa: S606 - no shell is meant


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
    from purerl.loop.export import export_model
    from purerl.loop.origin import Origin, find_checkpoint

    folder = run / "export" / find_checkpoint(Origin(run, step or "latest")).name
    return str(folder if folder.exists() else export_model(run, step or "latest"))
