"""How training reads its data: nothing here changes what a given set of records teaches."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rondo.base.config import Section


class LoaderConfig(Section):
    prefetch: int = Field(2, ge=0, description="batches that are made while a step computes; 0 makes none")
    cache_bytes: int = Field(
        32 << 30, gt=0, description="the most that data from s3:// take in RONDO_HOME/cache, in bytes"
    )
    max_broken: int = Field(
        0, ge=0, description="broken lines or rows that are left out before it is an error"
    )
    fields: dict[str, str] = Field(
        {}, description="names in the data of text, messages, prompt, completion, chosen, ...: text=content"
    )
    text_unit: Literal["file", "line"] = Field("file", description="of plain text: what is one document")
