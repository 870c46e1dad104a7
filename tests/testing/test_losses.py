"""Plain losses face the laws: correct ones pass, and each broken one fails exactly the laws that it should."""

from __future__ import annotations

import pytest
import torch

from purerl.errors import ConfigError
from purerl.testing import LAWS, check_objective, law_results
from purerl.testing.losses import VerlConfig

from . import plain_losses as losses

UNCOMPILED = tuple(law.__name__ for law in LAWS if law.__name__ != "compiled_equals_eager")
OF_REWARDS = {
    "no_reward_lost",
    "reward_shift_invariance",
    "reward_scale_equivariance",
    "small_groups_have_zero_advantage",
}
OF_ALGORITHMS = {"reads_are_declared", "picklable", "episode_invariance", "metrics_merge", "group_label_invariance"}
OF_POLICIES = {"finite_at_extreme_ratios", "finite_at_impossible_tokens", "reinforce_gradient_on_policy"}
WITH_NUMBERS = {"device_preserved", "vmap_equals_loop"}


def _by_status(loss, **options):
    results = law_results(loss, **{"laws": UNCOMPILED, "batches": 1, **options})
    return {status: {r.law for r in results if r.status == status} for status in ("passed", "failed", "does not apply")}


@pytest.mark.parametrize(
    ("loss", "not_applied"),
    [
        (losses.own, OF_REWARDS | OF_ALGORITHMS),
        (losses.own_mean_of_rows, OF_REWARDS | OF_ALGORITHMS),
        (losses.of_verl, OF_REWARDS | OF_ALGORITHMS | WITH_NUMBERS),
        (losses.of_trl, OF_REWARDS | OF_ALGORITHMS),
        (losses.of_openrlhf, OF_REWARDS | OF_ALGORITHMS),
        (losses.OfOpenRLHF(), OF_REWARDS | OF_ALGORITHMS),
        (losses.of_a_critic, OF_REWARDS | OF_ALGORITHMS | OF_POLICIES),
        (losses.of_a_critic_of_openrlhf, OF_REWARDS | OF_ALGORITHMS | OF_POLICIES),
        (losses.of_a_critic_of_verl, OF_REWARDS | OF_ALGORITHMS | OF_POLICIES | WITH_NUMBERS),
    ],
)
def test_a_correct_loss_passes_every_law_that_applies(loss, not_applied):
    found = _by_status(loss)
    assert not found["failed"]
    assert found["does not apply"] == not_applied
    assert found["passed"] == set(UNCOMPILED) - not_applied


@pytest.mark.parametrize(
    ("loss", "failed"),
    [
        (losses.denominator_of_the_micro_batch, {"microbatch_invariance", "rank_invariance"}),
        (
            losses.mask_ignored,
            {
                "padding_invariance",
                "compaction_invariance",
                "masked_row_invariance",
                "masked_token_invariance",
                "microbatch_invariance",
                "zero_loss_without_counted_tokens",
            },
        ),
        (losses.ratio_detached, {"gradients_only_through_outputs", "reinforce_gradient_on_policy"}),
        (losses.nan_at_impossible_tokens, {"finite_at_impossible_tokens"}),
        (
            losses.padding_counted,
            {
                "padding_invariance",
                "compaction_invariance",
                "masked_row_invariance",
                "microbatch_invariance",
                "rank_invariance",
            },
        ),
        (losses.counts_not_used, {"microbatch_invariance", "rank_invariance"}),
        (losses.critic_masked_by_a_product, {"masked_token_invariance"}),
        (losses.critic_detached, {"gradients_only_through_outputs"}),
        (losses.wrong_sign, {"reinforce_gradient_on_policy"}),
    ],
)
def test_a_broken_loss_fails_exactly_the_laws_that_it_should(loss, failed):
    assert _by_status(loss)["failed"] == failed


@pytest.mark.slow
def test_a_plain_loss_is_compiled():
    [result] = law_results(losses.own, laws=["compiled_equals_eager"])
    assert result.status == "passed"


