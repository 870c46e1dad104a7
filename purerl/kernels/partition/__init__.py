"""Distribution of rows over ranks, micro-batches and packs: pure functions, with the same result on every rank.

    rows.py           what a row costs, and rows by unit
    ranks.py          rows to ranks, so that all ranks take about as long
    microbatches.py   rows to rectangles: rows of similar length, padded to the longest of them
    packs.py          rows to packs: rows in one line, without padding

`cost` is an integer per row that is proportional to the time that the row takes, and counts as 1 if it is smaller. It
can be the number of tokens, or contain the cost of attention, which grows with the square of the length. Rows with the
same `unit` label stay together. Labels are only names: what they are, and their order, changes nothing. Rows in another
order give the same totals of ranks, micro-batches and packs. All results are on the device of the arguments.
"""

from __future__ import annotations

from purerl.kernels.partition.microbatches import microbatches, rank_microbatches
from purerl.kernels.partition.packs import packs, rank_packs
from purerl.kernels.partition.ranks import assign_ranks
from purerl.kernels.partition.rows import tokens_needed

__all__ = ["assign_ranks", "microbatches", "packs", "rank_microbatches", "rank_packs", "tokens_needed"]
