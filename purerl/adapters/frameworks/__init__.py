"""purerl's algorithms inside other frameworks, which call them as losses and advantage estimators.

    compose        an algorithm with modifiers, by names or objects
    availability   what each framework passes to an estimator and to a loss, and which algorithms it can therefore run
    tensors        a framework's tensors as a batch
    verl           policy losses and advantage estimators for verl; verl_plugin registers all of them
    trl            a trainer for TRL, a subclass of its GRPOTrainer
    tinker         losses for tinker's forward_backward_custom
    prime_rl       losses for prime-rl
    skyrl, slime   advantages for SkyRL and slime

A framework computes the denominators of its losses over all ranks and micro-batches of an optimizer step, and a loss
divides by these. What cannot be computed from what a framework passes is refused, with the reason.
"""
