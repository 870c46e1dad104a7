"""Helpers: a byte-level tokenizer, and chat templates with the structure of those of common model families."""

from __future__ import annotations

from functools import cache
from typing import Any

from purerl.data.chat import Chat, open_chat

# Qwen 2.5 and 3: calls in JSON, results of tools in one user turn, and thinking only after the last question.
QWEN = """\
{%- macro block(role) -%}{{ '<|im_start|>' + role + '\\n' + caller() + '<|im_end|>\\n' }}{%- endmacro -%}
{%- if tools -%}
{%- call block('system') -%}
{{ messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' }}Tools:{% for tool in tools -%}
{{ '\\n' + (tool | tojson) }}{% endfor %}
Write <tool_call>{"name": ..., "arguments": ...}</tool_call>
{%- endcall -%}
{%- elif messages[0].role == 'system' -%}
{%- call block('system') -%}{{ messages[0].content }}{%- endcall -%}
{%- endif -%}
{%- set ns = namespace(question=-1) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.question = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}
{%- call block('user') -%}{{ m.content }}{%- endcall -%}
{%- elif m.role == 'assistant' -%}
{%- set thinking = m.content.split('</think>')[0] + '</think>' if '</think>' in m.content else '' -%}
{%- set content = m.content.split('</think>')[-1] if thinking else m.content -%}
{{ '<|im_start|>assistant\\n' }}
{%- if thinking and loop.index0 > ns.question -%}{{ thinking }}{%- endif -%}{{ content }}
{%- for call in m.tool_calls or [] -%}
{{ '\\n' if content or not loop.first else '' }}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
{{- '}\\n</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- elif m.role == 'tool' -%}
{{ '<|im_start|>user' if loop.previtem.role != 'tool' else '' }}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{{- '<|im_end|>\\n' if loop.last or loop.nextitem.role != 'tool' else '' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking -%}{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif -%}
{%- endif -%}"""

# Qwen3-Coder: the same with calls in XML.
QWEN_XML = QWEN.replace(
    """\
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
{{- '}\\n</tool_call>' }}
""",
    """\
{{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}
{%- for name, value in call.function.arguments.items() -%}
{{ '<parameter=' + name + '>\\n' + (value if value is string else (value | tojson)) + '\\n</parameter>\\n' }}
{%- endfor -%}
{{ '</function>\\n</tool_call>' }}
""",
)

# Llama 3.1 and later: tools in the first question, one call in a turn, results of tools in the role `ipython`.
LLAMA = """\
{{- bos_token -}}
{%- macro header(role) -%}{{ '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}{%- endmacro -%}
{%- set ns = namespace(first=true) -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{{ header('ipython') + (m.content | tojson) + '<|eot_id|>' }}
{%- elif m.tool_calls -%}
{%- if m.tool_calls | length != 1 -%}{{ raise_exception('one call only') }}{%- endif -%}
{%- set call = m.tool_calls[0].function -%}
{{ header('assistant') + '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}<|eot_id|>' }}
{%- else -%}
{{ header(m.role) }}
{%- if tools and ns.first and m.role == 'user' -%}
{%- set ns.first = false -%}{{ 'Functions:' }}{%- for tool in tools -%}{{ '\\n' + (tool | tojson) }}{%- endfor -%}
{{ '\\n\\n' }}
{%- endif -%}
{{ m.content | trim + '<|eot_id|>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ header('assistant') }}{%- endif -%}"""

