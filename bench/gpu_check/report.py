"""The results as a page to be read: what was wanted and what was reached, then what each part has found.

Knows the parts' results as data; measures nothing. A part that was not run has no place in it.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any

from minidl.outside.units import format_bytes

Parts = Mapping[str, Mapping[str, Any]]
Row = tuple[str, str, str, bool]  # what, reached, wanted, whether it was reached

TARGETS = {"ratio": 1.0, "bound": 0.93, "tracking": 0.005, "prediction": 0.10, "operation": 25e-6}


def markdown(parts: Parts) -> str:
    """Return the page, as Markdown."""
    lines = ["# The check of a GPU\n", f"Made by `python bench/gpu.py`. {_where(parts)}\n"]
    rows = list(_targets(parts))
    wrong = [f"* {name}: {_at(words)}" for name, part in parts.items() for words in part["failures"]]
    slow = [f"* {what}: {reached}, wanted {wanted}" for what, reached, wanted, met in rows if not met]
    left = [f"* {name}: {words}" for name, part in parts.items() for words in part["left out"]]
    for title, told in (("What is wrong", wrong), ("What is slow", slow), ("What was not reached", left)):
        lines += [f"## {title}\n", *(told or ["Nothing."]), ""]
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


def _at(words: str) -> str:
    """Return a failure in one line, with the line of minidl's source that comes last in its traceback."""
    places = [(file, line) for file, line in re.findall(r'File "([^"]+)", line (\d+)', words) if "minidl" in file]
    at = f" ({places[-1][0].rpartition('minidl/')[2]}:{places[-1][1]})" if places else ""
    return words.strip().splitlines()[0] + at


def _where(parts: Parts) -> str:
    """Return a sentence or two on the machine and on how much of the check was run."""
    found = parts.get("properties", {}).get("found", {})
    gpu = found.get("properties", {})
    what = (f"{gpu['name']}, {format_bytes(gpu['memory_bytes'])}, {gpu['version']}." if gpu
            else f"Device: {found.get('device', 'not said')}.")
    sizes = sorted({part["sizes"] for part in parts.values() if "sizes" in part})
    names = ", ".join(f"{name} {number}" for name, number in found.get("packages", {}).items())
    return f"{what} Sizes: {', '.join(sizes)}. {names}"


def _targets(parts: Parts) -> Iterator[Row]:
    """Yield a row for each of the project's targets on a GPU, with what was measured, if it was."""
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
    for key, each in found("bandwidth"):
        if isinstance(each, dict):
            yield (f"{key}: bytes a second beside a copy's", f"{each['share']:.0%}", f"at least {each['wanted']:.0%}",
                   each["share"] >= each["wanted"])
    for key, each in found("identity"):
        yield (f"{key}: pieces of state with other bits", str(len(each["different"])), "0", not each["different"])


# Sections ---------------------------------------------------------------------------------------------------------
def _ops(found: Mapping[str, Any]) -> Iterator[str]:
    yield "Largest error of each operation, by norm.\n"
    columns = [key for key, each in found.items() if isinstance(each, dict) and key.endswith(")")]
    changed = found.get("bit patterns that a copy changes", {})
    yield f"Bit patterns of halves that a copy changes: {sum(changed.values())}.\n"
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


def _order(found: Mapping[str, Any]) -> Iterator[str]:
    yield "Elements that show a call out of its place on its stream.\n"
    yield "| call | elements |\n|---|--:|"
    for key, value in found.items():
        yield f"| {key} | {value} |"


def _bandwidth(found: Mapping[str, Any]) -> Iterator[str]:
    yield "| kernel | GB/s | of a copy |\n|---|--:|--:|"
    for key, each in found.items():
        if isinstance(each, dict):
            yield f"| {key} | {each['rate'] / 1e9:.0f} | {each['share']:.0%} |"
        else:
            yield f"| {key} | {each / 1e9:.0f} | |"


def _warm(found: Mapping[str, Any]) -> Iterator[str]:
    cubins, plans = found.get("cubins"), found.get("plans")
    if cubins:
        yield f"{cubins['made']} of {cubins['wanted']} kernels compiled in {cubins['seconds']:.0f} seconds."
    if plans:
        yield f"Plans of {plans['convolutions']} convolutions listed and timed in {plans['seconds']:.0f} seconds."


def _counted(found: Mapping[str, Any]) -> Iterator[str]:
    for key, value in found.items():
        yield f"* {key}: {value}"


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


def _torch(found: Mapping[str, Any]) -> Iterator[str]:
    waits = {key.removeprefix("wait "): each for key, each in found.items() if key.startswith("wait ")}
    if waits:
        blind = [key for key, each in waits.items() if not each["seen when missing"]]
        yield (f"Waits of the copies that keep all bytes: {sum(each['right'] for each in waits.values())} of "
               f"{len(waits)}. Programs that do not see it when theirs is missing: {', '.join(blind) or 'none'}.\n")
    yield "| training | ms | of unmanaged | peak | budget | bits |\n|---|--:|--:|--:|--:|---|"
    for key, each in found.items():
        if "peak" in each:
            budget = format_bytes(each["budget"]) if each.get("budget") else ""
            yield (f"| {key} | {1e3 * each['seconds']:.1f} | x{each.get('slower', 1.0):.2f} | "
                   f"{format_bytes(each['peak'])} | {budget} | {'same' if each.get('same', True) else 'others'} |")


SECTIONS: dict[str, Callable[[Mapping[str, Any]], Iterator[str]]] = {
    "speed": _speed, "managed": _managed, "prediction": _prediction, "identity": _identity, "models": _models,
    "order": _order, "bandwidth": _bandwidth, "large": _counted, "sanitizer": _counted, "warm": _warm, "link": _link,
    "host": _host, "ops": _ops, "convolutions": _convolutions, "torch": _torch}


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.1f} us"


def _by(extent: list[int]) -> str:
    return "x".join(map(str, extent))
