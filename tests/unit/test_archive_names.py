"""A hashed archive: no name of a row, of a target without one, or of a document's text stays readable."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from core.errors import UsageError
from core.files import campaign_json, store
from tests.unit.analysis_factory import make_download, make_superseded, write_campaign
from upshift.archive_names import refuse_names, replace_names

KEY = bytes(32)


TEXTS = {
    "answered by 192.0.2.7.": "192.0.2.7",
    "192.0.2.7:443": "192.0.2.7",
    "eth0:192.0.2.7, then": "192.0.2.7",
    "::ffff:192.0.2.7:443": "192.0.2.7",
    "198.51.100.0/24.": "198.51.100",
    "[2001:db8::7]:443": "2001:db8",
    "it is 2001:db8::7.": "2001:db8",
    "2001:db8::7: refused": "2001:db8",
    "address:2001:db8:0:0:0:0:0:7": "2001:db8",
    "2001:db8:0:0:0:0:0:7:443": "2001:db8",
    "2001:db8::.": "2001:db8",
    "2: eth0: link/ether 52:54:00:ab:CD:ef brd ff:ff:ff:ff:ff:ff promiscuity 0": "52:54",
    "2: enp1s0: link/none \\    altname enx525400abcdef": "525400",
    "default via enx525400abcdef proto kernel": "525400",
    "default via wlx525400abcdef proto dhcp": "525400",
    "bridge_id 8000.52:54:0:ab:cd:ef designated_root 8000.52:54:0:ab:cd:ef root_port 0": "52:54",
}
"""Texts, and what must not be left of the address in them."""


def test_names_without_rows_and_addresses_in_text_are_replaced(tmp_path: Path) -> None:
    stale = ["host probe7.uni.example -> probe9"]
    circumstances = {"host": "probe7.uni.example", "kernel": "6.1.0-3"}
    ceilings = {"circumstances": circumstances, "clients": {"requests": {"stale": stale}}}
    environment = {"said": list(TEXTS), "at": "12:30:00 of 6.1.0-3", "client_ceilings": ceilings}
    rows: dict[str, Any] = {"environment": environment, "superseded": [make_superseded()]}
    folder = write_campaign(tmp_path / "c", [make_download()], **rows)
    described = campaign_json.read(folder)
    campaign_json.write(folder, dataclasses.replace(described, without_http3=("no-row.example", "www.a.example")))
    names = replace_names(folder, KEY)
    assert {"no-row.example", "www.a.example"} <= names
    written = campaign_json.read(folder).without_http3
    assert len(written) == 2 and all(name.endswith(".invalid") for name in written)
    environment = json.loads((folder / "environment.json").read_text())
    left = [text for text, address in zip(environment["said"], TEXTS.values(), strict=True) if address in text]
    assert not left and environment["at"] == "12:30:00 of 6.1.0-3"
    circumstances = environment["client_ceilings"]["circumstances"]
    assert circumstances["kernel"] == "6.1.0-3"
    assert not re.search("probe[79]", (folder / "environment.json").read_text())


def test_what_servers_said_is_emptied(tmp_path: Path) -> None:
    said = {"response_headers": "{}", "cnames": "[]", "etag": "x", "age_s": 7, "edge": "MUC", "content_type": "a/b"}
    folder = write_campaign(tmp_path / "c", [make_download(**said)], environment={}, superseded=[make_superseded()])
    replace_names(folder, KEY)
    (row,) = store.read_table(folder / "downloads.parquet", "downloads").to_pylist()
    assert {row[name] for name in said} == {None}


def test_a_name_that_is_left_is_refused(tmp_path: Path) -> None:
    (tmp_path / "archive.json").write_text(json.dumps({"folders": ["www.a.example"]}))
    refuse_names(tmp_path, {"www.b.example"})
    with pytest.raises(UsageError, match=r"archive\.json would have the name www\.a\.example"):
        refuse_names(tmp_path, {"www.b.example", "www.a.example"})
