"""Text: sentences out of files, word pieces, the mapped file of tokens, and pairs of segments as BERT makes them."""

from itertools import islice
from math import log
from pathlib import Path

import numpy as np
import pytest
import stories
from made_data import opened, same, text

from minidl.data import BadFile, Feed
from minidl.data.text import Sentences
from minidl.data.text.corpus import documents, sentences
from minidl.data.text.pairs import EXTRA, Pair, example_of, make_pairs
from minidl.data.text.token_file import HEADER_BYTES, UNKNOWN, Tokens, fingerprint, read_tokens, write_tokens
from minidl.data.text.vocabulary import SPECIAL, Vocabulary, read_vocabulary, train_vocabulary
from minidl.errors import UserError

SHIPPED = Path(__file__).parents[1] / "support" / "text" / "stories.txt"
GUTENBERG = b"""\xef\xbb\xbfThe Project Gutenberg eBook of A Walk\r
\r
Character set encoding: UTF-8\r
\r
*** START OF THE PROJECT GUTENBERG EBOOK A WALK ***\r
\r
CHAPTER I\r
\r
Mr. Gray went out. "Is it far?" he asked,\r
and nobody knew. It was\r
late.\r
\r
He came back.\r
\r
\r
\r
CHAPTER II\r
\r
The end of J. Gray.\r
\r
*** END OF THE PROJECT GUTENBERG EBOOK A WALK ***\r
\r
Licence. Much of it.\r
"""


# Files ---------------------------------------------------------------------------------------------------------------
def test_a_line_is_a_sentence_and_blank_lines_lie_between_documents(tmp_path):
    (tmp_path / "a.txt").write_text("\n one\ntwo \n\n\n\nthree")
    assert list(documents(tmp_path / "a.txt")) == [["one", "two"], ["three"]]


def test_a_book_of_project_gutenberg_is_taken_as_it_comes(tmp_path):
    (tmp_path / "book.txt").write_bytes(GUTENBERG)
    assert list(documents(tmp_path / "book.txt")) == [
        ["CHAPTER I", "Mr. Gray went out.", '"Is it far?" he asked, and nobody knew.', "It was late.", "He came back."],
        ["CHAPTER II", "The end of J. Gray."]]


def test_a_book_in_latin_1_says_so_and_is_read_so(tmp_path):
    data = GUTENBERG.replace(b"\xef\xbb\xbf", b"").replace(b"UTF-8", b"ISO-8859-1").replace(b"late", b"caf\xe9")
    (tmp_path / "book.txt").write_bytes(data)
    assert next(documents(tmp_path / "book.txt"))[3] == "It was caf\u00e9."


@pytest.mark.parametrize(("data", "message"), [
    (b"good\nbad \xff\n", "line 2, byte 4: not UTF-8"),
    (b"ab\0c", "line 1: a zero byte"),
    (b"x" * (1 << 23), "line 1 has more than 1048576 characters"),
])
def test_a_file_that_is_no_text_is_an_error_that_names_its_line(tmp_path, data, message):
    (tmp_path / "a.txt").write_bytes(data)
    with pytest.raises(BadFile, match=f"a.txt: {message}"):
        list(documents(tmp_path / "a.txt"))


@pytest.mark.parametrize(("paragraph", "expected"), [
    ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
    ("It cost 3.50 at St. Ives, e.g. for him.", ["It cost 3.50 at St. Ives, e.g. for him."]),
    ("", []),
])
def test_sentences_end_where_a_reader_would_end_them(paragraph, expected):
    assert sentences(paragraph) == expected


def test_the_text_that_is_shipped_is_that_of_its_program_and_small():
    assert SHIPPED.read_text() == stories.text() and SHIPPED.stat().st_size < 10**6


# Word pieces ---------------------------------------------------------------------------------------------------------
def test_words_become_the_longest_pieces_and_what_cannot_is_unknown():
    pieces = [*SPECIAL, "un", "##aff", "##able", "able", "##a", "."]
    vocabulary = Vocabulary(pieces)
    assert [pieces[n] for n in vocabulary.encode(["Unaffable able. \u00fcnaff xyz"])[0]] == [
        "un", "##aff", "##able", "able", ".", "un", "##aff", "[UNK]"]
    assert vocabulary.lowercase and not Vocabulary([*pieces, "Able"]).lowercase
    assert set(vocabulary.ordinary) == set(range(5, 11))


