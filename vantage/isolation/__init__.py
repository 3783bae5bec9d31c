"""Parts of the place *this host*: the campaign's network namespace, its way out, and the settings of the host."""
