"""``minidl explain``: trains as ``minidl train`` does, and prints an explanation of the policy's plan."""

from collections.abc import Sequence

from minidl.cli.app import train


def main(words: Sequence[str]) -> int:
    """Train as the command line ``words`` says, and print an explanation of the plan; return the exit code."""
    asked = any(word == "--explain" or word.startswith("--explain=") for word in words)
    return train.main([*words] if asked else [*words, "--explain"], name="minidl explain")
