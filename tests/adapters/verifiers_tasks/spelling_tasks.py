"""A task set of verifiers with a harness that talks to the model in this process: two turns, then perhaps a branch."""

from __future__ import annotations

import asyncio

import httpx
import verifiers.v1 as vf


class SpellingData(vf.TaskData):
    word: str
    branches: bool = False
    fails: bool = False


class SpellingTask(vf.Task[SpellingData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)
    async def has_word(self, task, trace) -> float:
        return float(task.word in trace.last_reply)

    @vf.metric
    async def turns(self, trace) -> float:
        return float(trace.num_turns)


class SpellingTaskset(vf.Taskset[SpellingTask, vf.TasksetConfig]):
    def load(self):
        for word in ("a", "b", "c"):
            yield SpellingTask(SpellingData(word=word, prompt=f"Spell {word}.", system_prompt="Be brief."))


class ChatHarness(vf.Harness[vf.HarnessConfig]):
    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data) -> vf.ProgramResult:
        system, prompt = self.resolve_prompt(data)
        start = [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {secret}"}, timeout=30) as client:

            async def turn(messages: list[dict]) -> list[dict]:
                body = {"model": ctx.model, "messages": messages}
                response = await client.post(f"{endpoint}/chat/completions", json=body)
                response.raise_for_status()
                return [*messages, response.json()["choices"][0]["message"]]

            first = await turn(start)
            if data.fails:
                raise RuntimeError("the program stops")
            await turn([*first, {"role": "user", "content": "Again."}])
            if data.branches:
                await turn([*first, {"role": "user", "content": "Otherwise."}])
        await asyncio.sleep(0)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["ChatHarness", "SpellingTaskset"]
