"""Campaign files and target lists: what is accepted, and the one sentence for each fault."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme
from hypothesis import given, settings
from hypothesis import strategies as st

import upshift.campaign
from core.domain import Target
from core.errors import PlaceError, UsageError
from core.files import store
from core.files.disk import folder_lock
from core.paper import CONFIGURATIONS as PAPER
from core.system import this_host
from core.terminal import show_progress
from downloader import clients, factors
from downloader.campaign.campaign import Campaign, from_document, load
from downloader.campaign.plan import plan_hash
from downloader.campaign.targets import check_trust, describe_trust, load_targets, trusted
from downloader.execution.engine import Session
from downloader.execution.journal import Journal, _agree, as_recorded
from tests.cells import examples
from upshift.campaign import run_file
from upshift.demo import campaign_text
from upshift.run_options import RunOptions

REPOSITORY = Path(__file__).resolve().parents[2]

GOOD: dict[str, Any] = {"name": "c", "lab": "anrw", "targets": "lab"}


def campaign(**changes: Any) -> Campaign:
    return from_document({**GOOD, **changes}, Path("c.toml"))


def test_the_paper_is_the_default() -> None:
    assert campaign() == campaign(configurations="paper", permute=None)
    assert [c.name for c in campaign().configurations] == ["BL", "BL2", "ECN", "SACK", "WS", "ALL", "aioquic", "quiche"]
    levels = {c.name: dict(c.levels) for c in PAPER}
    assert levels["WS"] == {"ecn": "off", "sack": "off", "window_scaling": "14"}
    assert levels["ALL"] == {"ecn": "on", "sack": "on", "window_scaling": "14"}
    assert levels["BL"] == levels["BL2"] and levels["quiche"] == {}


@pytest.mark.parametrize("name", ["anrw", "small"])
def test_the_examples_load(name: str) -> None:
    assert load(REPOSITORY / "examples" / f"{name}.toml").name == name


def test_the_example_for_real_servers_loads_once_somebody_can_be_reached(tmp_path: Path) -> None:
    example = REPOSITORY / "examples/internet.toml"
    with pytest.raises(UsageError, match=r"field contact: 'you@example.org' is an example address; write"):
        load(example)
    own = tmp_path / "internet.toml"
    own.write_text(example.read_text().replace("you@example.org", "net@uni.edu"))
    assert load(own).name == "internet"


@pytest.mark.parametrize(
    ("contact", "accepted"),
    [
        ("mailto:me@Example.com", False),
        ("https://www.example.net/me", False),
        ("<a@b.example>", False),
        ("x", False),
        ("me@uni", False),
        ("Me <me@uni.edu>", True),
        ("https://uni.edu/example.org", True),
        ("me@myexample.org", True),
        ("me@example.org.uk", True),
    ],
)
def test_an_example_is_not_a_contact(contact: str, accepted: bool) -> None:
    document = {"name": "c", "targets": "t.csv", "contact": contact}
    if accepted:
        assert contact in from_document(document, Path("c.toml")).user_agent
        assert campaign(contact="me@example.org").lab == "anrw"  # nobody has to be reached in a lab
        return
    with pytest.raises(UsageError, match=r"is an example address|is neither a mail address nor"):
        from_document(document, Path("c.toml"))


def test_a_topology_is_looked_for_beside_the_campaign_file() -> None:
    def topology(lab: str, path: str) -> str | None:
        return from_document({"name": "c", "lab": lab, "targets": "lab"}, Path(path)).topology

    assert topology("x.toml", "some/where/c.toml") == "some/where/x.toml"
    assert topology("./x", "some/where/c.toml") == "some/where/x"
    assert topology("/abs/x.toml", "some/where/c.toml") == "/abs/x.toml"
    assert topology("anrw", "some/where/c.toml") == "anrw"


def test_a_path_of_a_demos_topology_is_that_of_the_present_folder(tmp_path: Path) -> None:
    for topology, lab in (("./small.toml", Path("small.toml").absolute()), ("small", "small")):
        (tmp_path / "demo.toml").write_text(campaign_text(topology))
        assert load(tmp_path / "demo.toml").topology == str(lab)


def test_run_reads_the_topology_beside_the_campaign_file(tmp_path: Path) -> None:
    """Wherever the command is given; the fault names the file that was looked for."""
    (tmp_path / "c.toml").write_text('name = "c"\nlab = "x.toml"\ntargets = "lab"\n')
    with show_progress() as progress, pytest.raises(UsageError, match=rf"field lab: {tmp_path}/x.toml: file not found"):
        run_file(tmp_path / "c.toml", tmp_path / "out", progress=progress)
    (tmp_path / "x.toml").write_text('name = "x"\n')
    with show_progress() as progress, pytest.raises(UsageError, match=rf"field lab: {tmp_path}/x.toml: field \w+: "):
        run_file(tmp_path / "c.toml", tmp_path / "out", progress=progress)
    assert not (tmp_path / "out").exists()
    assert campaign().description() == campaign().description() | {"lab": "anrw"}


def test_a_vantage_point_that_the_command_line_names_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('name = "c"\nlab = "small"\ntargets = "lab"\nbudgets = { domain = 1 }\n')
    options = RunOptions(vantage=["MUC", "MUC"])
    with show_progress() as progress, pytest.raises(UsageError, match=r"vantage_points: .* named twice"):
        run_file(tmp_path / "c.toml", tmp_path / "out", options, progress=progress)


def test_the_order_of_vantage_points_is_not_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder was refused as that of another plan, though all its measurement runs are the same."""
    path, out, digests = tmp_path / "c.toml", tmp_path / "out", []
    path.write_text('name = "c"\nlab = "anrw"\ntargets = "lab"\npermute = ["ecn"]\n')

    def run(session: Session, *_: object, **__: object) -> None:
        plan = session.plan
        digests.append(plan.digest)
        for name in plan.vantage_points:
            meta = {"campaign": json.dumps(as_recorded(plan))}
            Journal.open(out / "vantage" / name, plan.runs(name), plan_hash=plan.digest, meta=meta).close()

    monkeypatch.setattr(upshift.campaign, "_run", run)
    with show_progress() as progress:
        for names in (["SFO", "MUC"], ["MUC", "SFO"]):
            run_file(path, out, RunOptions(vantage=names), progress=progress)
        with pytest.raises(UsageError, match=r"results of other vantage points \(SFO\)"):
            run_file(path, out, RunOptions(vantage=["MUC"]), progress=progress)
        with pytest.raises(UsageError, match="another plan; changed since: vantage_points"):
            run_file(path, out, RunOptions(vantage=["MUC", "SFO", "SGP"]), progress=progress)
    assert len(digests) == 2 and len(set(digests)) == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nobody-of-that-name", "there is no user 'nobody-of-that-name'"),
        ("root", "root is root, whose rights no client"),
    ],
)
def test_a_client_user_has_to_be_an_ordinary_one(name: str, says: str, tmp_path: Path) -> None:
    with show_progress() as progress, pytest.raises(UsageError, match=rf"^--client-user: {says}.*; name an ordinary"):
        run_file(tmp_path / "c.toml", tmp_path / "out", RunOptions(client_user=name), progress=progress)
    assert not (tmp_path / "out").exists()


