"""What `upshift doctor` takes for granted of the service on a vantage point is what the role makes."""

from __future__ import annotations

import re

import jinja2
import pytest
import yaml

from tests.conftest import REPOSITORY
from upshift.commands.doctor import _OUTSIDE
from vantage.linux.state_folder import SERVICE_RIGHTS


def test_root_s_doctor_has_the_capabilities_of_the_unit_and_one_that_keeps_units_out() -> None:
    variables = (REPOSITORY / "ansible/roles/vantage/vars/main.yml").read_text(encoding="utf-8")
    named = re.search(r"^vantage_capabilities: (.+)$", variables, re.M)
    assert named
    *same, own = [f"CAP_{right.upper()}" for right in (*SERVICE_RIGHTS, _OUTSIDE)]
    assert named[1].split() == same and own == "CAP_BLOCK_SUSPEND"


@pytest.mark.parametrize(
    ("file", "name"),
    [("roles/campaign/vars/main.yml", "campaign_as_upshift"), ("roles/collect/defaults/main.yml", "collect_upshift")],
)
def test_roles_run_commands_as_the_user_with_that_right_only(file: str, name: str) -> None:
    known = yaml.safe_load((REPOSITORY / "ansible" / file).read_text(encoding="utf-8"))
    words = jinja2.Template(known[name]).render(known).split()
    assert words[:5] == ["setpriv", "--reuid=upshift", "--regid=upshift", "--init-groups", "--no-new-privs"]
    assert words[5:9] == [
        f"--{which}=-all,+block_suspend" for which in ("inh-caps", "ambient-caps", "bounding-set")
    ] + ["--"]
