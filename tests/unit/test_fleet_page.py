"""The page on port 80: its address is checked before a host is changed, and its links work. Roles are described."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jinja2
import pytest
import yaml

from vantage.fleet import runs

ROLES = runs.files() / "roles"
CONTACTS = {
    "plain": ("we@net.test", True),
    "tagged": ("net+week.1@cs.net.test", True),
    "unset": ("", False),
    "list": ("we@net.test, you@net.test", False),
    "angle": ("We <we@net.test>", False),
    "link": ("mailto:we@net.test", False),
    "short": ("we@net", False),
    "example": ("measurements@example.org", False),
    "cs": ("we@cs.EXAMPLE.net", False),
    "own": ("we@counterexample.net", True),
    "two": ("we@you@net.test", False),
    "lines": ("we@net.test\nBcc: you@net.test", False),
}


@pytest.mark.thorough
def test_a_wrong_contact_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    """No host is there: a contact that passes is found by the host's being unreachable."""
    hosts = {name: {"explain_contact": contact} for name, (contact, _) in CONTACTS.items()}
    gone = tmp_path / "ssh"
    gone.write_text("#!/bin/sh\nexit 255\n")
    gone.chmod(0o755)
    common = {
        "ansible_ssh_executable": str(gone),
        "ansible_host": "198.18.0.1",
        "explain_operator": "Upshift's tests",
    }
    hosts["nobody"] = {"explain_contact": "we@net.test", "explain_operator": " "}
    path = tmp_path / "hosts.yml"
    path.write_text(json.dumps({"vantage": {"hosts": hosts, "vars": common}}))
    found = runs.on_hosts(runs.Task(playbook="provision"), path, list(hosts), progress=None)
    assert {name: verdict.unreachable for name, verdict in found.items()} == {
        **{name: good for name, (_, good) in CONTACTS.items()},
        "nobody": False,
    }
    for name in (name for name, verdict in found.items() if not verdict.unreachable):
        assert found[name].changed == 0
        assert re.match(f"{name}: explain_(contact|operator) ", str(found[name].fault)), found[name]
    assert "is not set" in str(found["unset"].fault) and "is not set" in str(found["nobody"].fault)


@pytest.mark.parametrize(
    ("contact", "link"),
    [
        ("we@net.test", "mailto:we@net.test"),
        ("net+week@net.test", "mailto:net%2Bweek@net.test"),
        ("a&b'c@net.test", "mailto:a%26b%27c@net.test"),
    ],
)
def test_the_links_of_the_page_are_addresses(contact: str, link: str) -> None:
    """RFC 6068: the @ of an address is not encoded in mailto:, other reserved characters are."""
    page = jinja2.Environment(loader=jinja2.FileSystemLoader(ROLES / "explain/templates"), autoescape=False)
    text = page.get_template("index.html.j2").render(
        explain_operator="We & they", explain_contact=contact, explain_purpose="Why", inventory_hostname="MUC"
    )
    assert set(re.findall(r'href="([^"]*)"', text)) == {link} and "%40" not in text and "We &amp; they" in text


@pytest.mark.parametrize("character", "!#$%&'*+/=?^_`{|}~-.a")
def test_the_page_is_known_again_whatever_the_address_has(character: str) -> None:
    """On the page an apostrophe is escaped, so provisioning failed for ever after it had been written."""
    settings = yaml.safe_load((ROLES / "explain/vars/main.yml").read_text())
    contact = f"o{character}neill@net.test"
    assert re.match(settings["explain_address"], contact)
    page = jinja2.Environment(loader=jinja2.FileSystemLoader(ROLES / "explain/templates"), autoescape=False)
    text = page.get_template("index.html.j2").render(
        explain_operator="We", explain_contact=contact, explain_purpose="Why", inventory_hostname="MUC"
    )
    tasks = {task["name"]: task for task in yaml.safe_load((ROLES / "explain/tasks/present.yml").read_text())}
    stale = page.compile_expression(tasks["Load the site"]["when"][0])
    served = page.compile_expression(tasks["Ask for the page again"]["until"])
    for content, is_ours in ((text, True), ("<h1>Welcome to nginx!</h1>", False)):
        given = {"explain_contact": contact, "explain_served": {"content": content}}
        assert (served(**given), stale(**given)) == (is_ours, not is_ours)
    assert not served(explain_contact=contact, explain_served={})  # nobody answers


@pytest.mark.parametrize("role", sorted(path.name for path in ROLES.iterdir()))
def test_every_role_says_what_it_is(role: str) -> None:
    readme = (ROLES / role / "README.md").read_text()
    assert readme.startswith(f"# Role {role}\n")
    meta = yaml.safe_load((ROLES / role / "meta/main.yml").read_text())
    info = meta["galaxy_info"]
    assert info["role_name"] == role and info["license"] == "Apache-2.0" and meta["dependencies"] == []
    assert {each["name"] for each in info["platforms"]} == {"Debian", "Ubuntu"} and info["description"]
    named = set(re.findall(rf"\b({role}_[a-z_]+)\b", readme))
    declared = set(
        yaml.safe_load((ROLES / role / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    )
    assert named and named <= declared, named - declared
