"""Codecs on the link: the same bits for any bytes, fewer bytes where there are zeros, and what is saved is counted."""

import ml_dtypes
import numpy as np
import pytest
from networks import Training

from minidl import Runtime
from minidl.device.codec import NAMES, Codec, codec_of
from minidl.device.cpu.coding import Coding, coder_of
from minidl.device.profiles import PROFILES
from minidl.errors import UserError

MIB = 1 << 20
WORDS = 5000


def coder(name):
    if name == "blosc":
        pytest.importorskip("numcodecs")
    return coder_of(Codec(name))


def patterns(dtype):
    """Arrays of a dtype by what is in them."""
    random = np.random.default_rng(1)
    noise = random.integers(0, 256, WORDS * 4, np.uint8)
    floats = random.standard_normal(WORDS).astype(np.float32).astype(dtype)
    yield "noise", noise.view(dtype)
    yield "zeros", np.zeros(WORDS, dtype)
    yield "half zeros", np.where(random.random(WORDS) < 0.5, floats, floats[0] * 0).astype(dtype)
    yield "one at the end", np.concatenate([np.zeros(WORDS, dtype), np.ones(1, dtype)])
    yield "negative zeros", np.full(WORDS, -0.0).astype(dtype)
    yield "NaN with payloads", np.tile(np.array([0x7F800001, 0xFFC12345, 0, 0x80000000], np.uint32), 999).view(dtype)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16, np.int64, np.bool_, np.uint8])
def test_every_piece_comes_back_bit_by_bit(name, dtype):
    coding = Coding(coder(name))
    for pattern, values in patterns(np.uint8 if dtype is np.bool_ else dtype):
        whole = values.view(np.uint8)
        for start, end in ((0, whole.size), (4, whole.size - 3), (1, 77), (0, 3), (0, 0)):
            piece = np.frombuffer(b"\xff" * 16 + whole.tobytes(), np.uint8)[16:][start:end].copy()
            coded = coding.encoded(start, piece).copy()
            assert coded.size <= piece.size, pattern
            back = np.full_like(piece, 0xAA)
            to = coding.coded(start)
            if to is None:
                assert np.array_equal(coded, piece), pattern
                continue
            to[:] = coded
            coding.decode(to, back)
            assert np.array_equal(back, piece), (pattern, start, end)


def test_a_word_that_is_zero_takes_a_bit_and_another_one_a_bit_more_than_it_has():
    coding, values = Coding(coder("zero-value")), np.zeros(800, np.float32)
    assert coding.encoded(0, values.view(np.uint8)).size == 100
    values[:200] = 1.0
    assert coding.encoded(0, values.view(np.uint8)).size == 100 + 800
    assert coding.spared == [3100 + 2300, 0]


def test_blosc_shuffles_the_bytes_of_words():
    ascending = np.arange(1 << 16, dtype=np.uint32).view(np.uint8)
    assert Coding(coder("blosc")).encoded(0, ascending).size < 0.05 * ascending.size


def test_what_does_not_shrink_and_what_begins_within_a_word_is_copied_as_it_is():
    coding, values = Coding(coder("zero-value")), np.ones(800, np.float32).view(np.uint8)
    assert coding.encoded(0, values) is values
    odd = np.zeros(800, np.uint8)[1:]
    assert coding.encoded(0, odd) is odd
    assert coding.spared == [0, 0]


def test_a_place_that_held_coded_bytes_may_hold_plain_ones_after_that():
    coding = Coding(coder("zero-value"))
    coding.encoded(64, np.zeros(800, np.uint8))
    assert coding.coded(64) is not None
    coding.encoded(64, np.ones(800, np.uint8))
    assert coding.coded(64) is None


# Trainings ------------------------------------------------------------------------------------------------------------
def trained(codec=None, *, device="cpu:virtual", share=0.5, policy="passive", steps=4, **more):
    """(State after some steps in a share of the memory, counters)."""
    with Runtime(device) as runtime:
        demand = Training(runtime, "resnet", "momentum").demand()
    budget = max(demand.largest_op_bytes, int(share * demand.unmanaged_peak_bytes))
    with Runtime(device, memory_budget=budget, policy=policy, codec=codec, poisoned=device != "sim:p100",
                 **more) as runtime:
        training = Training(runtime, "resnet", "momentum")
        for _ in range(steps):
            training.iterate()
        return training.state() if runtime.device.has_values else None, runtime.stats()


