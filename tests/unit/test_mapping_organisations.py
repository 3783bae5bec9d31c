"""AS2Org files and provider rules."""

from __future__ import annotations

import bz2
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdn_mapping import as2org
from cdn_mapping.provider_rules import SHIPPED, ProviderFile, Providers, RuleKind, read_providers
from core.domain import Provider
from core.errors import UsageError

TXT = """\
# name: AS Org
# some words
# format:org_id|changed|org_name|country|source
GOGL-ARIN|20190101|Google LLC|US|ARIN
AKAM|20190101|Akamai Technologies, Inc.|US|ARIN
ORG-X|20190101|CafÃ© SÃ£o Paulo|BR|LACNIC
# format:aut|changed|aut_name|org_id|opaque_id|source
15169|20190101|GOOGLE|GOGL-ARIN|abc_ARIN|ARIN
36384|20190101|GOOGLE-IT|GOGL-ARIN|abc_ARIN|ARIN
20940|20190101|AKAMAI-ASN1|AKAM|x_RIPE|RIPE
63949|20190101|LINODE|AKAM|x_RIPE|RIPE
99|20190101|LOST|NOBODY|x|RIPE
7|20190101|CAFE|ORG-X|x|LACNIC
"""
OLD = TXT.replace("|opaque_id", "").replace("|abc_ARIN", "").replace("|x_RIPE", "").replace("|x|", "|")


def jsonl() -> str:
    rows: list[dict[str, str]] = [
        {"type": "Organization", "organizationId": "GOGL-ARIN", "name": "Google LLC", "country": "US"},
        {"type": "Organization", "organizationId": "AKAM", "name": "Akamai Technologies, Inc.", "country": "US"},
        {"type": "Organization", "organizationId": "ORG-X", "name": "CafÃ© SÃ£o Paulo", "country": "BR"},
        {"type": "ASN", "asn": "15169", "name": "GOOGLE", "organizationId": "GOGL-ARIN"},
        {"type": "ASN", "asn": "36384", "organizationId": "GOGL-ARIN"},
        {"type": "ASN", "asn": "20940", "organizationId": "AKAM"},
        {"type": "ASN", "asn": "63949", "organizationId": "AKAM"},
        {"type": "ASN", "asn": "99", "organizationId": "NOBODY"},
        {"type": "ASN", "asn": "7", "organizationId": "ORG-X"},
    ]
    return "\n".join(json.dumps(row) for row in rows)


def test_networks_without_an_organisation_are_not_one(tmp_path: Path) -> None:
    path = tmp_path / "as2org"
    nobody = {"type": "ASN", "organizationId": ""}
    path.write_text(f"{TXT}64000|1|ONE|||ARIN\n64001|1|TWO| ||ARIN\n")
    found = as2org.read(path)
    path.write_text(f"{jsonl()}\n{json.dumps(nobody | {'asn': '64002'})}\n")
    as2org.read(path, into=found)
    assert [found.get(asn) for asn in (64000, 64001, 64002)] == [None, None, None]
    assert found.members("") == [] and found.get(99) is not None


@pytest.mark.parametrize("text", [TXT, OLD, jsonl(), "\ufeff" + TXT.replace("\n", "\r\n")])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress])
def test_all_forms_say_the_same(tmp_path: Path, text: str, pack) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "as2org"
    path.write_bytes(pack(text.encode()))
    found = as2org.read(path)
    assert found.of_asn == {
        15169: "GOGL-ARIN", 36384: "GOGL-ARIN", 20940: "AKAM", 63949: "AKAM", 99: "NOBODY", 7: "ORG-X",
    }  # fmt: skip
    assert found.get(15169) == as2org.Organisation(org_id="GOGL-ARIN", name="Google LLC", country="US")
    assert found.get(99) == as2org.Organisation(org_id="NOBODY", name=None)
    assert found.get(7).name == "Café São Paulo"  # type: ignore[union-attr]
    assert found.get(1) is None
    assert found.members("GOGL-ARIN") == [15169, 36384]


def test_latin_1_bytes(tmp_path: Path) -> None:
    path = tmp_path / "as2org"
    path.write_bytes("# format:org_id|org_name\nX|Café\n# format:aut|org_id\n7|X\n".encode("latin-1"))
    assert as2org.read(path).get(7).name == "Café"  # type: ignore[union-attr]


def test_sibling_lists_join_organisations_and_take_their_names(tmp_path: Path) -> None:
    caida, siblings = tmp_path / "caida", tmp_path / "siblings"
    caida.write_text(TXT)
    siblings.write_text(json.dumps([[20940, 7, 63949], ["500", 501], [501, 502]]))
    found = as2org.read(siblings, into=as2org.read(caida))
    assert {asn: found.of_asn[asn] for asn in (20940, 7, 63949)} == dict.fromkeys((20940, 7, 63949), "AKAM")
    assert found.members("siblings-500") == [500, 501, 502]
    assert found.get(500).name is None  # type: ignore[union-attr]


