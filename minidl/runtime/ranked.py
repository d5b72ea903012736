"""The number of slices of a batch over all ranks, their agreement, and the refusals of runtimes with ranks."""

from minidl.device import Device
from minidl.errors import UserError
from minidl.ranks import Ranks
from minidl.ranks.consensus import ALONE, Alone, Consensus
from minidl.ranks.group import NOTHING
from minidl.ranks.modelled import ModelledRanks


def consensus_of(ranks: Ranks | None, device: Device) -> Alone:
    """Connect the device with the devices of the other ranks, and return the agreement with these ranks.
    Raises UserError, on all ranks, if the devices cannot be connected."""
    if ranks is None:
        return ALONE
    device.join(ranks)
    return Consensus(ranks)


def silent(ranks: Ranks | None) -> Alone:
    """Return the agreement of a rank that runs a step on shapes alone: it says nothing to the others."""
    return ALONE if ranks is None else Consensus(ModelledRanks(ranks.rank, ranks.count, ranks.divide))


def host_update_of(device: Device, ranks: Ranks | None, *, wanted: bool) -> bool:
    """Return whether optimizer steps run on the host, as ``wanted``.
    Raises UserError if the device cannot do that, or if ranks divide the states."""
    if wanted and ranks is not None and ranks.divide != NOTHING:
        raise UserError(f"ranks that divide {ranks.divide} keep them on the device: leave out host_update")
    if wanted and not device.updates_on_host:
        raise UserError(f"{device.name} cannot run optimizer steps on the host: leave out host_update")
    return wanted


def slices_of(ranks: Ranks | None, device: Device, slices: int) -> int:
    """Return the number of slices of a batch, over all ranks.
    slices: 1 stands for one slice on each rank. Raises UserError for less than 1 or no multiple of the number of ranks,
    and for modelled ranks on a device that computes values."""
    if slices < 1:
        raise UserError(f"a batch is cut in 1 slice or more, not {slices}")
    if ranks is None:
        return slices
    if slices > 1 and slices % ranks.count:
        raise UserError(f"each of {ranks.count} ranks has as many slices, and {slices} slices cannot be shared out so")
    if device.has_values and isinstance(ranks, ModelledRanks):
        raise UserError(f"modelled ranks have no values, and {device.name} computes some: they are for sim:NAME")
    return max(slices, ranks.count)
