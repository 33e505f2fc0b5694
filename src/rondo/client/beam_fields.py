"""How HTTP asks for a beam search: vLLM's fields, and what makes no sense beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rondo.base.errors import InvalidRequest
from rondo.client.beam import MAX_WIDTH, BeamSearchParams, check_length_penalty

if TYPE_CHECKING:
    from rondo.client.openai import SamplingBody

CHANGES_NOTHING: dict[str, tuple[Any, ...]] = {
    "stream": (False,),
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "min_tokens": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "stop": ([],),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "prompt_logprobs": (),
    "logprobs_mode": ("raw",),
}
"""Fields that a beam search does not follow, and the values with which they ask for nothing."""


def check_beams(body: SamplingBody) -> None:
    check_length_penalty(body.length_penalty)
    if not body.use_beam_search:
        if body.length_penalty != 1:
            raise InvalidRequest("length_penalty needs use_beam_search: true.", param="length_penalty")
        return
    width = body.n or 1
    if width > MAX_WIDTH:
        raise InvalidRequest(
            f"n is the number of beams with use_beam_search, and must be at most {MAX_WIDTH}; got {width}.",
            param="n",
        )
    for name, values in CHANGES_NOTHING.items():
        given = getattr(body, name)
        if given is not None and given not in values:
            raise excluded(name)
    if body.best_of not in (None, width):
        raise excluded("best_of")
    form = body.form()
    if form is not None:
        raise excluded(form.param)


def excluded(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"{name} and use_beam_search exclude each other: leave out one of them.", param=name
    )


def beams_of(body: SamplingBody, max_tokens: int | None) -> BeamSearchParams:
    return BeamSearchParams(
        beam_width=body.n or 1,
        max_tokens=max_tokens,
        ignore_eos=body.ignore_eos,
        length_penalty=body.length_penalty,
        include_stop_str_in_output=body.include_stop_str_in_output,
    )
