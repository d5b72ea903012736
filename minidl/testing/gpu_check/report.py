"""The results as a page to be read: what was wanted and what was reached, then what each part has found.

Knows the parts' results as data; measures nothing. A part that was not run has no place in it.
"""

from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any

from minidl.units import format_bytes

Parts = Mapping[str, Mapping[str, Any]]
Row = tuple[str, str, str, bool]  # what, reached, wanted, whether it was reached

TARGETS = {"ratio": 1.0, "bound": 0.93, "tracking": 0.005, "prediction": 0.10, "operation": 25e-6}


def markdown(parts: Parts) -> str:
    """The page."""
    lines = ["# The check of a GPU\n", f"Made by `python bench/gpu.py`. {_where(parts)}\n"]
    for name, part in parts.items():
        for words in part["failures"]:
            lines.append(f"* **failed**, {name}: {words.strip().splitlines()[0]}")
        lines += [f"* left out, {name}: {words}" for words in part["left out"]]
    if lines[2:]:
        lines.append("")
    rows = list(_targets(parts))
    if rows:
        lines += ["## Wanted and reached\n", "| what | reached | wanted | |", "|---|--:|--:|---|"]
        lines += [f"| {what} | {reached} | {wanted} | {'yes' if met else '**no**'} |" for what, reached, wanted, met in
                  rows]
    for name, section in SECTIONS.items():
        if parts.get(name, {}).get("found"):
            body = list(section(parts[name]["found"]))
            if body:
                lines += ["", f"## {name.capitalize()}\n", *body]
    return "\n".join(lines) + "\n"


def _where(parts: Parts) -> str:
    """The machine and how much was run, in one sentence or two."""
    found = parts.get("properties", {}).get("found", {})
    gpu = found.get("properties", {})
    what = (f"{gpu['name']}, {format_bytes(gpu['memory_bytes'])}, {gpu['version']}." if gpu
            else f"Device: {found.get('device', 'not said')}.")
    sizes = sorted({part["sizes"] for part in parts.values() if "sizes" in part})
    names = ", ".join(f"{name} {number}" for name, number in found.get("packages", {}).items())
    return f"{what} Sizes: {', '.join(sizes)}. {names}"


def _targets(parts: Parts) -> Iterator[Row]:
    """What the project wants of a GPU, as far as it was measured."""
    def found(name: str) -> Iterator[tuple[str, Any]]:
        yield from parts.get(name, {}).get("found", {}).items()
    for key, each in found("speed"):
        if isinstance(each, dict) and "ratio" in each:
            yield (f"{key}: speed beside PyTorch's", f"{each['ratio']:.2f}", "at least 1",
                   each["ratio"] >= TARGETS["ratio"])
    for key, each in found("prediction"):
        if key.endswith(", bound"):
            yield (f"{key.removesuffix(', bound')}: speed beside the bound's", f"{each['share']:.1%}", "at least 93%",
                   each["share"] >= TARGETS["bound"])
        elif isinstance(each, dict) and "off" in each:
            yield (f"{key}: the simulator is off by", f"{each['off']:+.1%}", "at most 10%",
                   abs(each["off"]) <= TARGETS["prediction"])
    for key, each in found("host"):
        if key.endswith(", tracking"):
            yield (f"{key}: share of a step", f"{each['share of the step']:.2%}", "at most 0.5%",
                   each["share of the step"] <= TARGETS["tracking"])
        elif isinstance(each, dict) and "seconds an operation" in each:
            yield (f"{key}: host time an operation", _us(each["seconds an operation"]), "at most 25 us",
                   each["seconds an operation"] <= TARGETS["operation"])
    for key, each in found("identity"):
        yield (f"{key}: pieces of state with other bits", str(len(each["different"])), "0", not each["different"])


# Sections ---------------------------------------------------------------------------------------------------------
def _ops(found: Mapping[str, Any]) -> Iterator[str]:
    yield "Largest error of each operation, by norm.\n"
    columns = [key for key, each in found.items() if isinstance(each, dict) and key.endswith(")")]
    yield f"| operation | {' | '.join(columns)} |"
    yield "|---|" + "--:|" * len(columns)
    for name in sorted({name for column in columns for name in found[column]}):
        cells = [f"{found[column][name]:.1e}" if name in found[column] else "" for column in columns]
        yield f"| {name} | {' | '.join(cells)} |"


def _identity(found: Mapping[str, Any]) -> Iterator[str]:
    yield "| run | budget | unmanaged | out | recomputed | pieces of state | with other bits |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for key, each in found.items():
        yield (f"| {key} | {format_bytes(each['budget'])} | {format_bytes(each['unmanaged peak'])} | "
               f"{format_bytes(each['out'])} | {format_bytes(each['recomputed'])} | {each['pieces']} | "
               f"{len(each['different'])} |")


def _link(found: Mapping[str, Any]) -> Iterator[str]:
    yield "| direction | |\n|---|--:|"
    for key, value in found.items():
        yield f"| {key} | {_us(value) if key == 'latency' else f'{value / 1e9:.1f} GB/s'} |"


