"""``python -m tests.megatron.command ARGUMENTS``: the command `purerl`, with the stand-in for a GPU."""

from __future__ import annotations

from purerl_cli.main import main
from tests.megatron.cuda_stand_in import install

if __name__ == "__main__":
    install()
    main()
