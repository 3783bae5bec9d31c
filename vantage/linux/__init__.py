"""The kernel of one machine or namespace: sysctls, routes, offloads, idle CPUs."""
