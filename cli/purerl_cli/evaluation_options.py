"""The options of `purerl eval` and `purerl sample`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purerl.system.devices.kinds import DEVICE

__all__ = [
    "AccuracyReward",
    "AnswerExtractor",
    "Attention",
    "ChatTemplateKwargs",
    "DType",
    "Data",
    "Device",
    "Environment",
    "EnvironmentSettings",
    "Gate",
    "GeneratorSettings",
    "Image",
    "Json",
    "MaxExamples",
    "MaxNumSeqs",
    "MaxTokens",
    "MaxTurns",
    "Mcp",
    "Model",
    "PassAtK",
    "Prompt",
    "Reward",
    "Run",
    "SamplesPerPrompt",
    "SamplingSettings",
    "Seed",
    "ShowTokens",
    "StopString",
    "SystemPrompt",
    "Temperature",
    "Tool",
]

Model = Annotated[
    str | None, typer.Argument(help="A directory in Hugging Face's format, or a name on the hub.", show_default=False)
]
Run = Annotated[
    Path | None,
    typer.Option(
        metavar="RUN[:STEP]",
        help="A run directory: use its final model, or a checkpoint (a number, or best; of an unfinished run the last "
        "one), and its settings.",
    ),
]
Data = Annotated[list[str] | None, typer.Option(metavar="[NAME=]FILE", help="File of problems; repeatable.")]
Reward = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Reward function, as module:function, or a kind with its settings, as '{kind = \"format\"}'; repeatable.",
    ),
]
Gate = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Function or kind that must return at least 1, or the reward is 0; repeatable."),
]
MaxExamples = Annotated[int | None, typer.Option(min=1, help="Number of problems of each file, from the first on.")]
SamplesPerPrompt = Annotated[int | None, typer.Option(min=1, help="Completions per problem.", show_default="1")]
Temperature = Annotated[
    float | None, typer.Option(min=0, help="Sampling temperature; 0: greedy decoding.", show_default="0")
]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Maximum number of new tokens.", show_default="1024")]
SystemPrompt = Annotated[str | None, typer.Option(help="System prompt for conversations that have none.")]
Prompt = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT", help="A prompt, rendered with the chat template if there is one; - reads stdin; repeatable."
    ),
]
Image = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="An image before the text of each --prompt; repeatable."),
]
Environment = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Environment of each completion, which becomes an episode: module:Class, file.py:function, or the URL of "
        "a remote one.",
        show_default=False,
    ),
]
Tool = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Function or class that the model can call, as module:function; repeatable."),
]
Mcp = Annotated[
    list[str] | None,
    typer.Option(metavar="SERVER", help="MCP server with tools, a URL or a command line; repeatable."),
]
MaxTurns = Annotated[int | None, typer.Option(min=1, help="Maximum number of turns of an episode.", show_default="8")]
EnvironmentSettings = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Another setting of the section environment, such as kwargs.size=4 or timeout=10; repeatable.",
    ),
]
StopString = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="String that ends a completion, beside the stop tokens; repeatable."),
]
SamplingSettings = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Another parameter of the sampling, such as top_p=0.95, top_k=20 or regex=TEXT; repeatable.",
    ),
]
ChatTemplateKwargs = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="Argument of the chat template; repeatable.")
]
DType = Annotated[
    str | None, typer.Option("--dtype", help="Of the weights: float32, bfloat16, ..., auto.", show_default="float32")
]
Attention = Annotated[str | None, typer.Option(help="transformers' attention implementation.", show_default="sdpa")]
Device = Annotated[str | None, typer.Option(help=f"{DEVICE}.", show_default="auto")]
MaxNumSeqs = Annotated[
    int | None, typer.Option(min=1, help="Completions that are decoded together.", show_default="256")
]
GeneratorSettings = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Setting of the section generator, such as kind=vllm or server.python=PATH; repeatable.",
    ),
]
PassAtK = Annotated[
    str | None,
    typer.Option(metavar="K,K,...", help="Values of k for pass@k.", show_default="the samples per prompt"),
]
AccuracyReward = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Reward function or gate that decides whether a completion is correct.",
        show_default="the first reward that applies",
    ),
]
AnswerExtractor = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Function that extracts the answer from a completion, for maj@k."),
]
Json = Annotated[Path | None, typer.Option(metavar="FILE", help="Write all results to this file, problem by problem.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of the sampling.", show_default="0")]
ShowTokens = Annotated[
    bool, typer.Option("--show-tokens", help="First print the tokens of the first completion, with their origins.")
]
