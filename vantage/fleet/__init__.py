"""Vantage points on many hosts: their inventory, playbook runs, verdicts per host. Ansible is imported only here."""
