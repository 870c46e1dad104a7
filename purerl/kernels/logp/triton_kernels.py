"""The Triton kernels of `purerl.kernels.logp.fused`. Import this module in a function: it needs triton.

A program computes blocks of logits [BLOCK_N tokens, BLOCK_V columns] in registers, by products of blocks of BLOCK_D
hidden units. `inner`, `outer` are the scales of chunked.py. DTYPE is the dtype of the factors of a product, ACC that of
everything else.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["logit_gradients", "statistics"]


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _products(
    hidden, weight, bias, inner, rows, columns, n, v, d, hidden_stride, weight_stride,
    BIAS: tl.constexpr, DTYPE: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The logits without a softcap, or the argument of tanh with one: inner * (hidden @ weight.T + bias)."""
    total = tl.zeros((BLOCK_N, BLOCK_V), ACC)
    hidden_rows = hidden + rows[:, None].to(tl.int64) * hidden_stride
    weight_rows = weight + columns[:, None].to(tl.int64) * weight_stride
    for start in range(0, d, BLOCK_D):
        units = start + tl.arange(0, BLOCK_D)[None, :]
        h = tl.load(hidden_rows + units, mask=(rows[:, None] < n) & (units < d), other=0).to(DTYPE)
        w = tl.load(weight_rows + units, mask=(columns[:, None] < v) & (units < d), other=0).to(DTYPE)
        total = tl.dot(h, tl.trans(w), total, input_precision=PRECISION, out_dtype=ACC)
    if BIAS:
        total += tl.load(bias + columns, mask=columns < v, other=0).to(ACC)[None, :]
    return total * tl.load(inner + rows, mask=rows < n, other=0)[:, None]


@triton.jit
def statistics(
    hidden, weight, bias, inner, outer, ids, selected, partial, n, v, d, k, split_columns, hidden_stride, weight_stride,
    BIAS: tl.constexpr, SOFTCAP: tl.constexpr, ENTROPY: tl.constexpr, SQUARES: tl.constexpr,
    DTYPE: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The logits of `ids`, and what the other outputs need of the columns of one split of the vocabulary.

    With m = max(z) over the columns of the split, `partial` [4, n, splits] receives m and the sums of exp(z - m), of
    (z - m) * exp(z - m) and of exp(z - m)^2. A larger maximum m' rescales the sums so far by exp(m - m').
    """
    rows, split = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.program_id(1)
    in_rows = rows < n
    m = tl.full((BLOCK_N,), -1e30, ACC)
    total, weighted, squares = tl.zeros((BLOCK_N,), ACC), tl.zeros((BLOCK_N,), ACC), tl.zeros((BLOCK_N,), ACC)
    first = split * split_columns
    for start in range(first, tl.minimum(first + split_columns, v), BLOCK_V):
        columns = start + tl.arange(0, BLOCK_V)
        in_columns = columns[None, :] < v
        z = _products(
            hidden, weight, bias, inner, rows, columns, n, v, d, hidden_stride, weight_stride,
            BIAS, DTYPE, ACC, PRECISION, BLOCK_N, BLOCK_V, BLOCK_D,
        )  # fmt: skip
        if SOFTCAP:
            z = tl.load(outer + rows, mask=in_rows, other=0)[:, None] * _tanh(z)
        for j in range(k):
            token = tl.load(ids + rows * k + j, mask=in_rows, other=-1)
            z_token = tl.sum(tl.where(columns[None, :] == token[:, None], z, 0), 1)
            is_here = (token >= start) & (token < tl.minimum(start + BLOCK_V, v))
            tl.store(selected + rows * k + j, z_token, mask=in_rows & is_here)
        z = tl.where(in_columns, z, -float("inf"))
        m_new = tl.maximum(m, tl.max(z, 1))
        shifted = z - m_new[:, None]
        exp, rescale = tl.exp(shifted), tl.exp(m - m_new)
        if ENTROPY:
            finite = tl.where(in_columns, shifted, 0)
            weighted = rescale * (weighted + (m - m_new) * total) + tl.sum(finite * exp, 1)
        if SQUARES:
            squares = squares * rescale * rescale + tl.sum(exp * exp, 1)
        total = total * rescale + tl.sum(exp, 1)
        m = m_new
    splits = tl.num_programs(1)
    position = partial + rows * splits + split
    tl.store(position, m, mask=in_rows)
    tl.store(position + n * splits, total, mask=in_rows)
    if ENTROPY:
        tl.store(position + 2 * n * splits, weighted, mask=in_rows)
    if SQUARES:
        tl.store(position + 3 * n * splits, squares, mask=in_rows)


@triton.jit
def logit_gradients(
    hidden, weight, bias, inner, outer, ids, selected, z_max, log_total, constant, entropy, squares, grad,
    n, v, d, k, hidden_stride, weight_stride,
    BIAS: tl.constexpr, SOFTCAP: tl.constexpr, ENTROPY: tl.constexpr, SQUARES: tl.constexpr,
    DTYPE: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """`grad` [n, v]: the gradient with respect to hidden @ weight.T + bias.

    `selected` [n, k], `entropy` [n] and `squares` [n] are incoming gradients, and `constant` is that of chunked.py.
    """
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    in_rows = rows < n
    x = _products(
        hidden, weight, bias, inner, rows, columns, n, v, d, hidden_stride, weight_stride,
        BIAS, DTYPE, ACC, PRECISION, BLOCK_N, BLOCK_V, BLOCK_D,
    )  # fmt: skip
    z = x
    if SOFTCAP:
        z = tl.load(outer + rows, mask=in_rows, other=0)[:, None] * _tanh(x)
    log_p = z - tl.load(z_max + rows, mask=in_rows, other=0)[:, None]
    log_p -= tl.load(log_total + rows, mask=in_rows, other=0)[:, None]
    p = tl.exp(log_p)
    slope = tl.zeros((BLOCK_N, BLOCK_V), ACC) + tl.load(constant + rows, mask=in_rows, other=0)[:, None]
    if ENTROPY:
        slope -= tl.load(entropy + rows, mask=in_rows, other=0)[:, None] * log_p
    if SQUARES:
        slope += 2 * tl.load(squares + rows, mask=in_rows, other=0)[:, None] * p
    result = p * slope
    for j in range(k):
        token = tl.load(ids + rows * k + j, mask=in_rows, other=-1)
        incoming = tl.load(selected + rows * k + j, mask=in_rows, other=0)
        result += tl.where(columns[None, :] == token[:, None], incoming[:, None], 0)
    if SOFTCAP:
        tanh = _tanh(x)
        result *= tl.load(outer + rows, mask=in_rows, other=0)[:, None] * (1 - tanh * tanh)
    result *= tl.load(inner + rows, mask=in_rows, other=0)[:, None]
    position = grad + rows[:, None].to(tl.int64) * v + columns[None, :]
    tl.store(position, result.to(grad.dtype.element_ty), mask=in_rows[:, None] & (columns[None, :] < v))
