"""Bad input, through the command line as a user sees it.

Proven for each: exit code 2 (75 where the host is at fault), exactly one sentence on standard error that names what,
where and the remedy, no traceback, nothing written. And what happens when two runs want one folder or one vantage
point, when tcpdump is missing, when namespaces are not allowed, when a port of a lab node is taken, and when --out
cannot be written.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cells import Repeats, cells
from tests.lab import _fault_world as campaigns
from tests.lab.noise import skip_if_void
from tests.topologies import server, topology

pytestmark = pytest.mark.lab


as_root = pytest.mark.usefixtures("root")

HEAD = 'name = "c"\nlab = "small"\ntargets = "lab"\n'
ONE = '[[configurations]]\nname = "X"\n'
CSV = 'name = "c"\nlab = "LAB"\ntargets = "t.csv"\n'
GOOD_ROW = "domain,url,provider\na.example,https://a.example/x,other\n"

# Sentences that only `make soak` looks for here are in tests/unit/test_downloader_campaign.py and test_targets.py, too.
FILES: dict[str, tuple[str, str]] = {
    "unknown factor": (
        HEAD + ONE + 'client = "requests"\nlevels = { pacing = "on" }\n',
        r"c\.toml: configurations\[0\]: unknown factor 'pacing'; use one of: ecn, .*window_scaling",
    ),
    "unknown factor to permute": (
        HEAD + 'permute = ["ecn", "pacing"]\n',
        r"c\.toml: field permute: unknown factor 'pacing'; use one of: ecn, ",
    ),
    "unknown level": (
        HEAD + ONE + 'client = "requests"\nlevels = { ecn = "perhaps" }\n',
        r"c\.toml: configurations\[0\]: ecn has no level 'perhaps'; accepted are: off, on",
    ),
    "unknown client": (
        HEAD + ONE + 'client = "wget"\n',
        r"c\.toml: configurations\[0\]: unknown client 'wget'; use one of: aioquic, ",
    ),
    "wrong field": (
        HEAD + "iteration = 3\n",
        r"c\.toml: field iteration: unknown field; did you mean iterations\?",
    ),
    "wrong type": (HEAD + 'iterations = "many"\n', r"c\.toml: field iterations: .*valid integer.*; fix that field"),
    "syntax error": (
        HEAD + "iterations = = 3\n",
        r"c\.toml: this is not valid TOML \(.*line 4, column 14.*\); fix that line",
    ),
    "unknown lab": (
        'name = "c"\nlab = "tiny"\ntargets = "lab"\n',
        r"c\.toml: field lab: unknown topology 'tiny'; use one of: anrw, cdn-iw, small, studies; or the path",
    ),
    "missing topology": (
        'name = "c"\nlab = "./none.toml"\ntargets = "lab"\n',
        r"c\.toml: field lab: .*none\.toml: file not found; check the path",
    ),
    "missing targets": (CSV, r"t\.csv: file not found; check the path"),
    "unknown vantage point": (
        'name = "c"\nlab = "LAB"\ntargets = "lab"\nvantage_points = ["MOON"]\n',
        r"c\.toml: the lab tiny has no vantage point 'MOON'; use one of: V",
    ),
    "nobody to reach": (
        'name = "c"\ntargets = "t.csv"\nvantage_points = ["here"]\n',
        r"c\.toml: field contact: .*; write an e-mail address",
    ),
    "budget below a run": (
        HEAD + 'configurations = "paper"\nbudgets = { domain = "1 MB" }\n',
        r"c\.toml: field budgets\.domain: there are 1 MB a day for .* one measurement run of .* needs .*; raise it, or",
    ),
    "limit below a run": (
        HEAD + 'configurations = "paper"\ndisk = { limit = "2 MB" }\n',
        r"c\.toml: field disk\.limit: a limit of 2 MB has no room for one measurement run of .*; raise it",
    ),
}

TABLES = {
    "http": (GOOD_ROW + "b.example,http://b.example/x,other\n", r"t\.csv, line 3: the URL is not https://HOST"),
    "columns": (GOOD_ROW + "b.example,https://b.example/x\n", r"t\.csv, line 3: .*number of columns.*; quote values"),
    "header": ("domain,uri,provider\na.example,https://a/,x\n", r"t\.csv, line 1: the column url is missing; name the"),
    "quote": (GOOD_ROW + 'b.example,"https://b.example/x,other\n', r"t\.csv, line 3: .*; correct that line"),
    "twice": (GOOD_ROW + "a.example,https://a.example/x,other\n", r"t\.csv, line 3: this target .*twice; correct or"),
    "user information": (GOOD_ROW + "b.example,https://me:pw@b.example/x,other\n", r"line 3: the URL has user informa"),
    "port 0": (GOOD_ROW + "b.example,https://b.example:0/x,other\n", r"t\.csv, line 3: the URL has port 0; correct"),
    "final dot": (GOOD_ROW + "b.example,https://b.example./x,other\n", r"line 3: the host of the URL ends in a dot"),
    "empty": ("domain,url,provider\n", r"t\.csv: no targets; add at least one row"),
    "no text": ("\0\ufffe\n", r"t\.csv, line 1: the column domain is missing; name the"),
}


@pytest.fixture(scope="module")
def world(lab_host: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    made = campaigns.World(tmp_path_factory.mktemp("input"))
    servers = [server("s1", "www.one.example"), server("s2", "www.two.example")]
    made.write("tiny.toml", topology("tiny", *servers, seed=3))
    yield made
    made.clean()


@pytest.fixture
def out(world: Any) -> Iterator[Path]:
    """A name for results; whoever is refused makes nothing there."""
    path = world.folder / "refused"
    yield path
    assert not path.exists(), "something was written"
    left = sorted(p.name for p in world.folder.iterdir() if p.name not in {"c.toml", "t.csv", "tiny.toml", "bin"})
    assert not left, left
    assert not list((world.state / "s").rglob("*")), "a lab, the lock of one, or their folder is left"
    assert not world.processes()


@cells(
    "fault",
    every=FILES,
    quick=[
        *("unknown factor", "wrong field", "missing topology", "missing targets", "unknown vantage point"),
        *("nobody to reach", "budget below a run", "limit below a run"),
    ],
)
def test_a_broken_campaign_file(world: Any, out: Path, fault: str) -> None:
    text, said = FILES[fault]
    world.write("c.toml", text.replace("LAB", str(world.folder / "tiny.toml")))
    done = world.within("run", "c.toml", "--out", out)
    assert re.search(said, done.sentence()), done.stderr
    assert done.stderr.count("\n") == 1, "told before a lab is built"


@cells("fault", every=TABLES, quick=["columns", "no text"])
def test_a_broken_target_list(world: Any, out: Path, fault: str) -> None:
    text, said = TABLES[fault]
    world.write("c.toml", CSV.replace("LAB", str(world.folder / "tiny.toml")))
    table = world.write("t.csv", text)
    try:
        done = world.within("run", "c.toml", "--out", out)
    finally:
        table.unlink()
    assert re.search(said, done.sentence()), done.stderr
    assert done.stderr.count("\n") == 1, "told before a lab is built"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none.toml"], r"none\.toml: file not found; check the path"),
        (["."], r"\.: this is a folder, not a file; name the file in it"),
        (["c.toml", "--vantage", "MOON"], r"c\.toml: the lab tiny has no vantage point 'MOON'; use one of: V"),
        (["c.toml", "--order", "random"], r"c\.toml: 'random' is not a valid order; write balanced or published"),
        (["c.toml", "--isolation", "jail"], r"c\.toml: 'jail' is not a valid isolation; write netns or host"),
    ],
)
def test_wrong_arguments(world: Any, out: Path, arguments: list[str], said: str) -> None:
    world.campaign(world.folder / "tiny.toml")
    sentence = world.within("run", *arguments, "--out", out).sentence()
    assert re.search(said, sentence), sentence


def test_an_out_that_cannot_be_written(world: Any, out: Path) -> None:
    world.campaign(world.folder / "tiny.toml")
    before = (world.folder / "c.toml").read_bytes()
    for where in ("c.toml", "/proc/out"):
        sentence = world.within("run", "c.toml", "--out", where).sentence()
        assert where in sentence and "; use another --out" in sentence, sentence
    assert (world.folder / "c.toml").read_bytes() == before


@as_root
def test_a_missing_tcpdump(world: Any, out: Path) -> None:
    """In a mount namespace where every tcpdump is covered by a file that nobody can execute."""
    world.campaign(world.folder / "tiny.toml")
    path = os.environ["PATH"] + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin"
    programs = {str(Path(folder) / "tcpdump") for folder in path.split(":") if (Path(folder) / "tcpdump").is_file()}
    assert programs
    hide = "; ".join(f"mount --bind /dev/null {program}" for program in sorted(programs))
    prefix = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", f'{hide}; exec "$@"', "sh"]
    sentence = world.upshift("run", "c.toml", "--out", out, prefix=prefix).sentence(code=75)
    assert "the program tcpdump is missing; install it" in sentence and "apt-get install tcpdump" in sentence


DENIED = """
# One user namespace below this one is allowed, and is used up by becoming an ordinary user (user_namespaces(7)).
echo 1 > /proc/sys/user/max_user_namespaces
exec unshare --user --map-user=54321 --map-group=54321 -- "$@"
"""


@as_root
@pytest.mark.parametrize("who", ["an ordinary user", "root without capabilities"])
def test_no_permission_for_namespaces(world: Any, out: Path, who: str) -> None:
    world.campaign(world.folder / "tiny.toml")
    prefix = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"]
    if who == "an ordinary user":
        prefix = ["unshare", "--user", "--map-root-user", "--", "sh", "-ec", DENIED, "sh"]
    before = Path("/proc/sys/user/max_user_namespaces").read_text()
    sentence = world.upshift("run", "c.toml", "--out", out, prefix=prefix).sentence(code=75)
    assert "no permission to create namespaces (" in sentence and "run as root, or allow user" in sentence
    assert Path("/proc/sys/user/max_user_namespaces").read_text() == before


TAKER = """#!/bin/sh
# Stands before caddy on PATH: takes the port first.
exec PYTHON -I -S -c "
import os, socket, sys, time
s = socket.socket(socket.AF_INET6)
s.bind(('::', 443))
if os.fork():
    os.execv('CADDY', ['caddy', *sys.argv[1:]])
