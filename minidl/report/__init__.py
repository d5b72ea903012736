"""What people look at: the closing summary, explanations of plans, comparisons of two plans."""
