"""The values that all stages share: frozen, slotted, keyword-only dataclasses. Names or docstrings give units.

Times are seconds as float unless a name says `_ms` or `_ns`; `*_at` are seconds since the Unix epoch (UTC). Rates are
Mbit/s = 10^6 bit/s. Sizes are bytes.
"""

from core.domain.download import ClientColumns, Download, ProofColumns, Superseded, Transport
from core.domain.outcome import (
    FAILURE_CODES,
    CacheState,
    Disturbance,
    EcnDelivery,
    Failure,
    FailureCode,
    Handshake,
    HostDisturbance,
    IdentityFlag,
    Outcome,
    Proven,
    Refutation,
    TreatmentReason,
    VoidReason,
    Wire,
)
from core.domain.plan import (
    Comparison,
    Configuration,
    Dose,
    ObjectKind,
    PageObject,
    Provider,
    Role,
    RouteAttribute,
    Setting,
    Sysctl,
    Target,
)

__all__ = [
    "FAILURE_CODES",
    "CacheState",
    "ClientColumns",
    "Comparison",
    "Configuration",
    "Disturbance",
    "Dose",
    "Download",
    "EcnDelivery",
    "Failure",
    "FailureCode",
    "Handshake",
    "HostDisturbance",
    "IdentityFlag",
    "ObjectKind",
    "Outcome",
    "PageObject",
    "ProofColumns",
    "Proven",
    "Provider",
    "Refutation",
    "Role",
    "RouteAttribute",
    "Setting",
    "Superseded",
    "Sysctl",
    "Target",
    "Transport",
    "TreatmentReason",
    "VoidReason",
    "Wire",
]
