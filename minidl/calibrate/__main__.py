"""``python -m minidl.calibrate``, the former spelling of ``minidl calibrate``."""

from minidl.cli.command import carry_out

if __name__ == "__main__":
    carry_out("minidl.calibrate", "calibrate")
