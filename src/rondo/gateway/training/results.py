"""Result files of fine-tuning jobs: metrics of the steps as CSV."""

from __future__ import annotations

import asyncio
import csv
import io
from contextlib import suppress
from dataclasses import replace

import sqlalchemy as sa

from rondo.base.errors import NotFound
from rondo.control.jobs.book import JobRow
from rondo.control.objects.files import new_file
from rondo.gateway.queued.objects import Objects
from rondo.gateway.training.shown import folder_of, openai_metrics, result_ids

PURPOSE = "fine-tune-results"
NAME = "step_metrics.csv"


async def create_results(objects: Objects, row: JobRow) -> None:
    """Creates the result files of a job that has succeeded, unless they exist."""
    for id in result_ids(row):
        try:
            await objects.files.get(id, None)
        except NotFound:
            content = await asyncio.to_thread(step_metrics, row)
            with suppress(sa.exc.IntegrityError):  # another request created it meanwhile
                await asyncio.to_thread(_create, objects, row, id, content)


def step_metrics(row: JobRow) -> bytes:
    job = folder_of(row)
    rows = [] if job is None else [openai_metrics(each) for each in job.metrics()]
    names = list(dict.fromkeys(name for each in rows for name in each)) or ["step"]
    text = io.StringIO()
    table = csv.DictWriter(text, names, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue().encode()


def _create(objects: Objects, row: JobRow, id: str, content: bytes) -> None:
    blob = objects.blobs.new()
    try:
        blob.write(content)
        file = new_file(row.owner, NAME, PURPOSE, len(content), None, objects.config.files)
        objects.files.add(replace(file, id=id), blob).result()
    except BaseException:
        blob.drop()
        raise
