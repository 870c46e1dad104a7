"""Scripts and YAML files of TRL."""
