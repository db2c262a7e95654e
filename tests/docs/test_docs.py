"""The documents say what the program does: man pages, README, CONTRIBUTING, CHANGELOG."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

import rmqtool
from rmqtool import Store, __version__, manpages
from rmqtool.check.verify import Report, verify
from rmqtool.cli import build_app
from rmqtool.commands import COMMANDS, guide
from rmqtool.commands.concepts_page import SPEED
from rmqtool.commands.concepts_page import TEXT as CONCEPTS_TEXT
from rmqtool.commands.pages import LITERAL_WIDTH, TOPICS, all_pages
from rmqtool.commands.python_page import TEXT as PYTHON_TEXT
from rmqtool.commands.recovery_page import TEXT as RECOVERY_TEXT
from rmqtool.errors import EXIT_STATUS
from rmqtool.formats import STRUCTURES
from rmqtool.formats.versions import BROKERS
from rmqtool.page import Verbatim, lines
from rmqtool.problems import PROBLEMS
from tests import ROOT
from tests.docs.test_shape import names, project
from tests.interop.brokers import BROKER_VERSIONS
from tests.support.confined import confined, load_everything
from tests.support.stores import Library
from tests.support.trees import tree_digest
from tests.tools import picture, readme

PAGES = manpages.pages()
README = readme.README.read_text("utf-8")


def test_man_pages_are_fresh() -> None:
    """`make man` would change nothing, and no page is left over."""
    assert {path.name: path.read_text("utf-8") for path in (ROOT / "man").iterdir()} == PAGES


def test_stale_man_pages_are_found_and_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--check` names them, a run writes them anew and removes what is no page."""
    (tmp_path / "rmqtool.1").write_text("old")
    (tmp_path / "rmqtool-gone.1").write_text("old")
    assert manpages.main(["--check", str(tmp_path)]) == 1
    assert "rmqtool-gone.1" in capsys.readouterr().err
    assert manpages.main([str(tmp_path)]) == 0
    assert manpages.main(["--check", str(tmp_path)]) == 0
    assert {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()} == PAGES


def test_man_pages_do_not_depend_on_surroundings(tmp_path: Path) -> None:
    """The same bytes in another zone, locale and width."""
    surroundings = {"COLUMNS": "33", "TZ": "Asia/Shanghai", "LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0"}
    surroundings |= {"RMQTOOL_STORE": "/x", "FORCE_COLOR": "1", "TERM": "xterm", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "rmqtool.manpages", str(tmp_path)]
    subprocess.run(command, env={"PATH": os.environ["PATH"], **surroundings}, check=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        name: text.encode() for name, text in PAGES.items()
    }


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
@pytest.mark.parametrize("name", PAGES)
def test_man_page_is_clean_under_groff(name: str) -> None:
    """No warning, whatever groff can warn about."""
    command = ["groff", "-man", "-ww", "-z"]
    result = subprocess.run(command, input=PAGES[name], capture_output=True, text=True, check=True)
    assert result.stderr == ""


def test_pages_fit_a_terminal() -> None:
    """Of 80 columns: literal blocks, which are not broken, and all others, except for a long word."""
    for page in all_pages(get_command(build_app())):
        for part in (part for section in page.all_sections() for part in section.parts):
            for line in part.lines if isinstance(part, Verbatim) else ():
                assert len(line) <= LITERAL_WIDTH, f"{page.name}: {line}"
        for line in lines(page.all_sections(), 80):
            assert len(line) <= 80 or max(map(len, line.split())) > 50, f"{page.name}: {line}"


def test_every_command_format_and_problem_has_its_place() -> None:
    """One page a command; every structure with every field; every problem; every exit code."""
    assert {f"rmqtool-{name.replace('_', '-')}.1" for name in COMMANDS} < set(PAGES)
    plain = {name: text.replace("\\-", "-").replace("\\(aq", "'") for name, text in PAGES.items()}
    for title, declaration, _ in STRUCTURES:
        assert f".SH {title.upper()}" in plain["rmqtool-store.5"]
        fields = getattr(declaration, "fields", None) or declaration.subcons
        assert all(f" {field.name} " in plain["rmqtool-store.5"] for field in fields if field.name)
    assert all(f"\\fB{problem.code}\\fP" in PAGES["rmqtool-problems.7"] for problem in PROBLEMS)
    assert all(f"\\fB{code}\\fP" in PAGES["rmqtool.1"] for code, _ in EXIT_STATUS)


def test_pages_lead_to_pages_that_exist() -> None:
    """That of help to every topic; those that show what is wrong, to what mends it."""
    related = {name: set(names.split()) for name, names in guide.RELATED.items()}
    pages = {name.removeprefix("rmqtool-") for name in PAGES}
    assert {each[:-3] + "." + each[-2] for names in related.values() for each in names} <= pages
    assert {f"{name}({section})" for name, (section, _) in TOPICS.items()} <= related["help"]
    assert "reset-offset(1)" in related["stats"]
    assert {"doctor(1)", "recovery(7)"} <= related["info"]


