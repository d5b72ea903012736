"""The command line of ``minidl.calibrate``."""

import argparse
import sys
from pathlib import Path

from minidl.calibrate.measure import calibrate
from minidl.device.profiles import to_json


def main() -> int:
    """Measure this machine, write its profile, and return the exit code: 2 if it cannot be written."""
    parser = argparse.ArgumentParser(prog="python -m minidl.calibrate", description="Measure this machine as a device.",
                                     epilog="Use what was written as --device sim:FILE or --device cpu:FILE.")
    parser.add_argument("--out", metavar="FILE.json", default="cpu.json", help="(default: cpu.json)")
    parser.add_argument("--quick", action="store_true", help="in seconds, for a first impression")
    args = parser.parse_args()
    if not args.out.endswith(".json"):
        parser.error("--out must end in .json: that is how --device tells a file from a name")
    profile = calibrate(quick=args.quick, note=lambda line: print(line, flush=True))
    try:
        Path(args.out).write_text(to_json(profile), encoding="utf-8")
    except OSError as error:
        print(f"cannot write {args.out}: {error.strerror}", file=sys.stderr)
        return 2
    print(f"wrote {args.out}: {len(profile.rates)} rates, {profile.peak_flops / 1e9:.0f} GFLOP/s at best, "
          f"{profile.launch_overhead_s * 1e6:.0f} microseconds of the host a call")
    return 0


if __name__ == "__main__":
    sys.exit(main())