def test_several_processes_in_one_folder_are_refused_before_a_lab_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `--here`: each needs a folder of its own."""
    path, out = tmp_path / "c.toml", tmp_path / "out"
    path.write_text('name = "c"\nlab = "small"\ntargets = "lab"\n')
    monkeypatch.setenv("UPSHIFT_STATE_DIR", str(tmp_path / "state"))
    with folder_lock(out), show_progress() as progress, pytest.raises(PlaceError) as found:
        run_file(path, out, progress=progress)
    said = f"{out}: another upshift run is working in this folder; wait for it, or use another --out"
    assert (found.value.sentence(), found.value.exit_code) == (said, 75)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("out", ["file", "file/x", "file/x/y"])
def test_a_folder_that_cannot_be_is_refused_before_a_lab_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    path = tmp_path / "c.toml"
    path.write_text('name = "c"\nlab = "small"\ntargets = "lab"\n')
    (tmp_path / "file").touch()
    monkeypatch.setenv("UPSHIFT_STATE_DIR", str(tmp_path / "state"))
    with show_progress() as progress, pytest.raises(UsageError, match=r"written here \(Not a directory\); use another"):
        run_file(path, tmp_path / out, progress=progress)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing.pem", r"missing\.pem cannot be read \(No such file or directory\)"),
        ("folder", r"folder cannot be read \(Is a directory\)"),
        ("text.pem", r"text\.pem is not a PEM file with certificates"),
        ("torn.pem", r"torn\.pem is not a PEM file with certificates"),
    ],
)
def test_a_bundle_that_cannot_be_trusted_is_one_sentence(tmp_path: Path, name: str, said: str) -> None:
    """A relative path starts at the campaign file; nothing is written and no lab brought up before it is read."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.pem").write_text("nothing")
    (tmp_path / "torn.pem").write_bytes(trustme.CA().cert_pem.bytes()[:300])
    path = tmp_path / "c.toml"
    path.write_text(f'name = "c"\nlab = "small"\ntargets = "lab"\nca_file = "{name}"\n')
    with show_progress() as progress, pytest.raises(UsageError) as found:
        run_file(path, tmp_path / "out", progress=progress)
    where = re.escape(str(path))
    assert re.fullmatch(rf"{where}: field ca_file: .*{said}; name a PEM file of CA certificates", str(found.value))
    assert found.value.exit_code == 2 and not (tmp_path / "out").exists()


