"""Ways to cut an input into the pieces that reads may bring it in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from hypothesis import strategies as st

CUTS = st.lists(st.integers(0, 1000), max_size=8)


def pieces_at(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """Cut `data` at these places; those outside it wrap round."""
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(places)]


def splits(data: bytes, cuts: Sequence[int] = ()) -> Iterator[list[bytes]]:
    """`data` whole, a byte at a time, cut in two at every place, and cut at `cuts`."""
    yield [data]
    yield [data[at : at + 1] for at in range(len(data))]
    for at in range(1, len(data)):
        yield [data[:at], data[at:]]
    yield pieces_at(data, cuts)


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[bytes], alphabet: bytes) -> bytes:
    """An input with up to three bytes of the alphabet put in or in place of others, or bytes left out."""
    data = draw(whole)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        put = draw(st.sampled_from([bytes([b]) for b in alphabet] + [b""]))
        data = data[:at] + put + data[at + draw(st.integers(0, 1)) :]
    return data
