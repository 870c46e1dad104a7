"""Checks of what trainers save and load."""

from __future__ import annotations

from purerl.backends.checkpoint_staging import SupportsStaging
from purerl.errors import CheckpointError
from purerl.ranks import current_ranks
from purerl.system.digests import digest_of
from purerl.testing.trainer.reference import OBJECTIVES, TOKENWISE, Case, assert_close, first_steps, weights_of
from purerl.testing.trainer.resources import builds, shared_directory, take_steps

__all__ = ["FILE_CHECKS"]


def a_loaded_trainer_resumes_exactly(case: Case) -> None:
    """A new trainer, and one with another state, continue bit for bit from a directory that all ranks share."""
    *before, after = first_steps(case, TOKENWISE, 4)
    first = first_steps(case, OBJECTIVES[0], 1)
    for build in builds(case):
        saved, fresh, changed = build(), build(), build()
        take_steps(saved, before)
        take_steps(changed, first)
        with shared_directory() as directory:
            saved.save(directory)
            fresh.load(directory)
            changed.load(directory)
        assert_close("loaded weights", weights_of(fresh), weights_of(saved), 0)
        expected = take_steps(saved, [after])[0]
        assert_close("weights one step after loading", take_steps(fresh, [after])[0], expected, 0)
        assert_close("weights one step after loading over another state", take_steps(changed, [after])[0], expected, 0)


def staged_state_is_that_of_its_moment(case: Case) -> None:
    """The result of `stage`, if a trainer has it, is the state at that moment, also when it is written after a step."""
    *before, after = first_steps(case, TOKENWISE, 3)
    for build in builds(case):
        trainer, loaded = build(), build()
        if not isinstance(trainer, SupportsStaging):
            continue
        weights, _ = take_steps(trainer, before)
        staged = trainer.stage()
        expected = take_steps(trainer, [after])[0]
        with shared_directory() as directory:
            staged.write(directory, current_ranks())
            loaded.load(directory)
        assert_close("weights that were staged", weights_of(loaded), weights, 0)
        assert_close("weights one step later", take_steps(loaded, [after])[0], expected, 0)


def an_invalid_checkpoint_is_refused(case: Case) -> None:
    """An empty directory raises CheckpointError, and the trainer is unchanged."""
    trainer = case.build()
    with shared_directory() as directory:
        try:
            trainer.load(directory)
        except CheckpointError:
            assert_close("weights", weights_of(trainer), weights_of(case.build()), 0)
            return
    raise AssertionError("an empty directory was loaded")


def reported_digests_are_those_of_the_files(case: Case) -> None:
    """The digests that `save` returns, if any, are those of files that it has written."""
    for build in builds(case):
        trainer = build()
        with shared_directory() as directory:
            digests = trainer.save(directory) or {}
            files = {name for name in digests if (directory / name).is_file()}
            wrong = [name for name in digests if name not in files or digest_of(directory / name) != digests[name]]
            wrong = current_ranks().gather(wrong)
        assert not any(wrong), f"save returned wrong digests, by rank: {wrong}"


FILE_CHECKS = (
    a_loaded_trainer_resumes_exactly,
    staged_state_is_that_of_its_moment,
    an_invalid_checkpoint_is_refused,
    reported_digests_are_those_of_the_files,
)
