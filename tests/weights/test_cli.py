"""`rondo weights plan` and `simulate`; `test_push.py` has `push` and `status`, with a server."""

import json

import pytest

from rondo.base.errors import ConfigError
from rondo.cli.service.weights import run


def test_a_plan_prints_the_bytes_of_every_link(model_folder, capsys):
    assert run(["plan", str(model_folder), "--learner", "fsdp=2", "--engine", "tp=4"]) == 0
    printed = capsys.readouterr().out
    assert "learner 1" in printed
    assert "engine 3 receives" in printed
    assert run(["plan", str(model_folder), "--learner", "fsdp=2", "--engine", "tp=4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(link["bytes"] for link in found["links"]) == found["moved"]


def test_a_simulation_has_a_row_for_each_number_of_receivers(capsys):
    options = ["--parameters", "2e10", "--learner", "fsdp=4,tp=4,ep=16", "--receivers", "16,64"]
    assert run(["simulate", *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["16"]["seconds"] <= found["64"]["seconds"]
    assert found["64"]["moved"] == 4 * found["16"]["moved"]
    assert run(["simulate", *options]) == 0
    assert "RECEIVERS" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="multiples of the engine's 16 ranks"):
        run(["simulate", "--receivers", "9"])
