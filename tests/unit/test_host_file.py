"""Fields of a campaign that are a host's own, in a file of that host."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import UsageError
from downloader.campaign.campaign import load

CAMPAIGN = """\
name = "shared"
lab = "small"
targets = "targets.csv"
vantage_points = ["MUC"]
opt_out = "here.txt"
disk = { captures = "none", limit = "3 GB" }
"""


def both(folder: Path, host: str) -> tuple[Path, Path]:
    (folder / "campaign.toml").write_text(CAMPAIGN)
    (folder / "host.toml").write_text(host)
    return folder / "campaign.toml", folder / "host.toml"


def test_a_hosts_fields_replace_the_campaigns_and_leave_its_plan_alone(tmp_path: Path) -> None:
    path, host = both(tmp_path, 'opt_out = "opt-out.txt"\nuplink = "ens4"\ndisk.limit = "1 GB"\n')
    ours, alone = load(path, host), load(path)
    assert (ours.opt_out, ours.uplink, ours.disk.limit) == ("opt-out.txt", "ens4", 10**9)
    assert ours.disk.captures == alone.disk.captures  # entry by entry
    assert ours.description() == alone.description()


def test_what_is_the_same_for_all_hosts_is_refused(tmp_path: Path) -> None:
    path, host = both(tmp_path, "iterations = 3\n")
    with pytest.raises(UsageError, match=r"host\.toml: field iterations: it is the same for all hosts; write it in"):
        load(path, host)


def test_a_wrong_type_is_an_error_of_the_field(tmp_path: Path) -> None:
    path, host = both(tmp_path, "disk = 3\n")
    with pytest.raises(UsageError, match="disk: it is not a table"):
        load(path, host)
