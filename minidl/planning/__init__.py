"""The common part of policies that plan: facts of a trace, resources of a plan, the simulated iteration, the search."""
