"""Episodes of several rows: estimators and losses count an episode once, whatever number of rows it has."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from purerl.algos import dapo, dr_grpo, gdpo, gigpo, grpo, ppo, rae, reinforce, spo, vapo
from purerl.algos.algebra import compute_advantages, compute_loss, merge, prepare_step, select_rows, stages_of
from purerl.algos.modifiers import mask_truncated
from purerl.batch import check_batch, collate, with_fields
from purerl.errors import BatchError
from purerl.testing import LAWS, example_batch, fields_of, random_layout
from purerl.testing.batches import STRICT_SEED
from purerl.testing.perturbations import split_rows

from .helpers import with_advantage

# Laws of batches in general: without those about rows without counted tokens, whose rewards are part of the episode,
# and without vmap and torch.compile, which need the shape of the episodes (see below).
GENERAL_LAWS = [
    law
    for law in LAWS
    if law.__name__
    in (
        "inputs_unchanged",
        "no_hidden_state",
        "dtype_preserved",
        "padding_invariance",
        "compaction_invariance",
        "permutation_equivariance",
        "group_label_invariance",
        "microbatch_invariance",
        "rank_invariance",
        "metrics_merge",
        "zero_loss_without_counted_tokens",
        "finite_at_extreme_ratios",
        "gradient_matches_finite_differences",
    )
]


def row(label: int, group: int, episode: int, reward: list[float], **fields) -> dict:
    """A row of a prompt token and one action token for each number in `reward`."""
    action = [0] + [1] * len(reward)
    return dict(tokens=action, action=action, row=label, group=group, episode=episode, reward=[0.0, *reward], **fields)


def double(rows: list[dict]) -> TensorDict:
    batch = collate(rows)
    return with_fields(batch, **{n: v.double() for n, v in batch.items() if v.is_floating_point()})


def episodes_of_a_group() -> TensorDict:
    """Four episodes with the scores 1, 0, 0, 0. The first has three rows, which are not in their order."""
    rows = [row(12, 7, 90, [0.0, 0.5]), row(40, 7, 91, [0.0]), row(10, 7, 90, [0.25, 0.0]), row(50, 7, 92, [0.0])]
    return double([*rows, row(11, 7, 90, [0.0, 0.25]), row(60, 7, 93, [0.0, 0.0, 0.0])])


def split_example(algorithm, seed: int) -> TensorDict:
    return split_rows(example_batch(fields_of(algorithm), random_layout(seed), seed=seed))[0]


def test_group_statistics_count_an_episode_once():
    advantage = with_advantage(grpo.algorithm(), episodes_of_a_group())["advantage"]
    expected = torch.tensor([1.5, -0.5, 1.5, -0.5, 1.5, -0.5], dtype=torch.float64)
    torch.testing.assert_close(advantage[:, 1], expected, rtol=0, atol=1e-5)


def test_rows_are_selected_by_the_scores_of_episodes():
    batch = episodes_of_a_group()
    assert select_rows(dapo.algorithm(), batch).all()
    same = with_fields(batch, reward=torch.where((batch["episode"] == 90)[:, None], batch["reward"], 0) * 0)
    same["reward"][0, 1], same["reward"][2, 1] = 1.0, -1.0
    assert not select_rows(dapo.algorithm(), same).any()


def test_returns_continue_in_the_next_row_of_the_episode():
    batch = double([row(2, 7, 90, [0.0, 8.0]), row(3, 7, 91, [4.0]), row(1, 7, 90, [2.0, 0.0])])
    returns = with_advantage(reinforce.algorithm(reinforce.Config(discount=0.5)), batch)["advantage"]
    assert returns[:, 1:].tolist() == [[4.0, 8.0], [4.0, 0.0], [3.0, 2.0]]


def test_value_after_a_row_is_that_of_the_first_action_of_the_next_row():
    rows = [row(1, 7, 90, [1.0, 0.0], old_value=[9.0, 0.5, 0.25]), row(2, 7, 90, [3.0], old_value=[9.0, 2.0])]
    algorithm = ppo.algorithm(ppo.Config(discount=1.0, lambda_=0.0))
    not_whitened = algorithm._replace(advantage=stages_of(algorithm.advantage)[0])
    advantage = with_advantage(not_whitened, double(rows))["advantage"]
    # reward + V of the next action token - V
    assert advantage[:, 1:].tolist() == [[1.0 + 0.25 - 0.5, 0.0 + 2.0 - 0.25], [3.0 - 2.0, 0.0]]


def test_components_of_an_episode_are_added_up():
    rows = [row(1, 7, 90, [0.0], components=[0.5, 0.0]), row(2, 7, 90, [0.0], components=[0.5, 2.0])]
    others = [row(3, 7, 91, [0.0], components=[1.0, 2.0]), row(4, 7, 92, [0.0], components=[0.0, 0.0])]
    whole = [row(1, 7, 90, [0.0], components=[1.0, 2.0]), *others]
    split, expected = (with_advantage(gdpo.algorithm(), double(r))["advantage"][:, 1] for r in (rows + others, whole))
    torch.testing.assert_close(split, expected[[0, 0, 1, 2]], rtol=1e-12, atol=0)


def test_last_row_tells_whether_an_episode_is_truncated():
    algorithm = mask_truncated.modify(mask_truncated.Config(), grpo.algorithm())
    rows = [row(1, 7, 90, [1.0], truncated=True), row(2, 7, 90, [0.0], truncated=False)]
    rows += [row(3, 7, 91, [1.0], truncated=False), row(4, 7, 91, [0.0], truncated=True)]
    mask = with_advantage(algorithm, double(rows))["mask"]
    assert mask[:, 1].tolist() == [True, True, False, False]


def test_running_statistics_count_an_episode_once():
    batch = with_fields(episodes_of_a_group(), role=torch.zeros(6, dtype=torch.int64))
    config = rae.Config(decay=0.5, roles=1)
    state, after = compute_advantages(rae.algorithm(config), rae.algorithm(config).advantage.init(), batch)
    assert state.tolist() == [(1 - 0.5**4) * 0.25]
    assert after["advantage"][:, 1].tolist() == [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]


def test_steps_of_an_agent_continue_in_the_next_row():
    """The second step of the first episode is in another row, and is compared with the step of the second episode."""
    steps = [row(1, 7, 90, [1.0], turn=[0, 0], anchor=[5, 5]), row(2, 7, 90, [2.0], turn=[0, 1], anchor=[5, 6])]
    other = row(3, 7, 91, [0.0], turn=[0, 1], anchor=[6, 6])
    whole = row(1, 7, 90, [1.0, 2.0], turn=[0, 0, 1], anchor=[5, 5, 6])
    split, expected = (with_advantage(gigpo.algorithm(), double([*r, other])) for r in (steps, [whole]))
    assert expected["advantage"][0, 2] > expected["advantage"][0, 1] > 0
    torch.testing.assert_close(split["advantage"][:2, 1], expected["advantage"][0, 1:], rtol=1e-12, atol=0)


@pytest.mark.parametrize("module", [grpo, dr_grpo, ppo], ids=["grpo", "dr_grpo", "ppo"])
def test_every_row_as_its_own_episode_is_a_batch_without_episodes(module):
    algorithm = module.algorithm()
    batch = example_batch(fields_of(algorithm), random_layout(9), seed=9)
    own = with_fields(batch, episode=torch.randperm(len(batch), generator=torch.Generator().manual_seed(0)))
    (policy,) = (objective for objective in algorithm.objectives if objective.role == "policy")
    results = []
    for rows in (batch, own):
        after = with_advantage(algorithm, rows)
        step, counts = prepare_step(policy, after)
        results.append((torch.where(rows["action"], after["advantage"], 0), compute_loss(policy, step, counts)[0]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-12)


def test_a_masked_out_row_of_an_episode_keeps_its_reward():
    batch = episodes_of_a_group()
    masked = with_fields(batch, mask=batch["mask"] & (batch["row"] != 12)[:, None])
    advantage = with_advantage(grpo.algorithm(), masked)["advantage"]
    torch.testing.assert_close(advantage[2:, 1], with_advantage(grpo.algorithm(), batch)["advantage"][2:, 1])
    assert not advantage[0].any()


def test_row_mean_is_over_the_tokens_of_the_episode():
    """1 / (4 episodes * 6 tokens) at each token of the first episode; the weights of the parts add up to 1."""
    algorithm = grpo.algorithm()
    batch = with_advantage(algorithm, episodes_of_a_group())
    zeros = torch.zeros_like(batch["reward"])
    logp = zeros.clone().requires_grad_()
    step, counts = prepare_step(algorithm.objectives[0], with_fields(batch, old_logp=zeros))
    assert (int(counts["policy"].tokens), int(counts["policy"].rows)) == (11, 4)
    assert step["episode_tokens"][:, 0].tolist() == [6, 1, 6, 1, 6, 3]
    parts = with_fields(step, logp=logp, entropy=zeros).split(2)
    losses, metrics = zip(*(compute_loss(algorithm.objectives[0], part, counts) for part in parts), strict=True)
    loss = torch.stack(losses).sum()
    (gradient,) = torch.autograd.grad(loss, logp)
    weight = torch.tensor([24, 4, 24, 4, 24, 12], dtype=torch.float64)
    expected = torch.where(batch["mask"], -batch["advantage"] / weight[:, None], 0)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-15)
    merged = merge(*metrics)["loss/policy"]
    torch.testing.assert_close(merged.weight, torch.tensor(1.0, dtype=torch.float64))
    torch.testing.assert_close(merged.total, loss.detach())


@pytest.mark.parametrize("module", [grpo, vapo, gigpo], ids=["grpo", "vapo", "gigpo"])
@pytest.mark.parametrize("law", GENERAL_LAWS, ids=lambda law: law.__name__)
def test_general_laws_hold_for_episodes(law, module):
    algorithm = module.algorithm()
    law(algorithm, split_example(algorithm, STRICT_SEED))


@pytest.mark.slow
@pytest.mark.parametrize("module", [grpo, ppo, gigpo, spo], ids=["grpo", "ppo", "gigpo", "spo"])
def test_vmap_and_compile_take_the_shape_of_the_episodes(module):
    algorithm = module.algorithm() if module is not spo else spo.algorithm(spo.Config(prompts=8))
    batch = split_example(algorithm, 9)

    def advantage_and_selection(rows: TensorDict, shape: tuple[int, int] | None):
        _, after = compute_advantages(algorithm, algorithm.advantage.init(), rows, episodes=shape)
        return after["advantage"], select_rows(algorithm, rows, episodes=shape)

    expected, shape = advantage_and_selection(batch, None), (len(batch), 2 * batch["action"].shape[1])
    flipped = tuple(value.flip(0) for value in expected)
    mapped = torch.func.vmap(lambda rows: advantage_and_selection(rows, shape))(torch.stack([batch, batch.flip(0)]))
    compiled = torch.compile(advantage_and_selection, fullgraph=True, backend="eager")(batch, shape)
    for k in (0, 1):
        torch.testing.assert_close(torch.stack([expected[k], flipped[k]]), mapped[k], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(expected[k], compiled[k], rtol=1e-9, atol=1e-9)


def test_step_without_rows():
    batch = split_example(ppo.algorithm(), 9)[:0]
    after = with_advantage(ppo.algorithm(), batch)
    step, counts = prepare_step(ppo.algorithm().objectives[1], after)
    assert after["advantage"].shape == batch["mask"].shape
    assert step["episode_tokens"].shape == (0, 1)
    assert counts["policy"].rows == 0


def test_rows_of_an_episode_are_in_one_group():
    with pytest.raises(BatchError, match="episode 90") as caught:
        check_batch(double([row(1, 7, 90, [0.0]), row(2, 8, 90, [0.0]), row(3, 8, 91, [0.0])]))
    assert "groups 7, 8" in str(caught.value)
