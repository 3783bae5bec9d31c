"""Inspection: journals and captures -> `downloads` with KPIs and proof. Needs neither root nor a place.

    campaign.py  a campaign folder: streams the journals, scans captures on all cores, writes the tables; folders of
                 several hosts as one
    sources.py   where the rows of a measurement run come from: its capture, what the journal keeps of it, or rows of an
                 earlier inspection
    s3.py        captures in S3; cluster.py: captures read by the workers of a Dask cluster
    rows.py      downloads and the connections of their capture -> rows                        (pure)
    matching.py  which connection is a download's; offset of the clients' clock                (pure)
    proof.py     did the packets have the requested options, do client and capture agree, was a handshake slow? (pure)
    identity.py  did all downloads of a run get the same object from the same server?          (pure)
    cache_headers.py  cache state from response header fields                                  (pure)

The factors, which check their options on the wire, are passed in (`core.domain.Proven`).
"""

from analysis.evidence.campaign import Inspection, inspect_campaign, link_together

__all__ = ["Inspection", "inspect_campaign", "link_together"]