def test_the_error_has_the_smallest_counterexample_and_how_to_repeat_it():
    with pytest.raises(AssertionError, match=r"^microbatch_invariance: objective 'policy': gradient of logp") as caught:
        check_objective(losses.denominator_of_the_micro_batch, laws=["microbatch_invariance"])
    text = str(caught.value)
    assert "    2 rows; a: counted, x: not counted, .: not an action; * marks the difference" in text
    assert text.endswith("batch = example_batch(('old_logp', 'advantage', 'logp'), ((0, '.a'), (0, '.a')), seed=0)")


def test_the_error_has_every_law_that_fails():
    laws = ["gradients_only_through_outputs", "reinforce_gradient_on_policy", "padding_invariance"]
    with pytest.raises(AssertionError) as caught:
        check_objective(losses.ratio_detached, laws=laws, batches=1)
    assert [law for law in laws if f"{law}: " in str(caught.value)] == laws[:2]


def test_a_violation_on_purpose_is_exempt():
    exempt = {"finite_at_impossible_tokens": "no logit is ever masked"}
    [result] = law_results(losses.nan_at_impossible_tokens, laws=list(exempt), exempt=exempt)
    assert result == ("finite_at_impossible_tokens", "exempt", "no logit is ever masked")


def test_an_exemption_that_is_not_needed_fails():
    with pytest.raises(AssertionError, match="padding_invariance: exempt, but satisfied on every batch"):
        check_objective(losses.own, laws=["padding_invariance"], exempt={"padding_invariance": "why"}, batches=2)


def test_a_loss_of_a_sum_needs_accumulate():
    def summed(logp, old_logp, advantage, mask):
        return torch.where(mask, -advantage * (logp - old_logp).clamp(-20, 20).exp(), 0).sum()

    laws = ["microbatch_invariance", "rank_invariance"]
    assert _by_status(summed, laws=laws)["failed"] == set(laws)
    assert _by_status(summed, laws=laws, accumulate="sum")["passed"] == set(laws)


def test_hidden_state_is_found():
    calls = []

    def drops_tokens(logp, old_logp, advantage, mask, counts):
        return losses.own(logp, old_logp, torch.nn.functional.dropout(advantage), mask, counts)

    def counts_its_calls(logp, old_logp, advantage, mask, counts):
        calls.append(logp)
        return losses.own(logp, old_logp, advantage, mask, counts) * len(calls)

    for loss in (drops_tokens, counts_its_calls):
        assert _by_status(loss, laws=["no_hidden_state"], batches=5)["failed"] == {"no_hidden_state"}
        assert "padding_invariance" in _by_status(loss, laws=["padding_invariance"], batches=5)["failed"]


def test_a_loss_with_a_state_that_is_found_only_sometimes_has_an_error():
    calls = []

    def sometimes_twice_as_large(logp, old_logp, advantage, mask, counts):
        calls.append(1)
        return losses.own(logp, old_logp, advantage, mask, counts) * (1 + (len(calls) % 37 == 0))

    [result] = law_results(sometimes_twice_as_large, laws=["no_hidden_state"], batches=50)
    assert result.status == "failed"
    assert result.text.startswith("no_hidden_state: objective 'policy'")


def test_a_loss_of_groups_is_not_split():
    def centered(logp, group, advantage, mask, counts):
        same = (group[:, None] == group).to(logp.dtype)
        mean = (same @ torch.where(mask, logp, 0).sum(-1)) / same.sum(-1)
        return (torch.where(mask, -advantage, 0).sum(-1) * mean).sum() / counts.tokens

    laws = ["microbatch_invariance", "group_label_invariance"]
    assert _by_status(centered, laws=laws)["failed"] == {"microbatch_invariance"}
    assert _by_status(centered, laws=laws, unit="group")["passed"] == set(laws)


