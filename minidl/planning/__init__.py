"""The common code of policies that plan: facts of a trace, the simulation of a planned iteration, addresses."""