def test_whom_clients_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The campaign's bundle, else the place's, else the system's."""
    trustme.CA().cert_pem.write_to_path(tmp_path / "own.pem")
    path, place = tmp_path / "c.toml", SimpleNamespace(ca_file=Path("/lab/ca.pem"))
    named = from_document({**GOOD, "ca_file": "own.pem"}, path)
    check_trust(named)
    assert trusted(named, place) == tmp_path / "own.pem"
    assert trusted(from_document(GOOD, path), place) == Path("/lab/ca.pem")
    assert describe_trust(tmp_path / "own.pem")["certificates"] == 1
    monkeypatch.setattr(this_host, "SYSTEM_BUNDLES", (str(tmp_path / "none.pem"), str(tmp_path / "own.pem")))
    host = from_document({"name": "c", "targets": "t.csv", "contact": "a@uni.edu", "vantage_points": ["A"]}, path)
    assert trusted(host, SimpleNamespace(ca_file=None)) == tmp_path / "own.pem"
    monkeypatch.setattr(this_host, "SYSTEM_BUNDLES", ())
    monkeypatch.setattr(this_host.ssl, "get_default_verify_paths", lambda: SimpleNamespace(cafile=None))
    with pytest.raises(UsageError, match=r"field ca_file: this host has no bundle of CA certificates; install"):
        check_trust(host)


