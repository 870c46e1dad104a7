"""The trainers of TRL that are known."""

from __future__ import annotations

__all__ = ["METHODS"]

METHODS = ("GRPO", "SFT", "DPO", "KTO", "Reward")
"""The trainers of TRL that are known, without "Trainer"."""
