"""Tensors that take turns in too little memory, so that copies go both ways while kernels run."""

import numpy as np

from bench.gpu_check.setting import kept_bytes

ROUNDS, ROWS = 30, 1 << 18


def rounds_of_swapping(given, *, rounds=ROUNDS, rows=ROWS):
    """Add to each of twelve tensors in turn, in memory for six; return values, expected values, and bytes swapped in.
    """
    itemsize, count = 4, 12
    with given.open() as device:
        budget = kept_bytes(device) + count // 2 * rows * itemsize
    with given.runtime(memory_budget=budget, host_memory=2 * count * rows * itemsize, policy="passive") as runtime:
        right = [np.full(rows, float(i), np.float32) for i in range(count)]
        tensors = [runtime.tensor(values) for values in right]
        for number in range(rounds):
            with runtime.iteration():
                i, j = number % count, (5 * number + 1) % count
                tensors[i] = tensors[i] + tensors[j] * 0.5
                right[i] = right[i] + right[j] * np.float32(0.5)
        moved = runtime.stats().swapped_in_bytes
        return [t.numpy() for t in tensors], right, moved
