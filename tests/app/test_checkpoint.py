"""Checkpoints as files: the format, what a killed program leaves, and what is refused when bytes are not as written."""

import json
import random
import resource
import struct
import weakref
from hashlib import sha256
from io import BytesIO

import numpy as np
import pytest
from watched_os import dies_at, watch

from minidl.checkpoint import CorruptFile, Store, read_checkpoint
from minidl.checkpoint.safetensors import CODES, LARGEST_TABLE, read_arrays, read_table, table, write_arrays
from minidl.checkpoint.store import MANIFEST, TENSORS
from minidl.errors import UserError
from minidl.meta import DTYPES
from minidl.outside.writing import replace_file


class Saved:
    """What a checkpoint takes of a tensor, around an array."""

    def __init__(self, array):
        self.array = np.asarray(array)
        self.shape, self.dtype = self.array.shape, DTYPES[self.array.dtype.name]

    def numpy(self):
        return self.array


ARRAYS = {"model.weight": np.arange(12, dtype=np.float32).reshape(3, 4), "model.count": np.array(7, np.int64),
          "model.strided": np.arange(12, dtype=np.float64).reshape(3, 4).T,
          "optimizer.none": np.zeros((0, 5), np.float32), "model.mask": np.array([1, 0, 255], np.uint8)}
TENSORS_SAVED = {name: Saved(array) for name, array in ARRAYS.items()}
DOCUMENTS = {"state.json": '{"step": 10, "note": "é"}\n'}


@pytest.fixture
def path(tmp_path):
    """A checkpoint of ARRAYS and DOCUMENTS."""
    return Store(tmp_path / "checkpoints", keep=3).save(10, TENSORS_SAVED, DOCUMENTS)


# What is written -----------------------------------------------------------------------------------------------------
def test_what_was_saved_is_read_back(path):
    found = read_checkpoint(path)
    assert found.step == 10 and found.document("state.json") == {"step": 10, "note": "é"}
    assert found.tensors.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        value = found.array(name)
        assert (value.shape, value.dtype) == (array.shape, array.dtype) and np.array_equal(value, array)


def test_the_tensors_are_a_safetensors_file_that_others_read_and_theirs_is_read_here(path, tmp_path):
    from safetensors.numpy import load_file, save_file

    theirs = load_file(path / TENSORS)
    assert theirs.keys() == ARRAYS.keys() and all(np.array_equal(theirs[name], ARRAYS[name]) for name in ARRAYS)
    save_file({name: np.array(array, order="C") for name, array in ARRAYS.items()}, tmp_path / "theirs", {"a": "b"})
    with open(tmp_path / "theirs", "rb") as file:
        entries = read_table(file, "theirs", (tmp_path / "theirs").stat().st_size)
        for name, array in ARRAYS.items():
            file.seek(entries[name].offset)
            assert file.read(entries[name].nbytes) == np.ascontiguousarray(array).tobytes()
            assert (entries[name].dtype, entries[name].shape) == (array.dtype.name, array.shape)


# Files of weights ----------------------------------------------------------------------------------------------------
def test_a_file_of_weights_is_to_the_byte_what_the_package_safetensors_writes(tmp_path):
    from safetensors.numpy import save_file

    arrays = {"layer.2": np.arange(5, dtype=np.float32), "layer.10": np.arange(6, dtype=np.float32).reshape(2, 3),
              "count": np.array(7, np.int64), "mask": np.array([True, False]), "none": np.zeros((0, 4), np.float32)}
    write_arrays(tmp_path / "ours", arrays)  # no two types of one size: those the package sorts, and names are here
    save_file(arrays, tmp_path / "theirs", {"writer": "minidl"})  # by which a file of ours is known again
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


