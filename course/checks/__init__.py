"""Checks of the exercises: a module a lesson, a function an exercise."""
