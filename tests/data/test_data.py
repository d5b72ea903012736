"""Data sets: every image once, in an order that follows from the seed, and shapes where there are no values."""

import sys
from itertools import islice

import numpy as np
import pytest

from minidl import Runtime
from minidl.data import Batch, Digits, Synthetic
from minidl.data.builtin import SIDE
from minidl.errors import UserError


@pytest.fixture(scope="module")
def digits():
    return Digits(32)


def fingerprints(batches):
    """One number an image; images that differ have different ones."""
    weights = np.random.default_rng(0).standard_normal(32 * 32)
    return [float(image.ravel() @ weights) for batch in batches for image in batch.images]


def test_training_and_test_images_are_the_1797_digits_without_overlap(digits):
    train = fingerprints(islice(digits.batches(1438), 1))
    test = fingerprints(digits.test_batches(100))
    assert (len(train), len(test)) == (1438, 359)  # int(0.2 * 1797) = 359
    assert not set(train) & set(test)
    assert len(set(train) | set(test)) == 1797  # no two digits are the same image


def test_training_images_have_mean_zero_and_deviation_one_and_the_test_images_nearly(digits):
    train, = islice(digits.batches(1438), 1)
    test, = digits.test_batches(359)
    assert train.images.dtype == np.float32
    # float32 keeps 24 bits: the mean of 1.5 million values near 1 is off by far less than 1e-5.
    assert abs(train.images.mean(dtype=np.float64)) < 1e-5
    assert abs(train.images.std(dtype=np.float64) - 1) < 1e-5
    assert 1e-5 < abs(test.images.mean(dtype=np.float64)) < 0.1


@pytest.mark.parametrize(("size", "scale", "border"), [(8, 1, 0), (28, 3, 2), (30, 3, 3), (31, 3, 3), (32, 4, 0)])
def test_a_pixel_becomes_a_square_and_the_border_is_background(digits, size, scale, border):
    batch = next(Digits(size).test_batches(10))
    small = next(digits.test_batches(10)).images[:, 0, ::4, ::4]
    assert batch.images.shape == (10, 1, size, size)
    inner = batch.images[:, 0, border:border + SIDE * scale, border:border + SIDE * scale]
    np.testing.assert_array_equal(inner, small.repeat(scale, 1).repeat(scale, 2))
    outside = np.ones((size, size), bool)
    outside[border:border + SIDE * scale, border:border + SIDE * scale] = False
    assert (batch.images[:, 0, outside] == small.min()).all()


def test_an_epoch_has_each_image_at_most_once_and_the_next_has_another_order(digits):
    per_epoch = 1438 // 100
    batches = list(islice(digits.batches(100, seed=3), 2 * per_epoch))
    first, second = fingerprints(batches[:per_epoch]), fingerprints(batches[per_epoch:])
    assert len(set(first)) == len(set(second)) == 1400
    assert first != second
    assert set(first) != set(second)  # not always the same 38 are skipped


def test_the_seed_decides_the_order_but_not_the_split(digits):
    again, other = (fingerprints(islice(Digits(32).batches(1438, seed=seed), 1)) for seed in (3, 4))
    assert fingerprints(islice(digits.batches(1438, seed=3), 1)) == again != other
    assert sorted(again) == sorted(other)


def test_labels_stay_with_their_images(digits):
    from sklearn.datasets import load_digits

    source = load_digits()
    pairs = zip(source.images.astype(np.float32), source.target, strict=True)
    labels = {image.tobytes(): label for image, label in pairs}
    low, high = digits._train[0].min(), digits._train[0].max()
    for batch in (next(digits.batches(50)), next(digits.test_batches(50))):
        pixels = np.rint((batch.images[:, 0, ::4, ::4] - low) / (high - low) * 16).astype(np.float32)
        assert [labels[image.tobytes()] for image in pixels] == batch.labels.tolist()


def test_every_test_image_comes_once_and_the_last_batch_is_smaller(digits):
    sizes = [batch.size for batch in digits.test_batches(100)]
    assert sizes == [100, 100, 100, 59]


def test_without_scikit_learn_one_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(UserError, match=r'pip install "minidl\[data\]"'):
        Digits()


def test_digits_smaller_than_their_pixels_are_refused():
    with pytest.raises(UserError, match="at least 8, not 7"):
        Digits(7)


def test_synthetic_data_is_one_batch_again_and_again_that_follows_from_the_seed():
    data = Synthetic((3, 4, 4), 5)
    first, second = islice(data.batches(6, seed=1), 2)
    assert first is second
    assert first.images.shape == (6, 3, 4, 4) and first.images.dtype == np.float32
    assert set(first.labels.tolist()) <= set(range(5))
    np.testing.assert_array_equal(first.images, next(data.batches(6, seed=1)).images)
    assert (first.images != next(data.batches(6, seed=2)).images).any()


def test_synthetic_data_without_values_has_shapes_only():
    batch = next(Synthetic((3, 224, 224), 1000, values=False).batches(10**6))
    assert batch.images is None and batch.labels is None


@pytest.mark.parametrize("device", ["sim:p100", "cpu"])
def test_a_batch_becomes_float_images_and_integer_labels_on_the_device(device):
    with Runtime(device, memory_budget=2**20, host_memory=2**20) as runtime:
        for batch in (Batch(2, (1, 3, 3)), Batch(2, (1, 3, 3), np.ones((2, 1, 3, 3), np.float32), np.array([1, 2]))):
            images, labels = batch.upload(runtime)
            assert (images.shape, images.dtype.name) == ((2, 1, 3, 3), "float32")
            assert (labels.shape, labels.dtype.name) == ((2,), "int64")
        if device == "cpu":
            assert labels.numpy().tolist() == [1, 2] and images.numpy().all()