@pytest.mark.parametrize("kind", CODES)
def test_arrays_of_every_type_are_read_as_they_were_written(tmp_path, kind):
    values = np.array([[0, 1, 1], [1, 0, 1]], kind)
    arrays = {"a": values, "strided": values.T, "scalar": values[0, 1], "none": values[:0]}
    write_arrays(tmp_path / "file", {"x": np.ones(3, np.uint8), **arrays})  # one item of 3 bytes may not shift others
    for name, array in arrays.items():
        found = read_arrays(tmp_path / "file")[name]
        assert (found.shape, found.dtype) == (array.shape, array.dtype) and np.array_equal(found, array)


def test_the_bytes_in_a_file_are_little_endian_whatever_they_were(tmp_path):
    write_arrays(tmp_path / "file", {"a": np.array([1, 258], ">i4")})
    assert read_arrays(tmp_path / "file")["a"].tolist() == [1, 258]
    assert (tmp_path / "file").read_bytes()[-8:] == b"\1\0\0\0\2\1\0\0"


def test_a_type_that_the_format_does_not_have_is_refused_before_there_is_a_file(tmp_path):
    with pytest.raises(UserError, match="^b is complex64; a safetensors file can hold float64, float32"):
        write_arrays(tmp_path / "file", {"a": np.zeros(2), "b": np.zeros(2, np.complex64)})
    assert not (tmp_path / "file").exists()


def test_a_file_of_weights_that_is_cut_off_is_refused_with_the_byte(tmp_path):
    write_arrays(tmp_path / "file", {"a": np.zeros(100, np.float32)})
    whole = (tmp_path / "file").read_bytes()
    (tmp_path / "file").write_bytes(whole[:-1])
    with pytest.raises(CorruptFile, match=f"at byte {len(whole) - 1}: the tensors end at byte {len(whole)}"):
        read_arrays(tmp_path / "file")


def test_every_tensor_and_every_document_has_its_own_checksum(path):
    rows = json.loads((path / MANIFEST).read_text())["pieces"]
    sums = {row["tensor"] or row["file"]: row["sha256"] for row in rows}
    for name, array in ARRAYS.items():
        assert sums[name] == sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    assert sums["state.json"] == sha256((path / "state.json").read_bytes()).hexdigest()
    assert {row["file"] for row in rows} == {TENSORS, "state.json"}


def test_every_tensor_starts_at_a_multiple_of_its_item_size(path):
    assert all(entry.offset % np.dtype(entry.dtype).itemsize == 0
               for entry in read_checkpoint(path).tensors.values())


def test_a_tensor_is_on_the_host_only_while_it_is_written(tmp_path):
    alive = []  # one entry for each array that is held

    class Watched(Saved):
        def numpy(self):
            alive.append(True)
            assert len(alive) == 1, "the one before is still held"
            value = np.array(self.array)
            weakref.finalize(value, alive.pop)
            return value

    Store(tmp_path, keep=1).save(1, {name: Watched(np.ones(3, np.float32)) for name in "abc"}, DOCUMENTS)


def test_the_newest_are_kept(tmp_path):
    store = Store(tmp_path, keep=2)
    assert store.steps() == []
    for step in (5, 10, 100_000_000, 20):
        store.save(step, TENSORS_SAVED, DOCUMENTS)
    assert store.steps() == [20, 100_000_000]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000020", "step-100000000"]


def test_a_checkpoint_of_the_same_step_takes_the_place_of_a_damaged_one(path):
    (path / TENSORS).write_bytes(b"")
    Store(path.parent, keep=3).save(10, TENSORS_SAVED, DOCUMENTS)
    assert read_checkpoint(path).step == 10 and len(list(path.parent.iterdir())) == 1


