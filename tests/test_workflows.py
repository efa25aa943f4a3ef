"""The workflows of the public repository: what a program can say about them without running them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text("utf8"), flags=re.M))


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def workflow(request) -> dict:
    return yaml.safe_load(request.param.read_text("utf8"))


def steps(workflow: dict) -> list[dict]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_they_are_there():
    assert {path.stem for path in FILES} == {"ci", "pages", "weekly"}


def test_a_workflow_has_what_github_needs(workflow):
    assert workflow["name"] and workflow[True]  # YAML 1.1 reads the key "on" as a truth value
    for name, job in workflow["jobs"].items():
        assert job["runs-on"] and 0 < job["timeout-minutes"] <= 90 and job["steps"], name
        assert job.get("needs", name) in workflow["jobs"]
    for step in steps(workflow):
        assert ("run" in step) != ("uses" in step), step


def test_actions_are_githubs_own_and_pinned_to_a_major_version(workflow):
    for step in steps(workflow):
        if "uses" in step:
            assert re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]), step


def test_a_workflow_may_only_read_except_for_the_one_job_that_deploys(workflow):
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        granted = {"pages": "write", "id-token": "write"} if "deploy" in name else None
        assert job.get("permissions") == granted


def test_what_a_step_runs_is_there(workflow):
    commands = [line.strip() for step in steps(workflow) for line in step.get("run", "").splitlines()]
    for command in commands:
        for target in re.findall(r"\bmake ([\w-]+)", command):
            assert target in TARGETS, command
        for script in re.findall(r"(?:^|\s)((?:\.ci|book/tools)/[\w./-]+)", command):
            assert (ROOT / script).is_file(), command
    assert any("make " in command or ".ci/run" in command for command in commands)


def test_nothing_that_others_write_reaches_a_shell(workflow):
    """The title of a pull request, the name of a branch: put into a script by an expression, they would be run."""
    for step in steps(workflow):
        assert "${{" not in step.get("run", ""), step


def test_only_a_stamped_book_is_published_and_only_whole():
    pages = yaml.safe_load((ROOT / ".github/workflows/pages.yml").read_text("utf8"))
    address, build, deploy = (pages["jobs"][name] for name in ("address", "build", "deploy"))
    assert "book/tools/stamp.py --show" in steps({"jobs": {"address": address}})[1]["run"]
    assert build["needs"] == "address" and build["if"] == "needs.address.outputs.repository == github.repository"
    assert deploy["needs"] == "build" and deploy["environment"]["name"] == "github-pages"
    used = [step.get("uses", "").partition("@")[0] for step in [*build["steps"], *deploy["steps"]]]
    order = ["actions/configure-pages", "actions/upload-pages-artifact", "actions/deploy-pages"]
    assert [name for name in used if name in order] == order
    assert build["steps"][-1]["with"]["path"] == "_build/html" and pages["concurrency"]["cancel-in-progress"] is False


def test_once_a_week_chapter_1_is_run_as_on_colab():
    weekly = yaml.safe_load((ROOT / ".github/workflows/weekly.yml").read_text("utf8"))
    assert re.fullmatch(r"\d+ \d+ \* \* \d", weekly[True]["schedule"][0]["cron"])
    assert [step["run"] for step in steps(weekly) if "run" in step] == ["make test-colab", "make linkcheck"]


def test_each_push_is_linted_and_tested_with_the_slow_tests():
    ci = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf8"))
    assert [step["run"] for step in steps(ci) if "run" in step] == [".ci/run"]
    said = (ROOT / ".ci" / "run").read_text("utf8")
    assert re.findall(r"^make .* ([\w-]+)$", said, flags=re.M) == ["lint", "test", "test-slow"]
