"""Metrics of text overlap, each from 0 to 1.

The values match rapidfuzz (`fuzz.ratio`), sacrebleu (`sentence_bleu`), nltk (`sentence_gleu`) and rouge-score (F1).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

Grams = Counter[tuple[str, ...]]

_ROUGE_WORD = re.compile(r"[a-z0-9]+")
# mteval's rules, as in every BLEU: symbols are split off, periods, commas and dashes too unless in a number.
_SPLITS = (
    (re.compile(r"([\{-\~\[-\` -\&\(-\+\:-\@\/])"), r" \1 "),
    (re.compile(r"([^0-9])([\.,])"), r"\1 \2 "),
    (re.compile(r"([\.,])([^0-9])"), r" \1 \2"),
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),
)
_ENTITIES = (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"))


def fuzzy(given: str, reference: str) -> float:
    """The share of both texts that is their longest common subsequence."""
    length = len(given) + len(reference)
    return 2 * common(given, reference) / length if length else 1.0


def bleu(given: str, reference: str) -> float:
    """Sentence BLEU: precisions of 1-grams to 4-grams, exponential smoothing, brevity penalty."""
    ours, theirs = words(given), words(reference)
    logs, smooth, matched = list[float](), 1.0, 0
    for n in range(1, 5):
        total = len(ours) - n + 1
        if total <= 0:
            break
        correct = (grams(ours, n) & grams(theirs, n)).total()
        matched += correct
        if correct == 0:
            smooth *= 2
        logs.append(math.log(correct / total if correct else 1 / (smooth * total)))
    if not matched:
        return 0.0
    brevity = min(0.0, 1 - len(theirs) / len(ours))
    return math.exp(brevity + sum(logs) / len(logs))


def gleu(given: str, reference: str) -> float:
    """Google BLEU: n-grams of 1 to 4 words that both texts contain, as a share of the longer text's n-grams."""
    ours, theirs = Grams(), Grams()
    for n in range(1, 5):
        ours += grams(words(given), n)
        theirs += grams(words(reference), n)
    most = max(ours.total(), theirs.total())
    return (ours & theirs).total() / most if most else 0.0


def rouge(n: int, given: str, reference: str) -> float:
    ours, theirs = grams(rouge_words(given), n), grams(rouge_words(reference), n)
    return _f1((ours & theirs).total(), ours.total(), theirs.total())


def rouge_l(given: str, reference: str) -> float:
    ours, theirs = rouge_words(given), rouge_words(reference)
    return _f1(common(ours, theirs), len(ours), len(theirs))


def common(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common subsequence. Each row of the table is one integer, updated bitwise."""
    places: dict[str, int] = {}
    for at, each in enumerate(a):
        places[each] = places.get(each, 0) | 1 << at
    full = (1 << len(a)) - 1
    row = full
    for each in b:
        hit = row & places.get(each, 0)
        row = ((row + hit) | (row - hit)) & full
    return len(a) - row.bit_count()


def grams(tokens: Sequence[str], n: int) -> Grams:
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


def words(text: str) -> list[str]:
    """Words of BLEU's default tokenizer, `13a`."""
    text = text.rstrip().replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    if "&" in text:
        for entity, character in _ENTITIES:
            text = text.replace(entity, character)
    text = f" {text} "
    for pattern, apart in _SPLITS:
        text = pattern.sub(apart, text)
    return text.split()


def rouge_words(text: str) -> list[str]:
    """ROUGE tokenizes letters without accents and digits; other scripts have no words."""
    return _ROUGE_WORD.findall(text.lower())


def _f1(both: int, ours: int, theirs: int) -> float:
    return 2 * both / (ours + theirs) if both else 0.0
