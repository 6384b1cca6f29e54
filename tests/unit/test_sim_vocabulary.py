"""Any text goes into the simulated engines' tokens and comes out unchanged."""

from __future__ import annotations

from pathlib import Path
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.harness.prompts import MadeUp
from narwhal.sim import vocabulary

TEXTS = st.text() | st.lists(st.sampled_from([*vocabulary.WORDS, " ", "\n", "🐋", "x"])).map("".join)


@given(TEXTS)
@settings(max_examples=150, deadline=None)
def test_a_text_is_its_tokens_and_its_tokens_are_the_text(text: str) -> None:
    ids = vocabulary.encode(text)
    printable = text.encode("utf-8", "replace").decode()
    assert vocabulary.decode(ids) == printable
    assert "".join(vocabulary.pieces(ids)) == printable
    assert all(0 <= token < vocabulary.SIZE for token in ids)


@given(st.lists(st.integers(0, 2**31 - 1) | st.integers(0, vocabulary.SIZE)))
@settings(max_examples=150, deadline=None)
def test_any_token_ids_can_be_decoded_at_once_or_in_pieces(ids: list[int]) -> None:
    assert "".join(vocabulary.pieces(ids)) == vocabulary.decode(ids)


@given(st.lists(st.integers(vocabulary.FIRST_WORD, vocabulary.FIRST_SPECIAL - 1)))
@settings(max_examples=50, deadline=None)
def test_generated_words_encode_to_the_very_tokens_they_came_from(ids: list[int]) -> None:
    assert vocabulary.encode(vocabulary.decode(ids)) == ids


def test_words_gives_a_text_of_just_so_many_tokens() -> None:
    for count in (0, 1, 5000):
        assert len(vocabulary.encode(vocabulary.words(count, 17))) == count


def test_the_vocabulary_has_words_beyond_ascii_and_beyond_the_basic_plane() -> None:
    assert any(ord(letter) > 0xFFFF for word in vocabulary.WORDS for letter in word)
    assert len(set(vocabulary.WORDS)) == len(vocabulary.WORDS)


def test_prompts_of_the_load_generator_have_as_many_tokens_a_word_as_its_page_says() -> None:
    asked = MadeUp(chat=False, vocabulary=None, seed=0).make(Random(0), 4096).members["prompt"]
    page = (Path(__file__).parents[2] / "docs" / "bench.md").read_text()
    assert f"count {len(vocabulary.encode(asked)) / 4096:.1f} tokens a word" in page
