"""The trainer for models that Megatron-core divides by tensors, layers and experts."""
