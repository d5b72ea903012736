"""Reads the sentences of text files, document by document. Knows no tokens.

A file has one sentence per line, and blank lines between its documents. Files of Project Gutenberg are recognised by
their first lines and need no preparation: the licence text is left out, wrapped lines are joined and cut into
sentences; two or more blank lines separate documents (chapters, usually).
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from minidl.data.source import BadFile, as_bad_file
from minidl.outside.reading import open_file

Document = list[str]  # sentences

_GUTENBERG = re.compile(r"\*\*\*\s*(START|END) OF (?:THE|THIS) PROJECT GUTENBERG", re.IGNORECASE)
_LATIN = re.compile(rb"character set encoding:\s*(?:iso[ -]?(?:8859-1|latin-1)|ascii)", re.IGNORECASE)
_HEAD_LINES = 400  # lines in which Project Gutenberg's mark must appear
# After a full stop, and before a capital letter, a figure or a quotation mark.
_SENTENCE_END = re.compile(r"""(?:(?<=[.!?])|(?<=[.!?]["'\u201d\u2019)]))\s+(?=["'\u201c\u2018(]*[A-Z0-9])""")
_TITLE_END = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|St|Prof|Rev|Hon|Messrs|vol|No|[A-Z])\.$")
MOST_LINE_CHARACTERS = 1 << 20  # a longer line means another kind of file


def documents(path: Path) -> Iterator[Document]:
    """Yield the documents of a text file, each as a list of its sentences; empty documents are left out.

    Text is UTF-8, or Latin-1 if a line "Character set encoding" says so. Raises BadFile for a file that cannot be read
    and, with the line, for other bytes, a zero byte, or a line of 4 MiB.
    """
    with as_bad_file(path):
        with open_file(path) as file:
            head = file.read(1 << 14)
        lines = _lines(path, "latin-1" if _LATIN.search(head) else "utf-8-sig")
        start = _first_of_gutenberg(path, _lines(path, "latin-1"))
        yield from _plain(lines) if start is None else _wrapped(lines, start)


def sentences(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph, the first one first.
    A sentence ends with ., ! or ? before a space and a capital letter, figure or quotation mark, but not after an
    abbreviation such as "Mr." or a single capital."""
    found: list[str] = []
    for piece in _SENTENCE_END.split(paragraph):
        if found and _TITLE_END.search(found[-1]):  # an abbreviation does not end a sentence
            found[-1] += " " + piece
        elif piece:
            found.append(piece)
    return found


def _lines(path: Path, encoding: str) -> Iterator[str]:
    """Yield the lines of a file, stripped. Raises BadFile for a line of 4 MiB, a zero byte, or another encoding."""
    with open_file(path) as file:
        number = 0
        while line := file.readline(4 * MOST_LINE_CHARACTERS):
            number += 1
            if len(line) == 4 * MOST_LINE_CHARACTERS:
                raise BadFile(str(path), f"line {number} has more than {MOST_LINE_CHARACTERS} characters")
            try:
                text = line.decode(encoding if number == 1 or encoding == "latin-1" else "utf-8")
            except UnicodeDecodeError as error:
                raise BadFile(str(path), f"line {number}, byte {error.start}: not UTF-8") from None
            if "\0" in text:
                raise BadFile(str(path), f"line {number}: a zero byte, so not text")
            yield text.strip()


def _first_of_gutenberg(path: Path, lines: Iterable[str]) -> int | None:
    """Return the number, from 0, of the line after which Project Gutenberg's text begins; None for other files."""
    for number, line in enumerate(lines):
        if number > _HEAD_LINES:
            break
        match = _GUTENBERG.search(line)
        if match and match[1].upper() == "START":
            return number
    return None


def _plain(lines: Iterable[str]) -> Iterator[Document]:
    document: Document = []
    for line in lines:
        if line:
            document.append(line)
        elif document:
            yield document
            document = []
    if document:
        yield document


def _wrapped(lines: Iterable[str], start: int) -> Iterator[Document]:
    document: Document = []
    paragraph: list[str] = []
    blank = 0
    for number, line in enumerate(lines):
        if number <= start:
            continue
        if _GUTENBERG.search(line):
            break
        if line:
            if blank >= 2 and document:
                yield document
                document = []
            blank = 0
            paragraph.append(line)
            continue
        blank += 1
        document += sentences(" ".join(paragraph))
        paragraph = []
    document += sentences(" ".join(paragraph))
    if document:
        yield document
