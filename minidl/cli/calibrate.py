"""``minidl calibrate``: measures this machine and writes its profile, the numbers that describe it as a device."""

from collections.abc import Sequence

from minidl.cli.command import Parser, finish
from minidl.device.numba_settings import require_numba
from minidl.device.profiles import is_own, to_json
from minidl.errors import UserError
from minidl.outside.stages import stage
from minidl.outside.writing import require_place, write_whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure this machine, write its profile to a file, and return the exit code: 2 if it cannot be written."""
    parser = Parser(prog="minidl calibrate", description="Measure this machine as a device.",
                    epilog="Use what was written as --device sim:FILE or --device cpu:FILE.")
    parser.add_argument("--out", metavar="FILE.json", default="cpu.json", help="(default: cpu.json)")
    parser.add_argument("--quick", action="store_true", help="in seconds, for a first impression")
    parser.add_argument("--force", action="store_true", help="write over a file that minidl did not write, too")

    def story() -> int:
        args = parser.parse_args(arguments)
        if not args.out.endswith(".json"):
            raise UserError("--out must end in .json: that is how --device tells a file from a name")
        require_place(args.out, is_own, force=args.force)
        require_numba()
        from minidl.calibrate.measure import calibrate  # loads all kernels

        with stage("measuring this machine"):
            profile = calibrate(quick=args.quick, note=lambda line: print(line, flush=True))
        write_whole(args.out, to_json(profile).encode(), is_own, force=args.force)
        print(f"wrote {args.out}: {len(profile.rates)} rates, {profile.peak_flops / 1e9:.0f} GFLOP/s at best, "
              f"{profile.launch_overhead_s * 1e6:.0f} microseconds of the host a call")
        return 0

    return finish("minidl calibrate", story)
