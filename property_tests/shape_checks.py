"""The type checker that the import hook puts around every function of `purerl.algos`: an int will do for a float."""

from __future__ import annotations

from beartype import BeartypeConf, beartype

__all__ = ["checked"]

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
