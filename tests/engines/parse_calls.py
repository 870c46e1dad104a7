"""Run by the Python of an engine: parse tool calls with the engine's own parsers, without starting it.

stdin: {"engine", "tools", "texts": [[format, text], ...]}; the last line of stdout: for each text the calls, each as
[name, arguments], or what the parser raised.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from typing import Any

VLLM = {
    "hermes": "hermes", "qwen_xml": "qwen3_coder", "llama": "llama3_json", "pythonic": "pythonic",
    "mistral": "mistral", "deepseek": "deepseek_v3", "glm": "glm47", "kimi": "kimi_k2",
}  # fmt: skip
SGLANG = {
    "hermes": "hermes_detector:HermesDetector", "qwen_xml": "qwen3_coder_detector:Qwen3CoderDetector",
    "llama": "llama32_detector:Llama32Detector", "pythonic": "pythonic_detector:PythonicDetector",
    "mistral": "mistral_detector:MistralDetector", "deepseek": "deepseekv3_detector:DeepSeekV3Detector",
    "glm": "glm4_moe_detector:Glm4MoeDetector", "kimi": "kimik2_detector:KimiK2Detector",
    "harmony": "gpt_oss_detector:GptOssDetector",
}  # fmt: skip
TOKENS = (
    "<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "<arg_key>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
    "</arg_key>", "<arg_value>", "</arg_value>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
    "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
)  # fmt: skip


def _tokenizer(*without: str) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(vocab={chr(k): k for k in range(256)}, merges=[], unk_token="\0"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.add_special_tokens([token for token in TOKENS if token not in without])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="\0")


def _vllm(tools: list[Any]) -> Callable[[str, str], list[Any]]:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    messages = [{"role": "user", "content": "a question"}]
    request = ChatCompletionRequest(messages=messages, model="a model", tools=tools)
    newer, older = _tokenizer(), _tokenizer("[ARGS]")  # of Mistral: calls as a list are those of older tokenizers

    def parse(tool_format: str, text: str) -> list[Any]:
        tokenizer = newer if "[ARGS]" in text else older
        parser = ToolParserManager.get_tool_parser(VLLM[tool_format])(tokenizer, request.tools)
        if tool_format in ("qwen_xml", "glm", "kimi"):  # they begin in thinking, which a server removes before
            found = parser._parser_engine.extract_tool_calls_from_content(text, request)
        else:
            found = parser.extract_tool_calls(text, request)
        return [[call.function.name, json.loads(call.function.arguments)] for call in found.tool_calls]

    return parse


def _sglang(tools: list[Any]) -> Callable[[str, str], list[Any]]:
    from importlib import import_module

    from sglang.srt.entrypoints.openai.protocol import Tool

    read = [Tool(**tool) for tool in tools]

    def parse(tool_format: str, text: str) -> list[Any]:
        module, _, name = SGLANG[tool_format].partition(":")
        detector = getattr(import_module(f"sglang.srt.function_call.{module}"), name)()
        found = detector.detect_and_parse(text, read)
        return [[call.name, json.loads(call.parameters)] for call in found.calls]

    return parse


def main() -> None:
    job = json.load(sys.stdin)
    parse = {"vllm": _vllm, "sglang": _sglang}[job["engine"]](job["tools"])
    logging.disable(logging.CRITICAL)
    results = []
    for tool_format, text in job["texts"]:
        try:
            results.append(parse(tool_format, text))
        except Exception as error:  # noqa: BLE001 -- it is a result
            results.append(f"{type(error).__name__}: {error}")
    print(json.dumps(results))  # noqa: T201 -- the result


if __name__ == "__main__":
    main()
