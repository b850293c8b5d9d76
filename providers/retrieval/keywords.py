"""What of a question in English is worth looking for word by word; pure text to text."""

from providers.text import words

__all__ = ["STOP_WORDS", "keyword_query"]

# Snowball's English list, as PostgreSQL has it: the same for all stores.
_LISTED = """
i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers
herself it its itself they them their theirs themselves what which who whom this that these those am is
are was were be been being have has had having do does did doing a an the and but if or because as until
while of at by for with about against between into through during before after above below to from up down
in out on off over under again further then once here there when where why how all any both each few more
most other some such no nor not only own same so than too very s t can will just don should now
"""
STOP_WORDS = frozenset(_LISTED.split())


def keyword_query(text: str) -> str:
    """Leave stop words out, and take compounds of ASCII letters apart; for stores that join words with OR.

    `boundary-layer` becomes its two words, since others write `boundary layer`; `TCK-358` and what is not in
    ASCII stay as they are. A text of stop words alone stays as it is, too.
    """
    kept = " ".join(piece for chunk in text.split() for piece in _pieces(chunk))
    return kept or text


def _pieces(chunk: str) -> list[str]:
    found = words(chunk)
    if not all(word.isascii() and word.isalpha() for word in found):
        return [chunk]
    return [word for word in found if word not in STOP_WORDS]
