"""``torch.utils.data``: data sets, and batches as tensors. This process reads them; ``num_workers`` has no effect."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from typing import Any, cast

import numpy as np

from minidl.errors import ShapeError, UserError
from minidl.ops.creation import randperm, tensor
from minidl.ops.parts import stack
from minidl.tensor import Tensor


class Dataset:
    """Base class of data sets: ``len(data)`` is the number of examples, ``data[i]`` is one of them."""

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError


class TensorDataset(Dataset):
    """A data set whose example i is row i of each tensor. Raises UserError if the first extents differ."""

    def __init__(self, *tensors: Tensor) -> None:
        if len({len(t) for t in tensors}) != 1:
            raise UserError(f"TensorDataset: the tensors differ in their number of rows: {[len(t) for t in tensors]}")
        self.tensors = tensors

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(t[index] for t in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0])


class Subset(Dataset):
    """A data set of chosen examples of another one; ``indices`` are their numbers there."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, list(indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)


def random_split(dataset: Any, lengths: Sequence[int], generator: object = None) -> list[Subset]:
    """Return disjoint random subsets of these lengths. Raises UserError unless the lengths add up to the data set's.
    The runtime's seed decides the choice; ``generator`` has no effect."""
    if sum(lengths) != len(dataset):
        raise UserError(f"random_split: lengths {list(lengths)} do not add up to {len(dataset)} examples")
    order, start, made = randperm(len(dataset)).tolist(), 0, []
    for length in lengths:
        made.append(Subset(dataset, order[start:start + length]))
        start += length
    return made


def default_collate(batch: Sequence[Any]) -> Any:
    """Return examples as a batch: tensors, arrays, numbers are stacked; parts of tuples, lists (both give a list) and
    mappings one by one. Other objects, such as strings, stay in a list."""
    first = batch[0]
    if isinstance(first, Tensor):
        return stack(list(batch))
    if isinstance(first, np.ndarray | np.generic):
        return tensor(np.stack([np.asarray(item) for item in batch]))
    if isinstance(first, bool | int | float):
        return tensor(list(batch))
    if isinstance(first, Mapping):
        return {key: default_collate([item[key] for item in batch]) for key in first}
    if isinstance(first, tuple | list):
        return [default_collate(list(part)) for part in zip(*batch, strict=True)]
    return list(batch)


def default_convert(data: Any) -> Any:
    """Return an example with its arrays as tensors, also those in tuples, lists and mappings; all else as it is."""
    if isinstance(data, np.ndarray):
        return tensor(data)
    if isinstance(data, Mapping):
        return {key: default_convert(value) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*map(default_convert, data))
    return type(data)(map(default_convert, data)) if type(data) in (tuple, list) else data


class DataLoader:
    """Iterates over the batches of a data set, in its order or shuffled; ``drop_last`` leaves out a smaller last batch.

    ``sampler`` yields the examples' numbers in their order instead, ``batch_sampler`` lists of numbers, one for each
    batch. ``collate_fn`` makes a batch of a list of examples. With ``batch_size=None`` each example comes by itself.
    The other arguments, from ``num_workers`` on, have no effect. Raises ShapeError (a ValueError) for a batch size
    below 1, and for arguments that exclude each other.
    """

    def __init__(self, dataset: Any, batch_size: int | None = 1, shuffle: bool | None = None, sampler: Any = None,
                 batch_sampler: Any = None, num_workers: int = 0,
                 collate_fn: Callable[[Sequence[Any]], Any] | None = None, pin_memory: bool = False,
                 drop_last: bool = False, timeout: float = 0, worker_init_fn: object = None,
                 multiprocessing_context: object = None, generator: object = None, *,
                 prefetch_factor: int | None = None, persistent_workers: bool = False, pin_memory_device: str = "",
                 in_order: bool = True) -> None:
        if batch_size is not None and batch_size < 1:
            raise ShapeError(f"DataLoader: batch_size must be at least 1 or None, not {batch_size}")
        beside = {"batch_size": batch_size != 1, "shuffle": shuffle, "sampler": sampler is not None,
                  "drop_last": drop_last}
        for argument, given, others in (("sampler", sampler is not None, ["shuffle"]),
                                        ("batch_sampler", batch_sampler is not None, list(beside)),
                                        ("batch_size=None", batch_size is None, ["drop_last"])):
            if given and (excluded := [name for name in others if beside[name]]):
                raise ShapeError(f"DataLoader: {argument} and {' and '.join(excluded)} exclude each other")
        self.dataset, self.batch_size, self.shuffle, self.sampler = dataset, batch_size, bool(shuffle), sampler
        self.batch_sampler, self.drop_last, self.num_workers = batch_sampler, drop_last, num_workers
        self.collate_fn = collate_fn or (default_convert if batch_size is None else default_collate)

    def __len__(self) -> int:
        if self.batch_sampler is not None:
            return len(cast(Sized, self.batch_sampler))
        count, size = len(cast(Sized, self.sampler if self.sampler is not None else self.dataset)), self.batch_size or 1
        return count // size if self.drop_last else -(-count // size)

    def __iter__(self) -> Iterator[Any]:
        if self.batch_size is None:
            yield from (self.collate_fn(self.dataset[i]) for i in self._order())
            return
        for chosen in self._batches(self.batch_size) if self.batch_sampler is None else self.batch_sampler:
            yield self.collate_fn([self.dataset[i] for i in chosen])

    def _order(self) -> Sequence[int]:
        """Return the numbers of the examples in their order."""
        if self.sampler is not None:
            return list(self.sampler)
        count = len(self.dataset)
        return randperm(count).tolist() if self.shuffle else range(count)

    def _batches(self, size: int) -> Iterator[Sequence[int]]:
        """Yield the numbers of the examples of each batch."""
        order = self._order()
        for start in range(0, len(order) - (size - 1 if self.drop_last else 0), size):
            yield order[start:start + size]