def test_a_sibling_list_takes_no_as_from_its_provider() -> None:
    """AS 99 was registered after the list was made, and 34164 is not a seed; each was found by CAIDA's file alone."""
    rules = {}
    for listed in ([], [[12222, 32787, 20940]]):
        found = as2org.Organisations()
        for asn, org_id in ((12222, "AKAMAI"), (32787, "AKAMAI"), (99, "AKAMAI"), (20940, "AT1"), (34164, "AT1")):
            found.note(asn, org_id)
        found.merge_siblings(listed)
        akamai = ProviderFile(name="akamai", title="Akamai", seed_asns=[12222, 20940, 32787])
        rules = {asn: Providers({Path("akamai.toml"): akamai}, found).rule(asn) for asn in (99, 34164)}
        assert {(rule.provider, rule.kind) for rule in rules.values()} == {("akamai", RuleKind.SIBLING)}, listed
    assert found.members("AKAMAI") == [99, 12222, 20940, 32787, 34164]


@given(st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=4), max_size=12))
def test_overlapping_groups_become_one(groups: list[list[int]]) -> None:
    found = as2org.Organisations()
    found.merge_siblings(groups)
    clusters: list[set[int]] = []
    for group in groups:
        touching = [c for c in clusters if c & set(group)]
        clusters = [c for c in clusters if not c & set(group)] + [set(group).union(*touching)]
    assert {frozenset(found.members(o)) for o in set(found.of_asn.values())} == {frozenset(c) for c in clusters}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty"),
        ("hello", "line 1 is neither a comment"),
        ("# nothing\n", "the file has no AS number"),
        ("# x\n15169|a|b\n", r"line 2: a line `# format:...` before the first record expected, 3 fields found"),
        (TXT.replace("|ARIN\nAKAM", "\nAKAM"), "line 4: 5 fields expected, 4 fields found"),
        (TXT.replace("15169|", "AS15169|"), "line 8: 'AS15169' is not a valid AS number"),
        (TXT.replace("15169|", "4294967296|"), "line 8: '4294967296' is not a valid AS number"),
        ("# format:isp|x\n1|2\n", "line 2: unknown table 'isp'"),
        (jsonl() + "\n{", "line 10 is not JSON"),
        (jsonl() + "\n[1]", "line 10 is not a record of type"),
        (jsonl() + '\n{"type":"ASN","asn":true,"organizationId":"X"}', "line 10: True is not a valid AS number"),
        ('[["a"]]', "element 1 of the list: 'a' is not a valid AS number"),
        ("[[1], 2]", "element 2 of the list is not a list"),
        ("[[1],", "this is not JSON"),
    ],
)
def test_malformed_files_give_line_and_remedy(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "as2org"
    path.write_text(text)
    with pytest.raises(UsageError, match=said) as caught:
        as2org.read(path)
    assert str(path) in caught.value.sentence()
    assert caught.value.remedy


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "as2org.gz"
    path.write_bytes(gzip.compress(TXT.encode())[:-9])
    with pytest.raises(UsageError, match=r"is truncated after line \d+; fetch it again"):
        as2org.read(path)


@given(st.binary(max_size=200))
def test_noise_is_refused(tmp_path_factory: pytest.TempPathFactory, noise: bytes) -> None:
    path = tmp_path_factory.mktemp("noise") / "as2org"
    for data in (noise, b"# format:aut|org_id\n" + noise, b"[" + noise, b'{"type":' + noise):
        path.write_bytes(data)
        try:
            as2org.read(path)
        except UsageError as error:
            assert str(path) in error.sentence()


def organisations(tmp_path: Path) -> as2org.Organisations:
    path = tmp_path / "as2org"
    path.write_text(TXT)
    return as2org.read(path)


def test_the_five_are_shipped_and_do_not_overlap(tmp_path: Path) -> None:
    files = read_providers()
    assert {p.name for p in files.values()} == {str(p) for p in Provider} - {"other"}
    rules = Providers(files, organisations(tmp_path))
    assert (rules.rule(15169).provider, rules.rule(15169).kind) == ("google", RuleKind.SEED)
    sibling = rules.rule(36384)
    assert (sibling.provider, sibling.kind) == ("google", RuleKind.SIBLING)
    assert sibling.text == "AS36384 is of the same organisation as seed AS15169: GOGL-ARIN (Google LLC)"
    assert (rules.rule(63949).provider, rules.rule(63949).kind) == ("other", RuleKind.EXCLUDED)  # Linode
    assert (rules.rule(7).provider, rules.rule(7).kind) == ("other", RuleKind.NONE)
    assert rules.rule(None).provider == "other"


def test_cnames_by_suffix_of_whole_labels() -> None:
    rules = Providers(read_providers(), as2org.Organisations())
    assert rules.by_cname(["www.a.example.edgekey.net", "e1.a.akamaiedge.net."]) == "akamai"
    assert rules.by_cname(["x.cloudfront.net", "www.other.example"]) == "amazon"
    assert rules.by_cname(["notcloudfront.net"]) is None
    assert rules.by_cname([]) is None


def write(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.toml").write_text(text)


def test_the_longest_suffix_of_a_cname_decides(tmp_path: Path) -> None:
    """The first file by name did, so that a part of a provider's names could be given to no other."""
    write(tmp_path, "amazon", 'name = "amazon"\ntitle = "A"\nseed_asns = [7]\ncname_suffixes = ["amazonaws.com"]\n')
    write(tmp_path, "s3", 'name = "s3"\ntitle = "S"\nseed_asns = [8]\ncname_suffixes = ["s3.amazonaws.com"]\n')
    rules = Providers(read_providers(tmp_path), as2org.Organisations())
    assert rules.by_cname(["b.s3.amazonaws.com"]) == "s3" and rules.by_cname(["e.elb.amazonaws.com"]) == "amazon"
    assert rules.by_cname(["b.s3.amazonaws.com", "e.elb.amazonaws.com"]) == "amazon", "the last name comes first"


def test_a_folder_of_the_users_own(tmp_path: Path) -> None:
    suffixes = 'cname_suffixes = [".Fastly.net", "fastlylb.net."]\n'
    write(tmp_path, "fastly", f'name = "fastly"\ntitle = "Fastly"\nseed_asns = [7]\nsiblings = false\n{suffixes}')
    rules = Providers(read_providers(tmp_path), organisations(tmp_path))
    assert rules.rule(7).provider == "fastly"
    names = ("x.fastly.net", "fastly.net", "X.fastlylb.net.", "notfastly.net", "fastly.net.example")
    assert [rules.by_cname([name]) for name in names] == ["fastly", "fastly", "fastly", None, None]
    assert rules.rule(15169).provider == "other"


def test_two_providers_cannot_claim_one_as(tmp_path: Path) -> None:
    write(tmp_path, "a", 'name = "a"\ntitle = "A"\nseed_asns = [15169]\n')
    write(tmp_path, "b", 'name = "b"\ntitle = "B"\nseed_asns = [36384]\n')
    with pytest.raises(UsageError, match=r"AS36384 is claimed by b .*b.toml.*exclude_asns"):
        Providers(read_providers(tmp_path), organisations(tmp_path))
    write(tmp_path, "a", 'name = "a"\ntitle = "A"\nseed_asns = [15169]\nexclude_organisations = ["GOGL-ARIN"]\n')
    write(tmp_path, "b", 'name = "b"\ntitle = "B"\nseed_asns = [36384]\nsiblings = false\n')
    assert Providers(read_providers(tmp_path), organisations(tmp_path)).rule(15169).provider == "a"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = \ntitle = 1", "not valid TOML .*line 1"),
        ('title = "A"\nseed_asns = [1]', "field name: it is missing"),
        ('name = "a"\ntitle = "A"\nseed_asns = [1]\nseed = 1', "field seed: unknown field"),
        ('name = "a"\ntitle = "A"\nseed_asns = ["x"]', "field seed_asns.0: "),
        ('name = "a"\ntitle = "A"\nseed_asns = []', r"field seed_asns: \[\] is not valid"),
        ('name = "a"\ntitle = "A"\nseed_asns = [0]', "field seed_asns: 0 is not valid"),
        ('name = "A b"\ntitle = "A"\nseed_asns = [1]', "field name: 'A b' is not valid"),
        ('name = "other"\ntitle = "A"\nseed_asns = [1]', "field name: 'other' is not valid"),
        ('name = "a"\ntitle = "A"\nseed_asns = [1]\ncname_suffixes = ["."]', "field cname_suffixes"),
    ],
)
def test_malformed_provider_files_name_the_field(tmp_path: Path, text: str, said: str) -> None:
    write(tmp_path, "a", text)
    with pytest.raises(UsageError, match=said) as caught:
        read_providers(tmp_path)
    assert str(tmp_path / "a.toml") in caught.value.sentence()


def test_folders_without_providers(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="folder not found"):
        read_providers(tmp_path / "none")
    with pytest.raises(UsageError, match=r"has no \*.toml file"):
        read_providers(tmp_path)
    write(tmp_path, "a", 'name = "a"\ntitle = "A"\nseed_asns = [1]\n')
    write(tmp_path, "b", 'name = "a"\ntitle = "A"\nseed_asns = [2]\n')
    with pytest.raises(UsageError, match=r"'a' is also the name in .*a.toml"):
        read_providers(tmp_path)
    assert SHIPPED.is_dir()
