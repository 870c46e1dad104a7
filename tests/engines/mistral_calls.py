"""Run by the Python of vLLM, which has mistral_common: the texts of calls as Mistral's own tokenizers encode them.

stdin: the calls of a turn, each as [name, arguments, id]; the last line of stdout: a text for each tokenizer.
"""

from __future__ import annotations

import json
import sys

from mistral_common.protocol.instruct.messages import AssistantMessage
from mistral_common.protocol.instruct.tool_calls import FunctionCall, ToolCall
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

calls = [
    ToolCall(id=given, function=FunctionCall(name=name, arguments=json.dumps(arguments)))
    for name, arguments, given in json.load(sys.stdin)
]
message = AssistantMessage(content=None, tool_calls=calls)
texts = []
for tokenizer in (MistralTokenizer.v3(), MistralTokenizer.v3(is_tekken=True), MistralTokenizer.v7()):
    encoder = tokenizer.instruct_tokenizer
    tokens = encoder.encode_assistant_message(message, is_before_last_user_message=False)
    text = encoder.tokenizer.decode(tokens, special_token_policy=SpecialTokenPolicy.KEEP)
    texts.append(text.replace("▁", " "))  # the space of SentencePiece
print(json.dumps(texts))  # noqa: T201 -- the result
