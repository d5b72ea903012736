"""Tools that study memory without running a program."""
