"""Helpers: a character tokenizer, chat templates in the style of common model families, messages, and data files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking -%}{{ '<think></think>' }}{%- endif -%}
{%- endif -%}"""

HEADERS = """\
{{- bos_token -}}
{%- for message in messages -%}
{{ '<|start_header|>' + message.role + '<|end_header|>\\n\\n' + message.content | trim + '<|eot|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start_header|>assistant<|end_header|>\\n\\n' }}{%- endif -%}"""

MARKED = """\
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
{{ '<|im_start|>assistant\\n' }}{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}
{%- else -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""

# In the style of reasoning models: only the last turn has a thinking block. Earlier turns change when messages follow.
CHANGING_PREFIX = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' and loop.last -%}{{ '<think></think>' }}{%- endif -%}
{{ message.content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""

STRICT = """\
{%- for message in messages -%}
{%- if message.role == 'system' -%}{{ raise_exception('no system prompts') }}{%- endif -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor -%}"""

_SPECIAL = ("<pad>", "<eos>", "<bos>", "<|im_start|>", "<|im_end|>", "<|start_header|>", "<|end_header|>", "<|eot|>")
_THINKING = ("<think>", "</think>")


@cache
def _character_tokenizer() -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    characters = [chr(code) for code in (10, *range(32, 127))]
    vocabulary = {token: index for index, token in enumerate([*_SPECIAL, *_THINKING, *characters])}
    result = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    result.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    result.decoder = decoders.Fuse()
    return result


def tokenizer(template: str | None = None, *, eos: str | None = "<eos>") -> Any:
    """A tokenizer with one token per character and per special token. It adds <bos> to plain text."""
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer.from_str(_character_tokenizer().to_str())
    backend.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", _SPECIAL.index("<bos>"))])
    result = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<bos>", eos_token=eos, chat_template=template
    )
    result.add_special_tokens({"additional_special_tokens": [*_SPECIAL[3:], *_THINKING]})
    return result


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def system(content: str) -> dict[str, str]:
    return {"role": "system", "content": content}


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> str:
    """Write `rows` to a Parquet or JSON Lines file, depending on the suffix of `path`. Returns the path as a string."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        parquet.write_table(pa.Table.from_pylist(list(rows)), path)
    return str(path)
