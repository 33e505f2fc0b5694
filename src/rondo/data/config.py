"""Settings for reading training data; they do not change the data that a model is trained on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rondo.base.settings.config import Section
from rondo.data.input.detection import FormatName


class LoaderConfig(Section):
    prefetch: int = Field(2, ge=0, description="batches prepared while a step computes; 0: none")
    cache_bytes: int = Field(
        32 << 30, gt=0, description="maximum size in bytes of s3:// data in RONDO_HOME/cache"
    )
    max_broken: int = Field(0, ge=0, description="malformed lines or rows to skip before the job fails")
    fields: dict[str, str] = Field(
        {},
        description="field names in the data for text, messages, prompt, completion, chosen, ...; for example "
        '{"text": "content"}',
    )
    format: Literal["auto", FormatName] = Field(
        "auto", description="format of the records; auto: detected in each file from the names of the fields"
    )
    text_unit: Literal["file", "line"] = Field("file", description="document unit of plain text files")
