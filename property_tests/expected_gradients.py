"""The expected gradient of each algorithm on policy, relative to that of the expected reward."""

from __future__ import annotations

__all__ = ["NOT_COMPARED", "ON_POLICY"]

ON_POLICY = {
    # Equal to the gradient of the expected reward.
    "rae": (1, 1),
    "reinforce": (1, 1),
    "remax": (1, 1),
    "rloo": (1, 1),
    # Parallel to it. The factor is (N - 1) / N if a row is part of its own baseline, and beta for gvpo.
    "bnpo": (1 / 2, 1),  # one group: not normalized
    "dr_grpo": (1 / 2, 1),
    "kimi": (1 / 2, 1),
    "topr": (1 / 2, 1),
    "gvpo": (0.1, 1),
    # Not parallel: divided by the standard deviation of the group.
    "flowrl": (10.69288, 0.90218),
    "gdpo": (0.29040, 0.73920),
    "bpo": (0.34633, 0.89351),
    "codapo": (0.10746, 0.98628),
    "echo": (0.34633, 0.89351),
    "gmpo": (0.34633, 0.89351),
    "grpo": (0.34633, 0.89351),
    "gspo": (0.34633, 0.89351),
    "icepop": (0.34633, 0.89351),
    "kpop": (0.34633, 0.89351),
    "luspo": (0.51114, 0.96704),
    "pspo": (0.31169, 0.89351),
    "sapo": (0.34633, 0.89351),
    # Not parallel: divided by the lengths of the rows.
    "deepseek_v3_2": (0.31510, 0.95116),
    "gar": (0.31510, 0.95116),
    "dro": (0.24568, 0.98995),
    "gpg": (0.24568, 0.98995),
    "importance_po": (0.24568, 0.98995),
    # Not parallel: divided by both.
    "bapo": (0.26221, 0.91412),
    "aspo": (0.26221, 0.91412),
    "ce_gppo": (0.26221, 0.91412),
    "cispo": (0.26221, 0.91412),
    "dapo": (0.26221, 0.91412),
    "double_sided_is": (0.26221, 0.91412),
    "dppo_kl": (0.26221, 0.91412),
    "dppo": (0.26221, 0.91412),
    "kl_cov": (0.26221, 0.91412),
    "m2po": (0.26221, 0.91412),
    "pass_k": (0.26139, 0.97455),
    "up_grpo": (0.26221, 0.91412),
    "vespo": (0.26221, 0.91412),
    # Not parallel: divided by the standard deviation of the batch, which has one group here.
    "decoupled_ppo": (0.57771, 0.98299),
    "gspo_token": (0.57223, 0.87943),
    "ppo": (0.57771, 0.98299),
    "prime": (0.37944, 0.90528),
    "reinforce_plus_plus": (0.45547, 0.93765),
    "reinforce_plus_plus_baseline": (0.37944, 0.90528),
    "spo": (0.26221, 0.91412),
    "vapo": (0.70850, 0.99447),
    # Not parallel: a row is part of its own weighted baseline, or of its own baseline of steps.
    "gigpo": (0.69614, 0.89901),
    "opo": (0.50775, 0.98903),
    "otb": (0.40854, 0.99020),
    # Nearly parallel: the KL penalty to the reference has a small weight, beta. The factor is near 2 beta.
    "a_star_po": (0.0020035, 1),
    "oapl": (0.15803, 0.97541),
    # Not parallel: another objective, such as the best of two rows, the order of rewards, or rarely solved prompts.
    "cpo": (0.79536, 0.89903),
    "dpo": (0.08086, 0.97777),
    "forking_tokens": (0.03451, 0.57687),
    "ipo": (21.38738, 0.98182),
    "ngu": (0.22797, 0.79401),
    "turn_credit": (0.26946, 0.75263),
    "max_rl": (0.34976, 0.62043),
    "orpo": (0.82728, 0.88921),
    "pass_k_leave_one_out": (0.37598, 0.95445),
    "raft": (0.72588, 0.89057),
    "simpo": (1.50383, 0.87125),
    "spin": (0.07229, 0.96704),
    "sppo": (361.43128, 0.96704),
    "target_po": (0.38543, 0.91547),
}
"""Factor and cosine of the expected gradient on policy, relative to the gradient of the expected reward."""

NOT_COMPARED = {
    "clip_cov": "selects tokens with random noise",
    "dft": "does not learn from rows of the policy",
    "gkd": "does not use sampled tokens; see tests/algos/test_distillation.py",
    "iw_opd": "does not use rewards; see tests/algos/test_distillation.py",
    "kto": "does not learn from rows of the policy",
    "opd": "does not use rewards; see test_opd_minimizes_the_kl_to_the_teacher",
    "opd_top_k": "does not use sampled tokens; see tests/algos/test_distillation.py",
    "pf_ppo": "selects rows with random noise",
    "reward_model": "trains a classifier, not a policy",
    "sft": "does not learn from rows of the policy",
}
