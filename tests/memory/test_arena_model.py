"""The arena against a model: a list of pieces in address order, searched and merged by the shortest means."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minidl.device.clock import NO_MARKS, Marks, unite_marks
from minidl.memory.bytes.arena import Arena
from minidl.memory.bytes.block import Block
from minidl.memory.bytes.copies import MOST, last_out_of, no_copies

UNIT = 16  # bytes


@dataclass
class Piece:
    offset: int
    size: int
    owner: int | None
    marks: Marks


def merged(pieces: list[Piece]) -> list[Piece]:
    result: list[Piece] = []
    for piece in pieces:
        if result and result[-1].owner is None and piece.owner is None:
            result[-1].size += piece.size
            result[-1].marks = unite_marks(result[-1].marks, piece.marks)
        else:
            result.append(piece)
    return result


class ArenaAgainstModel(RuleBasedStateMachine):
    """The arena and the model do the same; after every step they hold the same pieces, owners and marks."""

    @initialize(units=st.integers(1, 24), spare=st.integers(0, UNIT - 1))
    def start(self, units, spare):
        self.arena = Arena(units * UNIT + spare, alignment=UNIT)
        self.pieces = [Piece(0, units * UNIT, None, NO_MARKS)]
        self.blocks: dict[int, Block] = {}
        self.history = [NO_MARKS] * units  # of each unit, the maximum of all marks it was ever freed with
        self.copies = []  # the positions of copies out that blocks were freed with, one after the other
        self.owners = self.used = self.peak = 0

    @rule(nbytes=st.integers(0, 6 * UNIT), high=st.booleans())
    def allocate(self, nbytes, high):
        size = max(-(-nbytes // UNIT), 1) * UNIT
        fitting = [p for p in self.pieces if p.owner is None and p.size >= size]
        self.owners += 1
        block = self.arena.allocate(nbytes, self.owners, high=high)
        if not fitting:
            assert block is None
            return
        free = max(fitting, key=lambda p: p.offset) if high else min(fitting, key=lambda p: (p.size, p.offset))
        index = self.pieces.index(free)
        offset = free.offset + free.size - size if high else free.offset
        parts = [Piece(offset, size, self.owners, free.marks)]
        if free.size > size:
            rest = Piece(free.offset if high else offset + size, free.size - size, None, free.marks)
            parts = [rest, *parts] if high else [*parts, rest]
        self.pieces[index:index + 1] = parts
        self.used += size
        self.peak = max(self.peak, self.used)
        self.blocks[self.owners] = block
        assert (block.offset, block.size, block.owner) == (offset, size, self.owners)

    @rule(nbytes=st.integers(0, 6 * UNIT), at=st.integers(0, 24))
    def allocate_at(self, nbytes, at):
        offset, size = at * UNIT, max(-(-nbytes // UNIT), 1) * UNIT
        free = next((p for p in self.pieces if p.owner is None and p.offset <= offset
                     and offset + size <= p.offset + p.size), None)
        self.owners += 1
        block = self.arena.allocate_at(offset, nbytes, self.owners)
        if free is None:
            assert block is None
            return
        index, end = self.pieces.index(free), free.offset + free.size
        computed, copied_out, copied_in = free.marks
        its = max(marks[1] for marks in self.history[at:at + size // UNIT])
        forgotten = max(self.copies[:-MOST], default=0)
        parts = [Piece(free.offset, offset - free.offset, None, free.marks),
                 Piece(offset, size, self.owners, (computed, min(copied_out, max(its, forgotten)), copied_in)),
                 Piece(offset + size, end - offset - size, None, free.marks)]
        self.pieces[index:index + 1] = [part for part in parts if part.size]
        self.used += size
        self.peak = max(self.peak, self.used)
        self.blocks[self.owners] = block
        assert (block.offset, block.size, block.owner) == (offset, size, self.owners)

    @precondition(lambda self: self.blocks)
    @rule(data=st.data(), marks=st.tuples(*[st.integers(0, 9)] * 3))
    def free(self, data, marks):
        owner = data.draw(st.sampled_from(sorted(self.blocks)))
        piece = next(p for p in self.pieces if p.owner == owner)
        self.arena.free(self.blocks.pop(owner), marks)
        for unit in range(piece.offset // UNIT, (piece.offset + piece.size) // UNIT):
            self.history[unit] = unite_marks(self.history[unit], marks)
        self.copies += [marks[1]] * (marks[1] > 0)
        self.used -= piece.size
        piece.owner, piece.marks = None, unite_marks(piece.marks, marks)
        self.pieces = merged(self.pieces)

    @rule(data=st.data())
    def slide(self, data):
        low = data.draw(st.integers(0, len(self.pieces) - 1))
        high = data.draw(st.integers(low, len(self.pieces) - 1))
        blocks = list(self.arena.blocks())
        moved = self.arena.slide(blocks[low], blocks[high])
        if high + 1 < len(self.pieces) and self.pieces[high + 1].owner is None:
            high += 1
        members = self.pieces[low:high + 1]
        owned = [p for p in members if p.owner is not None]
        end = members[-1].offset + members[-1].size
        offset, expected, packed = members[0].offset, [], []
        marks = NO_MARKS
        for piece in owned:
            packed.append(Piece(offset, piece.size, piece.owner, piece.marks))
            if piece.offset != offset:
                expected.append((piece.owner, piece.offset))
            offset += piece.size
        movers = [owner for owner, _ in expected]
        for piece in members:
            if piece.owner is None or piece.owner in movers:
                marks = unite_marks(marks, piece.marks)
        for piece in packed:
            piece.marks = marks if piece.owner in movers else piece.marks
        if offset < end:
            packed.append(Piece(offset, end - offset, None, marks))
        self.pieces[low:high + 1] = packed
        assert [(block.owner, old) for block, old in moved] == expected

    @precondition(lambda self: self.blocks)
    @rule()
    def reset_peak(self):
        self.arena.reset_peak()
        self.peak = self.used

    @rule(nbytes=st.integers(0, 26 * UNIT))
    def cheapest_slide(self, nbytes):
        runs = [self.pieces[i:j] for i in range(len(self.pieces)) for j in range(i + 1, len(self.pieces) + 1)]
        enough = [r for r in runs if sum(p.size for p in r if p.owner is None) >= max(nbytes, 1)]
        found = self.arena.cheapest_slide(nbytes)
        if not enough:
            assert found is None
            return
        offsets = [p.offset for p in self.pieces]
        chosen = self.pieces[offsets.index(found[0].offset):offsets.index(found[1].offset) + 1]
        assert chosen in enough
        assert owned_bytes(chosen) == min(map(owned_bytes, enough))

    @rule(nbytes=st.integers(0, 26 * UNIT), data=st.data())
    def cheapest_window(self, nbytes, data):
        prices = {o: data.draw(st.none() | st.integers(0, 5).map(float)) for o in self.blocks}
        runs = [self.pieces[i:j] for i in range(len(self.pieces)) for j in range(i + 1, len(self.pieces) + 1)]
        allowed = [r for r in runs if sum(p.size for p in r) >= max(nbytes, 1)
                   and all(p.owner is None or prices[p.owner] is not None for p in r)]
        costs = [sum(prices[p.owner] for p in r if p.owner is not None) for r in allowed]
        found = self.arena.cheapest_window(nbytes, lambda block: prices[block.owner])
        if not costs:
            assert found is None
            return
        cost, blocks = found
        assert cost == min(costs) == sum(prices[b.owner] for b in blocks)
        # Emptied, the blocks leave a hole that is large enough.
        emptied = [Piece(p.offset, p.size, None if p.owner in {b.owner for b in blocks} else p.owner, p.marks)
                   for p in self.pieces]
        assert max(p.size for p in merged(emptied) if p.owner is None) >= nbytes

    @invariant()
    def same_pieces(self):
        if not hasattr(self, "arena"):
            return
        self.arena.check()
        blocks = list(self.arena.blocks())
        assert [Piece(b.offset, b.size, b.owner, b.marks) for b in blocks] == self.pieces
        assert all(self.blocks[b.owner] is b for b in blocks if b.owner is not None)
        free = [p.size for p in self.pieces if p.owner is None]
        assert (self.arena.used_bytes, self.arena.peak_bytes) == (self.used, self.peak)
        assert (self.arena.free_bytes, self.arena.largest_free) == (sum(free), max(free, default=0))
        for block in blocks:
            for unit in range(block.offset // UNIT, (block.offset + block.size) // UNIT):
                assert unite_marks(self.history[unit], block.marks) == block.marks  # no byte forgets a use


def owned_bytes(pieces: list[Piece]) -> int:
    return sum(p.size for p in pieces if p.owner is not None)


TestArenaAgainstModel = ArenaAgainstModel.TestCase
TestArenaAgainstModel.settings = settings(max_examples=200, stateful_step_count=40, deadline=None, database=None)


@settings(max_examples=300, deadline=None, database=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 7), st.integers(1, 4)), max_size=30), st.integers(1, 5))
def test_the_last_copy_out_of_any_bytes_is_the_listed_one_or_the_last_of_those_that_are_listed_no_more(noted, most):
    copies, last = no_copies(most), 0
    for position, first, size in noted:
        copies.append((position, first, first + size, last))
        last = max(last, position)
    forgotten = max([position for position, _, _ in noted[:-most]], default=0)
    for byte in range(12):
        read = [position for position, first, size in noted[-most:] if first <= byte < first + size]
        assert last_out_of(copies, byte, byte + 1) == max([forgotten, *read])


@settings(max_examples=300, deadline=None, database=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=12), st.data())
def test_moves_of_a_slide_carried_out_in_order_keep_every_byte(layout, data):
    arena = Arena(36, alignment=1)
    for block, stays in [(arena.allocate(size, "x"), stays) for size, stays in layout]:
        if not stays:
            arena.free(block, NO_MARKS)
    blocks = list(arena.blocks())
    memory = bytearray(range(36))
    held = {b: memory[b.offset:b.offset + b.size] for b in blocks if b.owner is not None}
    low = data.draw(st.integers(0, len(blocks) - 1))
    for block, old in arena.slide(blocks[low], blocks[data.draw(st.integers(low, len(blocks) - 1))]):
        memory[block.offset:block.offset + block.size] = memory[old:old + block.size]
    arena.check()
    assert {b: memory[b.offset:b.offset + b.size] for b in held} == held
