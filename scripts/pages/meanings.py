"""What columns mean that no dataclass, KPI or schema says, and the introductions of tables: for the data dictionary."""

from __future__ import annotations

from analysis.captures import export
from analysis.captures.limiter import Limiter

DOWNLOADS_HEAD = (
    "One row per planned download: what the plan, the client and the place say, then what inspection found, then its "
    "KPIs, which are empty where `kpi_engine` is. Columns named `*_s` that mark a moment count from `started_at`, the "
    "first packet; null: not reached."
)

CONNECTION_MEANINGS = {
    "capture": "Path of the capture as it was given.",
    "connection": "Number of the connection within the capture, from 0, in order of its first packet.",
    "protocol": "`tcp` or `quic`.",
    "client_ip": "Address of the side that sent the first SYN or Initial.",
    "client_port": "Its port.",
    "server_ip": "Address of the other side.",
    "server_port": "Its port.",
    "started_at": "Time of the first packet, by the capture's clock.",
}

PACKET_MEANINGS = {
    "frame": "Number of the packet in the capture, from 1.",
    "time_ns": "When it was captured.",
    "connection": "Number of its connection, as in the table of connections.",
    "direction": f"From client to server or back: {', '.join(f'`{name}`' for name in export.DIRECTIONS)}.",
    "seq": "TCP sequence number relative to the SYN's; null for QUIC.",
    "len": "Payload of TCP or UDP.",
    "ws_class": "Class by Wireshark's sequence analysis; empty for none (docs/design/kpi-engine.md).",
    "true_class": "What happened to the segment, e.g. new, retransmission, reordered; empty without payload.",
}

LAB_PATHS = [
    ("vantage", "text", "", "Vantage point."),
    ("domain", "text", "", "Domain of the target."),
    ("server", "text", "", "Name of the server in the topology."),
    ("provider", "text", "", "Provider of the server's organisation."),
    ("rtt_ms", "number", "ms", "Round-trip time without queueing."),
    ("rate_mbit", "number", "Mbit/s", "Rate of the bottleneck, towards the vantage point."),
    ("queue_bytes", "integer", "B", "Size of the drop-tail queue before the bottleneck."),
    ("loss", "number", "1", "Share of packets that are dropped at random, with a seed."),
    (
        "ecn_threshold_bytes",
        "integer or null",
        "B",
        "Queue length above which packets are marked, or dropped without ECN.",
    ),
    ("rewrites", "list of texts", "", "What the path does to headers: see the lab's topology files."),
    ("initcwnd", "integer or null", "packets", "Initial congestion window of the server's TCP, if it is the kernel's."),
    ("congestion_control", "text or null", "", "Congestion control of the server's TCP, if it is the kernel's."),
    ("mtu", "integer", "B", "Largest IP packet on the path."),
    ("edge", "true/false", "", "A CDN's edge with a cache, which the first download fills."),
    (
        "clean",
        "true/false",
        "",
        "No loss, no marking, and a queue of at least one bandwidth-delay product, so the model applies.",
    ),
    ("quic", "true/false", "", "The server provides HTTP/3."),
    ("quic_server", "text", "", "Kind of the QUIC server, if there is one."),
    ("quic_congestion_control", "text", "", "Congestion control of the QUIC server."),
    ("quic_initial_window_packets", "integer", "packets", "Initial window of the QUIC server."),
    ("quic_packet_bytes", "integer", "B", "Size of a full packet of the QUIC server on IPv4, with its headers."),
    ("quic_stream_buffer_bytes", "integer or null", "B", "The most that the QUIC server sends per round trip, if set."),
    ("quic_server_version", "text or null", "", "The QUIC server's version, as its program prints it."),
    ("note", "text", "", "Further properties of the server in the topology."),
]

TABLE_MEANINGS = {
    **{name.value: f"Share of the downloads that this limited (`Limiter`): {name.value}." for name in Limiter},
    **{f"{name}_time": "Share of the time of an answer, mean of the downloads." for name in Limiter},
    "ratio": "Median ratio of the times, over domains; above 1 is slower. Empty if only bounds are known.",
    **{f"ratio_{end}": f"{end.capitalize()} end of its 95 % interval." for end in ("low", "high")},
    **{f"ratio_{end}": f"It is {end} this, where only bounds are known." for end in ("least", "most")},
    "planned": "Planned downloads.",
    "ok": "Downloads of the whole file.",
    "ok_share": "ok / planned.",
    "failed": "Downloads that failed with a cause.",
    "censored": "Downloads that hit their time or byte budget.",
    "void_share": "void / (planned + void).",
}

