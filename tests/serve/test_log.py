"""The log as programs read it: JSON lines, and nothing of Ray's around them."""

from __future__ import annotations

import json

import pytest

from serve.log import forward, log


def test_lines_of_replicas_stay_as_they_are_and_others_become_entries(capsys: pytest.CaptureFixture[str]) -> None:
    log(event="request", status=200)
    ours = capsys.readouterr().out.rstrip("\n")
    coloured = "\x1b[33mWARNING\x1b[0m 2026 a replica died"
    forward({"lines": [ours, coloured, "", '{"time": 3'], "actor_name": "Front", "pid": 7, "is_err": True})
    forward({"lines": ["======== Autoscaler status"], "pid": "autoscaler"})
    printed = capsys.readouterr()
    same, *others = printed.out.splitlines()
    assert (same, printed.err) == (ours, "")
    found = [(entry["event"], entry["process"], entry["message"]) for entry in map(json.loads, others)]
    assert found == [("output", "Front", "WARNING 2026 a replica died"), ("output", "Front", '{"time": 3')]


def test_without_verbose_only_failures_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    log(event="request", status=200)
    log(event="request", status=422, error="not_an_image")
    log(event="request", status=500, failure="Traceback ...")
    log(event="model_failed", model="demo", error="damaged")
    lines = capsys.readouterr().out.splitlines()
    forward({"lines": [*lines, "noise of a worker", lines[0][:40]], "actor_name": "Front", "pid": 7}, verbose=False)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [*lines[2:], lines[0][:40]]
