"""`python -m purerl_cli` is `purerl`."""

from purerl_cli.main import main

main()
