"""docs/how-to/evaluation.md names only functions that exist."""

from __future__ import annotations

import re

from purerl.plugins import locate

from .test_quickstart import ROOT

PAGE = (ROOT / "docs" / "how-to" / "evaluation.md").read_text(encoding="utf-8")


def test_every_answer_extractor_on_the_page_exists() -> None:
    [sentence] = re.findall(r"`purerl\.rewards\.math` has the extractors (.+?), which", PAGE, re.DOTALL)
    names = re.findall(r"`(\w+)`", sentence)
    assert len(names) == 3
    for name in names:
        assert locate(f"purerl.rewards.math:{name}")("The answer is none of them.") is None
