# Three hosts as vantage points, for OpenTofu 1.6 or newer (Terraform reads it as well). README.md says how it is used.
# For another provider, replace digitalocean_droplet and digitalocean_ssh_key: all else stays.

terraform {
  required_version = ">= 1.6"
  required_providers {
    digitalocean = { source = "digitalocean/digitalocean", version = "~> 2.40" }
    tls          = { source = "hashicorp/tls", version = "~> 4.0" }
  }
}

variable "hosts" {
  description = "Vantage point -> the provider's region."
  type        = map(string)
  default     = { frankfurt = "fra1", sanfrancisco = "sfo3", singapore = "sgp1" }
}

variable "public_key" {
  description = "Your public SSH key, such as the content of ~/.ssh/id_ed25519.pub."
  type        = string
}

variable "operator" {
  description = "Who measures, for the page on port 80."
  type        = string
}

variable "contact" {
  description = "E-mail address for questions and opt-outs, for the page on port 80."
  type        = string
}

variable "size" {
  description = "The provider's name for a machine; with shared CPUs, runs are void where others use them."
  type        = string
  default     = "s-1vcpu-2gb"
}

variable "image" {
  description = "The provider's name for Debian 12 or 13, or Ubuntu 22.04 or 24.04, on x86-64."
  type        = string
  default     = "debian-12-x64"
}

locals {
  user_data = yamldecode(file("${path.module}/user-data.yml"))
}

# Made here, so that it is known before the first connection. It is in the state file: keep that to yourself.
resource "tls_private_key" "host" {
  for_each  = var.hosts
  algorithm = "ED25519"
}

# Without a key, the provider would mail a password for root.
resource "digitalocean_ssh_key" "ours" {
  name       = "upshift-fleet"
  public_key = trimspace(var.public_key)
}

resource "digitalocean_droplet" "host" {
  for_each = var.hosts
  name     = each.key
  region   = each.value
  size     = var.size
  image    = var.image
  ipv6     = true
  ssh_keys = [digitalocean_ssh_key.ours.id]
  user_data = "#cloud-config\n${yamlencode(merge(local.user_data, {
    users = [merge(local.user_data.users[0], { ssh_authorized_keys = [trimspace(var.public_key)] })]
    ssh_keys = {
      ed25519_private = tls_private_key.host[each.key].private_key_openssh
      ed25519_public  = trimspace(tls_private_key.host[each.key].public_key_openssh)
    }
  }))}"
}

output "hosts" {
  description = "The inventory: tofu output -raw hosts > week/hosts.yml"
  value = yamlencode({ vantage = {
    hosts = { for name, host in digitalocean_droplet.host : name => {
      ansible_host = host.ipv4_address
      host_key     = trimspace(tls_private_key.host[name].public_key_openssh)
    } }
    vars = {
      ansible_user = local.user_data.users[0].name
      # The keys above and no others, also where the provider gives an address out again (ssh_config(5)).
      ansible_ssh_common_args = "-o UserKnownHostsFile=/dev/null -o GlobalKnownHostsFile=/dev/null -o \"KnownHostsCommand=/usr/bin/echo %H {{ host_key }}\""
      explain_operator        = var.operator
      explain_contact         = var.contact
      vantage_bundles         = "{{ inventory_dir }}/bundles"
      campaign_file           = "{{ inventory_dir }}/campaign.toml"
      campaign_targets        = "{{ inventory_dir }}/targets.csv"
      campaign_opt_out        = "{{ inventory_dir }}/opt-out.txt"
      collect_into            = "{{ inventory_dir }}/collected"
    }
  } })
}