def _host(found: Mapping[str, Any]) -> Iterator[str]:
    yield "| what | host time | |\n|---|--:|---|"
    for key, each in found.items():
        if isinstance(each, dict) and "seconds an operation" in each:
            yield (f"| {key}, an operation | {_us(each['seconds an operation'])} | {each['operations']:.0f} a step of "
                   f"{1e3 * each['seconds a step']:.1f} ms; the {each['pace set by']} sets the pace |")
        elif isinstance(each, dict):
            yield f"| {key} | {_us(each['seconds'])} | {each['share of the step']:.2%} of the step |"
        elif key.endswith("by events"):
            yield f"| {key} | | {each:.1%} of the step's time is in its operations |"
        elif key.endswith("by CUPTI"):
            yield f"| {key} | | kernels run for {each:.1%} of the times by events |"
        else:
            yield f"| {key} | {_us(each)} | a call of the vendor |"


def _speed(found: Mapping[str, Any]) -> Iterator[str]:
    yield "| network | minidl ms | examples/s | PyTorch ms | PyTorch / minidl | peak |\n|---|--:|--:|--:|--:|--:|"
    for key, each in found.items():
        if isinstance(each, dict):
            mine = median(each["seconds"]["minidl"])
            theirs = f"{1e3 * median(each['seconds']['torch']):.1f}" if "torch" in each["seconds"] else ""
            ratio = f"{each['ratio']:.2f}" if "ratio" in each else ""
            yield (f"| {key} | {1e3 * mine:.1f} | {each['batch'] / mine:.1f} | {theirs} | {ratio} | "
                   f"{format_bytes(each['peak bytes'])} |")


def _managed(found: Mapping[str, Any]) -> Iterator[str]:
    yield "| run | ms | share of the unmanaged speed | out | in | recomputed | stalls ms | host peak |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    for key, each in found.items():
        if "course" not in each:
            yield f"| {key} | {1e3 * each['seconds']:.1f} | | | | | | |"
            continue
        last, share = each["last"], f"{each['share']:.1%}" if each["share"] else ""
        yield (f"| {key} | {1e3 * each['seconds']:.1f} | {share} | {format_bytes(last['out'])} | "
               f"{format_bytes(last['in'])} | {format_bytes(last['recomputed'])} | {1e3 * last['stalls']:.1f} | "
               f"{format_bytes(each['host peak bytes'])} |")
    for key, each in found.items():
        if "course" in each:
            course = ", ".join(f"{1e3 * step['seconds']:.1f}" for step in each["course"])
            yield f"\n{key}, ms by iteration: {course}"


def _prediction(found: Mapping[str, Any]) -> Iterator[str]:
    yield "| run | predicted ms | measured ms | off |\n|---|--:|--:|--:|"
    for key, each in found.items():
        if isinstance(each, dict) and "off" in each:
            yield (f"| {key} | {1e3 * each['predicted']:.1f} | {1e3 * each['measured']:.1f} | {each['off']:+.1%} |")
    for key, each in found.items():
        if key.endswith(", bound"):
            yield (f"\n{key.removesuffix(', bound')}: no plan takes less than {1e3 * each['seconds']:.1f} ms, "
                   f"{each['speed']:.1%} of the unmanaged speed; {each['share']:.1%} of that was reached.")


def _models(found: Mapping[str, Any]) -> Iterator[str]:
    yield "Errors against PyTorch in float64, by norm.\n"
    yield "| network | loss | PyTorch's | gradients | PyTorch's | furthest off |\n|---|--:|--:|--:|--:|---|"
    for key, each in found.items():
        ours, theirs = each["ours"], each["theirs"]
        yield (f"| {key} | {ours['loss']:.1e} | {theirs['loss']:.1e} | {ours['gradients']:.1e} | "
               f"{theirs['gradients']:.1e} | {ours['worst']} |")


def _convolutions(found: Mapping[str, Any]) -> Iterator[str]:
    yield "By convolution: the fastest of its plans, and the fastest that needs no workspace.\n"
    for key, each in found.items():
        yield f"### {key}\n\n| convolution | plans | fastest ms | its workspace | ms without workspace |"
        yield "|---|--:|--:|--:|--:|"
        for entry in each:
            timed = [p for p in entry["plans"] if p["seconds"] is not None]
            if not timed:
                continue
            best = min(timed, key=lambda p: p["seconds"])
            bare = [p["seconds"] for p in timed if not p["workspace"]]
            c = entry["convolution"]
            yield (f"| {c['kind']} x {_by(c['x'])} w {_by(c['w'])} /{c['stride'][0]} | {len(entry['plans'])} | "
                   f"{1e3 * best['seconds']:.3f} | {format_bytes(best['workspace'])} | "
                   f"{f'{1e3 * min(bare):.3f}' if bare else ''} |")


SECTIONS: dict[str, Callable[[Mapping[str, Any]], Iterator[str]]] = {
    "speed": _speed, "managed": _managed, "prediction": _prediction, "identity": _identity, "models": _models,
    "link": _link, "host": _host, "ops": _ops, "convolutions": _convolutions}


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.1f} us"


def _by(extent: list[int]) -> str:
    return "x".join(map(str, extent))
