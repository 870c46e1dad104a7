"""purerl.algos alone, on plain tensors: a table of logits learns five digits of pi from how many were right."""

import torch
from torch.distributions import Categorical

from purerl.algos import Counts, group_normalised_advantage, ppo_clip, spread, token_mean

digits, logits = torch.tensor([3, 1, 4, 1, 5]), torch.zeros(5, 10, requires_grad=True)
group, mask = torch.zeros(32, dtype=torch.int64), torch.ones(32, 5, dtype=torch.bool)
for _step in range(50):
    old = Categorical(logits=logits.detach())
    sampled = old.sample((32,))
    score = (sampled == digits).float().mean(-1)
    advantage = spread(group_normalised_advantage(score, group, mask.any(-1)), mask)
    for _epoch in range(2):
        logp = Categorical(logits=logits).log_prob(sampled)
        loss = ppo_clip(logp, old.log_prob(sampled), advantage, clip_low=0.2, clip_high=0.28)
        token_mean(loss, mask, Counts(tokens=mask.sum(), rows=mask.any(-1).sum())).backward()
        logits.data, logits.grad = logits - 20 * logits.grad, None
print(f"mean reward {score.mean():.2f}, likeliest digits {logits.argmax(-1).tolist()}")