time.sleep(60)
" "$@"
"""


def test_a_taken_port(world: Any, out: Path) -> None:
    world.campaign(world.folder / "tiny.toml")
    caddy = shutil.which("caddy")
    assert caddy is not None
    (world.folder / "bin").mkdir()
    wrapper = world.write("bin/caddy", TAKER.replace("PYTHON", shlex.quote(sys.executable)).replace("CADDY", caddy))
    wrapper.chmod(0o755)
    env = {**world.environment, "PATH": f"{world.folder}/bin:{os.environ['PATH']}"}
    sentence = world.upshift("run", "c.toml", "--out", out, env=env).sentence(code=75)
    assert re.search(r"the lab's s[12] ended with code 1; .*address already in use", sentence), sentence
    assert sentence.endswith("another program on that node uses the port; run: upshift lab down")


def test_a_changed_plan_and_two_runs_at_once(world: Any, repeats: Repeats) -> None:
    """Others that want the folder or the vantage point of a run are refused, and it is not disturbed."""
    lab = world.folder / "tiny.toml"
    iterations = repeats(quick=4, soak=12)
    file = world.campaign(lab, more=f"iterations = {iterations}")
    first = world.start("run", file, "--out", "first", "--json")
    try:
        claim = world.state / "s" / "lab" / "tiny" / "V.claim"
        journal = world.folder / "first" / "vantage" / "V" / "journal.sqlite"
        assert campaigns.wait_until(lambda: claim.exists() and journal.exists(), 60)
        first.send_signal(signal.SIGSTOP)  # so that it cannot be over before the others have tried
        sentence = world.upshift("run", file, "--out", "second").sentence(code=75)
        said = rf"the vantage point V of the lab tiny is in use by process {first.pid}; wait until"
        assert re.search(said, sentence), sentence
        elsewhere = {**world.environment, "UPSHIFT_STATE_DIR": str(world.state / "t")}
        for env in (world.environment, elsewhere):  # before a lab is made: there is none
            sentence = world.upshift("run", file, "--out", "first", env=env).sentence(code=75)
            assert re.search(r"first: another upshift run is working in this folder; wait for it, or use", sentence)
            assert not (world.state / "t").exists()
        assert first.poll() is None, "the first run was over too soon for this test"
        first.send_signal(signal.SIGCONT)
        stdout, stderr = first.communicate(timeout=180)
    finally:
        first.kill()
        first.communicate()
        shutil.rmtree(world.state / "t", ignore_errors=True)
    skip_if_void(first.returncode, stderr)
    assert first.returncode == 0, stderr
    assert campaigns.summary(campaigns.Done(0, stdout, stderr))["interrupted_runs"] == 0
    assert not (world.folder / "second").exists()
    rows = campaigns.assert_each_once(world.folder / "first", 8 * iterations)
    changed = world.campaign(lab, more=f"iterations = {iterations}\nseed = 2", name="changed")
    changed.write_text(changed.read_text().replace('"changed"', '"c"'))
    before = {path: path.read_bytes() for path in (world.folder / "first").rglob("*.parquet")}
    sentence = world.upshift("run", changed, "--out", "first").sentence()
    assert re.search(
        r"first/vantage/V: this folder holds another plan; changed since: .*; use another --out", sentence
    ), sentence
    assert {path: path.read_bytes() for path in (world.folder / "first").rglob("*.parquet")} == before
    assert campaigns.rows(world.folder / "first") == rows
    for name in ("first", "changed.toml"):
        path = world.folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