def test_a_disk_that_refuses_is_one_message(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the checkpoint .*step-00000001: "):
        Store(tmp_path / "file" / "checkpoints", keep=1).save(1, TENSORS_SAVED, DOCUMENTS)


# The order in which it is written -----------------------------------------------------------------------------------
@pytest.fixture
def log(monkeypatch):
    entries = []
    watch(lambda change: entries.append((change.name, *change.paths)), monkeypatch.setattr)
    return entries


def test_a_checkpoint_is_synced_before_it_is_named_and_its_name_before_an_old_one_goes(tmp_path, log):
    store = Store(tmp_path, keep=1)
    store.save(1, TENSORS_SAVED, DOCUMENTS)
    log.clear()
    store.save(2, TENSORS_SAVED, DOCUMENTS)
    hidden, final = str(tmp_path / ".step-00000002"), str(tmp_path / "step-00000002")
    named = log.index(("rename", hidden, final))
    for name in (TENSORS, MANIFEST, "state.json"):
        file = f"{hidden}/{name}"
        last_write = max(n for n, entry in enumerate(log) if entry == ("write", file))
        assert last_write < log.index(("fsync", file)) < log.index(("fsync", hidden)) < named
    assert log[named + 1] == ("fsync", str(tmp_path))
    assert all(n > named + 1 for n, entry in enumerate(log) if entry[0] in ("unlink", "rmdir"))


def test_a_file_is_replaced_after_it_is_synced(tmp_path, log):
    replace_file(tmp_path / "a", b"new")
    hidden = str(tmp_path / ".a")
    assert log == [("open", hidden), ("write", hidden), ("fsync", hidden), ("replace", hidden, str(tmp_path / "a")),
                   ("fsync", str(tmp_path))]


class _Killed(BaseException):
    pass


def test_wherever_writing_ends_there_is_a_whole_checkpoint_and_the_next_one_can_be_written(tmp_path, monkeypatch):
    """Here the program is stopped by an exception, which leaves the same files as a kill (see test_resume)."""
    def die():
        raise _Killed

    stop_at = 1
    while True:
        folder = tmp_path / str(stop_at)
        store = Store(folder, keep=1)
        store.save(1, TENSORS_SAVED, DOCUMENTS)
        with monkeypatch.context() as patch:
            watch(dies_at(stop_at, die), patch.setattr)
            try:
                store.save(2, TENSORS_SAVED, DOCUMENTS)
                break
            except _Killed:
                pass
        assert store.steps()
        assert all(read_checkpoint(store.path(step)).step == step for step in store.steps())
        store.save(3, TENSORS_SAVED, DOCUMENTS)
        assert [p.name for p in folder.iterdir()] == ["step-00000003"]
        stop_at += 1
    # mkdir, 3 files made, 7 writes (a table, 4 tensors that are not empty, 2 documents), 3 files and 2 folders synced,
    # the rename; then the old one's rename, 3 files and folder
    assert stop_at - 1 == 1 + 3 + 7 + 5 + 1 + 5


# What is refused -----------------------------------------------------------------------------------------------------
def damaged(data, generator):
    """The bytes with one of the damages that disks and copies do."""
    data = bytearray(data)
    kind = generator.choice(["bit", "byte", "cut", "longer", "zeros", "swap", "insert", "remove"])
    at = generator.randrange(len(data))
    size = generator.choice([1, 8, 64, 512])
    if kind == "bit":
        data[at] ^= 1 << generator.randrange(8)
    elif kind == "byte":
        data[at] = generator.randrange(256)
    elif kind == "cut":
        del data[at:]
    elif kind == "longer":
        data += generator.randbytes(size)
    elif kind == "zeros":
        data[at:at + size] = bytes(len(data[at:at + size]))
    elif kind == "swap":
        other = generator.randrange(len(data))
        data[at:at + size], data[other:other + size] = data[other:other + size], data[at:at + size]
    elif kind == "insert":
        data[at:at] = generator.randbytes(size)
    else:
        del data[at:at + size]
    return bytes(data)


def test_1000_corrupted_files_are_refused_with_file_and_byte(path):
    generator = random.Random(1)
    files = {name: (path / name).read_bytes() for name in (TENSORS, MANIFEST, "state.json")}
    offsets = set()
    for _ in range(1000):
        name = generator.choice(list(files))
        data = damaged(files[name], generator)
        if data == files[name]:
            continue
        (path / name).write_bytes(data)
        with pytest.raises(CorruptFile, match=r"at byte \d+: ") as refusal:
            read_checkpoint(path)
        offsets.add(refusal.value.offset)
        if name == MANIFEST:  # its own checksum is at its end, whose place changes with its length
            assert refusal.value.path == path / name
        else:  # the piece that begins there holds the first byte that differs
            different = next((n for n, (a, b) in enumerate(zip(data, files[name], strict=False)) if a != b),
                             min(len(data), len(files[name])))
            assert refusal.value.path == path / name and refusal.value.offset <= different
        (path / name).write_bytes(files[name])
    assert read_checkpoint(path).step == 10 and len(offsets) > 5


def test_a_damaged_tensor_is_named_with_the_byte_at_which_it_begins(path):
    entry = read_checkpoint(path).tensors["model.weight"]
    data = bytearray((path / TENSORS).read_bytes())
    data[entry.offset + 5] ^= 1
    (path / TENSORS).write_bytes(data)
    with pytest.raises(CorruptFile, match=f"{TENSORS}: at byte {entry.offset}: the checksum does not agree .the 48 "
                                          "bytes of model.weight from here"):
        read_checkpoint(path)


@pytest.mark.parametrize("missing", [TENSORS, MANIFEST, "state.json"])
def test_a_missing_file_is_named(path, missing):
    (path / missing).unlink()
    with pytest.raises(UserError, match=f"{missing}: at byte 0: there is no such file"):
        read_checkpoint(path)


def header(text, data=b"", length=None):
    text = text if isinstance(text, bytes) else json.dumps(text).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
HOSTILE = {
    "nothing": (b"", 0, "0 bytes are too few"),
    "five bytes": (b"\1\0\0\0\0", 0, "5 bytes are too few"),
    "a table longer than the file": (header({}, length=1 << 40), 0, "1099511627776 bytes does not fit"),
    "the longest table": (header({}, length=(1 << 64) - 1), 0, "does not fit a file of 10"),
    "a table above the format's limit": (header(b" " * 8, length=LARGEST_TABLE + 1), 0, "does not fit"),
    "no JSON": (header(b'{"a": nothing}'), 14, "not JSON"),
    "no object": (header(b"[1, 2]"), 8, "expected a JSON object"),
    "no UTF-8": (header(b'{"\xff": 1}'), 10, "not UTF-8"),
    "deep nesting": (header(b"[" * 100_000), 8, "nested too deeply"),
    "a number of 5000 digits": (header(b'{"a": ' + b"9" * 5000 + b"}"), 8, "not JSON that can be read"),
    "a name twice": (header(b'{"a": 1, "a": 1}'), 8, "a key comes twice"),
    "a tensor that is a list": (header({"a": []}), 9, "expected dtype, shape and data_offsets"),
    "another key": (header({"a": F32 | {"b": 1}}, bytes(8)), 9, "expected dtype"),
    "an unknown type": (header({"a": F32 | {"dtype": "F31"}}, bytes(8)), 9, "dtype F31 is none of"),
    "a type that is a list": (header({"a": F32 | {"dtype": ["F32"]}}, bytes(8)), 9, "is none of"),
    "a negative size": (header({"a": F32 | {"shape": [-2]}}, bytes(8)), 9, "no list of at most 64 sizes"),
    "a size that is true": (header({"a": F32 | {"shape": [True, 2]}}, bytes(8)), 9, "no list of at most 64"),
    "a size that is a fraction": (header({"a": F32 | {"shape": [2.0]}}, bytes(8)), 9, "no list of at most 64"),
    "65 dimensions": (header({"a": F32 | {"shape": [1] * 65}}, bytes(8)), 9, "no list of at most 64"),
    "2^70 elements": (header({"a": F32 | {"shape": [1 << 35, 1 << 35]}}, bytes(8)), 9, "are not 4722366"),
    "a size of 4000 digits": (header(b'{"a": {"dtype": "F32", "shape": [' + b"9" * 4000
                                     + b'], "data_offsets": [0, 8]}}'), 9, "no list of at most 64"),
    "too few bytes for the shape": (header({"a": F32 | {"shape": [3]}}, bytes(8)), 9, "are not 12 bytes apart"),
    "bytes beyond the end": (header({"a": F32}, bytes(4)), None, "the tensors end at byte"),
    "bytes left over": (header({"a": F32}, bytes(9)), None, "the file at"),
    "a hole": (header({"a": F32, "b": F32 | {"data_offsets": [9, 17]}}, bytes(17)), None, "the one before ends"),
    "an overlap": (header({"a": F32, "b": F32 | {"data_offsets": [4, 12]}}, bytes(12)), None, "the one before ends"),
    "a negative offset": (header({"a": F32 | {"data_offsets": [-8, 0]}}), 9, "no list of at most 2"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_table_that_lies_is_refused_with_the_byte(kind):
    data, offset, message = HOSTILE[kind]
    with pytest.raises(CorruptFile) as refusal:
        read_table(BytesIO(data), "file", len(data))
    assert message in str(refusal.value) and len(str(refusal.value)) < 200
    assert offset is None or refusal.value.offset == offset


def test_1000_tables_changed_at_random_are_read_or_refused():
    good = table({"a": ("float32", (2, 3)), "b": ("int64", ()), "long name": ("uint8", (7,))}) + bytes(39)
    generator = random.Random(2)
    refused = 0
    for _ in range(1000):
        data = damaged(good, generator)
        try:
            entries = read_table(BytesIO(data), "file", len(data))
        except CorruptFile:
            refused += 1
        else:  # a change within the values, or of a name
            assert all(e.offset > 0 and e.offset + e.nbytes <= len(data) for e in entries.values())
    assert refused > 500


def with_true_checksums(path):
    """Write the manifest anew for the files as they are: what someone does who means harm."""
    rows = [{"file": p.name, "tensor": "", "offset": 0, "bytes": p.stat().st_size,
             "sha256": sha256(p.read_bytes()).hexdigest()} for p in path.iterdir() if p.name != MANIFEST]
    return manifest_of({"format": "minidl-checkpoint", "version": 1, "pieces": rows})


def manifest_of(data):
    body = json.dumps(data)[:-1] + ",\n"
    return (body + f'"sha256": "{sha256(body.encode()).hexdigest()}"}}\n').encode()


def test_no_length_is_believed_even_when_all_checksums_agree(path):
    (path / TENSORS).write_bytes(header({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}))
    (path / MANIFEST).write_bytes(with_true_checksums(path))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CorruptFile, match="the tensors end at byte 4398046511"):
        read_checkpoint(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB; the tensor would be 4 TiB


PIECE = {"file": "state.json", "tensor": "", "offset": 0, "bytes": 1, "sha256": "0" * 64}


@pytest.mark.parametrize("change", [
    {"format": "other"}, {"version": 2}, {"version": "1"}, {"pieces": None}, {"pieces": [1]}, {"pieces": [{}]},
    {"pieces": [PIECE | {"bytes": 1 << 62}]}, {"pieces": [PIECE | {"offset": 1 << 62}]},
    {"pieces": [PIECE | {"bytes": -1}]}, {"pieces": [PIECE | {"file": "../secret.json"}]},
    {"pieces": [PIECE | {"file": "/etc/passwd"}]}, {"pieces": [PIECE | {"sha256": 5}]}, {"pieces": []},
    {"pieces": [PIECE | {"bytes": True}]},
])
def test_a_manifest_that_lies_is_refused(path, change):
    honest = {"format": "minidl-checkpoint", "version": 1, "pieces": [PIECE]}
    (path / MANIFEST).write_bytes(manifest_of(honest | change))
    with pytest.raises(CorruptFile, match=r"at byte \d+: "):
        read_checkpoint(path)


def test_what_is_no_checkpoint_is_said_to_be_none(tmp_path):
    (tmp_path / "step-5").mkdir()
    for name in ("step-00000001", "step-5", "other"):
        with pytest.raises(UserError, match="is not a checkpoint"):
            read_checkpoint(tmp_path / name)
