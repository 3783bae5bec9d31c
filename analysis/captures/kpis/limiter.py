"""What limited the download."""

import json

from analysis.captures.connection import Connection
from analysis.captures.kpis import kpi
from analysis.captures.limiter import judge

_RULES = (
    "docs/method/limits-of-a-download.md, after Zhang et al. (SIGCOMM 2002) and "
    "Siekkinen et al. (Computer Networks, 2008)"
)


@kpi(source=_RULES)
def limiter(connection: Connection) -> str:
    """What limited the server's largest answer: one of `Limiter`, the first that applies. Without a download joined,
    nothing is known of the client, and of a QUIC client's losses and window.
    """
    return judge(connection).limiter.value


@kpi(source=_RULES)
def limiter_evidence(connection: Connection) -> str:
    """The figures that decided about `limiter`, as text."""
    return judge(connection).evidence


@kpi(source=_RULES)
def limiter_shares(connection: Connection) -> str:
    """Share of the answer's time by cause, as a JSON object: a download may have several limits in turn."""
    shares = {name.value: round(share, 3) for name, share in judge(connection).shares.items()}
    return json.dumps(shares)