@pytest.fixture(scope="module")
def plain():
    return trained()[0]


@pytest.mark.parametrize(("device", "share", "policy", "codec"), [
    ("cpu:virtual", 0.5, "passive", "zero-value"),
    ("cpu:virtual", 0.7, "capuchin-swap", "zero-value:0.5"),
    ("cpu", 0.7, "passive", "zero-value"),
    ("cpu", 0.5, "capuchin-swap", "zero-value"),
    ("cpu:virtual", 0.5, "passive", "blosc"),
])
def test_a_training_has_the_same_bits_and_copies_fewer_bytes(plain, device, share, policy, codec):
    coder(codec.partition(":")[0])
    state, stats = trained(codec, device=device, share=share, policy=policy)
    assert state == plain
    assert 0 < stats.spared_out_bytes < stats.swapped_out_bytes
    assert 0 < stats.spared_in_bytes < stats.swapped_in_bytes


def test_coded_bytes_may_lie_in_a_file(plain, tmp_path):
    state, stats = trained("zero-value", host_memory=0, spill=tmp_path, spill_bytes="64MiB")
    assert state == plain
    assert stats.spared_out_bytes > 0


def test_without_a_codec_nothing_is_spared():
    stats = trained()[1]
    assert stats.swapped_out_bytes > 0 and (stats.spared_out_bytes, stats.spared_in_bytes) == (0, 0)


# Modelled time --------------------------------------------------------------------------------------------------------
def test_a_copy_takes_a_pass_over_the_bytes_and_what_is_left_of_them_on_the_link():
    p100 = PROFILES["p100"]
    found = Codec("zero-value", 0.5).on(p100)
    passing = 1.5 / (732e9 * 0.75)
    assert 1 / found.link_out_bandwidth == pytest.approx(0.5 / 12.4e9 + passing)
    assert 1 / found.link_in_bandwidth == pytest.approx(0.5 / 12.4e9 + passing)
    assert (found.disk_out_bandwidth, found.disk_in_bandwidth) == (4e9, 6e9)
    assert Codec("zero-value").on(p100) is p100


def test_a_simulated_training_takes_less_time_and_counts_what_is_declared():
    _, slow = trained(device="sim:p100")
    _, fast = trained("zero-value:0.25", device="sim:p100")
    assert fast.seconds < slow.seconds
    assert fast.spared_out_bytes == pytest.approx(0.75 * fast.swapped_out_bytes, rel=1e-3)


@pytest.mark.parametrize(("device", "codec", "message"), [
    ("sim:p100", "zero-value", "sim:p100 has no values to compress: declare the share of the bytes that remains, as "
                               "zero-value:0.6"),
    ("cpu", "zero-value:0.5", "cpu measures the share itself: write zero-value without a share"),
    ("cpu", "zip", "codec is zero-value or blosc, not 'zip'"),
    ("sim:p100", "blosc:2", "codec blosc: the share of bytes must be from 0.001 to 1, not 2"),
    ("sim:p100", "blosc:", "codec blosc: the share of bytes must be from 0.001 to 1, not "),
    ("sim:p100", "blosc:nan", "codec blosc: the share of bytes must be from 0.001 to 1, not nan")])
def test_what_cannot_be_is_refused_in_one_line(device, codec, message):
    with pytest.raises(UserError) as refused:
        Runtime(device, memory_budget=MIB, codec=codec)
    assert str(refused.value) == message


def test_a_codec_without_its_package_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "numcodecs.blosc", None)
    with pytest.raises(UserError, match=r'^codec blosc needs numcodecs \(pip install "minidl\[codec\]"\)'):
        coder_of(codec_of("blosc"))


def test_a_device_that_copies_bytes_as_they_are_says_so():
    from minidl.device.contract import Device

    with pytest.raises(UserError, match="^here cannot compress copies: leave out codec$"):
        Device.encode_with(type("Here", (), {"name": "here"})(), Codec("blosc"))
