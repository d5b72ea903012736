"""Ways to damage a file: in its bytes, in its JSON, or by replacing it with something that is not a file."""

import json
import os
import random
import socket
from pathlib import Path
from typing import Any

LARGE = (b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\xff" * 8, b"77777777777", b"\0" * 8)
# Replacements for a number, or any other value, in a document.
VALUES = (0, -1, 1, 1 << 31, 1 << 53, 1 << 63, 1 << 70, 10**400, 0.0, -0.5, 5e-324, 1e-308, 1e308, float("inf"),
          float("nan"), True, None, "", "x", "0", "\0\x1b[31m\n", "y" * 5000, [], {}, [[]], {"a": 1})


def in_bytes(old: bytes, choose: random.Random) -> bytes:
    """Return damaged bytes: some changed, truncated, cut out, grown, repeated, or large numbers in place of lengths."""
    data = bytearray(old)
    how = choose.randrange(7) if data else 6
    if how == 0:
        for _ in range(choose.choice((1, 3, 30))):
            data[choose.randrange(len(data))] = choose.randrange(256)
    elif how == 1:
        del data[choose.randrange(len(data)):]
    elif how == 2:
        start = choose.randrange(len(data))
        del data[start:start + choose.randrange(1, 64)]
    elif how == 3:
        start = choose.randrange(len(data))
        data[start:start] = choose.randbytes(choose.randrange(1, 64))
    elif how == 4:  # near the front, or near the end, where formats keep their lengths
        start = choose.choice((choose.randrange(min(600, len(data))), max(0, len(data) - 1 - choose.randrange(600))))
        large = choose.choice(LARGE)
        data[start:start + len(large)] = large
    elif how == 5:
        start = choose.randrange(len(data))
        data[start:start] = data[start:start + choose.randrange(1, 2000)]
    else:
        data = bytearray(choose.randbytes(choose.randrange(2000)))
    return bytes(data)


def as_json(old: bytes, choose: random.Random) -> bytes:
    """Return a document in which one value is replaced, missing, duplicated or deeply nested; or text of another kind.
    """
    how = choose.randrange(15)
    if how == 0:
        return choose.choice((b"[" * 100_000, b'{"a":' * 100_000, b"1" * 10_000, b"null", b"[]", b"{}", b'"x"', b"",
                              b"\xef\xbb\xbf" + old, old.decode().encode("utf-16"), b"{" + b" " * 10_000))
    lines = old.splitlines(keepends=True)
    documents = [json.loads(line) for line in lines] if _is_lines(lines) else [json.loads(old)]
    changed = choose.choice(documents)
    for _ in range(choose.choice((1, 1, 1, 3))):
        _change(changed, choose)
    return "\n".join(map(json.dumps, documents)).encode()


def _is_lines(lines: list[bytes]) -> bool:
    return len(lines) > 1 and all(line.startswith(b"{") and line.rstrip().endswith(b"}") for line in lines)


def _change(document: Any, choose: random.Random) -> None:
    """Change one value somewhere in a document; every level is equally likely."""
    place = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place))) if isinstance(place, list) else []
        if not keys:
            return
        key = choose.choice(keys)
        if not isinstance(place[key], dict | list) or not place[key] or choose.random() < 0.15:
            break
        place = place[key]
    how = choose.randrange(10)
    if how == 0:
        del place[key]
    elif how == 1 and isinstance(place, list):
        place.append(place[key])
    elif how == 1:
        place["more"] = place[key]
    elif how < 7 and type(place[key]) in (int, float):  # a value that might be accepted
        place[key] = choose.choice((place[key] + choose.choice((-1, 1, 100, 256)), 2 * place[key], place[key] // 2,
                                    10 * place[key], 0, 1))
    elif how < 7 and isinstance(place, list):
        other = choose.randrange(len(place))
        place[key], place[other] = place[other], place[key]
    else:
        place[key] = choose.choice(VALUES)


def as_node(path: Path, choose: random.Random) -> str:
    """Replace a file by something that is not a file; return what."""
    path.unlink()
    what = choose.choice(("pipe", "socket", "folder", "endless", "nowhere", "itself", "long", "sick", "nothing",
                          "empty"))
    if what == "pipe":
        os.mkfifo(path)
    elif what == "socket":
        here = os.getcwd()
        os.chdir(path.parent)  # the name of a socket is at most a hundred characters
        try:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(path.name)
        finally:
            os.chdir(here)
    elif what == "folder":
        path.mkdir()
    elif what == "empty":
        path.write_bytes(b"")
    elif what != "nothing":
        path.symlink_to({"endless": "/dev/zero", "nowhere": path.parent / "nowhere", "itself": path,
                         "long": "x" * 300, "sick": "/proc/self/mem"}[what])
    return what