TABLE2_HEAD = (
    "One row per comparison. Shares are from 0 to 1; unknown values are empty. `upshift tables --by` puts the "
    "column of the group first."
)

PAIRS_HEAD = (
    "A row for each comparison and measurement run of which a download was planned: `upshift tables` writes it for up "
    "to 500,000 downloads, and with --pairs for any number. `docs/use/cookbook.md` begins with it."
)

SPLITS_HEAD = (
    "A line for each part of each row of Table 2: its runs by what limited the reference, by dose, by provider and by "
    "vantage point. `upshift tables --by` puts the column of the group first."
)

SPLITS_MEANINGS = {
    "comparison": "Name of the comparison.",
    "by": "`limiter`, `dose` (acted: an option took effect), `provider`, `vantage`.",
    "of": "By limiter, whose download was limited: the reference's twin in a noise floor, without one the reference.",
    "p": "Do the effects differ between the parts? The larger p of Kruskal and Wallis's test and of Welch's on ranks; "
    "empty with fewer than two parts of 6 domains, by dose, and where a download of the pair itself tells the part.",
    "part": "Name of the part.",
    "n": "Pairs in it.",
    "domains": "Domains that have a pair in it.",
    "median": "Median speed-up of the domains in it; empty if only bounds are known.",
    "median_least": "Lower bound of it.",
    "median_most": "Upper bound.",
    "sure_low": "Lower end of the 99 % interval of the typical speed-up in it; empty unless some p is small.",
    "sure_high": "Upper end.",
}

DOSE_HEAD = (
    "Three lines per comparison of an option: its measurement runs, split by whether the option took effect. These "
    "columns, then those of `table2.csv` up to `excluded`: what tells the parts apart happened after the option was "
    "set, so they are described and not tested."
)

DOSE_MEANINGS = {
    "dose": "The sign that the option took effect.",
    "acted": "yes: it took effect in these runs; no: it did not; unknown: a KPI is missing, or the limiter is unknown.",
}

EFFECTS_HEAD = "One line per cell that a quirk of the published pipeline moves. Shares are from 0 to 1."

EFFECTS_MEANINGS = {
    "quirk": "Name of the quirk; `throughput instead of time` and `all together` are against our Table 2 of times.",
    "table": "`table2`, or `congestion`: signs of loss of each configuration.",
    "row": "Name of the comparison, or of the configuration.",
    "column": "Column of `table2.csv` or `congestion.csv`; only cells that the quirk moves are listed.",
    "without": "The cell without quirks.",
    "with": "The cell with this quirk.",
    "moved": "with - without.",
}

