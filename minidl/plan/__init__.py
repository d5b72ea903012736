"""Facts that policies see and decisions that they return, as frozen data: traces, costs, plans, the Policy protocol."""
