"""Environments of verifiers 0.4 (its API `verifiers.v1`) as a workflow.

For example::

    write_tasks("tasks.parquet", {"taskset": {"id": "my-tasks"}}, limit=1000)  # the data of the run

    [rollout.workflow]
    function = "purerl.adapters.verifiers:workflow"
    kwargs = {environment = {taskset = {id = "my-tasks"}}}

Each sample of a draw is one episode of verifiers. Each branch of each trace of the episode is a row: what the model has
sampled, with its log-probabilities, and tokens that verifiers has put between. verifiers renders messages with the
package renderers, and samples from a local server of tokens, so no sampled token is rendered or tokenized again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from attrs import define, evolve, field

from purerl.adapters.packages import load
from purerl.adapters.token_server import MODEL, Sample, serve_tokens
from purerl.adapters.verifiers_rows import Labels, rows_of
from purerl.data.chat import Chat
from purerl.errors import ConfigError
from purerl.protocols import Sampling
from purerl.rollouts.single_turn import RowFields
from purerl.rollouts.types import Draw, Generate, Trajectory

__all__ = ["VerifiersWorkflow", "workflow", "write_tasks"]

_COLUMN = "verifiers"


def write_tasks(path: str | Path, environment: Mapping[str, Any], *, limit: int | None = None) -> None:
    """Write the tasks of an environment of verifiers into the Parquet file `path`, the first `limit` of them.

    environment  its settings, as in the section `env` of a configuration of verifiers

    The columns are `prompt`, messages for people and for filters by length, and `verifiers`, the data of the task.

    Raises: ConfigError if verifiers is not installed, the settings are not valid, or the tasks do not end.
    """
    import pyarrow as pa
    import pyarrow.parquet

    tasks = _load(environment).taskset
    if limit is None and not tasks.bounded:
        raise ConfigError("tasks of verifiers", got="a task set without an end", need="limit")
    view = tasks if limit is None else tasks.take(limit)
    rows = [{"prompt": _prompt(task.data), _COLUMN: task.data.model_dump_json()} for task in view]
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)


def workflow(
    *,
    chat: Chat,
    sampling: Sampling,
    samples: int,
    row_fields: RowFields,
    environment: Mapping[str, Any],
    tokenizer: str | None = None,
    renderer: Mapping[str, Any] | None = None,
    max_rows: int = 16,
) -> VerifiersWorkflow:
    """The workflow of a run, for the setting `rollout.workflow`; its `kwargs` are those of `VerifiersWorkflow`.

    `tokenizer` is that of the run's model if it is not given.

    Raises: ConfigError if verifiers is not installed, or refuses `environment`.
    """
    return VerifiersWorkflow(
        environment,
        tokenizer=tokenizer or chat.tokenizer.name_or_path,
        sampling=sampling,
        samples=samples,
        row_fields=row_fields,
        renderer=renderer,
        max_rows=max_rows,
    )


def _prompt(data: Any) -> list[dict[str, str]]:
    system = [] if data.system_prompt is None else [{"role": "system", "content": data.system_prompt}]
    return [*system, {"role": "user", "content": data.prompt_text}]


def _load(environment: Mapping[str, Any]) -> Any:
    vf = load("verifiers.v1", "verifiers")
    try:
        return vf.load_environment(vf.resolve_env_config(dict(environment)))
    except (ValueError, TypeError, ImportError) as error:
        got, need = f"{type(error).__name__}: {error}", "the section env of a configuration of verifiers"
        raise ConfigError("environment of verifiers", got=got, need=need) from error


def _no_fields(draw: Draw) -> Mapping[str, Any]:
    return {}


@define(kw_only=True, eq=False)
class VerifiersWorkflow:
    """A workflow: `samples` episodes of the task in the column `verifiers` of the example.

    environment  settings of the environment, as in the section `env` of a configuration of verifiers
    tokenizer    path or name of the model whose tokenizer renders the messages
    sampling     how the model is sampled. An agent of the environment may lower `max_tokens` and add stop tokens; it
                 must not change anything else
    renderer     settings of the renderer, as `client.renderer` in verifiers; if not given, it depends on the model
    max_rows     maximum number of rows of a sample
    row_fields   further fields of the rows of a draw

    The reward of a trace is on the last row of the trace; traces of several agents are episodes of their own, with the
    number of the agent as `role`. A turn that is part of several branches is sampled once: its tokens are action tokens
    only in the first of them. Agents and branches that verifiers declares not trainable make no row. A trace that
    failed is masked out, and so is a trace with tokens that were not sampled and recorded here.

    What an environment serves, such as shared tools, starts with the first draw, and ends with `close`.
    """

    environment: Mapping[str, Any] = field(kw_only=False)
    tokenizer: str
    sampling: Sampling
    samples: int
    renderer: Mapping[str, Any] | None = None
    max_rows: int = 16
    row_fields: RowFields = _no_fields
    _environment: Any = field(init=False)
    _agents: tuple[str, ...] = field(init=False)
    _samples: dict[str, Sample] = field(init=False, factory=dict)
    _started: asyncio.Future[str] | None = field(init=False, default=None)
    _stack: AsyncExitStack = field(init=False, factory=AsyncExitStack)

    def __attrs_post_init__(self) -> None:
        self._environment = _load(self.environment)
        self._agents = tuple(self._environment.config.agent_harnesses())

    async def __call__(self, draw: Draw, generate: Generate) -> list[Trajectory]:
        url = await self._start()
        runs = (self._run(draw, generate, url, k) for k in range(self.samples))
        trajectories: list[Trajectory] = []
        for result in await asyncio.gather(*runs, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            trajectories += result
        return trajectories

    async def close(self) -> None:
        """End what was started, in the event loop in which the workflow has run."""
        await self._stack.aclose()

    async def _start(self) -> str:
        """Start the server of tokens and what the environment serves, once; return the URL of the server."""
        if self._started is None:
            self._started = asyncio.ensure_future(self._enter())
        return await asyncio.shield(self._started)

    async def _enter(self) -> str:
        client = load("renderers.client", "verifiers")
        header = load("verifiers.v1.clients.client", "verifiers").SESSION_ID_HEADER
        url = await self._stack.enter_async_context(serve_tokens(self._samples, header))
        # The client asks each server for the length of its model. It does so under a lock that works in only one event
        # loop of a process, so the answer, None, is given here.
        getattr(client, "_max_prompt_len_cache", {})[f"{url}/", MODEL] = None
        await self._stack.enter_async_context(self._environment.serving())
        return url

    async def _run(self, draw: Draw, generate: Generate, url: str, k: int) -> list[Trajectory]:
        """The rows of sample `k`. Raises what `generate` has raised."""
        sample = Sample(f"{draw.key}/{k}", (*draw.seeds, k), self.sampling, generate)
        traces: list[Any] = []

        def register(trace: Any) -> None:
            traces.append(trace)
            self._samples[trace.id] = sample

        try:
            context = self._context(url)
            episode = await self._environment.run_episode(self._task(draw), context, on_trace=register)
        finally:
            for trace in traces:
                del self._samples[trace.id]
        if sample.failure is not None:
            raise sample.failure
        labels = Labels((draw.number * self.samples + k) * self.max_rows, self.max_rows, self.sampling.temperature)
        rows = rows_of(draw, episode, sample.requests, self._agents, labels)
        return [evolve(row, fields={**row.fields, **self.row_fields(draw)}) for row in rows]

    def _task(self, draw: Draw) -> Any:
        """The task in the example of `draw`, made as the task set itself makes it."""
        task_class = type(self._environment.taskset).task_type()
        data = task_class.data_type().model_validate_json(draw.example[_COLUMN])
        return task_class(data, self._environment.config.taskset.task)

    def _context(self, url: str) -> Any:
        vf = load("verifiers.v1", "verifiers")
        renderer = None if self.renderer is None else dict(self.renderer)
        client = {"base_url": url, "api_key_var": "", "renderer_model_name": self.tokenizer, "renderer": renderer}
        sampling = vf.SamplingConfig(temperature=self.sampling.temperature, max_tokens=self.sampling.max_tokens)
        return vf.ModelContext(model=MODEL, client=vf.TrainClientConfig(**client), sampling=sampling)
