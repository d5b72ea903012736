"""``python -m minidl.lab``, the former spelling of ``minidl lab``."""

from minidl.cli.command import carry_out

if __name__ == "__main__":
    carry_out("minidl.lab", "lab")