TABLE2_MEANINGS = {
    "comparison": "Name of the comparison.",
    "role": "Its purpose, see the glossary.",
    "config": "The configuration.",
    "vs": "The reference: a speed-up above 1 means that `config` was faster.",
    "n": "Pairs: measurement runs in which both downloads count.",
    "tie": "Share of pairs whose times are equal.",
    "undecided": "Share of pairs of which only a bound is known, which does not decide which one was faster.",
    "bin_undecided": "Share of pairs of which only a bound is known, which does not decide the bin.",
    "bounds": "Pairs of which only a bound is known, because a download was censored.",
    "domains": "Number of domains of the pairs.",
    "median": "Median speed-up of the domains, each with the median of its runs; empty if only bounds are known.",
    "median_low": "Lower end of its 95 % interval (order statistics of the medians of domains).",
    "median_high": "Upper end of this interval.",
    "median_least": "Lower bound of the median, if censored downloads leave only bounds.",
    "median_most": "Upper bound of the median, likewise.",
    "faster": "Share of pairs with a speed-up above 1.",
    "slower": "Share of pairs with a speed-up below 1.",
    "excluded": "Measurement runs without a pair.",
    "p_wilcoxon": "p-value of Wilcoxon's signed-rank test of the medians of domains; all tests are two-sided.",
    "p_clusters": "The signed-rank test of all pairs, with domains as clusters (Datta and Satten).",
    "p_sign": "The sign test of the medians of domains.",
    "p_equivalence": "Two one-sided signed-rank tests: are the medians of domains within 2 % of 1?",
    "q_bh": "q-value of `p_wilcoxon` over all effects of the table (Benjamini and Hochberg; directions have 80 % of "
    "the weight, splits the rest; p is at least 0.05 where the interval over domains holds 1); empty for other roles.",
    "q_by": "The same for any dependence between the tests (Benjamini and Yekutieli).",
    "verdict": "host too busy, mixed, equivalent, faster, slower or undecided, the first that holds; empty for other "
    "roles.",
    "size": "For faster and slower: `at_least_margin` if the typical speed-up's interval lies beyond the margin, "
    "`these_providers` if it counts each provider once and holds 1, else `perhaps_less`; empty "
    "without an interval.",
    "mixed_by": "What explains a mixed row best: `limiter` (of the reference's twin), `provider`, `vantage`.",
    "q_parts": "q-value of that split; 1 where no split has a part that is surely beyond the margin and another that "
    "is not (their p-values are in splits.csv); empty where parts could not be tested.",
    "typical": "Hodges and Lehmann's estimate over the medians of domains; with providers as the unit, the mean of "
    "theirs (log scale). Empty if only bounds are known.",
    "typical_low": "Lower end of its 95 % interval.",
    "typical_high": "Upper end.",
    "typical_least": "Lower bound of it.",
    "typical_most": "Upper bound.",
    "typical_unit": "`domain`, or `provider` where effects may differ more between providers (p_providers < 0.4), in "
    "this row (a noise floor's own does not count) or in another one with its reference.",
    "typical_units": "How many of them there are.",
    "p_providers": "Kruskal and Wallis's test: do the effects of providers differ?",
    "gain": "Share of domains whose median speed-up surely is at least 1.02.",
    "lose": "Share of domains whose median speed-up surely is at most 1 / 1.02.",
    **{f"{name}_low": "Lower end of its 95 % interval." for name in ("gain", "lose")},
    **{f"{name}_high": "Upper end." for name in ("gain", "lose")},
    "starved": "Pairs of two different clients of which one waited for a CPU for more than 25 % of its time.",
    "handshake": "Median speed-up of the handshake (TCP with TLS, or QUIC), where TCP and QUIC are compared, "
    "of pairs whose downloads are both ok.",
    "transfer": "Median speed-up of the time from the answer's first packet (`time_to_answer`) to the last body "
    "byte; of those whose captures have the answer.",
    "margin": "What the interval has to leave for `at_least_margin`: 1.02, or the noise floor's typical speed-up "
    "(or its inverse) if that is larger.",
    "median_low90": "Lower end of the 90 % interval of the median, which decides on `equivalent`.",
    "median_high90": "Upper end of this interval.",
    "planned_n": "Pairs by intention to treat: whatever options were on the wire, also where a side failed.",
    "planned_faster": "Share of these in which the configuration was faster, or only the reference failed.",
    "planned_faster_low": "Lower end of its 95 % interval.",
    "planned_faster_high": "Upper end of this interval.",
    "planned_slower": "Share of these in which the configuration was slower, or only it failed.",
    "planned_median": "Median speed-up of these, a failed download being slower than any other.",
    "planned_low": "Lower end of its 95 % interval.",
    "planned_high": "Upper end of this interval.",
    "planned_p": "The signed-rank test of these.",
    "failed_config_only": "Planned runs in which only the configuration failed.",
    "failed_vs_only": "Planned runs in which only the reference failed.",
    "failed_both": "Planned runs in which both failed.",
    "p_mcnemar": "McNemar's test: did one side fail on more domains than the other?",
    "differs_in": "What the two sides differ in: client, transport, HTTP version, options; empty: nothing, or unknown.",
}

LARGER_MEANINGS = {
    "clusters": "Number of clusters of the pairs, if the unit were the {name}; empty if it is unknown for some.",
    "low": "Lower end of the 95 % interval of the mean of their typical speed-ups (log scale); empty with fewer "
    "than 3, and where one has no bound.",
    "high": "Upper end of this interval.",
    "p": "The signed-rank test with the {name} as clusters.",
}
