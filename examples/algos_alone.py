"""purerl.algos on plain tensors: a table of logits learns five digits of pi from the fraction of correct digits."""

import torch
from torch.distributions import Categorical

from purerl.algos import Counts, broadcast_to_tokens, group_normalized_advantage, ppo_clip, token_mean

digits, logits = torch.tensor([3, 1, 4, 1, 5]), torch.zeros(5, 10, requires_grad=True)
group, mask = torch.zeros(32, dtype=torch.int64), torch.ones(32, 5, dtype=torch.bool)
counts = Counts(tokens=mask.sum(), rows=mask.any(-1).sum())
for _ in range(100):
    sampled = Categorical(logits=logits).sample((32,))
    logp = Categorical(logits=logits).log_prob(sampled)
    score = (sampled == digits).float().mean(-1)
    advantage = broadcast_to_tokens(group_normalized_advantage(score, group, mask.any(-1)), mask)
    loss = ppo_clip(logp, logp.detach(), advantage, clip_low=0.2, clip_high=0.28)
    token_mean(loss, mask, counts).backward()
    logits.data, logits.grad = logits - 20 * logits.grad, None
print(logits.argmax(-1).tolist())
