"""Lossless compression of the copies between device and host, as in cDMA and Gist. Results keep their bits.

  zero-value   one bit for each 4-byte word (zero or not), then the nonzero words; for outputs of ReLU (our kernel)
  blosc        bytes shuffled, then LZ4 (numcodecs)

The device applies the codec: the caller of a copy does not know of it. Host memory is reserved for the full size,
because a piece that does not shrink is copied uncompressed. A device with values measures the saving. A device with
modelled time needs a declared share, ``zero-value:0.6``: every copy then takes the time of that share of its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from minidl.device.profiles import Profile
from minidl.errors import UserError
from minidl.outside.validation import shown

NAMES = ("zero-value", "blosc")
LEAST_SHARE = 1e-3


@dataclass(frozen=True, slots=True)
class Codec:
    """A codec by its name. ``share``: the declared compressed size over the full size, for a modelled clock."""

    name: str
    share: float | None = None

    def on(self, profile: Profile) -> Profile:
        """Return the profile with compressed copies: one pass over device memory, then the transfer of the compressed
        bytes.
        The profile is unchanged if no share is declared."""
        if self.share is None:
            return profile
        passing = (1.0 + self.share) / (profile.memory_bandwidth * profile.efficiency["copy"])
        return replace(profile, link_out_bandwidth=1.0 / (self.share / profile.link_out_bandwidth + passing),
                       link_in_bandwidth=1.0 / (self.share / profile.link_in_bandwidth + passing),
                       disk_out_bandwidth=profile.disk_out_bandwidth / self.share,
                       disk_in_bandwidth=profile.disk_in_bandwidth / self.share)

    def spared(self, nbytes: int) -> int:
        """Return how many bytes of a copy are declared not to cross the link."""
        return nbytes - round(nbytes * self.share) if self.share is not None else 0


def codec_of(text: str) -> Codec:
    """Return the codec for ``NAME`` or ``NAME:SHARE``. Raises UserError for an unknown name or a share out of range."""
    name, colon, declared = text.partition(":")
    if name not in NAMES:
        raise UserError(f"codec is {' or '.join(NAMES)}, not {shown(name)!r}")
    try:
        share = float(declared) if colon else None
    except ValueError:
        share = -1.0
    if share is not None and not LEAST_SHARE <= share <= 1.0:
        raise UserError(f"codec {name}: the share of bytes must be from {LEAST_SHARE:g} to 1, not {shown(declared)}")
    return Codec(name, share)
