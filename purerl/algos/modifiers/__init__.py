"""Modifiers: functions from an algorithm to an algorithm, each with settings.

Rewards and rows:

    kl_reward              a KL penalty in the reward
    reward_normalization   rewards divided by a standard deviation
    truncation_bootstrap   the critic's value at the end of truncated rows
    mask_truncated         truncated rows leave the step
    group_filter           which groups are kept

Advantages:

    advantage_scale        what is subtracted from a score, and what it is divided by
    advantage_whitening    whitened over the batch
    advantage_clip         clipped to an interval

Loss:

    reduction              from tokens to a scalar; critic_reduction: that of the critic
    clipped_surrogate      a clipped ratio for algorithms without one
    dual_clip              an upper bound of the ratio where the advantage is negative
    high_entropy_tokens    only tokens with a high entropy
    kl_loss                a KL penalty
    entropy_bonus          an entropy bonus
    label_smoothing        preferences that may be wrong

Rows of another policy:

    importance_weight      weights of tokens or rows
    rejection              tokens or rows leave the step
    off_policy_mask        rows with a negative advantage that have become unlikely
    bypass                 the rollout policy in place of the old policy

A modifier is a module with a `Config` and a function `modify(config, algorithm)`, which returns the changed algorithm
and raises ConfigError for an algorithm without the part that it changes. The first field of the Config is its main
field, which can be set alone: ``algorithm.reduction = "token_mean"``.

>>> from purerl.algos import grpo
>>> from purerl.algos.modifiers import reduction
>>> algorithm = reduction.modify(reduction.Config(by="token_mean"), grpo.algorithm())
>>> algorithm.objectives[0].terms[0].reduce.__name__
'token_mean'
"""
