"""purerl with a real language model, compared with transformers and peft: `nox -s real`."""
