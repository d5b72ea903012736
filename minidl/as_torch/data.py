"""``torch.utils.data``: data sets and batches of them as tensors. This process alone reads them, without workers."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from typing import Any, cast

import numpy as np

from minidl.errors import UserError
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


class DataLoader:
    """Iterates over the batches of a data set, in its order or shuffled; ``drop_last`` leaves out a smaller last batch.
    ``sampler`` yields the examples' numbers in their order instead; ``collate_fn`` makes a batch of a list of examples.
    Further arguments of PyTorch, such as ``num_workers`` and ``batch_sampler``, have no effect."""

    def __init__(self, dataset: Any, batch_size: int = 1, shuffle: bool = False, sampler: Any = None,
                 num_workers: int = 0, collate_fn: Callable[[Sequence[Any]], Any] | None = None,
                 pin_memory: bool = False, drop_last: bool = False, **_: object) -> None:
        self.dataset, self.batch_size, self.shuffle, self.sampler = dataset, batch_size, shuffle, sampler
        self.drop_last, self.collate_fn = drop_last, collate_fn or default_collate

    def __len__(self) -> int:
        count = len(cast(Sized, self.sampler if self.sampler is not None else self.dataset))
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        count = len(self.dataset)
        order = (list(self.sampler) if self.sampler is not None
                 else randperm(count).tolist() if self.shuffle else list(range(count)))
        for number in range(len(self)):
            chosen = order[number * self.batch_size:(number + 1) * self.batch_size]
            yield self.collate_fn([self.dataset[i] for i in chosen])