def test_permutations() -> None:
    found = campaign(permute=["ecn", "sack", "window_scaling"])
    assert sorted(c.name for c in found.configurations) == sorted(
        ["BL", "BL2", "ECN", "SACK", "WS", "ECN+SACK", "ECN+WS", "SACK+WS", "ALL"]
    )
    assert len({tuple(sorted(c.levels.items())) for c in found.configurations}) == 8
    assert found.configuration("BL2").levels == found.configuration("BL").levels
    with_timestamps = campaign(permute=["sack", "timestamps"])
    assert [c.name for c in with_timestamps.configurations] == ["TS-off", "BL", "BL2", "SACK+TS-off", "SACK"]
    both = campaign(permute=["ecn"], configurations=[{"name": "q", "client": "quiche", "options": {"max_data": 9}}])
    assert [c.name for c in both.configurations] == ["BL", "BL2", "ECN", "q"]
    assert both.configurations[3].options == {"max_data": 9}
    own = campaign(permute=["ecn"], configurations=[{"name": "BL2", "client": "aioquic"}])
    assert [(c.name, c.client) for c in own.configurations][-1] == ("BL2", "aioquic")
    assert len(own.configurations) == 3


def test_levels_may_be_toml_values() -> None:
    levels = {"ecn": True, "sack": False, "window_scaling": 4, "rmem": "65536/9000000"}
    with pytest.raises(UsageError, match=re.escape("rmem and window_scaling want different values")):
        campaign(configurations=[{"name": "x", "client": "requests", "levels": levels}])
    del levels["rmem"]
    [found] = campaign(configurations=[{"name": "x", "client": "requests", "levels": levels}]).configurations
    assert found.levels == {"ecn": "on", "sack": "off", "window_scaling": "4"}


def entry(**changes: Any) -> dict[str, Any]:
    return {"configurations": [{"name": "x", "client": "requests", **changes}]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nam": 1}, "field nam: unknown field"),
        ({"configuration": "paper"}, "field configuration: unknown field; did you mean configurations?"),
        ({"premute": ["ecn"]}, "field premute: unknown field; did you mean permute?"),
        ({"name": None}, "field name: input should be a valid string"),
        ({"name": "../x"}, "field name: '../x' is not a valid name"),
        ({"vantage_points": ["a/b"]}, "field vantage_points: 'a/b' is not a valid name"),
        ({"vantage_points": ["a", "a"]}, "field vantage_points: a vantage point is named twice"),
        ({"iterations": 0}, "field iterations: it must be greater than 0"),
        ({"iterations": "two"}, "field iterations: input should be a valid integer"),
        ({"iterations": 100_001}, "field iterations: 100001 is above 100000, the limit; lower it"),
        ({"max_bytes": 2**63 - 1}, f"field max_bytes: {2**63 - 1} is above {10**15}, the limit; lower it"),
        ({"order": "random"}, "field order: input should be 'balanced' or 'published'"),
        ({"isolation": "docker"}, "field isolation: input should be 'netns' or 'host'"),
        ({"budget": "long"}, "field budget: it is neither auto nor a number"),
        ({"budget": 0}, "field budget: it is neither auto nor a number"),
        ({"budget": True}, "field budget: it is neither auto nor a number"),
        ({"slowest_mbit": float("nan")}, "field slowest_mbit: it must be greater than 0"),
        ({"nameservers": ["dns.example"]}, "field nameservers: 'dns.example' is not an IP address"),
        ({"allowed_prefixes": []}, "field allowed_prefixes: it allows nothing; name what may be contacted"),
        ({"allowed_prefixes": [" "]}, "field allowed_prefixes: it allows nothing"),
        ({"comparisons": ["BL"]}, "comparisons[0]: it is not a table"),
        ({"allowed_prefixes": ["10/8/8"]}, "'10/8/8' is not an IP prefix"),
        ({"lab": None, "targets": "t.csv"}, "field contact: required when real servers are measured"),
        ({"lab": None, "contact": "a@uni.edu"}, "field targets: this campaign has no lab"),
        ({"configurations": "all"}, "field configurations: unknown preset 'all'; use one of: "),
        ({"configurations": ["BL"]}, "field configurations: 'BL' is not a [[configurations]] table; write one of 'htt"),
        ({"configurations": []}, "field configurations: it names no configuration"),
        ({"permute": "ecn"}, "field permute: not a list of factors"),
        ({"permute": ["ecn", "ecn"]}, "field permute: a factor is named twice"),
        ({"permute": ["sak"]}, "field permute: unknown factor 'sak'; did you mean sack? use one of: ecn"),
        (entry(client="wget"), f"configurations[0]: unknown client 'wget'; use one of: {', '.join(clients.ALL)}"),
        (entry(levels={"ecn": "maybe"}), "configurations[0]: ecn has no level 'maybe'; accepted are: off, on"),
        (entry(levels={"window_scaling": 15}), "window_scaling has no level '15'; accepted are: off, 0 to 14"),
        (entry(levels={"frog": "on"}), "configurations[0]: unknown factor 'frog'"),
        (entry(level={}), "configurations[0]: field level: unknown field"),
        (entry(name="warmup"), "configurations[0]: field name: 'warmup' is not a valid name"),
        (entry(name="warmup-quic"), "configurations[0]: field name: 'warmup-quic' is not a valid name"),
        (entry(client="quiche", levels={"ecn": "on"}), "quiche does not use TCP, so ecn would change nothing"),
        (
            entry(client="curl-h3", options={"max_data": 5}),
            "no option 'max_data': its windows are fixed; use one of: rec",
        ),
        (entry(client="quiche", options={"max_data": "big"}), "option max_data is not a whole number"),
        (entry(options={"max_data": 5}), "the client requests has no option 'max_data'; leave it out"),
        ({"permute": ["ecn"], **entry(name="BL")}, "field configurations: there are two named BL"),
    ],
)
def test_one_sentence_per_fault(changes: dict[str, Any], said: str) -> None:
    document = {key: value for key, value in {**GOOD, **changes}.items() if value is not None or key == "name"}
    with pytest.raises(UsageError) as caught:
        from_document(document, Path("c.toml"))
    sentence = caught.value.sentence()
    assert sentence.startswith("c.toml") and said in sentence and "\n" not in sentence


