"""What is left of a question for a keyword search."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.retrieval.keywords import STOP_WORDS, keyword_query
from providers.text import words


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("When did Caroline go to the support group?", "caroline go support group"),
        ("what is known of the boundary-layer", "known boundary layer"),
        ("Who closed TCK-358 and why?", "closed TCK-358"),
        ("don't you see", "see"),
        ("東京 の天気 is fine", "東京 の天気 fine"),
        ("naïve Bayes", "naive bayes"),
        ("error: \u2014 42", "error 42"),
        ("to be or not to be", "to be or not to be"),
        ("", ""),
        ("?!", "?!"),
    ],
)
def test_known_queries(text: str, kept: str) -> None:
    assert keyword_query(text) == kept


@given(text=st.text())
def test_no_word_is_new_and_some_word_stays(text: str) -> None:
    left, given_words = words(keyword_query(text)), words(text)
    assert set(left) <= set(given_words)
    assert bool(left) == bool(given_words)


@given(text=st.text())
def test_only_stop_words_are_left_out(text: str) -> None:
    assert set(words(text)) - set(words(keyword_query(text))) <= STOP_WORDS
