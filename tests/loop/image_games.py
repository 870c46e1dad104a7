"""An environment that shows a picture in each turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from purerl.envs.protocol import Observation, ToolCall


class Shown:
    """Shows the image in the column `image` of its example, and answers with the type of this value."""

    def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        self._type = type(example["image"]).__name__
        return Observation(messages=[{"role": "user", "content": "which?"}], images=[example["image"]])

    def step(self, text: str, calls: Sequence[ToolCall]) -> Observation:
        return Observation(messages=[{"role": "user", "content": self._type}], done=True)

    def close(self) -> None:
        pass


class Gallery:
    """Shows a picture, and then another one that depends on the seed. The reward is 1 for a turn that has a digit."""

    def __init__(self, turns: int = 2, *, damaged: bool = False) -> None:
        self._turns, self._taken, self._damaged = turns, 0, damaged

    def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        self._seed = seed
        return Observation(messages=[{"role": "user", "content": "first"}], images=[self._picture()])

    def step(self, text: str, calls: Sequence[ToolCall]) -> Observation:
        self._taken += 1
        reward = float(any(character.isdigit() for character in text))
        if self._taken >= self._turns:
            return Observation(reward=reward, done=True)
        content = [{"type": "text", "text": "now "}, {"type": "image"}, {"type": "text", "text": "?"}]
        data = BytesIO()
        self._picture().save(data, format="PNG")
        shown = data.getvalue()[:-40] if self._damaged else data.getvalue()
        return Observation(messages=[{"role": "user", "content": content}], images=[shown], reward=reward)

    def close(self) -> None:
        pass

    def _picture(self) -> Any:
        from PIL import Image

        return Image.new("RGB", (24, 16), (self._seed % 256, 80 * self._taken, 10))
