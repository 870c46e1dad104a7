"""The laws for a plain loss: a function of tensors with the parameters of verl, TRL, OpenRLHF or purerl."""

from __future__ import annotations

from purerl.testing.losses.check import LawResult, check_objective, law_results
from purerl.testing.losses.conventions import VerlConfig

__all__ = ["LawResult", "VerlConfig", "check_objective", "law_results"]
