"""The inventory that a new fleet starts with."""

from __future__ import annotations

from pathlib import Path

from upshift.errors import UsageError
from upshift.files import atomic

INVENTORY = "hosts.yml"

_TEXT = """\
# Vantage points. A host's name is the name of its vantage point in the campaign file.
# The user of SSH needs sudo without a password (or become_password by Ansible's own means: no secret in this file).
vantage:
  hosts:
    first:
      ansible_host: 192.0.2.1          # write your host's address or name here
      ansible_user: debian
    # second:
    #   ansible_host: 192.0.2.2
    #   ansible_user: debian
    # here:
    #   ansible_connection: local      # this machine
  vars:
    vantage_bundles: "{{ inventory_dir }}/bundles"           # what upshift fleet bundle -o DIR made
    # vantage_spinners: true           # keep CPUs awake where /dev/cpu_dma_latency cannot be opened

    explain_operator: ""               # who measures: name of a person or a group
    explain_contact: ""                # e-mail address of the page on port 80; people opt out there

    campaign_file: "{{ inventory_dir }}/campaign.toml"
    campaign_targets: "{{ inventory_dir }}/targets.csv"
    campaign_opt_out: "{{ inventory_dir }}/opt-out.txt"      # upshift fleet optout appends to it
    # campaign_name: campaign          # default: the file's name without .toml
    # campaign_isolation: netns        # default: the file's
    # campaign_uplink: eth0            # default: the interface of the default route
    # campaign_disk_limit: 10GB        # default: the file's

    collect_into: "{{ inventory_dir }}/collected"
    # collect_free: true               # remove verified captures on the hosts
"""


def write_inventory(folder: Path) -> Path:
    """Writes the inventory into a folder and returns its path. Raises UsageError if the folder has one."""
    path = folder / INVENTORY
    if path.exists():
        raise UsageError("there is an inventory already", where=str(path), remedy="name another folder, or edit it")
    folder.mkdir(parents=True, exist_ok=True)
    atomic.write_text(path, _TEXT)
    return path
