"""What a campaign compares: the field `comparisons`, its defaults, and `campaign.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core import paper
from core.domain import Comparison, Role, Target, Transport
from core.errors import UsageError
from core.files import campaign_json
from core.files.campaign_json import check
from downloader import presets
from downloader.campaign.campaign import Campaign, from_document
from downloader.campaign.configurations import default_comparisons, recorded
from downloader.campaign.plan import plan_hash
from downloader.presets import Preset

GOOD: dict[str, Any] = {"name": "c", "lab": "anrw", "targets": "lab"}
PLAIN = {"name": "plain", "client": "requests"}
SCALED = {"name": "scaled", "client": "requests", "levels": {"window_scaling": 14}}
Row = tuple[str, str, Role]


def campaign(**changes: Any) -> Campaign:
    return from_document({**GOOD, **changes}, Path("c.toml"))


def rows(found: Campaign) -> list[Row]:
    return [(row.config, row.vs, row.role) for row in found.comparisons]


def test_the_papers_configurations_bring_the_papers_comparisons() -> None:
    assert campaign().comparisons == campaign(configurations="paper").comparisons == paper.COMPARISONS
    first, *_, last = paper.COMPARISONS
    assert (first.name, first.role, last.name, last.role) == (
        "BL2 vs BL",
        Role.NOISE_FLOOR,
        "warmup vs BL",
        Role.CACHE,
    )


def test_the_default_gives_the_paper_its_own() -> None:
    """So that a campaign that spells the paper's configurations out has the paper's rows."""
    assert default_comparisons(paper.CONFIGURATIONS) == paper.COMPARISONS


@pytest.mark.parametrize("preset", presets.ALL.values(), ids=lambda preset: preset.name)
def test_a_preset_is_a_campaign_with_a_noise_floor(preset: Preset) -> None:
    """Its comparisons are valid, each of its configurations is in one, and one repeats another."""
    found = campaign(configurations=preset.name)
    assert preset.help and found.comparisons == preset.comparisons
    more = campaign(configurations=preset.name, comparisons=[])
    assert more.comparisons == preset.comparisons, "none is added"
    known = [recorded(one) for one in (*found.warmups, *found.configurations)]
    for index, comparison in enumerate(preset.comparisons):
        check(comparison, known=known, earlier=preset.comparisons[:index], where="")
    compared = {name for one in preset.comparisons for name in (one.config, one.vs)}
    assert {one.name for one in preset.configurations} <= compared
    assert Role.NOISE_FLOOR in {one.role for one in preset.comparisons}


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError) as fault:
        campaign(configurations="papers")
    assert fault.value.sentence().startswith("c.toml: field configurations: unknown preset 'papers'; ")
    assert "use one of: http-versions, paper, quic-clients" in fault.value.sentence()


def test_quic_is_compared_with_tcp_by_the_same_program() -> None:
    named = ("curl-h1", "curl-h2", "quiche", "curl-h3")
    found = campaign(configurations=[{"name": name, "client": name} for name in named])
    assert {(config, vs) for config, vs, _ in rows(found)} == {
        *((name, "curl-h1") for name in named[1:]),
        ("curl-h3", "quiche"),
        ("curl-h3", "curl-h2"),
    }


def test_own_comparisons_come_on_top_of_the_papers() -> None:
    found = campaign(comparisons=[{"config": "quiche", "vs": "WS", "name": "QUIC against a wide TCP"}])
    assert found.comparisons[:-1] == paper.COMPARISONS
    assert found.comparisons[-1] == Comparison(name="QUIC against a wide TCP", config="quiche", vs="WS")


def test_own_comparisons_are_all_there_are_for_own_configurations() -> None:
    found = campaign(configurations=[PLAIN, SCALED], comparisons=[{"config": "plain", "vs": "scaled"}])
    assert found.comparisons == (Comparison(name="plain vs scaled", config="plain", vs="scaled", role=Role.EFFECT),)
    assert campaign(configurations=[PLAIN, SCALED], comparisons=[]).comparisons == ()


def test_a_factorial_campaign_has_its_noise_floor() -> None:
    assert rows(campaign(permute=["ecn", "sack"])) == [
        ("BL2", "BL", Role.NOISE_FLOOR),
        ("SACK", "BL", Role.EFFECT),
        ("ECN", "BL", Role.EFFECT),
        ("ECN+SACK", "BL", Role.EFFECT),
        ("warmup", "BL", Role.CACHE),
    ]


def test_clients_that_the_paper_does_not_know_get_rows_by_what_they_are() -> None:
    configurations = [
        {"name": "q", "client": "quiche"},
        {"name": "q-again", "client": "quiche"},
        {"name": "q-64k", "client": "quiche", "options": {"max_data": 65535}},
        {"name": "a", "client": "aioquic"},
        {"name": "ALL", "client": "requests", "levels": {"ecn": True, "sack": True, "window_scaling": 14}},
    ]
    # The first is the baseline; nothing here is like the warm-up, so there is no row for caches.
    assert rows(campaign(configurations=configurations)) == [
        ("q-again", "q", Role.NOISE_FLOOR),
        ("q-64k", "q", Role.EFFECT),
        ("q-64k", "ALL", Role.EFFECT),
        ("a", "q", Role.EFFECT),
        ("a", "ALL", Role.EFFECT),
        ("ALL", "q", Role.EFFECT),
    ]
    named = [SCALED, {"name": "BL", "client": "requests"}]
    assert rows(campaign(configurations=named)) == [("scaled", "BL", Role.EFFECT), ("warmup", "BL", Role.CACHE)]
    # Options that are named at their default make no other configuration.
    default = {"name": "d", "client": "requests", "levels": {"timestamps": True}}
    assert rows(campaign(configurations=[PLAIN, default]))[0] == ("d", "plain", Role.NOISE_FLOOR)
    assert rows(campaign(configurations=[PLAIN])) == [("warmup", "plain", Role.CACHE)]


def comparison(**fields: Any) -> dict[str, Any]:
    return {"configurations": [PLAIN, SCALED], "comparisons": [{"config": "scaled", "vs": "plain"}, fields]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            comparison(config="scalded", vs="plain"),
            "comparisons[1]: field config: unknown configuration 'scalded'; did you mean scaled? use one of: ",
        ),
        (comparison(config="plain", vs="BL"), "comparisons[1]: field vs: unknown configuration 'BL'; use one of"),
        (comparison(config="plain", vs="plain"), "comparisons[1]: field vs: plain is compared with itself; name two"),
        (comparison(config="scaled", vs="plain"), "comparisons[1]: field name: there are two named 'scaled vs plain'"),
        (comparison(config="scaled", vs="plain", name="x"), "field vs: 'scaled vs plain' compares these two already"),
        (comparison(config="plain", vs="scaled", name="scaled vs plain"), "field name: there are two named"),
        (comparison(config="plain", vs="scaled", name=""), "field name: '' is not a valid name; use up to 100"),
        (comparison(config="plain", vs="scaled", name="a\x1b[1m"), "field name: 'a\\x1b[1m' is not a valid name"),
        (comparison(config="plain", vs="scaled", role="noise"), "field role: input should be 'effect', 'noise_floor'"),
        (
            comparison(config="plain", vs="scaled", role="noise_floor"),
            "field role: a noise floor needs two equal configurations, plain and scaled differ in window_scaling",
        ),
        (
            comparison(config="plain", vs="scaled", role="cache"),
            "cache is the role of comparisons with warmup or warmup-quic only",
        ),
        (comparison(config="warmup", vs="plain"), 'write role = "cache"'),
        (comparison(config="plain"), "comparisons[1]: field vs: it is missing"),
        (comparison(config="plain", vs="scaled", with_="x"), "field with_: unknown field"),
        ({"comparisons": "all"}, "field comparisons: these are not tables; write [[comparisons]]"),
        ({"comparisons": [3]}, "comparisons[0]: "),
        ({"comparisons": [{"config": "WS", "vs": "BL"}]}, "field name: there are two named 'WS vs BL'; leave one out"),
    ],
)
def test_one_sentence_per_fault(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        campaign(**changes)
    sentence = caught.value.sentence()
    assert sentence.startswith("c.toml") and said in sentence and "\n" not in sentence and "\x1b" not in sentence


def test_comparisons_are_no_part_of_the_plan() -> None:
    """They are analysis: a folder stays resumable, and takes the new ones."""
    targets = [Target(domain="a.example", url="https://a.example/")]
    more = campaign(comparisons=[{"config": "quiche", "vs": "WS"}])
    assert plan_hash(more, targets, ["A"]) == plan_hash(campaign(), targets, ["A"])
    assert more.description() == campaign().description()


def test_campaign_json_tells_it_all_and_is_read_again(tmp_path: Path) -> None:
    found = campaign(permute=["ecn"], configurations=[{"name": "q", "client": "quiche", "options": {"max_data": 9}}])
    campaign_json.write(tmp_path, found.for_analysis())
    read = campaign_json.read(tmp_path)
    assert read == found.for_analysis()
    assert read is not None and read.campaign == "c" and read.comparisons == found.comparisons
    assert [one.name for one in read.configurations] == ["warmup", "warmup-quic", "BL", "BL2", "ECN", "q"]
    warmup, warmup_quic, _, _, ecn, quiche = read.configurations
    assert (ecn.client, ecn.transport, ecn.levels["ecn"], ecn.levels["sack"]) == (
        "requests",
        Transport.TCP,
        "on",
        "off",
    )
    assert set(warmup.levels) == set(ecn.levels) >= {"ecn", "rmem", "sack", "timestamps", "window_scaling"}
    assert quiche.transport is Transport.QUIC
    assert (warmup_quic.client, warmup_quic.transport) == ("quiche", Transport.QUIC)
    assert quiche.options["max_data"] == 9 and set(quiche.options) > {"max_data"}
    document = json.loads((tmp_path / "campaign.json").read_text())
    assert document["schema"] == 1
    assert document["comparisons"][0] == {"name": "BL2 vs BL", "config": "BL2", "vs": "BL", "role": "noise_floor"}


def test_a_folder_without_a_description_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"campaign\.json"):
        campaign_json.read(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "this is not valid JSON"),
        ("[" * 100_000, "nested"),
        ("[]", "this is not a JSON object; run the same `upshift run` again"),
        ("{}", "not a campaign's description of schema 1"),
        ('{"schema": 2}', "update Upshift"),
        ('{"schema": 1, "campaign": "c", "configurations": []}', "field comparisons: it is missing"),
        (
            '{"schema": 1, "campaign": "c", "configurations": [], "comparisons":'
            ' [{"name": "x", "config": "a", "vs": "b", "role": "effect"}]}',
            "comparisons[0]: field config: unknown configuration 'a'",
        ),
    ],
)
def test_a_damaged_file_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "campaign.json").write_text(text)
    with pytest.raises(UsageError) as caught:
        campaign_json.read(tmp_path)
    sentence = caught.value.sentence()
    assert str(tmp_path / "campaign.json") in sentence and said in sentence and "\n" not in sentence


def test_configurations_are_the_same_whatever_they_are_called() -> None:
    found = campaign(configurations=[PLAIN, {**PLAIN, "name": "other"}, SCALED]).for_analysis()
    _, one, other, scaled = found.configurations
    assert one.same_as(other) and one.differences(scaled) == ["window_scaling"]


def test_the_warm_up_of_quic_may_be_compared_as_caches_are() -> None:
    quic = [PLAIN, {"name": "q", "client": "quiche"}]
    found = campaign(configurations=quic, comparisons=[{"config": "warmup-quic", "vs": "q", "role": "cache"}])
    assert rows(found) == [("warmup-quic", "q", Role.CACHE)]
    with pytest.raises(UsageError, match="cache is the role of comparisons with warmup or warmup-quic only"):
        campaign(configurations=quic, comparisons=[{"config": "warmup-quic", "vs": "q"}])
    with pytest.raises(UsageError, match="unknown configuration 'warmup-quic'"):
        campaign(configurations=[PLAIN], comparisons=[{"config": "warmup-quic", "vs": "plain", "role": "cache"}])
