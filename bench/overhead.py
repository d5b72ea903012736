"""The cost of tracking and guidance in a training step on the CPU, where everything fits.

    python -m bench.overhead [--case resnet18] [--rounds 15]

tracking   time that the host spends inside the tracker's calls, as a share of the step. The engine's thread runs ahead
           of the computation, so this is an upper bound of what the step gains without them. The probes' own time is
           measured with empty calls and taken off.
guidance   a step under a policy that plans, with everything resident, against one under ``none``. Both take turns in
           one process; the ratio is the median of the rounds' ratios.
"""

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median

from bench.cpu_cases import BATCH, CASES, Case, training_step
from bench.support.probe import own_seconds
from bench.support.probe import tracking as tracking_probe
from minidl import Runtime

WARM_STEPS = 6  # a sequence is seen once, measured three times, planned, and followed once


def seconds_of(step: Callable[[], float]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def tracking(case: Case, rounds: int, batch: int) -> tuple[float, float, int]:
    """Return the seconds inside the tracker a step, the seconds of a step, and the tracker's calls a step."""
    with Runtime("cpu", memory_budget="6GiB", host_memory=0, policy="none") as runtime:
        step = training_step(runtime, case, batch)
        for _ in range(WARM_STEPS):
            step()
        plain = median(seconds_of(step) for _ in range(rounds))  # the probes take time themselves
        probe = tracking_probe(runtime)
        for _ in range(rounds):
            step()
        own = own_seconds()
        return max(0.0, probe.seconds - own * probe.calls) / rounds, plain, probe.calls // rounds


def guidance(case: Case, rounds: int, batch: int, policy: str) -> tuple[float, float]:
    """Return the ratio of a guided step's time to that of one under ``none``, and the seconds of the latter."""
    with ExitStack() as stack:
        steps = []
        for name in ("none", policy):
            runtime = stack.enter_context(Runtime("cpu", memory_budget="6GiB", host_memory="1GiB", policy=name))
            step = training_step(runtime, case, batch)

            def inside(step: Callable[[], float] = step, runtime: Runtime = runtime) -> float:
                with runtime:
                    return step()
            for _ in range(WARM_STEPS):
                inside()
            steps.append(inside)
        assert runtime.plan is not None, "nothing is followed"
        pairs = []
        for number in range(rounds):
            order = steps if number % 2 else steps[::-1]
            taken = {step: seconds_of(step) for step in order}
            pairs.append((taken[steps[0]], taken[steps[1]]))
        return median(guided / plain for plain, guided in pairs), median(plain for plain, _ in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, default="resnet18")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--policy", default="capuchin", help="of the guided run (default: capuchin)")
    args = parser.parse_args()
    case = CASES[args.case]
    inside, step_s, calls = tracking(case, args.rounds, args.batch)
    print(f"{case.name}, batch {args.batch}, {case.size}: {1e3 * step_s:.1f} ms a step; {1e6 * inside:.0f} "
          f"microseconds in {calls} calls of the tracker: {inside / step_s:.2%} (wanted: at most 0.5%)")
    guided, plain_s = guidance(case, args.rounds, args.batch, args.policy)
    print(f"guided by {args.policy} with everything resident: {guided - 1:+.2%} of a step of {1e3 * plain_s:.1f} ms "
          "(wanted: at most 1%)")


if __name__ == "__main__":
    main()
