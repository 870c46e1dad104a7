"""The board of results: docs/reference/results.md, made from files that are made from run directories.

    python -m benchmarks.board run addition --seeds 0 1 2      train a recipe, and store a result for each seed
    python -m benchmarks.board add runs/char_count             store the result of finished runs
    python -m benchmarks.board page                            write the page, figures, and the results in README.md

A result is a file in benchmarks/results/board: `benchmarks.board.result` defines its format. It has nothing that was
typed: a run directory is the only source. Published numbers, with their sources, are in reproduce/published.toml.
"""
