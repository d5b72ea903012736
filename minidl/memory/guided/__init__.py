"""Guided mode: follows the plan that a policy made from a measured iteration."""
