"""Quirks of the published code: their settings, clients and pauses, the plan's hash, and what a campaign refuses."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from analysis.measures import dataset
from core.domain import Configuration, Sysctl, Transport
from core.errors import UsageError
from downloader import clients, quirks
from downloader.campaign import configurations
from downloader.campaign.campaign import Campaign, from_document
from downloader.campaign.configurations import settings_for
from downloader.campaign.plan import plan_hash
from downloader.client import DownloadRequest
from tests.unit.analysis_factory import make_download, write_campaign

BL = Configuration(name="BL", client="requests", levels={"window_scaling": "off"})
WS = Configuration(name="WS", client="requests", levels={"window_scaling": "14"})

BASE: dict[str, Any] = {"name": "test", "lab": "anrw", "targets": "lab", "order": "published"}
REAL: dict[str, Any] = {"name": "test", "targets": "t.csv", "order": "published", "contact": "a@tests.invalid"}


def campaign(**changes: Any) -> Campaign:
    return from_document({**BASE, **changes}, Path("test.toml"))


def rmem(names: list[str], configuration: Configuration) -> dict[int | None, str]:
    """Field -> value of tcp_rmem."""
    found = [s for s in configurations.settings_with(names, configuration) if isinstance(s, Sysctl)]
    return {s.field: s.value for s in found if s.name == "net.ipv4.tcp_rmem"}


def test_without_quirks_nothing_changes() -> None:
    for one in (BL, WS):
        assert configurations.settings_with([], one) == settings_for(one)
    assert configurations.pauses_s([], Transport.QUIC) == (0.0, 0.0)
    assert "published_quirks" not in campaign().differences()


def test_the_initial_buffer_comes_with_scaling_and_is_not_restored() -> None:
    assert rmem([], BL) == {1: "131072", 2: "6291456"}
    assert rmem(["initial-buffer"], WS) == {1: "1073725440", 2: "1073725440"}
    assert rmem(["initial-buffer"], BL) == {}
    seven = Configuration(name="WS7", client="requests", levels={"window_scaling": "7"})
    assert rmem(["initial-buffer"], seven) == {1: "8388480", 2: "8388480"}
    # Nothing else changes.
    plain, changed = settings_for(BL), configurations.settings_with(["initial-buffer"], BL)
    assert set(plain) - set(changed) == {s for s in plain if s.name == "net.ipv4.tcp_rmem"}


def test_host_wide_settings_come_with_scaling() -> None:
    added = set(configurations.settings_with(["host-wide-settings"], WS)) - set(settings_for(WS))
    assert added == {
        Sysctl(name="net.core.rmem_default", value="1073725440"),
        Sysctl(name="net.core.rmem_max", value="1073725440"),
    }
    assert configurations.settings_with(["host-wide-settings"], BL) == settings_for(BL)


def test_pauses_differ_by_transport() -> None:
    assert configurations.pauses_s(["pauses"], Transport.TCP) == (1.0, 5.0)
    assert configurations.pauses_s(["pauses", "initial-buffer"], Transport.QUIC) == (5.0, 5.0)


REQUEST = DownloadRequest(
    url="https://a.example/",
    address="198.18.1.1",
    port=443,
    ca_file=Path("ca.pem"),
    budget_s=1.0,
    max_bytes=None,
    user_agent="",
    allowed=(),
    logs=Path("logs/x"),
)


def test_only_quiche_is_the_debug_client_with_a_dump() -> None:
    client = configurations.client_with(["debug-client"], "quiche")
    assert client.arguments(REQUEST)[-4:] == ["--idle-timeout-s", "10", "--dump", "logs/x/dump.json"]
    assert (client.name, client.program) == ("quiche", "h3get-debug")
    for name in ("aioquic", "requests"):
        assert configurations.client_with(["debug-client"], name) == configurations.client_with([], name)


def test_the_debug_client_has_to_be_built_and_to_be_a_debug_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.system.process.sys.executable", str(tmp_path / "python"))
    client = dataclasses.replace(configurations.client_with(["debug-client"], "quiche"), packages=())
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert client.missing() == (
        "the client quiche needs the program h3get-debug, which is missing; run: make debug-client"
    )
    built = tmp_path / "h3get-debug"
    for version, fault in [
        ("h3get 0.1.0 (quiche 0.30.0)", "the program h3get-debug of the client quiche is no debug build"),
        ("h3get 0.1.0 (quiche 0.30.0), debug build", ""),
    ]:
        built.write_text(f"#!/bin/sh\necho '{version}'\n")
        built.chmod(0o755)
        assert (client.missing() or "").startswith(fault)
        assert bool(client.missing()) == bool(fault)


def test_only_aioquic_writes_logs() -> None:
    for name in ("aioquic", "quiche", "requests"):
        arguments = configurations.client_with(["aioquic-logs"], name).arguments(REQUEST)
        assert (arguments[-2:] == ["--logs", "logs/x"]) == (name == "aioquic")
        assert "--logs" not in configurations.client_with([], name).arguments(REQUEST)


def test_wget2_replaces_requests_and_is_missed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    client = configurations.client_with(["wget2"], "requests")
    assert (client.name, client.program) == ("requests", "downloader.programs.wget2_get")
    assert configurations.client_with(["wget2"], "quiche") == configurations.client_with([], "quiche")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert client.missing() == (
        "the client requests needs the program wget2, which is missing; run: apt-get install wget2"
    )


def test_quirks_are_part_of_the_plan_in_any_order() -> None:
    def of(*names: str) -> str:
        return plan_hash(campaign(published_quirks=list(names)), [], ["MUC"])

    assert of("pauses", "initial-buffer") == of("initial-buffer", "pauses", "pauses")
    assert len({of(), of("pauses"), of("initial-buffer"), of("initial-buffer", "pauses")}) == 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"order": "balanced", "published_quirks": ["pauses"]}, "they need another order than balanced"),
        ({"published_quirks": ["pause"]}, "unknown quirk 'pause'; did you mean pauses"),
        ({"published_quirks": ["host-wide-settings"]}, "host-wide-settings changes settings of the whole host"),
    ],
)
def test_what_a_campaign_refuses(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as error:
        campaign(**changes)
    assert "field published_quirks" in str(error.value)


def test_the_host_itself_may_have_host_wide_settings() -> None:
    document = {**REAL, "published_quirks": ["host-wide-settings"]}
    with pytest.raises(UsageError, match="whole host"):
        from_document(document, Path("test.toml"))
    made = from_document({**document, "isolation": "host"}, Path("test.toml"))
    assert made.published_quirks == ("host-wide-settings",)


def test_clients_that_follow_redirects_need_a_namespace() -> None:
    document = {**REAL, "published_quirks": ["wget2"], "isolation": "host", "allowed_prefixes": ["203.0.113.0/24"]}
    with pytest.raises(UsageError, match="follows redirects to any address"):
        from_document(document, Path("test.toml"))
    assert from_document({**document, "isolation": "netns"}, Path("test.toml")).published_quirks == ("wget2",)


@pytest.mark.parametrize(
    "prefixes", [None, ["0.0.0.0/0"], ["203.0.113.0/24", "::/0"], ["0.0.0.0/1", "128.0.0.0/2", "192.0.0.0/2"]]
)
def test_clients_that_follow_redirects_need_to_be_told_where_they_may_go(prefixes: list[str] | None) -> None:
    """Or a server could lead them into the host's own network."""
    document = {**REAL, "published_quirks": ["wget2"]} | ({} if prefixes is None else {"allowed_prefixes": prefixes})
    with pytest.raises(UsageError, match="follows redirects to any address; leave wget2 out, or set isolation = "):
        from_document(document, Path("test.toml"))
    assert from_document({**document, "lab": "anrw"}, Path("test.toml")).published_quirks == ("wget2",)


def test_every_quirk_tells_its_source_and_changes_something() -> None:
    for name, one in quirks.ALL.items():
        assert ".py" in one.source, name
        by_settings = configurations.settings_with([name], WS) != settings_for(WS)
        by_client = any(configurations.client_with([name], c) != configurations.client_with([], c) for c in clients.ALL)
        assert by_settings or by_client or one.pauses_s, name


def test_analysis_names_the_quirks_of_a_folder(tmp_path: Path) -> None:
    environment = {"campaign": {"published_quirks": ["initial-buffer", "pauses"]}}
    folder = write_campaign(tmp_path / "c", [make_download()], environment=environment)
    notes = dataset.load([folder]).notes
    assert f"{folder} was measured with quirks of the published code: initial-buffer, pauses." in notes
    plain = write_campaign(tmp_path / "d", [make_download()], environment={"campaign": {}})
    assert not [note for note in dataset.load([plain]).notes if "was measured with" in note]
