"""What is held out is a matter of the prompt alone."""

from __future__ import annotations

from purerl.data.split import is_validation

from .made import user

PROMPTS = [f"problem {k}" for k in range(4000)]


def test_the_share_is_kept() -> None:
    for share in (0.01, 0.1, 0.5):
        found = sum(is_validation(prompt, share=share) for prompt in PROMPTS) / len(PROMPTS)
        assert abs(found - share) < 4 * (share * (1 - share) / len(PROMPTS)) ** 0.5


def test_a_greater_share_holds_out_what_a_smaller_one_does() -> None:
    small, great = ({p for p in PROMPTS if is_validation(p, share=share)} for share in (0.05, 0.2))
    assert small < great


def test_nothing_is_held_out_at_none() -> None:
    assert not any(is_validation(prompt, share=0) for prompt in PROMPTS)


def test_messages_count_by_role_and_content() -> None:
    sides = {
        is_validation([{**user(prompt), "name": name}], share=0.5) for prompt in PROMPTS[:1] for name in "abcdefgh"
    }
    assert len(sides) == 1
    assert len({is_validation([{"role": role, "content": "a"}], share=0.5) for role in "abcdefgh"}) == 2


def test_it_does_not_change_between_versions() -> None:
    """Golden: a run that is done again must hold out the same problems."""
    assert [k for k in range(40) if is_validation(f"problem {k}", share=0.1)] == [21, 32]
    assert [k for k in range(40) if is_validation([user(f"problem {k}")], share=0.1)] == [5, 7]
