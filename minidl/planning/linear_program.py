"""Mixed-integer linear programs, built term by term and solved by SciPy's HiGHS. Knows no tensors.

    program = LinearProgram()
    x = program.variable(high=1.0, integer=True, cost=2.0)
    program.row([(x, 1.0), ...], low=0.5)
    solution = program.solve()
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

Term = tuple[int, float]  # a variable and its coefficient
OPTIMAL, INFEASIBLE, FAILED = 0, 2, 4  # statuses of scipy.optimize.milp


@dataclass(frozen=True)
class Solution:
    """The result of a solve.

    values      of the variables; None if no solution was found
    objective   of these values; inf without values
    bound       no solution is proven to have an objective below it; inf without values, -inf if nothing is proven
    infeasible  True if the program is proven to have no solution
    optimal     True if the values are proven optimal
    """

    values: np.ndarray | None
    objective: float
    bound: float
    infeasible: bool
    optimal: bool


class LinearProgram:
    """Minimise the sum of cost * variable, subject to rows low <= sum of coefficient * variable <= high."""

    def __init__(self) -> None:
        self._cost: list[float] = []
        self._low: list[float] = []
        self._high: list[float] = []
        self._integer: list[int] = []
        self._columns: list[int] = []
        self._values: list[float] = []
        self._ends = [0]
        self._row_low: list[float] = []
        self._row_high: list[float] = []

    def variable(self, *, low: float = 0.0, high: float = inf, cost: float = 0.0, integer: bool = False) -> int:
        """Add a variable with low <= value <= high; return its number. cost: its factor in the objective."""
        self._cost.append(cost)
        self._low.append(low)
        self._high.append(high)
        self._integer.append(int(integer))
        return len(self._cost) - 1

    def binary(self, *, high: float = 1.0) -> int:
        """Add a variable that is 0 or 1 (``high`` 0: only 0); return its number."""
        return self.variable(high=high, integer=True)

    def price(self, variable: int, cost: float) -> None:
        """Set a variable's coefficient in the objective."""
        self._cost[variable] = cost

    def whole(self, variable: int) -> None:
        """Let a variable take whole numbers only."""
        self._integer[variable] = 1

    def row(self, terms: Iterable[Term], *, low: float = -inf, high: float = inf) -> None:
        """Add the constraint low <= sum of terms <= high; several terms of one variable add up."""
        for column, value in terms:
            self._columns.append(column)
            self._values.append(value)
        self._ends.append(len(self._columns))
        self._row_low.append(low)
        self._row_high.append(high)

    @property
    def shape(self) -> tuple[int, int]:
        """The program's size: (rows, variables)."""
        return len(self._row_low), len(self._cost)

    def solve(self, *, seconds: float = inf, gap: float = 0.0, relaxed: bool = False) -> Solution:
        """Return the best solution found in ``seconds``, stopping early once the relative optimality gap is ``gap``.
        relaxed: integer variables may take fractional values."""
        if not self._cost:  # nothing to decide
            held = all(low <= 0.0 <= high for low, high in zip(self._row_low, self._row_high, strict=True))
            return Solution(np.zeros(0) if held else None, 0.0 if held else inf, 0.0 if held else inf, not held, held)
        integer = [0] * len(self._integer) if relaxed else self._integer
        matrix = csr_array((self._values, self._columns, self._ends), shape=self.shape)
        matrix.sum_duplicates()
        limit = {} if seconds == inf else {"time_limit": seconds}
        for presolve in (True, False):  # once in some hundreds of programs HiGHS ends in an error of its presolve
            result = milp(self._cost, integrality=integer, bounds=Bounds(self._low, self._high),
                          constraints=LinearConstraint(matrix, self._row_low, self._row_high),
                          options={"mip_rel_gap": gap, "presolve": presolve, **limit})
            if result.status != FAILED:
                break
        found = result.x is not None
        objective = float(result.fun) if found else inf
        bound = result.mip_dual_bound if any(integer) and found else objective
        return Solution(result.x, objective, float(-inf if bound is None else bound), result.status == INFEASIBLE,
                        result.status == OPTIMAL)
