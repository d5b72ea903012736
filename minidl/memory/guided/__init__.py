"""Guided execution: follows the plan that a policy made of a measured iteration."""
