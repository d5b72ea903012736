"""What policies are told and what they answer, as frozen data: traces, costs, plans, and the Policy protocol."""
