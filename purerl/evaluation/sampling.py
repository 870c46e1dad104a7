"""The sampling parameters of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import fields_dict

from purerl.backends.plugin import generator_plugin
from purerl.errors import ConfigError
from purerl.evaluation.settings import Evaluate
from purerl.plugins import kind_of
from purerl.protocols import Sampling

__all__ = ["check_sampling", "sampling_of"]


def sampling_of(settings: Evaluate, stop_tokens: Sequence[int]) -> Sampling:
    """The sampling of an evaluation with `settings`, with the end tokens of the model."""
    names = fields_dict(Sampling).keys() & fields_dict(Evaluate).keys()
    return Sampling(stop_tokens=tuple(stop_tokens), **{name: getattr(settings, name) for name in names})


def check_sampling(settings: Evaluate, generator: object) -> None:
    """Raise ConfigError if the engine of the Config `generator` lacks a sampling parameter of `settings`.

    An engine that does not state its capabilities without a model refuses the requests.
    """
    plugin = generator_plugin(generator)
    if plugin.capabilities is None:
        return
    kind, supported = kind_of(generator), plugin.capabilities().sampling
    for name in sorted(sampling_of(settings, ()).parameters - supported):
        need = f"a sampling parameter of the generator {kind!r}: {', '.join(sorted(supported)) or 'it has none'}"
        do = "leave it out, or choose another generator: `purerl doctor` lists what each of them has"
        got = " and ".join(str(getattr(settings, part)) for part in name.split(" with "))
        raise ConfigError(name, got=got, need=need, do=do)