def test_every_option_says_what_it_does() -> None:
    """Help that ends with a full stop, and a metavar of its own: Typer's changes with its version."""
    group: Any = typer.main.get_command(build_app())
    wrong = {
        (name, parameter.name)
        for name, command in [("rmqtool", group), *group.commands.items()]
        for parameter in command.params
        if not parameter.help.endswith(".") or not (getattr(parameter, "is_flag", False) or parameter.metavar)
    }
    assert wrong == set()


def test_an_option_names_only_options_of_its_command() -> None:
    """`copy` and `receive` named --create, which only append has; `append --input` is another's."""
    group: Any = typer.main.get_command(build_app())
    for name, command in group.commands.items():
        there = {
            each for parameter in command.params for each in (*parameter.opts, *parameter.secondary_opts)
        }
        for parameter in command.params:
            assert {*re.findall(r"(?<![\w-])(?<!append )--[a-z][a-z-]+", parameter.help)} <= there, (
                name,
                parameter.opts,
            )


# The same idea, of which each command has to say what it is there: what it finds, writes or decides.
IN_THEIR_OWN_WORDS = {
    "--format", "--tag", "--key", "--uniq-key", "--explain", "--raw", "--output", "--output-format", "--body",
    "--broker", "--at", "--all", "--profile", "--commitlog-file-size", "--reserve", "--partition-by", "store",
    "--last", "--queues", "--from", "--until", "--once", "--controller", "--force", "--archive", "--group",
    "--grep",
}  # fmt: skip


# Commands in which another option has had the short form for longer.
SHORT_FORM_IS_TAKEN = {("tail", "--format-string"): {"-f"}}


def test_an_option_means_the_same_in_every_command() -> None:
    """One help and metavar for a name, wherever it stands, and always the same short form.

    What other commands look for by these names, `append` gives a message or a topic.
    """
    of_a_message = {"--topic", "--queue", "--queues", "--tag", "--key", "--body", "--group"}
    group: Any = typer.main.get_command(build_app())
    seen: dict[str, set[tuple[object, ...]]] = {}
    for command_name, command in group.commands.items():
        for parameter in command.params:
            if command_name == "append" and of_a_message & set(parameter.opts):
                continue
            opts = {*parameter.opts} | SHORT_FORM_IS_TAKEN.get((command_name, parameter.opts[0]), set())
            facts = (tuple(sorted(opts)), parameter.help, parameter.metavar)
            seen.setdefault(max(parameter.opts, key=len), set()).add(facts)
    several = {name: facts for name, facts in seen.items() if len(facts) > 1}
    assert several.keys() <= IN_THEIR_OWN_WORDS
    assert all(len({opts for opts, _, _ in facts}) == 1 for facts in several.values()), "short forms"


@pytest.mark.parametrize(
    "example", tuple(readme.examples(README)), ids=lambda example: example.command.split("\n")[0]
)
def test_readme_example_is_real(example: readme.Example, cases: Library, tmp_path: Path) -> None:
    """Run again, it prints what the README shows; `python -m tests.tools.readme` writes it again."""
    readme.prepare(cases, tmp_path)
    output = example.run(tmp_path)
    assert "Traceback" not in output
    if example.kind == "console":
        assert example.output
        assert example.matches(output), output
    else:
        assert output


def test_the_picture_is_that_of_the_store(store_copy: Callable[[str], Path]) -> None:
    """`python -m tests.tools.picture` would change nothing, and the README shows it."""
    drawn = picture.draw(store_copy(readme.CASE))
    assert picture.PICTURE.read_text("utf-8") == drawn
    assert picture.PICTURE.relative_to(ROOT).as_posix() in README
    shown = " ".join(re.findall(r'class="command"[^>]*>([^<]*)<', drawn)).replace("--by group", "")
    assert set(shown.split()) <= {
        command.name for command in typer.main.get_command(build_app()).commands.values()
    }


def test_recovery_page_is_real(cases: Library, tmp_path: Path) -> None:
    """Every command of the page in its order, on a damaged store: it prints what the page shows."""
    readme.prepare_recovery(cases, tmp_path)
    before = tree_digest(tmp_path / "store")
    steps = list(readme.examples(readme.RECOVERY.read_text("utf-8")))
    assert len(steps) > 5
    for step in steps:
        output = step.run(tmp_path)
        assert step.output and step.matches(output), f"{step.command}\n{output}"
    assert tree_digest(tmp_path / "store") == before  # it was undone


def test_the_costs_on_the_concepts_page_are_real(store_copy: Callable[[str], Path]) -> None:
    """Its figures are those of the demo's store."""
    report = Report()
    with Store.open(store_copy(readme.CASE)) as store:
        assert list(verify(store, report=report)) == []
        length = store.commit_log.end_offset() - store.commit_log.min_offset
    records, units, entries = report.records, report.units, report.index_entries
    for figure in (
        f"{length:,} bytes for {records:,} records: {length / records:.0f} bytes a record",
        f"{units:,} units, {units * 20 / length:.1%} of the commit log",
        f"{entries:,} entries, {entries / records:.1f} a record: {entries * 20 / length:.1%}",
    ):
        assert figure.replace("%", " %") in CONCEPTS_TEXT, figure


