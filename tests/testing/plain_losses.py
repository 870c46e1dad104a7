"""Plain losses with the parameters of purerl, verl, TRL and OpenRLHF: correct ones, and broken ones."""

from __future__ import annotations

import torch


def finite_ratio(logp, old_logp):
    """The ratio of two policies; finite for log-probabilities of -inf, and if they differ much."""
    return (logp.clamp(min=-1000) - old_logp.clamp(min=-1000)).clamp(-20, 20).exp()


def zeroed(mask, *values):
    """`values` with 0 at masked-out tokens, so that what is there changes neither the loss nor its gradient."""
    return [torch.where(mask.bool(), value, 0) for value in values]


def clipped(ratio, advantage):
    return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)


# --- correct -----------------------------------------------------------------------------------------------------


def own(logp, old_logp, advantage, mask, counts):
    logp, old_logp, advantage = zeroed(mask, logp, old_logp, advantage)
    return torch.where(mask, clipped(finite_ratio(logp, old_logp), advantage), 0).sum() / counts.tokens


def own_mean_of_rows(logp, old_logp, advantage, mask):
    logp, old_logp, advantage = zeroed(mask, logp, old_logp, advantage)
    loss = torch.where(mask, clipped(finite_ratio(logp, old_logp), advantage), 0)
    return (loss.sum(-1) / mask.sum(-1).clamp(min=1)).sum() / mask.any(-1).sum().clamp(min=1)


def of_verl(
    old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean", config=None, rollout_is_weights=None
):
    assert config is not None
    assert loss_agg_mode == "token-mean"
    log_prob, old_log_prob, advantages = zeroed(response_mask, log_prob, old_log_prob, advantages)
    ratio = finite_ratio(log_prob, old_log_prob)
    clip = ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    losses = -torch.minimum(ratio * advantages, clip * advantages)
    loss = (losses * response_mask).sum() / config.global_batch_info["batch_num_tokens"]
    return loss, {"actor/ratio": ratio.detach().mean().item() if ratio.numel() else 0.0}


def of_trl(per_token_logps, old_per_token_logps, advantages, completion_mask, num_items_in_batch):
    logps, old_logps = zeroed(completion_mask, per_token_logps, old_per_token_logps)
    losses = clipped(finite_ratio(logps, old_logps), advantages.unsqueeze(1))
    return (losses * completion_mask).sum() / num_items_in_batch


def of_openrlhf(log_probs, old_log_probs, advantages, action_mask, rollout_log_probs=None, batch_num_tokens=None):
    log_probs, old_log_probs, advantages = zeroed(action_mask, log_probs, old_log_probs, advantages)
    losses = clipped(finite_ratio(log_probs, old_log_probs), advantages)
    return (losses * action_mask).sum() / batch_num_tokens, losses.detach().mean()


class OfOpenRLHF(torch.nn.Module):
    """A mean over the rows of the step, as a module."""

    def forward(self, log_probs, old_log_probs, advantages, action_mask, global_batch_size=None):
        log_probs, old_log_probs, advantages = zeroed(action_mask, log_probs, old_log_probs, advantages)
        losses = clipped(finite_ratio(log_probs, old_log_probs), advantages) * action_mask
        return (losses.sum(-1) / action_mask.sum(-1).clamp(min=1)).sum() / global_batch_size


def squared_error(value, old_value, returns, mask):
    value, old_value, returns = zeroed(mask, value, old_value, returns)
    clip = old_value + (value - old_value).clamp(-0.5, 0.5)
    return (torch.maximum((value - returns) ** 2, (clip - returns) ** 2) * mask).sum() / 2


def of_a_critic(value, old_value, returns, mask, counts):
    return squared_error(value, old_value, returns, mask) / counts.tokens


def of_a_critic_of_openrlhf(values, old_values, returns, action_mask, batch_num_tokens):
    return squared_error(values, old_values, returns, action_mask) / batch_num_tokens


def of_a_critic_of_verl(vpreds, returns, values, response_mask, batch_num_tokens):
    return squared_error(vpreds, values, returns, response_mask) / batch_num_tokens, 0.0


# --- broken ------------------------------------------------------------------------------------------------------


def denominator_of_the_micro_batch(logp, old_logp, advantage, mask, counts):
    logp, old_logp, advantage = zeroed(mask, logp, old_logp, advantage)
    return torch.where(mask, clipped(finite_ratio(logp, old_logp), advantage), 0).sum() / mask.sum().clamp(min=1)


def mask_ignored(logp, old_logp, advantage, mask, counts):
    return clipped(finite_ratio(logp, old_logp), advantage).sum() / counts.tokens


def ratio_detached(
    old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean", config=None, rollout_is_weights=None
):
    log_prob, old_log_prob, advantages = zeroed(response_mask, log_prob, old_log_prob, advantages)
    losses = clipped(finite_ratio(log_prob.detach(), old_log_prob), advantages)
    return (losses * response_mask).sum() / config.global_batch_info["batch_num_tokens"], {}


def nan_at_impossible_tokens(per_token_logps, old_per_token_logps, advantages, completion_mask, num_items_in_batch):
    logps, old_logps = zeroed(completion_mask, per_token_logps, old_per_token_logps)
    losses = clipped((logps - old_logps).clamp(-20, 20).exp(), advantages.unsqueeze(1))
    return (losses * completion_mask).sum() / num_items_in_batch


def padding_counted(per_token_logps, old_per_token_logps, advantages, completion_mask):
    logps, old_logps = zeroed(completion_mask, per_token_logps, old_per_token_logps)
    losses = clipped(finite_ratio(logps, old_logps), advantages.unsqueeze(1)) * completion_mask
    return losses.sum() / max(1, losses.numel())


def counts_not_used(log_probs, old_log_probs, advantages, action_mask, batch_num_tokens):
    loss, _ = of_openrlhf(log_probs, old_log_probs, advantages, action_mask, batch_num_tokens=batch_num_tokens)
    return loss * batch_num_tokens / action_mask.sum().clamp(min=1)


def critic_masked_by_a_product(values, returns, action_mask, batch_num_tokens):
    return ((values - returns) ** 2 * action_mask).sum() / batch_num_tokens


def critic_detached(vpreds, returns, values, response_mask, batch_num_tokens):
    return of_a_critic_of_verl(vpreds.detach(), returns, values, response_mask, batch_num_tokens)


def wrong_sign(logp, old_logp, advantage, mask, counts):
    return -own(logp, old_logp, advantage, mask, counts)
