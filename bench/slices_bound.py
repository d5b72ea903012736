"""A bound for ResNet-50 in slices under plans with whole tensors, beside the one for divisible tensors.

    python -m bench.slices_bound [--batch 2300] [--slices 8] [--part 10] [--parts 12] [--instants 8] [--seconds 300]

The linear program of ``minidl.planning.bound`` lets a tensor be kept, swapped and dropped in fractions, and checks
memory at a few instants. Here half of the instants lie in one part of the step, the ``--part``-th of ``--parts`` equal
ones: the backward pass of the first stage, where memory is tightest. The integer program at the same instants decides
each gap as a whole, replays whole calls, and counts a tensor that is only partly on the device with all of its bytes.
HiGHS stops after ``--seconds``; its dual bound, which is told if it has found a solution, is what it has proven until
then.
"""

import argparse
from functools import partial

import numpy as np

from bench.support.steps import unmanaged_step
from minidl.lab.training_step import training_step
from minidl.planning.bound import _Relaxation
from minidl.planning.problem import problem


class Whole(_Relaxation):
    """The relaxation with instants that lie close together in one part of the step, and with whole tensors."""

    part, parts = 10, 12

    def _instants(self, count: int) -> list[int]:
        near, when = count // 2, self.starts / self.starts[-1] * self.parts
        cuts = np.unique([*np.linspace(0, self.part, count - near), *np.linspace(self.part, self.part + 1, near),
                          self.parts])
        groups = [np.nonzero((when[:-1] >= a) & (when[:-1] < b))[0] for a, b in zip(cuts, cuts[1:], strict=False)]
        bytes_of = np.array([self._operands(k) for k in range(self.calls)])
        return [int(calls[np.argmax(bytes_of[calls])]) for calls in groups if len(calls)]

    def _gap(self, gap: int) -> None:
        first, held = self.program.shape[1], [len(terms) for terms in self.memory]
        super()._gap(gap)
        if self.program.shape[1] > first:
            self.whole += [first, first + 1]  # dropped, and evicted without a copy
        for terms, before in zip(self.memory, held, strict=True):
            for n in range(before, len(terms)):
                now, size = terms[n]
                there = self.program.variable(high=1.0)
                self.whole.append(there)
                self.program.row([(now, 1.0), (there, -1.0)], high=0.0)
                terms[n] = (there, size)

    def __init__(self, *given: object) -> None:
        self.whole: list[int] = []
        super().__init__(*given)  # type: ignore[arg-type]
        self.whole += self.repeated.values()


def main() -> None:
    """Print both bounds as shares of the speed of the same slices where all fits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=2300)
    parser.add_argument("--slices", type=int, default=8)
    parser.add_argument("--part", type=int, default=Whole.part)
    parser.add_argument("--parts", type=int, default=Whole.parts)
    parser.add_argument("--instants", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=300.0)
    args = parser.parse_args()
    Whole.part, Whole.parts = args.part, args.parts
    make = partial(training_step, name="resnet50", batch=args.batch)
    free, trace, profile = unmanaged_step(make, device="sim:p100", slices=args.slices)
    costs = profile.link_costs
    relaxed = Whole(problem(trace, costs), costs, profile.memory_bytes, args.instants)
    program = relaxed.program
    print(f"{len(relaxed.instants)} instants, {program.shape[0]:,} rows, {program.shape[1]:,} variables, "
          f"{len(relaxed.whole):,} of them whole", flush=True)
    least = relaxed.solve(0.0, 0).seconds
    print(f"divisible: at most {100 * free / least:.2f}% of the speed of these slices where all fits", flush=True)
    for variable in relaxed.whole:
        program.whole(variable)
    found = program.solve(seconds=args.seconds)
    if found.values is None:
        print(f"whole: no solution was found in {args.seconds:g} s")
        return
    computed = float(relaxed.starts[-1])
    proven = max(least, computed + found.bound)
    print(f"whole: at most {100 * free / proven:.2f}%; a solution at these instants: "
          f"{100 * free / (computed + found.objective):.2f}%")


if __name__ == "__main__":
    main()
