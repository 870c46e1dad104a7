"""On-policy distillation on the CPU of a laptop: a teacher corrects each token of the answers that the student samples.

    purerl train postfix_sft
    purerl train postfix_distillation --set teacher_model=runs/postfix_sft/final

The task is that of `postfix_sft`, whose model is the teacher. The student has first learned from demonstrations of
which three quarters have no parentheses (`initial_run`). There are no correct answers and no rewards in its training:
exact_match is only measured, in evaluations.

Reasons for the settings:

    1 answer per prompt   the teacher judges each token on its own, so a prompt needs no group
    1 update per step     the log-ratio to the teacher is that of the policy that has sampled
"""

from __future__ import annotations

from typing import Annotated

from attrs import evolve

from purerl.algos import opd
from purerl.config.schema import Role, RunConfig
from purerl.recipes.postfix_sft import ROLLOUT, from_demonstrations, training
from purerl.settings import Model, to_model

__all__ = ["postfix_distillation"]


def postfix_distillation(
    teacher_model: Annotated[str | Model, "the model whose distribution the student learns, with the same tokenizer"],
    max_steps: int | None = None,
    num_epochs: float | None = None,
) -> RunConfig:
    """On-policy distillation from a teacher; 50 steps by default."""
    return from_demonstrations(
        name="postfix_distillation",
        data="{run}/prepared/train.parquet",
        algorithm=opd.Config(),
        roles={"teacher": Role(model=to_model(teacher_model))},
        steps=50,
        max_steps=max_steps,
        num_epochs=num_epochs,
        batch_size=128,
        rollout=evolve(ROLLOUT, samples_per_prompt=1),
        trainer=training(lr=5e-4, max_grad_norm=0.3),
    )
