"""What policies that plan share: facts of a trace, resources of a plan, the simulated iteration, the search."""
