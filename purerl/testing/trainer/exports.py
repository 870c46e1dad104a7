"""A check of what `Trainer.export` writes: the model is loaded and compared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.ranks import current_ranks
from purerl.testing.trainer.reference import (
    TOKENWISE,
    Case,
    assert_close,
    first_steps,
    is_close,
    make_batch,
    reference_outputs,
    scores_of,
    weights_of,
)
from purerl.testing.trainer.resources import shared_directory, take_steps

__all__ = ["exported_model_is_trained"]

_TOLERANCE = 1e-5
"""Of outputs: transformers and the reference may compute parts of a model in float32."""


def exported_model_is_trained(case: Case) -> None:
    """A model that is loaded from the files of `export` has the log-probabilities of the trained weights.

    transformers loads it, or the `load` of `check_trainer`.
    """
    trainer, batch = case.build(), make_batch(case)
    before = reference_outputs(case, weights_of(trainer), batch)
    weights, _ = take_steps(trainer, first_steps(case, TOKENWISE))
    expected = reference_outputs(case, weights, batch)
    with shared_directory() as directory:
        trainer.export(directory)
        current_ranks().gather(None)  # every rank has written
        got = _outputs_of_files(case, directory, batch) if case.load is None else scores_of(case.load(directory), batch)
    names = ("logp", "entropy")
    initial, wanted = ({name: outputs[name] for name in names} for outputs in (before, expected))
    tolerance = max(_TOLERANCE, 10 * case.tolerance)
    assert not is_close(got, initial, tolerance), "the exported model: got the initial weights, need the trained ones"
    assert_close("the exported model", got, wanted, tolerance)


def _outputs_of_files(case: Case, directory: Path, batch: TensorDict) -> dict[str, Tensor]:
    """Log-probabilities and entropies of the model in `directory`, which transformers loads."""
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"output_loading_info": True, "local_files_only": True}
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float64, attn_implementation="eager", **options
        )
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        do = "give check_trainer a `load` if the trainer exports another format than Hugging Face's"
        raise AssertionError(f"transformers cannot load the exported model: {got}\n{do}") from error
    model, info = loaded
    model.set_experts_implementation("eager")  # grouped products have no float64
    assert not info["missing_keys"], (
        f"the exported model: got no weights {sorted(info['missing_keys'])}, which transformers has set at random"
    )

    @torch.no_grad()
    def logits(_: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
        return model.eval()(tokens.cpu(), use_cache=False).logits

    outputs = reference_outputs(case._replace(logits=logits), {}, batch)
    return {name: outputs[name] for name in ("logp", "entropy")}
