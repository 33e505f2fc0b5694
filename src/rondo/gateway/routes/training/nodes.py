"""Machines on which jobs run, by launcher."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request

from rondo.base.errors import RondoError
from rondo.control.jobs.launchers.launcher import Launcher
from rondo.gateway.routes.security import JobsKey
from rondo.gateway.routes.training.fine_tuning import training_of

router = APIRouter(prefix="/v1/nodes", tags=["jobs"])


@router.get("")
async def list_nodes(request: Request, key: JobsKey) -> dict[str, Any]:
    """Nodes of each launcher with state, CPUs, GPUs and memory; the error of a launcher whose scheduler is down."""
    named = training_of(request).named
    found = await asyncio.gather(*(asyncio.to_thread(_nodes, name, each) for name, each in named.items()))
    return {
        "object": "list",
        "data": [node for nodes, _ in found for node in nodes],
        "errors": {name: error for name, (_, error) in zip(named, found, strict=True) if error},
    }


def _nodes(name: str, launcher: Launcher) -> tuple[list[dict[str, Any]], str]:
    try:
        return [{"object": "node", "launcher": name, **asdict(node)} for node in launcher.nodes()], ""
    except RondoError as error:
        return [], error.message