@settings(max_examples=examples(40))
@given(
    st.dictionaries(
        st.sampled_from([*(f.name for f in dataclasses.fields(Campaign)), "permute", "budget", "contact"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text() | st.integers()),
    )
)
def test_no_file_makes_a_traceback(document: dict[str, Any]) -> None:
    try:
        from_document({**GOOD, **document}, Path("c.toml"))
    except UsageError as error:
        assert "\n" not in error.sentence()


def test_what_the_command_line_replaces_is_checked() -> None:
    with pytest.raises(UsageError, match="'random' is not a valid order; write balanced or published"):
        dataclasses.replace(campaign(), order="random")
    with pytest.raises(UsageError, match="is not a valid name"):
        dataclasses.replace(campaign(), vantage_points=("../x",))


def test_budget() -> None:
    def target(size: int | None, *, bound: bool = False) -> Target:
        return Target(domain="a", url="https://a/", size_bytes=size, size_is_lower_bound=bound)

    assert campaign(budget=7).budget_for(target(10**6)) == 7.0
    # BL over 200 ms: 65,535 bytes per round trip, 2.6 Mbit/s; a 2 MB file takes 6.9 s with its handshakes.
    assert campaign().budget_for(target(2_000_000)) == 22.0
    assert campaign().budget_for(target(None)) == campaign().budget_for(target(1_000_000, bound=True)) == 166.0
    assert campaign(max_bytes=1000).budget_for(target(None)) < 7


def test_everything_is_part_of_the_plan() -> None:
    targets = [Target(domain="a.example", url="https://a.example/")]
    base = plan_hash(campaign(), targets, ["A"])
    assert base == plan_hash(campaign(), targets, ["A"])
    for changed in ({"seed": 9}, {"order": "published"}, {"budget": 9}, {"max_bytes": 9}):
        assert plan_hash(campaign(**changed), targets, ["A"]) != base
    assert plan_hash(campaign(**entry()), targets, ["A"]) != base
    assert plan_hash(campaign(), targets, ["B"]) != base
    assert plan_hash(campaign(), [*targets, *targets], ["A"]) != base


def test_what_upshift_learns_later_leaves_the_hash_of_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new factor with its default, and defaults that are written out; another level or another default do not."""
    targets = [Target(domain="a.example", url="https://a.example/")]
    one = {"name": "X", "client": "requests"}

    def of(**levels: str) -> str:
        return plan_hash(campaign(configurations=[{**one, "levels": levels}]), targets, ["A"])

    base, recorded = of(), json.loads(json.dumps(campaign().description()))
    assert of(ecn="off", timestamps="on") == base != of(ecn="on")
    rack = dataclasses.replace(factors.ALL["sack"], name="rack", label="RACK")
    monkeypatch.setitem(factors.ALL._variants, "rack", rack)
    assert of() == of(rack="off") == base != of(rack="on")
    assert _agree(recorded, json.loads(json.dumps(campaign().description())))
    monkeypatch.setitem(factors.ALL._variants, "ecn", dataclasses.replace(factors.ALL["ecn"], default="on"))
    assert not _agree(recorded, json.loads(json.dumps(campaign().description()))), "a default has changed"


def csv_targets(tmp_path: Path, text: str) -> list[Target]:
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    chosen = from_document({"name": "c", "targets": "t.csv", "contact": "a@uni.edu"}, tmp_path / "c.toml")
    return load_targets(chosen)


HEAD = "domain,url,provider,size_bytes\n"


def test_target_lists(tmp_path: Path) -> None:
    [found] = csv_targets(tmp_path, HEAD + "A.example,https://a.example/x?y=1,Google,1000000\n")
    assert (found.domain, found.provider, found.size_bytes) == ("a.example", "google", 1_000_000)
    store.write_rows(tmp_path / "t.parquet", "targets", [found])
    chosen = from_document({"name": "c", "targets": "t.parquet", "contact": "a@uni.edu"}, tmp_path / "c.toml")
    assert load_targets(chosen) == [found]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: the column domain is missing"),
        ("domain,url,provider,size_byte\n", "line 1: unknown column 'size_byte'; write size_bytes"),
        (HEAD, "no targets; add at least one row"),
        (HEAD + "a.example,https://a.example/,google\n", "line 2: the row has another number of columns"),
        (HEAD + "a.example,https://a.example/,google,1,2\n", "line 2: the row has another number of columns"),
        (HEAD + "a.example,http://a.example/,google,\n", "line 2: the URL is not https"),
        (HEAD + "a.example,https://a.example:99999/,google,\n", "line 2: Port out of range"),
        (HEAD + "a.example,https://a.example/ä,google,\n", "line 2: the URL has characters that must be"),
        (HEAD + "\x1b[31m,https://a.example/,google,\n", "line 2: the domain is empty, too long, or has control"),
        (HEAD + "a.example,https://a.example/,google,big\n", "line 2: size_bytes 'big' is not a whole number"),
        (HEAD + 2 * "a.example,https://a.example/,google,1\n", "line 3: this target (a.example) is listed twice"),
        (HEAD + '"a.example,https://a.example/,google,1\n', "line 2: unexpected end of data"),
    ],
)
def test_broken_lists(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        csv_targets(tmp_path, text)
    sentence = caught.value.sentence()
    assert said in sentence and "t.csv" in sentence and "\x1b" not in sentence


def test_missing_lists(tmp_path: Path) -> None:
    for name in ("none.csv", "none.parquet", "none.txt"):
        chosen = from_document({"name": "c", "targets": name, "contact": "a@uni.edu"}, tmp_path / "c.toml")
        with pytest.raises(UsageError):
            load_targets(chosen)


@given(st.text())
def test_no_list_makes_a_traceback(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    try:
        csv_targets(tmp_path_factory.mktemp("lists"), HEAD + text)
    except UsageError as error:
        assert error.sentence().isprintable()
