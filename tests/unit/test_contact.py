"""One check of the contact for all that asks strangers' servers: runs, crawls, surveys, and a fleet's page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import core
from core.reach import ENVIRONMENT_VARIABLE
from core.untrusted import MOST_CONTACT, contact_fault
from survey.iw.wire import AGENT_BYTES
from tests.command import upshift

REPOSITORY = Path(__file__).resolve().parents[2]

COMMANDS = (
    ("crawl", "{folder}/none.csv", "-o", "{folder}/o.csv"),
    ("survey", "quic", "{folder}/none.csv", "-o", "{folder}/o.parquet"),
    ("run", "{folder}/c.toml", "--out", "{folder}/out"),
)


@pytest.mark.parametrize("contact", ["you@example.org", "x", "measurements@example.org", "me@localhost", "a\nb"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_contact_that_reaches_nobody_is_refused(
    command: tuple[str, ...], contact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where everybody may be contacted; the list is missing, so that nobody could be."""
    file = f'name = "c"\ntargets = "none.csv"\nvantage_points = ["A"]\ncontact = {contact!r}\n'.replace("'", '"')
    (tmp_path / "c.toml").write_text(file)
    words = [word.format(folder=tmp_path) for word in command]
    words += [] if command[0] == "run" else ["--contact", contact]
    monkeypatch.delenv(ENVIRONMENT_VARIABLE)
    done = upshift(*words)
    assert done.returncode == 2
    assert re.fullmatch(
        r"upshift: .*contact.*(an example address|neither a mail address nor a web address|control characters); .*\n",
        done.stderr,
    ), done.stderr
    assert not any((tmp_path / name).exists() for name in ("out", "o.csv", "o.parquet"))


def test_a_contact_fits_into_the_user_agent_of_a_prober() -> None:
    longest = "https://uni.edu/".ljust(MOST_CONTACT, "a")
    assert contact_fault(longest, closed=False) is None
    assert contact_fault(longest + "a", closed=True) == f"{longest[:40]!r}... has more than 400 characters"
    assert len(f"upshift/{core.__version__} (+{longest})") + 64 < AGENT_BYTES  # and a longer version


def test_a_contact_is_ascii_in_a_lab_too() -> None:
    assert contact_fault("jörg@uni.edu", closed=False) is not None
    assert (
        contact_fault("Jörg <joerg@uni.edu>", closed=True) == "'Jörg <joerg@uni.edu>' has characters that are not ASCII"
    )


@pytest.mark.parametrize(
    "contact", ["net@uni.edu", "a.b+c@x-y.uni.edu", "you@example.org", "x", "me@b.example", "a@b", "@uni.edu"]
)
def test_the_page_of_a_fleet_has_the_same_check(contact: str) -> None:
    rules = yaml.safe_load((REPOSITORY / "ansible/roles/explain/vars/main.yml").read_text())
    good = re.match(rules["explain_address"], contact) and not re.search(rules["explain_example"], contact)
    assert bool(good) == (contact_fault(contact, closed=False) is None)