def test_a_configuration_of_ones_own_reaches_a_loss_of_verl():
    seen = []

    def spy(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config):
        seen.append((config.clip_ratio_high, loss_agg_mode, int(config.global_batch_info["batch_num_tokens"])))
        return losses.of_verl(old_log_prob, log_prob, advantages, response_mask, config=config)

    config = VerlConfig(clip_ratio_high=0.28)
    law_results(spy, laws=["no_hidden_state"], arguments={"config": config, "loss_agg_mode": "token-mean"}, batches=1)
    assert {values[:2] for values in seen} == {(0.28, "token-mean")}
    assert not hasattr(config, "global_batch_info")


@pytest.mark.parametrize(
    "names", ["value old_value mask", "vpreds values response_mask", "values old_values action_mask"]
)
def test_the_values_of_the_critic_are_those_with_a_gradient(names):
    new, old, mask = names.split()
    seen = set()

    def spy(current, before, returns, mask):
        seen.add((current.requires_grad, before.requires_grad, returns.requires_grad))
        return losses.squared_error(current, before, returns, mask)

    namespace = {"spy": spy}
    loss = eval(f"lambda {new}, {old}, returns, {mask}: spy({new}, {old}, returns, {mask})", namespace)
    law_results(loss, laws=["gradients_only_through_outputs"], batches=1)
    assert seen == {(False, False, False), (True, False, False)}


def test_the_counts_of_openrlhf_and_verl_are_those_of_the_step():
    seen = set()

    def of_openrlhf(log_probs, action_mask, batch_num_tokens, global_batch_size):
        seen.add((int(batch_num_tokens), int(global_batch_size), *action_mask.shape))
        return (-log_probs * action_mask).sum() / batch_num_tokens

    def of_verl(log_prob, response_mask, batch_num_tokens, global_batch_size):
        return of_openrlhf(log_prob, response_mask, batch_num_tokens, global_batch_size)

    for loss in (of_openrlhf, of_verl):
        seen.clear()
        law_results(loss, laws=["dtype_preserved"], batches=1)
        assert (5, 2, 2, 4) in seen  # the ordinary batch: rows with 2 and 3 tokens


def _missing(logp, advantage, mask, temperature):
    return (-advantage * logp * temperature * mask).sum()


def _two_masks(logp, mask, response_mask):
    return logp.sum()


def _crashes(logp, mask):
    return logp @ mask


def _not_a_scalar(logp, mask):
    return logp


def _no_policy(old_logp, mask):
    return old_logp.sum()


@pytest.mark.parametrize(
    ("loss", "options", "message"),
    [
        (
            _missing,
            {},
            r"the parameter 'temperature' of _missing\n  got:  no value\n  need: one of logp, ",
        ),
        (_two_masks, {}, r"got:  logp, mask, response_mask\n  need: one mask"),
        (losses.OfOpenRLHF, {}, r"need: one mask: mask, .* or action_mask \(OpenRLHF\)"),
        (_crashes, {}, r"the loss fails\n  got:  RuntimeError: "),
        (_not_a_scalar, {}, r"the result of _not_a_scalar\n  got:  \[2, 4\] values\n  need: a scalar tensor"),
        (_no_policy, {}, "log-probabilities of the current policy"),
        (losses.own, {"arguments": {"coutns": 1}}, "the argument 'coutns'\n.*\n.*did you mean 'counts'"),
        (losses.own, {"laws": ["padding_invarance"]}, "unknown law 'padding_invarance'\n.*\n.*'padding_invariance'"),
        (losses.own, {"exempt": {"padding_invariance": ""}}, "an exemption from padding_invariance\n  got:  no reason"),
        (losses.own, {"accumulate": "max"}, "accumulate\n  got:  'max'\n  need: 'sum' or 'mean'"),
        (losses.own, {"unit": "batch"}, "unit\n  got:  'batch'\n  need: 'row' or 'group'"),
    ],
)
def test_what_cannot_be_tested_is_refused(loss, options, message):
    with pytest.raises(ConfigError, match=message):
        law_results(loss, **options)
