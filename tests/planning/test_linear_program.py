"""Linear programs that a solver is not asked about."""

from math import inf

from minidl.planning.linear_program import LinearProgram


def test_a_program_without_variables_is_solved_by_what_its_rows_say_of_nothing():
    program = LinearProgram()
    program.row([], low=-1.0, high=0.0)
    found = program.solve()
    assert found.optimal and found.objective == found.bound == 0.0 and found.values is not None
    program.row([], low=1.0)
    found = program.solve()
    assert found.infeasible and found.values is None and found.objective == inf
