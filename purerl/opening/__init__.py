"""From a configuration to open objects: data, tokenizers, rewards, models and engines."""
