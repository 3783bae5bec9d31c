"""How `collect` lets rsync reach a host: by what Ansible itself takes for its connection."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.collecting import ANSIBLE

PLAYBOOK = f"""
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_tasks:
        file: "{ANSIBLE}/roles/collect/tasks/reach.yml"
    - ansible.builtin.copy:
        content: "{{{{ {{'source': collect_source, 'over': collect_rsync_over}} | to_json }}}}"
        dest: "{{{{ playbook_dir }}}}/{{{{ inventory_hostname }}}}.json"
        mode: "0600"
      delegate_to: localhost
      vars: {{ansible_connection: local}}
"""
HOSTS = {
    "plain": {},
    "cloud": {  # as examples/cloud writes it
        "ansible_host": "fd00:198:18::9",
        "ansible_user": "debian",
        "host_key": "ssh-ed25519 AAAA",
        "ansible_ssh_common_args": '-o "KnownHostsCommand=/usr/bin/echo %H {{ host_key }}"',
    },
    "templates": {
        "ansible_ssh_host": "{{ own.address }}",
        "ansible_port": "{{ own.port }}",
        "ansible_ssh_private_key_file": "/a b/{{ inventory_hostname }}",
        "own": {"address": "198.18.0.9", "port": 2222},
    },
}


def test_what_ansible_takes_for_its_connection_rsync_takes_too(tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text(PLAYBOOK)
    (tmp_path / "hosts.yml").write_text(json.dumps({"all": {"hosts": HOSTS}}))
    env = {**os.environ, "ANSIBLE_CONFIG": str(ANSIBLE / "ansible.cfg"), "ANSIBLE_HOME": str(tmp_path / "home")}
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "hosts.yml", "play.yml"]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    found = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in HOSTS}
    assert {name: one["source"] for name, one in found.items()} == {
        "plain": "plain:",
        "cloud": "debian@[fd00:198:18::9]:",
        "templates": "198.18.0.9:",
    }
    [cloud], [templates] = found["cloud"]["over"], found["templates"]["over"]
    assert ' -o "KnownHostsCommand=/usr/bin/echo %H ssh-ed25519 AAAA" ' in cloud
    assert " -p 2222 -i '/a b/templates' " in templates
    for [words] in (one["over"] for one in found.values()):
        assert words.startswith("--rsh=ssh -o BatchMode=yes -o ControlMaster=no ") and "{{" not in words
