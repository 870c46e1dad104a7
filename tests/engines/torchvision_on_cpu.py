"""Let torchvision be imported beside a torch for CPUs: python torchvision_on_cpu.py SITE_PACKAGES

Its library is built for another torch and is not loaded. The operators that its Python files register are declared.
"""

from __future__ import annotations

import sys
from pathlib import Path

OPERATORS = """\
if not torchvision.extension._has_ops():
    for operator in ("nms", "qnms"):
        torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


"""
BEFORE = '@torch.library.register_fake("torchvision::nms")'


def main(packages: Path) -> None:
    """Write the declarations into the directory `packages`, once."""
    registrations = packages / "torchvision" / "_meta_registrations.py"
    text = registrations.read_text()
    if OPERATORS not in text:
        registrations.write_text(text.replace(BEFORE, OPERATORS + BEFORE))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
