"""The decoder of a pretrained model: its class, its limits, its inputs and its outputs."""
