"""Code that the tests and the benchmarks share: cases, formulas, training steps, vendors without a GPU, the GPU check.

Nothing else in minidl imports it.
"""
