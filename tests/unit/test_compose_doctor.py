"""What `upshift doctor` takes for granted of the service on a vantage point is what the role makes."""

from __future__ import annotations

import re

from tests.conftest import REPOSITORY
from vantage.linux.state_folder import SERVICE_RIGHTS


def test_root_s_doctor_has_the_capabilities_of_the_unit() -> None:
    variables = (REPOSITORY / "ansible/roles/vantage/vars/main.yml").read_text(encoding="utf-8")
    named = re.search(r"^vantage_capabilities: (.+)$", variables, re.M)
    assert named and named[1].split() == [f"CAP_{right.upper()}" for right in SERVICE_RIGHTS]
