"""Draws one managed training step on the CPU: see ``bench.support.timeline``."""

from bench.cpu_cases import Case, half_of_peak, runtime_for, training_step
from bench.support.timeline import draw, record


def draw_step(case: Case, batch: int, policy: str, settling: int, path: str) -> None:
    """Draw one step in half of the unmanaged peak (see ``half_of_peak``), after ``settling`` iterations."""
    with runtime_for(None, policy) as runtime:
        step = training_step(runtime, case, batch)
        step()
        step()
        peak, half = runtime.stats().peak_bytes, half_of_peak(runtime, step)
        runtime.device.close()  # type: ignore[attr-defined] # an arena of that size is not needed twice
    with runtime_for(half, policy) as runtime:
        step = training_step(runtime, case, batch)
        for _ in range(settling):
            step()
        before = runtime.stats()
        bars = record(runtime, step)
        grown = runtime.stats().since(before)
    draw(bars, f"{case.name} at {case.size}, {half / 1e6:.0f} of {peak / 1e6:.0f} MB, {policy}: "
               f"{grown.swapped_out_bytes / 1e6:.0f} MB out, {grown.swapped_in_bytes / 1e6:.0f} in, "
               f"{grown.recomputed_bytes / 1e6:.0f} recomputed; stall {1e3 * grown.stall_seconds:.0f} ms", path)
