"""Prompts cut to so many tokens, as Hugging Face's tokenizers do it: special tokens at their ends stay."""

from __future__ import annotations

from collections.abc import Sequence

from rondo.client.protocol.texts import Side
from rondo.server.answers.prompts import Prompts


async def texts_cut_to(
    prompts: Prompts, texts: Sequence[str], add_special: bool, keep: int, side: Side
) -> list[list[int]]:
    whole = await prompts.of_texts(texts, add_special, bounded=False)
    long = [i for i, ids in enumerate(whole) if len(ids) > keep]
    bare = await prompts.of_texts([texts[i] for i in long], add_special=False, bounded=False)
    for i, own in zip(long, bare, strict=True):
        whole[i] = cut_between(whole[i], own, keep, side)
    return whole


def cut_between(ids: list[int], own: list[int], keep: int, side: Side) -> list[int]:
    """`own` are the text's own tokens, somewhere in `ids`."""
    for before in range(len(ids) - len(own) + 1):
        if ids[before : before + len(own)] == own:
            specials = len(ids) - len(own)
            if specials >= keep:
                break
            return ids[:before] + cut(own, keep - specials, side) + ids[before + len(own) :]
    return cut(ids, keep, side)


def cut(ids: list[int], keep: int, side: Side) -> list[int]:
    if len(ids) <= keep:
        return ids
    return ids[-keep:] if side == "left" else ids[:keep]