CHATML = """\
{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""

# Gemma: the roles alternate, there is no system prompt, and the assistant is called `model`.
GEMMA = """\
{{- bos_token -}}
{%- if messages[0].role == 'system' -%}{{ raise_exception('no system role') }}{%- endif -%}
{%- for m in messages -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('roles must alternate') }}{%- endif -%}
{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + m.content | trim + '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}"""

# Mistral: no header of an assistant turn, a result for each call with an id of 9 characters.
MISTRAL = """\
{{- bos_token -}}
{%- set ns = namespace(calls=0) -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}
{%- if tools and loop.first -%}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif -%}
{{ '[INST]' + m.content + '[/INST]' }}
{%- elif m.role == 'tool' -%}
{%- set ns.calls = ns.calls - 1 -%}
{%- if ns.calls < 0 or m.tool_call_id | length != 9 -%}{{ raise_exception('a result without a call') }}{%- endif -%}
{{ '[TOOL_RESULTS]' + ({'content': m.content, 'call_id': m.tool_call_id} | tojson) + '[/TOOL_RESULTS]' }}
{%- elif m.tool_calls -%}
{%- set ns.calls = m.tool_calls | length -%}
{{ '[TOOL_CALLS][' }}
{%- for call in m.tool_calls -%}
{{ (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' + (']' if loop.last else ', ') }}
{%- endfor -%}
{{ '</s>' }}
{%- else -%}
{{ m.content + '</s>' }}
{%- endif -%}
{%- endfor -%}"""

# Some Mistral templates: a space before the token that ends a turn, but not after calls.
SPACED = """\
{%- for m in messages -%}
{%- if m.role == 'user' -%}
{{ '[INST]' + m.content + '[/INST]' }}
{%- elif m.role == 'tool' -%}
{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}
{%- elif m.tool_calls -%}
{{ '[TOOL_CALLS]' + m.content + '</s>' }}
{%- else -%}
{{ m.content + ' </s>' }}
{%- endif -%}
{%- endfor -%}
{%- if tools -%}{%- endif -%}"""

# GLM 4: nothing ends a turn; the model stops with the token that starts the next message.
GLM = """\
{{- '[gMASK]' -}}
{%- if tools -%}{{ '<|system|>\\n' + (tools | tojson) }}{%- endif -%}
{%- for m in messages -%}
{{ '<|' + ('observation' if m.role == 'tool' else m.role) + '|>\\n' + m.content }}
{%- for call in m.tool_calls or [] -%}
{{ '<tool_call>{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
{{- '}</tool_call>' }}
{%- endfor -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>\\n' }}{%- endif -%}"""

# gpt-oss: the last turn ends with another token than the turns before it.
CHANGING_END = """\
{%- for m in messages -%}
{%- set end = '<|return|>' if loop.last and m.role == 'assistant' else '<|end|>' -%}
{{ '<|start|>' + m.role + '<|message|>' + m.content + end }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start|>assistant' }}{%- endif -%}"""

_SPECIAL = (
    "<pad>", "<eos>", "<bos>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<|python_tag|>", "<start_of_turn>", "<end_of_turn>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[gMASK]",
    "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "<|system|>", "<|user|>",
    "<|assistant|>", "<|observation|>", "<|start|>", "<|end|>", "<|return|>", "<|message|>",
)  # fmt: skip
_ADDED = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

CALC = {
    "type": "function",
    "function": {
        "name": "calc",
        "description": "Evaluate an expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}
TIME = {
    "type": "function",
    "function": {
        "name": "time",
        "description": "The time in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "hours": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
TOOLS = (CALC, TIME)


@cache
def _bpe() -> str:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    # As in current families, a run of line breaks is one piece, whatever follows it.
    pieces = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    split = pre_tokenizers.Split(pieces, "isolated")
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, by_bytes])
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=list(_SPECIAL), initial_alphabet=alphabet)
    text = ['user assistant\n\n{"name": "calc", "arguments": {"expression": "12 + 30"}}\n', "the answer is 42. \n\n\n"]
    backend.train_from_iterator([*text, "<|im end|> tool response"] * 9, trainer)
    return backend.to_str()


def tokenizer(template: str | None, *, eos: str = "<eos>") -> Any:
    """A byte-level BPE tokenizer with the special tokens of all families. It adds <bos> to plain text."""
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer.from_str(_bpe())
    backend.add_tokens(list(_ADDED))
    backend.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", _SPECIAL.index("<bos>"))])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<bos>", eos_token=eos, chat_template=template
    )


def chat(template: str | None, *, stop: tuple[str, ...] = (), **settings: Any) -> Chat:
    """The `Chat` with `template`; plain text if it is None. `stop` are more stop tokens."""
    made = tokenizer(template)
    extra = made.convert_tokens_to_ids(list(stop))
    return open_chat(made, "messages" if template else "text", extra_stop_tokens=extra, **settings)


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def result(content: str, k: int = 0, turn: int = 0, name: str = "calc") -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": f"call{turn:03d}{k:02d}", "name": name}
