"""Any causal language model of Hugging Face's transformers, in this process: a trainer and a generator."""
