"""The validation split depends only on the prompt."""

from __future__ import annotations

from purerl.data.split import is_validation

from .made import user

PROMPTS = [f"problem {k}" for k in range(4000)]


def test_fraction_of_validation_prompts_is_as_requested() -> None:
    for fraction in (0.01, 0.1, 0.5):
        actual = sum(is_validation(prompt, fraction=fraction) for prompt in PROMPTS) / len(PROMPTS)
        assert abs(actual - fraction) < 4 * (fraction * (1 - fraction) / len(PROMPTS)) ** 0.5


def test_smaller_fraction_gives_a_subset() -> None:
    small, large = ({p for p in PROMPTS if is_validation(p, fraction=fraction)} for fraction in (0.05, 0.2))
    assert small < large


def test_fraction_0_gives_no_validation_prompts() -> None:
    assert not any(is_validation(prompt, fraction=0) for prompt in PROMPTS)


def test_messages_are_hashed_by_role_and_content() -> None:
    results = {
        is_validation([{**user(prompt), "name": name}], fraction=0.5) for prompt in PROMPTS[:1] for name in "abcdefgh"
    }
    assert len(results) == 1
    assert len({is_validation([{"role": role, "content": "a"}], fraction=0.5) for role in "abcdefgh"}) == 2


def test_split_does_not_change_between_versions() -> None:
    """Golden values: repeating a run must give the same validation set."""
    assert [k for k in range(40) if is_validation(f"problem {k}", fraction=0.1)] == [21, 32]
    assert [k for k in range(40) if is_validation([user(f"problem {k}")], fraction=0.1)] == [5, 7]
