"""Pretrained models before their weights are loaded: configuration, tokenizer, processor, fingerprint."""
