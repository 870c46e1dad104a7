"""SFT, DPO and GRPO in plain transformers, peft and torch, without anything of purerl."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

CLIP, KL = 0.2, 0.1


class Row(NamedTuple):
    """The tokens of a prompt and of a completion."""

    prompt: list[int]
    completion: list[int]


def load(path: Path, **settings: Any) -> Any:
    """The model in the directory `path`, in float32 unless `settings` say otherwise."""
    return AutoModelForCausalLM.from_pretrained(path, **{"dtype": torch.float32, **settings})


def load_adapter(path: Path, adapter: Path) -> PeftModel:
    """The model at `path` with the adapter at `adapter`, which is trained."""
    return PeftModel.from_pretrained(load(path), adapter, is_trainable=True)


def ids_of(tokenizer: PreTrainedTokenizerBase, prompt: Sequence[Mapping[str, str]]) -> list[int]:
    """The tokens of a conversation, and of the header of the next turn."""
    text = tokenizer.apply_chat_template([*prompt], tokenize=False, add_generation_prompt=True)
    return tokenizer(str(text), add_special_tokens=False)["input_ids"]  # pyright: ignore[reportReturnType]


def row(tokenizer: PreTrainedTokenizerBase, prompt: Sequence[Mapping[str, str]], answer: str) -> Row:
    """A prompt and an answer, which ends with the token of the end of a turn."""
    completion = tokenizer(answer, add_special_tokens=False)["input_ids"]
    return Row(ids_of(tokenizer, prompt), [*completion, tokenizer.eos_token_id])  # pyright: ignore[reportReturnType, reportArgumentType]


def score(model: nn.Module, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """The log-probabilities of the tokens of the completions, and where there is one. Shapes: [rows, time - 1]."""
    texts = [torch.tensor([*each.prompt, *each.completion]) for each in rows]
    tokens = nn.utils.rnn.pad_sequence(texts, batch_first=True)
    lengths = torch.tensor([[len(each.prompt), len(each.prompt) + len(each.completion)] for each in rows])
    position = torch.arange(tokens.shape[1])
    attention = position < lengths[:, 1:]
    logits = model(input_ids=tokens, attention_mask=attention.long()).logits
    logp = logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
    mask = (attention & (position >= lengths[:, :1]))[:, 1:]
    return torch.where(mask, logp, 0.0), mask


def greedy(model: Any, prompts: Sequence[Sequence[int]], *, max_tokens: int) -> list[list[int]]:
    """Greedy completions by transformers, one after the other."""
    found = []
    for prompt in prompts:
        tokens = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=max_tokens)
        found.append(tokens[0, len(prompt) :].tolist())
    return found


def train(model: nn.Module, loss: Callable[[], Tensor], *, lr: float, steps: int = 2) -> list[float]:
    """Minimize `loss` by AdamW with a clipped gradient. Returns the losses before each optimizer step."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append(value.item())
    return losses


def sft_loss(model: nn.Module, rows: Sequence[Row]) -> Tensor:
    """The mean negative log-probability of all tokens of the completions."""
    logp, mask = score(model, rows)
    return -logp.sum() / mask.sum()


def dpo_loss(model: nn.Module, rows: Sequence[Row], reference: Tensor, *, beta: float) -> Tensor:
    """The mean loss of pairs. Even rows are chosen, odd ones rejected; `reference` are sums over tokens: [rows]."""
    ratio = score(model, rows)[0].sum(-1) - reference
    return -nn.functional.logsigmoid(beta * (ratio[0::2] - ratio[1::2])).mean()


def grpo_loss(model: nn.Module, rows: Sequence[Row], advantage: Tensor, old: Tensor, reference: Tensor) -> Tensor:
    """PPO's clipped loss and the KL penalty k3, as the mean over rows of the means over their tokens."""
    logp, mask = score(model, rows)
    ratio, gap = (logp - old).exp(), reference - logp
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    loss = torch.maximum(-advantage[:, None] * ratio, -advantage[:, None] * clipped)
    penalty = gap.exp() - gap - 1
    return ((loss + KL * penalty) * mask).sum(-1).div(mask.sum(-1)).mean()


def advantages(rewards: Tensor) -> Tensor:
    """Rewards relative to their group, in standard deviations. Shape: [groups, rows of a group], flattened."""
    return ((rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + 1e-6)).flatten()


def weights(path: Path) -> dict[str, Tensor]:
    """The weights in the directory of a model or of an adapter, by name."""
    [file] = path.glob("*.safetensors")
    return {name: value.float() for name, value in load_file(file).items()}


def difference(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], initial: Mapping[str, Tensor]) -> float:
    """The distance of two updates of `initial`, relative to the length of the second one."""
    assert ours.keys() == theirs.keys() == initial.keys()
    apart = sum((ours[name] - theirs[name]).double().square().sum() for name in initial)
    length = sum((theirs[name] - initial[name]).double().square().sum() for name in initial)
    return float(apart / length) ** 0.5


def records(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run, a dict for each step."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
