from pathlib import Path

import numpy as np
import pytest
import torch

from rondo import models
from rondo.base.errors import ConfigError
from rondo.client.types import SamplingParams
from rondo.data.batching.packing import Document, PackedRow, Tree, pack
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.llm import LLM
from rondo.models import Decoder, Packed
from rondo.rl.update.config import DistillConfig
from rondo.rl.update.distill import Teacher, distilled, divergence
from rondo.text.bpe import train_bpe
from rondo.train.config import OptimConfig
from rondo.train.evaluation.evaluator import Evaluator
from rondo.train.learner.learner import Learner
from rondo.train.losses.policy import PolicyLoss
from support.tiny import tiny_model, tiny_tokenizer

VOCAB, PROMPT, LENGTH = 12, [3, 4], 2
CONFIG = DistillConfig(teacher="teacher")


def test_what_a_teacher_adds_to_a_tokens_advantage() -> None:
    sampler, teacher, own = [-1.0, 0.0, -2.0, -3.0], [-2.0, -9.0, -1.0, -5.0], [True, False, True, True]
    assert distilled(sampler, teacher, own, CONFIG).tolist() == [-1.0, 0.0, 1.0, -2.0]
    half = DistillConfig(teacher="t", weight=2.0, discount=0.5)
    assert distilled(sampler, teacher, own, half).tolist() == [-2.0, 0.0, 0.0, -4.0]
    assert divergence([np.array([-1.0, -2.0])], [np.array([-2.0, -1.5])])["distill/reverse_kl"] == 0.25
    assert divergence([], []) == {"distill/reverse_kl": 0.0}


def distribution(model: Decoder) -> torch.Tensor:
    """Of the token after the prompt."""
    with torch.no_grad():
        logits = model(torch.tensor(PROMPT), torch.arange(len(PROMPT)), Packed([0, len(PROMPT)]))
    return torch.log_softmax(logits[-1].float(), -1)


def kl(student: Decoder, teacher: Decoder) -> float:
    own, other = distribution(student), distribution(teacher)
    return float((own.exp() * (own - other)).sum())


def test_a_student_learns_its_teachers_distribution_from_its_own_answers() -> None:
    student, model = tiny_model(vocab_size=VOCAB), tiny_model(seed=5, vocab_size=VOCAB)
    teacher = Teacher(Evaluator(model))
    learner = Learner(student, OptimConfig(lr=3e-3, weight_decay=0.0))
    engine = LLM(student, None, EngineConfig(max_num_seqs=128, block_size=1), eos_ids=[])
    before = kl(student, model)
    assert before > 0.1
    seen = []
    for step in range(60):
        sampling = SamplingParams(n=64, max_tokens=LENGTH, logprobs=0, seed=step, ignore_eos=True)
        (output,) = engine.generate([PROMPT], sampling)
        answers = [(each.token_ids, each.logprobs or []) for each in output.outputs]
        asked = pack([Tree(PROMPT, [document(i, tokens) for i, (tokens, _) in enumerate(answers)])], 512)
        told = by_sample(asked, teacher.logprobs(asked, 1.0))
        branches = [
            Document(
                tokens,
                [1.0] * LENGTH,
                {
                    "sampler_logprobs": logprobs,
                    "advantages": distilled(logprobs, told[i], [True] * LENGTH, CONFIG).tolist(),
                },
            )
            for i, (tokens, logprobs) in enumerate(answers)
        ]
        own = [np.array(logprobs, np.float32) for _, logprobs in answers]
        theirs = [np.array(told[i], np.float32) for i in range(len(own))]
        seen.append(divergence(own, theirs)["distill/reverse_kl"])
        learner.forward_backward(pack([Tree(PROMPT, branches)], 512), PolicyLoss())
        engine.start_weight_update()
        learner.optim_step()
        engine.finish_weight_update(step + 1)
    assert kl(student, model) < before / 10
    assert np.mean(seen[-5:]) < np.mean(seen[:5]) / 4


def document(number: int, tokens: list[int]) -> Document:
    return Document(tokens, [1.0] * len(tokens), facts={"sample": float(number)})


def by_sample(rows: list[PackedRow], found: list[np.ndarray]) -> dict[int, list[float]]:
    return {
        int(number): values[row.documents[i] : row.documents[i + 1]].tolist()
        for row, values in zip(rows, found, strict=True)
        for i, number in enumerate(row.facts["sample"])
    }


def test_the_gradient_over_all_tokens_is_the_divergences() -> None:
    """One step from the prompt: every token as often as the student says it."""
    student, model = tiny_model(vocab_size=VOCAB), tiny_model(seed=5, vocab_size=VOCAB)
    own, other = distribution(student), distribution(model)
    branches = [
        Document(
            [token],
            [float(own[token].exp())],
            {
                "sampler_logprobs": [float(own[token])],
                "advantages": distilled([float(own[token])], [float(other[token])], [True], CONFIG).tolist(),
            },
        )
        for token in range(VOCAB)
    ]
    learner = Learner(student, OptimConfig(lr=1e-3))
    learner.forward_backward(pack([Tree(PROMPT, branches)], 512), PolicyLoss(), valid=1)
    found = {name: p.grad.clone() for name, p in student.named_parameters() if p.grad is not None}
    student.zero_grad()
    logits = student(torch.tensor(PROMPT), torch.arange(len(PROMPT)), Packed([0, len(PROMPT)]))
    logprobs = torch.log_softmax(logits[-1].float(), -1)
    torch.nn.functional.kl_div(other, logprobs, reduction="sum", log_target=True).backward()
    for name, parameter in student.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-3, atol=1e-5)


def test_a_teacher_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    models.save(tiny_model(), tmp_path / "teacher")
    tiny_tokenizer().save(tmp_path / "teacher")
    told = DistillConfig(teacher=str(tmp_path / "teacher"))
    rows = pack([Document([1, 2, 3], [1.0] * 3)], 8)
    teacher = Teacher.load(told, tiny_tokenizer(), "cpu")
    assert np.concatenate(teacher.logprobs(rows, 1.0)) == pytest.approx(
        np.concatenate(Evaluator(tiny_model()).logprobs(rows))
    )
    with pytest.raises(ConfigError, match="another tokenizer than the policy") as error:
        Teacher.load(told, train_bpe(["some quite different words here"] * 3, 290), "cpu")
    assert error.value.param == "rl.distill.teacher"