@pytest.mark.parametrize(
    "example", readme.python_examples(spark=False), ids=lambda example: example.command.split("\n")[0]
)
def test_python_example_runs(example: readme.Example, cases: Library, tmp_path: Path) -> None:
    """Every example of rmqtool-python(7) prints something, and raises nothing; Spark has its own test."""
    readme.prepare(cases, tmp_path)
    load_everything()

    def run() -> int:
        os.chdir(tmp_path)
        exec(compile(example.command, "example", "exec"), {"__name__": "__main__"})
        return 0

    ended = confined(run)
    assert ended.code == 0 and ended.stdout and not ended.text, ended.told


def test_python_page_has_every_public_name() -> None:
    """And no other; there are at least ten examples, and one for every function."""
    entries = re.findall(r"^- (\w+)\. ", PYTHON_TEXT, re.MULTILINE)
    assert sorted(entries) == sorted(set(rmqtool.__all__) - {"__version__"})
    programs = [example.command for example in readme.examples(PYTHON_TEXT)]
    assert len(programs) >= 10
    for name in entries:
        assert name[0].isupper() or any(re.search(rf"\b{name}\(", program) for program in programs), name


@pytest.mark.parametrize(
    ("page_name", "text"),
    [
        ("rmqtool-concepts.7", CONCEPTS_TEXT + SPEED),
        ("rmqtool-recovery.7", RECOVERY_TEXT),
        ("rmqtool-python.7", PYTHON_TEXT),
    ],
)
def test_page_has_every_part_of_its_text(page_name: str, text: str) -> None:
    """Headings, entries, blocks: nothing of the text is lost on the way to the page."""
    page = PAGES[page_name].replace("\\-", "-").replace("\\(aq", "'").replace("\\e", "\\")
    for line in text.splitlines():
        words = re.sub(r"^(## |- |```\w*)", "", line).replace("`", "").split()
        found = page.upper() if line.startswith("## ") else re.sub(r"\\f(?:B|P|I|\(CW)", "", page)
        for word in words:
            assert (word.upper() if line.startswith("## ") else word).strip(".") in found, line


def test_readme_comparison_knows_ellipses() -> None:
    """`...` is any text on a line, on a line of its own any lines, and nothing else is forgiven."""
    example = readme.Example("console", "", "a ... c\n...\nend\n", 0, 0)
    assert example.matches("a b c\nx\ny\nend\n")
    assert not example.matches("a b d\nx\nend\n")
    assert not example.matches("a b\n c\nx\nend\n")


def test_readme_names_the_versions_that_are_tested() -> None:
    """One of each line, and every broker of `make interop`; and what is expected of the others."""
    line = next(each for each in README.split("\n- ") if "make interop" in each)
    tested = set(re.findall(r"\d\.\d\.\d", line))
    assert set(BROKER_VERSIONS) <= tested and {each.rpartition(".")[0] for each in tested} == set(BROKERS)
    assert "Not tested: other 4.x, expected to be as 4.9, and 5.0 to 5.2, as 5.3." in line


def test_documents_name_what_exists() -> None:
    """Every make target and file that the documents name is there; every dependency has its line."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    contributing = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    for text in (README, contributing):
        for target in re.findall(r"make ([a-z-]+)", text):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE) or target in ("and", "them"), target
        for path in re.findall(r"`((?:rmqtool|formats|commands|tests|fixtures)/[\w/]+(?:\.\w+)?)`", text):
            assert (ROOT / path).exists(), path
    rows = " ".join(re.findall(r"^\| ([^|]+) \|", contributing, re.MULTILINE))
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)
    assert (names(project()["dependencies"]) | names(extras["dev"])) <= set(re.split(r"[ ,]+", rows))


def test_packages_list_files_that_exist() -> None:
    """A file that the docstring of a module names is there: in its folder, or somewhere in the project."""
    files = {
        path.name for folder in ("rmqtool", "tests", "fixtures") for path in (ROOT / folder).rglob("*.py")
    }
    files |= {path.name for folder in ("formats", "commands") for path in (ROOT / folder).glob("*.py")}
    for path in (*(ROOT / "rmqtool").rglob("*.py"), *(ROOT / "commands").glob("*.py")):
        found = re.match(r'r?"""(.*?)"""', path.read_text("utf-8"), re.DOTALL)
        assert found is not None, path
        assert set(re.findall(r"\b[a-z_]+\.py\b", found[1])) <= files, path


def test_changelog_has_this_version() -> None:
    """A release has its entry."""
    assert f"\n## {__version__} (" in (ROOT / "CHANGELOG.md").read_text("utf-8")
