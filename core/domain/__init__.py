"""The values that all stages share: frozen, slotted, keyword-only dataclasses. Names or docstrings give units.

Times are seconds as float unless a name says `_ms` or `_ns`; `*_at` are seconds since the Unix epoch (UTC). Rates are
Mbit/s = 10^6 bit/s. Sizes are bytes.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
        TargetKey,
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
    "TargetKey",
    "Transport",
    "TreatmentReason",
    "VoidReason",
    "Wire",
]

_MODULES = ("outcome", "download", "plan")


def __getattr__(name: str) -> Any:
    """Loads the module of a name when it is first asked for: a program for one download does without the plan."""
    for module in _MODULES if name in __all__ else ():
        loaded = importlib.import_module(f"core.domain.{module}")
        if name in vars(loaded):
            globals()[name] = vars(loaded)[name]
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
