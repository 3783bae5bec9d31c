"""Documents that are generated are as the code is now; the glossary has every word that tables print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from analysis.captures import export
from analysis.captures.kpis import ALL as KPIS
from analysis.captures.limiter import Limiter
from core import paper
from core.domain import (
    CacheState,
    Download,
    Failure,
    FailureCode,
    HostDisturbance,
    IdentityFlag,
    Outcome,
    Provider,
    Role,
    TreatmentReason,
    VoidReason,
)
from core.files import schemas
from downloader import clients, factors
from scripts.pages import PAGES, architecture, changelog, commands, data_dictionary
from scripts.pages.data_dictionary import attributes

REPOSITORY = Path(__file__).resolve().parents[2]
GLOSSARY = (REPOSITORY / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_what_is_committed_is_what_the_code_says(name: str) -> None:
    committed = (REPOSITORY / name).read_text(encoding="utf-8")
    assert committed == PAGES[name](REPOSITORY), f"{name} is out of date: run scripts/docs"


def test_every_column_of_every_table_has_a_meaning() -> None:
    sections = list(data_dictionary.sections())
    missing = [(title, column.name) for title, _, columns in sections for column in columns if not column.meaning]
    assert not missing
    titles = {title.removesuffix(".parquet").removeprefix("tables/") for title, _, _ in sections}
    assert set(schemas.SCHEMA_VERSIONS) <= titles


def test_units_and_meanings_are_those_of_the_code() -> None:
    sections = {title: {column.name: column for column in columns} for title, _, columns in data_dictionary.sections()}
    handshake = sections["downloads.parquet"]["handshake_rtt"]
    assert (handshake.kind, handshake.unit) == ("number or null", "ms") and "RFC" in handshake.meaning
    started = sections["superseded.parquet"]["started_at"]
    assert (started.kind, started.unit) == ("number", "s since 1970-01-01 UTC")
    assert started.meaning == attributes(Download)["started_at"].text != ""
    assert sections["packets"]["len"].unit == "B"


def test_every_command_and_option_is_in_the_reference() -> None:
    page = commands.text(REPOSITORY)
    names = [name for name, _ in commands.all_commands()]
    assert {"upshift run", "upshift lab up", "upshift survey quic", "upshift map explain"} <= set(names)
    for name, command in commands.all_commands():
        section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden and parameter.name != "help":
                assert any(option in section for option in parameter.opts), (name, parameter.name)


def test_the_picture_has_every_layer_and_only_imports_downwards() -> None:
    picture = architecture.text(REPOSITORY)
    for name in ("upshift", "core.domain", "crawler", "vantage"):
        assert f">{name}</text>" in picture
    assert architecture.outside(REPOSITORY) == set(), "every module stands in a layer of the import contract"
    imports = {"a": {"b", "c"}, "b": {"c"}, "c": set[str]()}
    assert architecture.reduced(imports) == {"a": {"b"}, "b": {"c"}, "c": set()}


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = architecture.graph(REPOSITORY)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 200
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the modules


def test_changes_are_told_newest_first_and_a_release_keeps_them(tmp_path: Path) -> None:
    def lines() -> list[str]:
        return [line for line in changelog.text(tmp_path).splitlines() if line.startswith(("##", "-"))]

    (tmp_path / "changes").mkdir()
    for name in ("9.late.md", "10.new.md", "README.md"):
        (tmp_path / "changes" / name).write_text(f"About\n{name}.\n")
    assert lines() == ["## Unreleased", "- About 10.new.md.", "- About 9.late.md."]
    changelog.release(tmp_path, "0.9.0", "2027-01-31")
    assert [path.name for path in (tmp_path / "changes").iterdir()] == ["README.md"]
    (tmp_path / "changes" / "11.next.md").write_text("Next.\n")
    told = ["## 0.9.0 (2027-01-31)", "- About 10.new.md.", "- About 9.late.md."]
    assert lines() == ["## Unreleased", "- Next.", *told]
    changelog.release(tmp_path, "0.10.0", "2027-02-28")
    assert lines() == ["## 0.10.0 (2027-02-28)", "- Next.", *told]


def printed_words() -> Iterator[str]:
    """The words of closed vocabularies and plug-ins that tables and reports print."""
    yield from [
        *Outcome,
        *Failure,
        *FailureCode,
        *VoidReason,
        *HostDisturbance,
        *Limiter,
        *TreatmentReason,
        *CacheState,
        *IdentityFlag,
        *Role,
    ]
    yield from factors.ALL
    yield from (factor.label for factor in factors.ALL.values())
    yield from clients.ALL
    yield from (configuration.name for configuration in paper.CONFIGURATIONS)
    yield from paper.WARMUPS
    yield from (name for name, _, _ in export.SUMMARY_COLUMNS)


@pytest.mark.parametrize("word", sorted({str(word) for word in printed_words()}))
def test_the_glossary_explains(word: str) -> None:
    """As an entry of its own, or one of several that share an entry: the word, then a colon, then what it means."""
    heads = re.findall(r"^- ([^:]+): \S", GLOSSARY, re.M) + re.findall(r"(`\w+`): \S", GLOSSARY)
    explained = {part.strip("`* ") for head in heads for part in head.split(",")}
    assert word in explained, f"docs/reference/glossary.md does not explain {word}"


def test_the_glossary_says_of_plug_ins_what_they_say_of_themselves() -> None:
    """Researchers quote it, so it may not contradict the code that computes a KPI."""
    page = " ".join(GLOSSARY.split())
    for kpi in KPIS.values():
        assert f"- `{kpi.name}`: {' '.join(kpi.meaning.split())}" in page
    for plug_in in (*factors.ALL.values(), *clients.ALL.values()):
        assert f": {plug_in.help}" in page


def test_the_glossary_names_the_providers() -> None:
    entry = GLOSSARY.partition("- **provider**: ")[2].partition("\n- ")[0]
    assert all(provider in entry for provider in Provider)
