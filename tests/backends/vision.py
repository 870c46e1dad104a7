"""Small random vision-language models with their tokenizers and processors, and images."""

from __future__ import annotations

import json
import random
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

_SPECIAL = [
    "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<image>",
    "<fake_token_around_image>", "<global-img>", *(f"<row_{y}_col_{x}>" for y in (1, 2, 3) for x in (1, 2, 3)),
]  # fmt: skip
_CHARACTERS = [chr(code) for code in (10, *range(32, 127))]

TEMPLATE = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string -%}{{ message.content }}{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}{{ 'PLACEHOLDER' }}{%- else -%}{{ part.text }}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""

_TEXT = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    intermediate_size=48,
    max_position_embeddings=512,
    bos_token_id=None,
    eos_token_id=1,
    pad_token_id=0,
)
_MROPE = _TEXT | dict(rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]})
_WIDE = dict(
    hidden_size=64,
    head_dim=32,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]},
)
_PATCHES = dict(patch_size=4, spatial_merge_size=2, temporal_patch_size=2)
_TOWER = dict(
    hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=4
)
_QWEN = dict(
    placeholder="<|vision_start|><|image_pad|><|vision_end|>",
    image_token="<|image_pad|>",
    preprocessor=dict(
        image_processor_type="Qwen2VLImageProcessor",
        size={"shortest_edge": 64, "longest_edge": 4096},
        patch_size=4,
        merge_size=2,
        temporal_patch_size=2,
    ),
)

FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2_vl": _QWEN
    | dict(
        config=dict(
            text_config=_MROPE,
            vision_config=_PATCHES | dict(depth=2, embed_dim=16, num_heads=2, hidden_size=32, mlp_ratio=2),
        )
    ),
    "qwen2_5_vl": _QWEN
    | dict(
        config=dict(
            text_config=_MROPE,
            vision_config=_PATCHES
            | dict(depth=2, hidden_size=16, num_heads=2, intermediate_size=24, out_hidden_size=32)
            | dict(window_size=16, fullatt_block_indexes=[1]),
        )
    ),
    "qwen3_vl": _QWEN
    | dict(
        config=dict(
            text_config=_MROPE,
            vision_config=_PATCHES
            | dict(depth=3, hidden_size=16, num_heads=2, intermediate_size=24, out_hidden_size=32)
            | dict(num_position_embeddings=16, deepstack_visual_indexes=[0, 1]),
        )
    ),
    "idefics3": dict(
        placeholder="<image>",
        image_token="<image>",
        processor=dict(image_seq_len=4),
        preprocessor=dict(
            image_processor_type="Idefics3ImageProcessor",
            size={"longest_edge": 32},
            max_image_size={"longest_edge": 16},
            do_image_splitting=True,
        ),
        config=dict(text_config=_TEXT | dict(model_type="llama"), vision_config=_TOWER, scale_factor=2),
    ),
    "llava": dict(
        placeholder="<image>",
        image_token="<image>",
        processor=dict(patch_size=4, vision_feature_select_strategy="default", num_additional_image_tokens=1),
        preprocessor=dict(
            image_processor_type="CLIPImageProcessor",
            size={"shortest_edge": 16},
            crop_size={"height": 16, "width": 16},
        ),
        config=dict(
            text_config=_TEXT | dict(model_type="llama"),
            vision_config=_TOWER | dict(model_type="clip_vision_model", projection_dim=16),
            vision_feature_layer=-1,
        ),
    ),
    "gemma3": dict(
        placeholder="<image>",
        image_token="<image>",
        preprocessor=dict(image_processor_type="Gemma3ImageProcessor", size={"height": 16, "width": 16}),
        processor=dict(image_seq_length=4),
        tokens=dict(boi_token="<|vision_start|>", eoi_token="<|vision_end|>", image_token="<image>"),
        config=dict(text_config=_TEXT | dict(sliding_window=8), vision_config=_TOWER, mm_tokens_per_image=4),
    ),
}


def tokenizer(placeholder: str = "<|vision_start|><|image_pad|><|vision_end|>") -> Any:
    """One token for each character and for each special token, and a chat template."""
    from purerl.backends.hf.tiny_models import word_tokenizer

    made = word_tokenizer([*_SPECIAL, *_CHARACTERS], "[\\s\\S]")
    made.add_special_tokens({"additional_special_tokens": _SPECIAL})
    made.chat_template = TEMPLATE.replace("PLACEHOLDER", placeholder)
    return made


def write_vision_model(
    folder: Path, family: str = "qwen2_vl", *, seed: int = 0, dtype: str = "float64", wide: bool = False
) -> str:
    """Write a random model of `family` into a subdirectory of `folder`; return its path.

    wide  with the smallest attention heads that vLLM has on a CPU; only for models of Qwen
    """
    from transformers import AutoConfig, AutoModelForImageTextToText

    facts, path = FAMILIES[family], folder / f"{family}-{seed}"
    words = tokenizer(facts["placeholder"])
    token = words.convert_tokens_to_ids
    special = {"image_token_id": token(facts["image_token"]), "video_token_id": token("<|video_pad|>")}
    special |= {f"vision_{name}_token_id": token(f"<|vision_{name}|>") for name in ("start", "end")}
    text, vision = facts["config"]["text_config"] | {"vocab_size": len(words)}, facts["config"]["vision_config"]
    if wide:
        text, vision = text | _WIDE, {name: 64 if value == 32 else value for name, value in vision.items()}
    config = AutoConfig.for_model(family, **facts["config"] | special | {"text_config": text, "vision_config": vision})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config)
        for parameter in model.parameters():
            mean = float(parameter.detach().mean()) if parameter.ndim < 2 else 0.0
            torch.nn.init.normal_(parameter, mean=mean, std=0.2)
        model.to(getattr(torch, dtype)).save_pretrained(path)
    words.save_pretrained(path)
    settings = path / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | facts.get("tokens", {})))
    (path / "preprocessor_config.json").write_text(json.dumps(facts["preprocessor"]))
    if "processor" in facts:
        (path / "processor_config.json").write_text(json.dumps(facts["processor"]))
    return str(path)


def picture(seed: int = 0, size: tuple[int, int] = (32, 24), kind: str = "PNG") -> bytes:
    """A file with random pixels."""
    from PIL import Image

    width, height = size
    pixels = random.Random(seed).randbytes(3 * width * height)
    Image.frombytes("RGB", size, pixels).save(file := BytesIO(), format=kind)
    return file.getvalue()


def user(*parts: str | bytes) -> dict[str, Any]:
    """A message with texts and images."""
    return {"role": "user", "content": [_part(part) for part in parts]}


def _part(part: str | bytes) -> dict[str, Any]:
    return {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": {"bytes": part}}
