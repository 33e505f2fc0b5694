"""Measures of overlap are those of the libraries that others use."""

import random

import pytest

from rondo.graders.rules import overlap
from rondo.graders.rules.similarity import measure

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "runs",
    "running,",
    "ran",
    "3.5",
    "don't",
    "U.S.",
    "x-ray",
    "10-fold",
    "&",
    "&amp;",
    "ok!",
    "(yes)",
    "café",
    "猫",
    "\n",
    "end.",
]


def texts(count: int = 300) -> list[tuple[str, str]]:
    source = random.Random(0)
    pairs = [
        ("", ""),
        ("", "a"),
        ("a", ""),
        ("a", "a"),
        ("猫", "猫"),
        ("a b", "b a"),
        ("-\n", "x"),
        ("!", "!"),
    ]
    for _ in range(count):
        given = source.choices(WORDS, k=source.randrange(0, 25))
        kept = [word for word in given if source.random() < 0.7] + source.choices(
            WORDS, k=source.randrange(0, 6)
        )
        pairs.append((" ".join(given), " ".join(kept)))
    return pairs


def test_fuzzy_match_is_rapidfuzz_s_ratio() -> None:
    fuzz = pytest.importorskip("rapidfuzz.fuzz", reason="`make test` installs rapidfuzz")
    for a, b in texts():
        assert overlap.fuzzy(a, b) == pytest.approx(fuzz.ratio(a, b) / 100, abs=1e-12), (a, b)


def test_bleu_is_sacrebleu_s() -> None:
    sacrebleu = pytest.importorskip("sacrebleu", reason="`make test` installs sacrebleu")
    for a, b in texts():
        assert overlap.bleu(a, b) == pytest.approx(sacrebleu.sentence_bleu(a, [b]).score / 100, abs=1e-12), (
            a,
            b,
        )


def test_words_are_sacrebleu_s() -> None:
    module = pytest.importorskip(
        "sacrebleu.tokenizers.tokenizer_13a", reason="`make test` installs sacrebleu"
    )
    tokenizer = module.Tokenizer13a()
    for text in (*(a for a, _ in texts()), "1,000.5 - 3-4 a-b <skipped> &quot;q&quot; &lt;", "x" * 99):
        assert overlap.words(text) == tokenizer(text.rstrip()).split(), text


def test_gleu_is_nltk_s() -> None:
    module = pytest.importorskip("nltk.translate.gleu_score", reason="`make test` installs nltk")
    for a, b in texts():
        expected = module.sentence_gleu([overlap.words(b)], overlap.words(a))
        assert overlap.gleu(a, b) == pytest.approx(expected, abs=1e-12), (a, b)


def test_meteor_is_nltk_s_without_synonyms() -> None:
    module = pytest.importorskip("nltk.translate.meteor_score", reason="`make test` installs nltk")

    class NoSynonyms:
        def synsets(self, word: str) -> list[object]:
            return []

    for a, b in texts(50):
        expected = module.meteor_score([overlap.words(b)], overlap.words(a), wordnet=NoSynonyms())
        assert measure("meteor", a, b) == pytest.approx(expected, abs=1e-12), (a, b)
    assert measure("meteor", "the dogs ran", "the dog ran") > 0.9, "words with one stem are alike"


def test_rouge_is_rouge_score_s() -> None:
    module = pytest.importorskip("rouge_score.rouge_scorer", reason="`make test` installs rouge-score")
    kinds = [*(f"rouge{n}" for n in range(1, 6)), "rougeL"]
    scorer = module.RougeScorer(kinds)
    for a, b in texts():
        expected = scorer.score(b, a)
        ours = [*(overlap.rouge(n, a, b) for n in range(1, 6)), overlap.rouge_l(a, b)]
        assert ours == pytest.approx([expected[kind].fmeasure for kind in kinds], abs=1e-12), (a, b)
