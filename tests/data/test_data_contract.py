"""What every data set promises to a training: shapes, order, bits that depend on the seed and on nothing else."""

import threading
from contextlib import closing
from itertools import islice

import made_data
import numpy as np
import pytest
from made_data import MADE_UP, ON_DISK, arrays, opened, same

from minidl import Runtime
from minidl.data.dataset import held_out, in_order, once

KINDS = (*ON_DISK, *MADE_UP)
BATCH = 5


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    base = tmp_path_factory.mktemp("data")
    return {kind: getattr(made_data, kind)(base / kind) for kind in ON_DISK}


def take(data, count, **arguments):
    with closing(data.batches(BATCH, **arguments)) as batches:
        return list(islice(batches, count))


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def test_a_batch_has_the_shapes_that_were_promised_and_can_be_uploaded_and_cut(kind, roots):
    data = opened(kind, roots.get(kind))
    batch, = take(data, 1)
    promised = data.shapes(BATCH)
    with Runtime("sim:p100") as runtime:
        expected = [(t.shape, t.dtype.name) for t in promised.upload(runtime)]
    with Runtime("cpu:virtual", memory_budget="8MiB", host_memory="1MiB") as runtime:
        found = batch.upload(runtime)
        assert [(t.shape, t.dtype.name) for t in found] == expected
        for tensor, array in zip(found, arrays(batch), strict=True):
            np.testing.assert_array_equal(tensor.numpy(), array)
    assert promised.nbytes == batch.nbytes == sum(array.nbytes for array in arrays(batch))
    parts = batch.split(BATCH)
    for number, array in enumerate(arrays(batch)):
        np.testing.assert_array_equal(np.concatenate([arrays(part)[number] for part in parts]), array)


def test_values_are_normalised_and_labels_are_below_the_number_of_classes(kind, roots):
    data = opened(kind, roots.get(kind))
    for batch in take(data, 4):
        if kind in ("text", "running_text"):
            continue
        assert np.isfinite(batch.images).all() and abs(batch.images).max() < 7
        assert batch.labels.min() >= 0 and batch.labels.max() < data.num_classes
    assert len(data.class_names) in (0, data.num_classes)


def test_where_a_training_goes_on_the_batches_are_those_that_would_have_come(kind, roots):
    per_epoch = (opened(kind, roots.get(kind)).train_size or 50) // BATCH
    skips = (1, per_epoch - 1, per_epoch, per_epoch + 2)
    whole = take(opened(kind, roots.get(kind)), max(skips) + 2, seed=3)
    for skip in skips:
        rest = take(opened(kind, roots.get(kind)), 2, seed=3, skip=skip)
        assert all(map(same, rest, whole[skip:skip + 2]))


def test_the_number_of_threads_and_of_batches_ahead_changes_no_bit(kind, roots):
    one = take(opened(kind, roots.get(kind), workers=1, ahead=0), 12, seed=1)
    for workers, ahead in ((1, 3), (4, 0), (4, 3)):
        assert all(map(same, one, take(opened(kind, roots.get(kind), workers=workers, ahead=ahead), 12, seed=1)))


def test_the_seed_decides_the_order_and_an_epoch_has_its_own(kind, roots):
    data = opened(kind, roots.get(kind))
    first, again, other = take(data, 1, seed=1)[0], take(data, 1, seed=1)[0], take(data, 1, seed=2)[0]
    assert same(first, again) and not same(first, other)
    if data.train_size:
        assert not same(first, take(data, 1, seed=1, skip=data.train_size // BATCH)[0])


def test_test_batches_are_always_the_same_and_hold_each_example_once(kind, roots):
    data = opened(kind, roots.get(kind))
    batches = list(data.test_batches(4))
    assert all(map(same, batches, opened(kind, roots.get(kind), workers=3).test_batches(4)))
    sizes = [batch.size for batch in batches]
    assert sum(sizes) == {"class_folders": 4, "shards": 4, "parquet": 12, "cifar": 11, "masks": 3, "digits": 359,
                          "shapes": 200, "synthetic": 0}.get(kind, sum(sizes))  # of 42 images a tenth is 4
    assert all(size == 4 for size in sizes[:-1])
    rows = [np.concatenate([np.ravel(array[row]) for array in arrays(batch)]).tobytes()
            for batch in batches for row in range(batch.size)]
    assert len(set(rows)) == len(rows)


def test_a_sentence_says_how_much_there_is(kind, roots):
    data = opened(kind, roots.get(kind))
    assert (str(data.train_size) if data.train_size else "noise") in data.described


def test_whoever_stops_in_the_middle_leaves_no_thread(kind, roots):
    before = threading.active_count()
    data = opened(kind, roots.get(kind), workers=3)
    with closing(data.batches(BATCH)) as batches:
        next(batches)
    assert threading.active_count() == before


# The order itself ----------------------------------------------------------------------------------------------------
def test_an_epoch_has_each_example_at_most_once_and_what_fills_no_batch_is_left_out():
    per_epoch = 23 // 4
    chosen = list(islice(in_order(23, 4, seed=5, skip=0), 2 * per_epoch))
    assert [some.epoch for some in chosen] == [0] * per_epoch + [1] * per_epoch
    epochs = [np.concatenate([some.examples for some in chosen if some.epoch == n]) for n in (0, 1)]
    for numbers in epochs:
        assert len(set(numbers.tolist())) == len(numbers) == 20 and set(numbers.tolist()) <= set(range(23))
    assert epochs[0].tolist() != epochs[1].tolist()


def test_the_last_of_all_test_batches_may_be_smaller():
    assert [some.examples.tolist() for some in once(5, 2)] == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("size", [1, 9, 10, 1000])
def test_a_tenth_is_held_out_and_nothing_is_in_both_parts(size):
    train, test = held_out(size)
    assert len(test) == size // 10 and sorted([*train, *test]) == list(range(size))
    assert held_out(size)[1].tolist() == test.tolist()