def test_a_vocabulary_is_the_same_whenever_it_is_trained_and_its_file_gives_it_back(tmp_path):
    lines = [line for line in SHIPPED.read_text().splitlines()[:600] if line]
    first, again = (train_vocabulary(lambda order=order: lines[::order], 200) for order in (1, -1))
    assert first.pieces == again.pieces and first.pieces[:5] == SPECIAL and len(first) == 200
    (tmp_path / "vocab.txt").write_text(first.text())
    assert read_vocabulary(tmp_path / "vocab.txt").pieces == first.pieces
    (tmp_path / "vocab.txt").write_text(first.text().replace("\n", "\r\n"), newline="")
    assert read_vocabulary(tmp_path / "vocab.txt").pieces == first.pieces
    with pytest.raises(UserError, match=r"--vocab-size must be at least \d\d, for this text's letters, not 6"):
        train_vocabulary(lambda: lines, 6)


@pytest.mark.parametrize(("data", "message"), [
    (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", r"\[MASK\] is missing"),
    (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\na\n", "'a' appears twice"),
    (b"[PAD]\n\xff", ": not UTF-8 at byte 6"),
    (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n", "it has only the 5 special pieces"),
])
def test_what_is_no_vocabulary_is_refused(tmp_path, data, message):
    (tmp_path / "v.txt").write_bytes(data)
    with pytest.raises(UserError, match=f"v.txt.*{message}"):
        read_vocabulary(tmp_path / "v.txt")


# The file of tokens --------------------------------------------------------------------------------------------------
@pytest.fixture
def written(tmp_path):
    vocabulary = Vocabulary([*SPECIAL, "a", "b", "##b"])
    corpus = [["a b", "abb"], ["\u200b"], ["b"], ["a", "", "b b b"]]  # the second has no piece at all
    path = tmp_path / "x.tokens"
    write_tokens(path, corpus, vocabulary, lambda: bytes(range(32)))
    return path


def test_sentences_come_back_from_the_mapped_file(written):
    tokens = read_tokens(written)
    assert isinstance(tokens.ids, np.memmap) and tokens.ids.dtype == np.uint16
    assert [tokens.span(n, n + 1).tolist() for n in range(5)] == [[5, 6], [5, 7, 7], [6], [5], [6, 6, 6]]
    assert tokens.document_ends.tolist() == [2, 3, 5] and tokens.span(1, 3).tolist() == [5, 7, 7, 6]
    assert list(written.parent.iterdir()) == [written]


@pytest.mark.parametrize(("offset", "value", "message"), [
    (0, 0, "not a token file"), (16, 9, "which do not agree with 10 tokens of 2 bytes, 5 sentences and 9 documents"),
    (32, 255, "which do not agree with 255 tokens"), (HEADER_BYTES, 200, "damaged: a token above the 8 pieces"),
    (HEADER_BYTES + 24, 0, "damaged: its ends are not in order"),
])
def test_a_damaged_file_of_tokens_is_refused(written, offset, value, message):
    data = bytearray(written.read_bytes())
    assert len(data) == HEADER_BYTES + 24 + 8 * (5 + 3)  # 10 tokens of 2 bytes, filled up to 24
    data[offset] = value
    written.write_bytes(data)
    with pytest.raises(BadFile, match=f"x.tokens.*{message}"):
        read_tokens(written)


def test_tokens_are_made_once_and_again_when_the_text_or_the_vocabulary_changes(tmp_path):
    root = text(tmp_path / "text")
    first = opened("text", root)
    files = sorted(path.name for path in tmp_path.iterdir() if path.is_file())
    assert files == ["text.120.tokens", "text.120.tokens.vocab.txt"]
    made = {name: (tmp_path / name).stat().st_mtime_ns for name in files}
    again = opened("text", root)
    assert made == {name: (tmp_path / name).stat().st_mtime_ns for name in files}
    assert same(next(first.batches(4)), next(again.batches(4)))
    (root / "1.txt").write_text((root / "1.txt").read_text() + "\nquite another story\nwith two sentences\n")
    assert len(opened("text", root)._tokens.document_ends) == 41
    assert len(opened("text", root, vocab_size=100).vocabulary) == 100


def test_a_corpus_without_its_broken_files_is_made_again_and_told_again(tmp_path):
    root = text(tmp_path / "text")
    (root / "2.txt").write_bytes(b"\xff")
    for _ in range(2):
        opened("text", root, skip=True)
        assert (tmp_path / "text.120.tokens").read_bytes()[HEADER_BYTES - 32:HEADER_BYTES] == UNKNOWN
        with pytest.raises(BadFile, match="2.txt: line 1, byte 0"):
            opened("text", root)


def test_where_tokens_cannot_be_written_another_place_can_be_named(tmp_path):
    with pytest.raises(UserError, match="use --token-file for another path"):
        opened("text", text(tmp_path / "text"), token_file=tmp_path / "nowhere" / "t")


# Pairs ---------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A text in which every token tells where it stands: document d, sentence s, token t."""
    random = np.random.default_rng(0)
    lengths = [[int(n) for n in random.integers(1, 12, random.integers(1, 30))] for _ in range(60)]
    sizes = [n for document in lengths for n in document]
    ids = np.arange(sum(sizes)) + 5
    return Tokens(ids, np.cumsum(sizes), np.cumsum([len(document) for document in lengths]), len(ids) + 5)


def spans(tokens):
    ends = tokens.document_ends.tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


def test_every_sentence_is_used_and_half_of_the_second_segments_come_from_elsewhere(corpus):
    pairs = make_pairs(corpus, spans(corpus), 32)
    used = [n for pair in pairs for span in ((pair.a, pair.b) if pair.follows else (pair.a,)) for n in range(*span)]
    assert used == list(range(corpus.document_ends[-1]))
    document = np.repeat(range(60), np.diff(corpus.document_ends, prepend=0))
    for pair in pairs:
        assert pair.a[0] < pair.a[1] and pair.b[0] < pair.b[1]
        assert (document[pair.a[0]] == document[pair.b[0]]) == pair.follows
        assert not pair.follows or pair.b[0] == pair.a[1]
    assert 0.25 < np.mean([pair.follows for pair in pairs]) < 0.5  # a document's last sentence alone has no follower


def test_pairs_are_as_long_as_fits_but_those_of_a_tenth_of_the_documents_are_shorter():
    documents_, each = 300, 40  # sentences of one token: what is taken is exactly what is enough
    count = documents_ * each
    tokens = Tokens(np.arange(count) + 5, np.arange(count) + 1, np.arange(1, documents_ + 1) * each, count + 5)
    first = {}
    for pair in make_pairs(tokens, spans(tokens), 32):
        if pair.follows and pair.b[1] % each:  # not the rest of a document
            first.setdefault(pair.a[0] // each, pair.b[1] - pair.a[0])
    sizes = np.array(list(first.values()))
    assert sizes.max() == 32 - EXTRA and len(sizes) > 100
    assert 0.02 < np.mean(sizes < 32 - EXTRA) < 0.25  # shorter ones begin more pairs, and so are met more often


def test_an_example_is_a_cut_pair_between_its_marks_and_says_what_was_hidden(corpus):
    vocabulary = Vocabulary([*SPECIAL, *(f"w{n}" for n in range(len(corpus.ids)))])
    random = np.random.default_rng(1)
    for pair in make_pairs(corpus, spans(corpus), 24):
        found = example_of(corpus, pair, vocabulary, vocabulary.ordinary, length=24, predictions=3, random=random)
        ids = found.ids.copy()
        ids[found.positions] = found.labels
        first, end = np.flatnonzero(found.types == 0), np.flatnonzero(found.types == 1)
        assert ids[0] == vocabulary.cls and ids[first[-1]] == ids[end[-1]] == vocabulary.sep
        assert len(first) + len(end) == len(ids) <= 24 and first[-1] + 1 == end[0]
        for kept, span in ((ids[1:first[-1]], pair.a), (ids[end[0]:-1], pair.b)):
            whole = corpus.span(*span)
            assert len(kept) and np.array_equal(kept, np.arange(kept[0], kept[0] + len(kept)))  # one piece of it
            assert whole[0] <= kept[0] and kept[-1] <= whole[-1]
        assert 1 <= len(found.positions) == min(3, max(1, round(0.15 * len(ids))))
        assert (np.diff(found.positions) > 0).all() and (found.labels >= len(SPECIAL)).all()
        assert found.follows == pair.follows


def test_of_the_words_that_are_predicted_80_in_100_are_hidden_10_changed_and_10_left():
    ids = np.arange(5, 205)
    tokens = Tokens(ids, np.array([100, 200]), np.array([2]), 205)
    vocabulary = Vocabulary([*SPECIAL, *(f"w{n}" for n in range(200))])
    random = np.random.default_rng(2)
    hidden = same_word = changed = 0
    positions = np.zeros(128)
    for _ in range(2000):
        found = example_of(tokens, Pair((0, 1), (1, 2), True), vocabulary, vocabulary.ordinary, length=128,
                           predictions=20, random=random)
        assert len(found.positions) == 19  # 15% of 128
        now = found.ids[found.positions]
        hidden += int((now == vocabulary.mask).sum())
        same_word += int((now == found.labels).sum())
        changed += int(((now != vocabulary.mask) & (now != found.labels)).sum())
        positions[found.positions] += 1
    # Three standard deviations of 38,000 draws are 0.6% at 80% and 0.5% at 10%; 1 changed word in 200 is itself.
    for share, expected, tolerance in ((hidden, 0.8, 0.007), (same_word, 0.1005, 0.005), (changed, 0.0995, 0.005)):
        assert abs(share / 38_000 - expected) < tolerance
    assert positions[0] == positions[127] == 0 and positions[1] > 0 and positions[126] > 0


def test_padding_is_not_seen_and_predicts_nothing(tmp_path):
    data = opened("text", text(tmp_path / "text"), length=64, predictions=9)
    for batch in islice(data.batches(6), 10):
        used = batch.attention_mask.sum(axis=1).astype(int)
        for row in range(6):
            assert (batch.attention_mask[row, :used[row]] == 1).all()
            assert (batch.input_ids[row, used[row]:] == data.vocabulary.pad).all()
            predicted = batch.masked_labels[row] != -100
            assert predicted.sum() == min(9, max(1, round(0.15 * used[row])))
            assert not batch.masked_positions[row, ~predicted].any() and batch.masked_positions[row].max() < used[row]
        assert set(batch.next_sentence_labels.tolist()) <= {0, 1}


def test_an_epoch_hides_other_words_of_the_same_pairs(tmp_path):
    data = opened("text", text(tmp_path / "text"))
    count = data.train_size

    def hidden(epoch):
        batch = next(data.batches(count, skip=epoch))
        order = np.random.default_rng([0, epoch]).permutation(count)
        assert [not data._train[n].follows for n in order] == batch.next_sentence_labels.astype(bool).tolist()
        return dict(zip(order.tolist(), map(bytes, batch.masked_positions), strict=True))
    first, second = hidden(0), hidden(1)
    assert sum(first[n] != second[n] for n in first) > 0.9 * count


def test_no_document_is_in_both_parts_and_of_a_few_documents_the_ends_are_held_out(tmp_path):
    for stories_, parts in ((40, 36), (4, 4)):
        data = opened("text", text(tmp_path / f"text{stories_}", stories=stories_))
        train = {n for pair in data._train for span in (pair.a, pair.b) for n in range(*span)}
        test = {n for pair in data._test for span in (pair.a, pair.b) for n in range(*span)}
        assert not train & test
        if stories_ == 40:
            assert len(train) == 9 * parts and len(test) == 9 * 4
    assert not test  # a tenth of nine sentences is none


def test_the_unigram_entropy_is_that_of_the_shares_of_the_tokens(tmp_path):
    vocabulary = Vocabulary([*SPECIAL, "a", "b"])
    path = tmp_path / "t"
    write_tokens(path, [["a a a b"] * 20], vocabulary, lambda: UNKNOWN)
    data = Sentences(read_tokens(path), vocabulary, length=16, predictions=2, feed=Feed(1, 0))
    assert data.unigram_entropy == pytest.approx(-0.75 * log(0.75) - 0.25 * log(0.25))


def test_a_sequence_has_room_for_two_words(tmp_path):
    with pytest.raises(UserError, match="--sequence-length must be at least 5 for pairs of sentences, not 4"):
        opened("text", text(tmp_path / "text"), length=4)
    assert next(opened("text", tmp_path / "text", length=EXTRA + 2).batches(3)).input_ids.shape == (3, 5)


def test_the_fingerprint_is_of_the_texts_and_the_vocabulary_and_not_of_their_names(tmp_path):
    for name, data in (("a", b"x"), ("b", b"x"), ("c", b"y")):
        (tmp_path / name).write_bytes(data)
    small, large = Vocabulary([*SPECIAL, "a"]), Vocabulary([*SPECIAL, "a", "b"])
    paths = [[tmp_path / name] for name in "abc"]
    prints = [fingerprint(path, small, trained_for=None) for path in paths]
    assert prints[0] == prints[1] != prints[2]
    assert len({prints[0], fingerprint(paths[0], large, trained_for=None),
                fingerprint(paths[0], small, trained_for=9)}) == 3


# Running text -------------------------------------------------------------------------------------------------------
def test_windows_follow_each_other_and_the_last_are_for_the_test(tmp_path):
    data = opened("running_text", text(tmp_path / "text"), length=30)
    ids = data._tokens.ids
    seen = {}
    batches = data.batches(1, seed=1)
    for batch in [next(batches) for _ in range(data.train_size)] + list(data.test_batches(7)):
        for row, labels in zip(batch.input_ids, batch.labels, strict=True):
            assert (row[1:] == labels[:-1]).all()
            at = next(n for n in range(len(ids) // 30) if (ids[30 * n:30 * n + 30] == row).all() and n not in seen)
            seen[at] = labels[-1]
            assert ids[30 * at + 30] == labels[-1]
    windows = (len(ids) - 1) // 30
    assert sorted(seen) == list(range(windows)) and data.train_size == windows - windows // 10
    assert sorted(seen)[data.train_size:] == list(seen)[data.train_size:]


def test_a_text_may_be_named_as_text(tmp_path):
    root = text(tmp_path / "text")
    plain, named = opened("running_text", root), opened("running_text", f"text:{root}")
    assert same(next(plain.batches(4)), next(named.batches(4)))
