"""Lossless codecs on the link, as cDMA and Gist have them: copies are smaller, and bits stay the same.

    zero-value   a bit for each word of 4 bytes that is not zero, and these words: what a ReLU has made (our kernel)
    blosc        bytes shuffled, then LZ4 (numcodecs)

A codec is the device's: the caller of a copy does not know of it, and the host lends memory for all bytes, as a piece
may not shrink, which is then copied as it is. Where values exist they say what a codec saves. Where time is modelled a
share of the bytes has to be declared, ``zero-value:0.6``, and every copy takes as long as if so many were left.
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
    """A codec by its name; ``share``: of the bytes, declared to be left on a modelled clock."""

    name: str
    share: float | None = None

    def on(self, profile: Profile) -> Profile:
        """The profile with link and disk as fast as a copy is under this codec: one pass over the bytes in the device's
        memory, which reads all and writes what is left, and then that over the link. The same without a share."""
        if self.share is None:
            return profile
        passing = (1.0 + self.share) / (profile.memory_bandwidth * profile.efficiency["copy"])
        return replace(profile, link_out_bandwidth=1.0 / (self.share / profile.link_out_bandwidth + passing),
                       link_in_bandwidth=1.0 / (self.share / profile.link_in_bandwidth + passing),
                       disk_out_bandwidth=profile.disk_out_bandwidth / self.share,
                       disk_in_bandwidth=profile.disk_in_bandwidth / self.share)

    def spared(self, nbytes: int) -> int:
        """The bytes of a copy that are declared not to cross the link."""
        return nbytes - round(nbytes * self.share) if self.share is not None else 0


def codec_of(text: str) -> Codec:
    """``NAME`` or ``NAME:SHARE``. Raises UserError."""
    name, colon, declared = text.partition(":")
    if name not in NAMES:
        raise UserError(f"codec is {' or '.join(NAMES)}, not {shown(name)!r}")
    try:
        share = float(declared) if colon else None
    except ValueError:
        share = -1.0
    if share is not None and not LEAST_SHARE <= share <= 1.0:
        raise UserError(f"codec {name} leaves a share of the bytes from {LEAST_SHARE:g} to 1, not {shown(declared)}")
    return Codec(name, share)
