"""The place *this host*, tried on the pretend host of `_host_world`.

The bodies below run as programs inside the pretend host, exactly as `upshift run` would on a real one.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.system.process import start_time_ticks
from tests.cells import Repeats
from tests.lab import _flight
from tests.lab._host_world import COMMON, World, open_world
from tests.lab.noise import has_device

pytestmark = [
    pytest.mark.lab,
    pytest.mark.usefixtures("root"),
]

SERVER = """
import http.server, socketserver, threading

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = self.client_address[0].encode() if self.path == "/who" else bytes(3_000_000)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words): pass

class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    address_family = __import__("socket").AF_INET6

server = Server(("::", 8080), Handler)
print("ready", flush=True)
server.serve_forever()
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("state")) as world, world.start("server", SERVER) as running:
        assert running.stdout and running.stdout.readline() == "ready\n"
        try:
            yield world
        finally:
            running.kill()


@pytest.fixture(autouse=True)
def unchanged(world: World) -> Iterator[None]:
    """Whatever a test does, the pretend host is afterwards as it was."""
    before = world.fingerprint()
    yield
    world.wait_for_guardians()
    assert world.changes(before) == {}


def test_a_download_through_the_namespace(world: World) -> None:
    found = json.loads(
        world.host("""
        with place() as here:
            here.apply(WANTED)
            watch = here.watch("198.18.1.1")
            size = python(here, GET, "http://198.18.1.1:8080/").stdout
            who = python(here, TEXT, "http://198.18.1.1:8080/who").stdout.strip()
            watch.settle()
            read = lambda run: run(["sysctl", "-n", "net.ipv4.tcp_sack", "net.ipv4.tcp_rmem"]).stdout.split()
            from core.system.process import run
            print(json.dumps({"size": int(size), "who": who, "inside": read(here.run), "outside": read(run),
                "kept": here.run(["sysctl", "-n", "net.ipv4.tcp_keepalive_time"]).stdout.strip(),
                "verdict": watch.finish().disturbed, "interface": here.interface, "environment": here.environment()}))
        """)
    )
    assert found["size"] == 3_000_000
    assert found["who"].removeprefix("::ffff:") == "198.18.0.2"  # the host's one address
    assert found["inside"][0] == "0" and found["inside"][3] == "536870912"
    assert found["outside"][0] == "1" and found["outside"][3] != "536870912"
    assert found["kept"] == "1234"  # the host's own settings hold in the namespace
    assert found["verdict"] is None
    environment = found["environment"]
    assert environment["sysctls"]["net.ipv4.tcp_sack"] == "0"
    assert "net.ipv4.tcp_fastopen_key" not in environment["sysctls"]
    assert environment["isolation"] == "netns" and environment["settings_not_taken_over"] == {}


def test_packets_that_connection_tracking_calls_invalid_void_a_run(world: World) -> None:
    """A segment with SYN and FIN (nf_conntrack_proto_tcp.c, tcp_error): nothing translates it, so it does not leave."""
    found = json.loads(
        world.host("""
        CODE = '''
        import socket, struct
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP) as raw:
            raw.sendto(struct.pack("!HHIIBBHHH", 4000, 8080, 1, 0, 5 << 4, 3, 1000, 0, 0), ("198.18.1.1", 0))
        '''
        import textwrap
        with place() as here:
            quiet = here.watch("198.18.1.1").finish().disturbed
            watch = here.watch("198.18.1.1")
            python(here, textwrap.dedent(CODE)).check(doing="sending")
            why = watch.finish().disturbed
            print(json.dumps([quiet, why and [why.reason, why.detail]]))
        """)
    )
    said = "connection tracking of this host called 1 packets of the campaign's namespace invalid"
    assert found == [None, ["conntrack_invalid", said]]


def test_a_prober_of_its_own_address_behind_the_same_translation(world: World) -> None:
    found = json.loads(
        world.host("""
        from dataclasses import asdict
        from tests.lab._probe import Probe, get, probes
        with place(allowed_prefixes=[ipaddress.ip_network("198.18.1.0/24"), ipaddress.ip_network("fd00:198:18::/48")],
                   nameservers=["198.18.1.1"]) as here:
            prober = here.prober()
            flights = probes(here, [Probe(target=address, port=8080, request=get("/", "x"), ack_delay_s=0.3)
                                    for address in ("198.18.1.1", "fd00:198:18::1", "198.18.0.1")])
            print(json.dumps({"prober": asdict(prober), "inside": here.run(["ip", "address"]).stdout,
                "rules": here.run(["nft", "list", "ruleset"]).stdout, "flights": [asdict(f) for f in flights]}))
        """)
    )
    for address in (found["prober"]["ipv4"], found["prober"]["ipv6"]):
        assert address and f"{address}/" not in found["inside"] and address not in found["rules"]
    over4, over6, forbidden = (_flight.read(flight) for flight in found["flights"])
    for flight in (over4, over6):
        # A kernel that answered for the address had reset the connection during the pause after the SYN-ACK.
        assert flight.syn_ack and not flight.reset and (len(flight.segments), flight.largest) == (10, 1200), flight
        assert flight.ended_s is not None and flight.more
    assert not forbidden.syn_ack and not forbidden.reset  # no packet leaves for what is not allowed


def test_a_prober_on_the_host_itself_has_ports_that_the_kernel_leaves_alone(world: World) -> None:
    found = json.loads(
        world.host("""
        from dataclasses import asdict
        from tests.lab._probe import Probe, get, probes
        from vantage.host import raw_ports
        with place(isolation="host") as here:
            prober = here.prober()
            same = here.prober() == prober
            reserved = here.run(["sysctl", "-n", "net.ipv4.ip_local_reserved_ports"]).stdout.strip()
            targets = ("198.18.1.1", "fd00:198:18::1")
            asked = [Probe(target=to, port=8080, request=get("/", "x"), ack_delay_s=0.3) for to in targets]
            flights = probes(here, asked)
            rules = here.run(["nft", "list", "ruleset"]).stdout
            print(json.dumps({"prober": asdict(prober), "same": same, "reserved": reserved, "rules": rules,
                "flights": [asdict(f) for f in flights]}))
        """)
    )
    prober = found["prober"]
    assert (prober["ipv4"], prober["ipv6"], prober["device"]) == ("198.18.0.2", "fd00:198:18::2", "eth0")
    assert found["same"] and found["reserved"] == "7777,52000-60191" and prober["ports"] == [52000, 60191]
    for flight in map(_flight.read, found["flights"]):
        assert flight.syn_ack and not flight.reset and len(flight.segments) == 10, flight
        assert flight.ended_s is not None and flight.more
    # It did try to reset them.
    assert "tcp sport 52000-60191" in found["rules"] and "counter packets 0 " not in found["rules"], found["rules"]


def test_the_cpus_are_kept_awake_while_it_measures_and_only_then(world: World) -> None:
    found = json.loads(
        world.host("""
        from contextlib import suppress
        from vantage.linux import cpu

        def held():
            names = set()
            for name in os.listdir("/proc/self/fd"):
                with suppress(OSError):
                    names.add(os.readlink(f"/proc/self/fd/{name}"))
            return str(cpu.LATENCY_DEVICE) in names

        def spinning():
            pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            return any(b"--spin" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\\0") for pid in pids)

        def seen(here):
            found = [held() or spinning()]
            with here.measuring():
                found.append([held(), spinning()])
            return [*found, held() or spinning(), here.environment()["timing"]["cpus_awake"]["method"]]

        with place() as here:
            awake = seen(here)
            cpu.LATENCY_DEVICE = Path("/dev/zero")
            hidden = seen(here)
        with place(let_cpus_sleep=True) as here:
            print(json.dumps([awake, hidden, seen(here)]))
        """)
    )
    threads = [False, [False, True], False, "spinners"]
    assert found[0] == ([False, [True, False], False, "cpu_dma_latency"] if has_device() else threads)
    assert found[1] == threads
    assert found[2] == [False, [False, False], False, "none"]


def test_captures_show_packets_of_the_wire(world: World, tmp_path: Path) -> None:
    longest = world.host("""
        with place() as here:
            with here.start(["tcpdump", "-B", "32768", "-i", here.interface, "-n", "-e", "-l", "-Q", "inout", "tcp"],
                            stdout=Path(sys.argv[1]) / "dump", stderr=True) as dump:
                while "listening on" not in dump.stderr.readline():
                    pass
                python(here, GET, "http://198.18.1.1:8080/")
                deadline = time.monotonic() + 20
                while (STATE / "dump").read_text().count("Flags [F") < 2 and time.monotonic() < deadline:
                    time.sleep(0.01)  # tcpdump prints more slowly than packets come
                dump.stop(signal.SIGINT)
            text = (STATE / "dump").read_text()
            (STATE / "dump").unlink()
            sizes = [int(line.split(" length ")[1].split(":")[0]) for line in text.splitlines() if " length " in line]
            print(len(sizes), max(sizes), text.count("incorrect"))
        """)
    count, size, wrong_sums = map(int, longest.split())
    assert count > 2000  # 3 MB in segments, not in super-packets
    assert size <= 1514
    assert wrong_sums == 0


def test_what_is_not_allowed_gets_no_packet(world: World) -> None:
    printed = world.host("""
        with place(allowed_prefixes=[ipaddress.ip_network("198.18.0.0/24")]) as here:
            assert "198.18.1.1/32" in map(str, here.allowed_prefixes), here.allowed_prefixes
            assert python(here, GET, "http://198.18.0.1:8080/").stdout.strip() == "3000000"
            assert python(here, GET, "http://198.18.1.1:8080/").returncode == 1  # a DNS server: port 53 only
            done = python(here, GET, "http://198.19.0.1:8080/")
            print(done.returncode, here.run(["nft", "list", "table", "inet", "upshift"]).stdout.count("packets 0"))
            try:
                here.watch("198.19.0.1")
            except UpshiftError as error:
                print(error.sentence())
        """).splitlines()
    assert printed[0] == "1 0"
    assert "198.19.0.1 is outside" in printed[1]
    assert "counter packets 0 " in world.sh("server", "nft list ruleset")


def test_the_host_forwards_nothing_else(world: World) -> None:
    send = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('198.18.2.2', 9))"
    world.host(f"""
        with place() as here:
            assert Path("/proc/sys/net/ipv4/conf/eth0/forwarding").read_text().strip() == "1"
            print("open", flush=True)
            server = {world._entries["server"]!r}
            subprocess.run([*server, sys.executable, "-c", {send!r}], check=True)
        """)
    assert "counter packets 0 " in world.sh("lan", "nft list ruleset")


def test_what_the_host_forwarded_before_it_forwards_still(world: World) -> None:
    """A host with containers forwards IPv4, and IPv6 only from now on."""
    world.sh("host", "sysctl -qw net.ipv4.conf.all.forwarding=1")
    try:
        world.host(f"""
            lan = {world._entries["lan"]!r}
            with place():
                subprocess.run([*lan, "ping", "-c1", "-W2", "198.18.1.1"], check=True, stdout=subprocess.DEVNULL)
            """)
    finally:
        world.sh("host", "sysctl -qw net.ipv4.conf.all.forwarding=0")


def test_forwarding_that_another_program_switches_off_ends_the_campaign(world: World) -> None:
    """Every download failed from then on, and was recorded so."""
    printed = world.host("""
        flag = Path("/proc/sys/net/ipv4/conf/eth0/forwarding")
        for _ in range(2):
            with place() as here:
                here.check()
                print(python(here, GET, "http://198.18.1.1:8080/").stdout.strip())
                flag.write_text("0")
                try:
                    here.check()
                except UpshiftError as error:
                    print(type(error).__name__, error.sentence())
        """)
    said = "PlaceError another program has switched net/ipv4/conf/eth0/forwarding off; run the same command again"
    assert printed.splitlines() == ["3000000", said] * 2


def test_rules_that_another_program_flushes_end_the_campaign(world: World) -> None:
    """Debian's /etc/nftables.conf begins with it."""
    printed = world.host("""
        with place() as here:
            here.check()
            subprocess.run(["nft", "flush", "ruleset"], check=True)
            here._namespace._looked = float("-inf")
            for look in (here.check, lambda: here.watch("198.18.1.1")):
                try:
                    look()
                except UpshiftError as error:
                    print(type(error).__name__, error.sentence())
        """)
    said = r"PlaceError another program has removed the nftables table inet upshift_\w+; run the same command again"
    first, second = printed.splitlines()
    assert re.fullmatch(said, first) and second == first


@pytest.mark.parametrize(("before", "after"), [("0", "1"), ("1", "0")])
def test_what_somebody_else_has_switched_on_since_stays_on(world: World, before: str, after: str) -> None:
    """Docker does so when it starts, and its containers had no answers after the campaign. Where it was on already,
    somebody had switched this one interface off."""
    try:
        printed = world.host(f"""
            switch, flag = (Path(f"/proc/sys/net/ipv4/conf/{{name}}/forwarding") for name in ("all", "eth0"))
            switch.write_text("{before}")
            flag.write_text("0")
            first, second = place(), place()
            switch.write_text("1")
            third = place()
            for here in (first, second, third):
                print(python(here, GET, "http://198.18.1.1:8080/").stdout.strip())
                here.close()
            print(flag.read_text().strip())
            """)
    finally:
        world.sh("host", "sysctl -qw net.ipv4.conf.all.forwarding=1 net.ipv4.conf.all.forwarding=0")
    assert printed.split() == ["3000000"] * 3 + [after]


def test_ipv6_where_the_host_can_forward_it(world: World) -> None:
    if not Path("/proc/sys/net/ipv6/conf/all/force_forwarding").exists():
        pytest.skip("this kernel has no force_forwarding (Linux 6.17)")
    printed = world.host("""
        with place() as here:
            print(python(here, TEXT, "http://[fd00:198:18::1]:8080/who").stdout.strip())
        """)
    assert printed.strip() == "fd00:198:18::2"


def test_a_firewall_that_drops_forwarded_ipv6_is_named(world: World) -> None:
    """Docker's, since version 27."""
    if not Path("/proc/sys/net/ipv6/conf/all/force_forwarding").exists():
        pytest.skip("this kernel has no force_forwarding (Linux 6.17)")
    chain = "nft add chain ip6 filter FORWARD '{ type filter hook forward priority 0; policy drop; }'"
    world.sh("host", f"nft add table ip6 filter; {chain}")
    try:
        printed = world.host("""
            with place() as here:
                print(python(here, TEXT, "http://198.18.1.1:8080/who").returncode)
                print(python(here, TEXT.replace("10", "1"), "http://[fd00:198:18::1]:8080/who").returncode)
                print(here.notes)
            """)
    finally:
        world.sh("host", "nft delete table ip6 filter")
    ipv4, ipv6, notes = printed.splitlines()
    assert (ipv4, ipv6) == ("0", "1")
    assert "ip6 filter FORWARD drops forwarded packets" in notes and "every download over IPv6 from" in notes


def test_a_host_without_ipv6_is_refused_where_servers_are_contacted_over_it(world: World) -> None:
    """Each download, and each server of a survey, would be recorded as unreachable."""
    body = """
        from contextlib import ExitStack
        from core.errors import PlaceError
        from downloader.campaign.campaign import from_document
        from upshift.campaign import _host_place
        from upshift.commands.survey import place_for
        os.environ["UPSHIFT_ALLOWED_PREFIXES"] = ",".join(map(str, LAB_PREFIXES))
        for isolation in ("netns", "host"):
            fields = {"name": "x", "targets": "t.csv", "contact": "a@upshift.test", "isolation": isolation,
                      "nameservers": ["198.18.1.1"], "uplink": "eth0", "address_family": "ipv6"}
            with ExitStack() as stack:
                try:
                    _host_place(from_document(fields, Path("c.toml")), "MUC", stack, True)
                except PlaceError as error:
                    print(error.sentence())
            try:
                with place_for(isolation, "198.18.1.1", {}, False, True):
                    pass
            except PlaceError as error:
                print(error.sentence())
        """
    off = "ip -6 route del default; ip -6 address del fd00:198:18::2/64 dev eth0"
    on = "ip address add fd00:198:18::2/64 dev eth0 nodad; ip -6 route add default via fd00:198:18::1"
    elsewhere = "ip address add fd00:198:18:99::2/64 dev eth0 nodad"  # of a network that leads nowhere
    world.sh("host", off)
    try:
        without = world.host(body).splitlines()
        world.sh("host", elsewhere)
        inside_only = world.host(body).splitlines()
    finally:
        world.sh("host", f"ip -6 address flush dev eth0 scope global; {on}")
    no_route = "this host has no route to any IPv6 address that may be contacted; see ip -6 route, or use IPv4"
    assert inside_only == [no_route] * 4
    netns = (
        "a network namespace of this host (the interface eth0 has no global IPv6 address); use isolation host, or IPv4"
    )
    assert without == [f"IPv6 would not leave {netns}"] * 2 + [no_route] * 2


def test_captures_are_taken_where_the_measured_family_leaves(world: World) -> None:
    """IPv6 by a tunnel: captures on IPv4's uplink were empty."""
    world.sh("host", "ip address add fd00:198:18:2::1/64 dev eth1 nodad")
    world.sh("host", "ip -6 route replace default via fd00:198:18:2::2 dev eth1")
    try:
        printed = world.host("""
            from contextlib import ExitStack
            from downloader.campaign.campaign import from_document
            from upshift.campaign import _host_place
            os.environ["UPSHIFT_ALLOWED_PREFIXES"] = ",".join(map(str, LAB_PREFIXES))
            fields = {"name": "x", "targets": "t.csv", "contact": "a@upshift.test", "isolation": "host"}
            for family in ("ipv4", "ipv6", "any"):
                with ExitStack() as stack:
                    campaign = from_document({**fields, "address_family": family}, Path("c.toml"))
                    print(_host_place(campaign, "MUC", stack, True)["MUC"].interface)
            """)
    finally:
        world.sh("host", "ip -6 route replace default via fd00:198:18::1 dev eth0")
        world.sh("host", "ip address del fd00:198:18:2::1/64 dev eth1")
    assert printed.split() == ["eth0", "eth1", "any"]


def test_two_places_share_what_the_host_needs(world: World) -> None:
    world.host("""
        flag = Path("/proc/sys/net/ipv4/conf/eth0/forwarding")
        first, second = place(), place()
        for here in (first, second):  # while both are there
            assert python(here, GET, "http://198.18.1.1:8080/").stdout.strip() == "3000000"
        first.close()
        assert flag.read_text().strip() == "1"
        assert python(second, GET, "http://198.18.1.1:8080/").stdout.strip() == "3000000"
        second.close()
        second.close()
        assert flag.read_text().strip() == "0"
        """)


def test_programs_left_in_the_namespace_are_stopped(world: World) -> None:
    pid = world.host("""
        here = place()
        child = here.start(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"], stdout=True)
        print(child.stdout.readline().strip())
        here.close()
        """)
    assert start_time_ticks(int(pid)) is None


def test_host_isolation_changes_and_restores_the_host(world: World) -> None:
    printed = world.host("""
        with place(isolation="host") as here:
            here.apply(WANTED)
            here.apply([*WANTED[:2], RouteAttribute(name="window", value="65535")])
            here.apply(WANTED)
            values = here.run(["sysctl", "-n", "net.ipv4.tcp_sack", "net.ipv4.tcp_rmem"]).stdout.split()
            print(values[::3], here.interface)
            print("window 131072" in here.run(["ip", "route", "show", "default"]).stdout)
            print(python(here, GET, "http://198.18.1.1:8080/").stdout.strip())
            try:
                place(isolation="host")
            except UpshiftError as error:
                print(error.sentence())
        """).splitlines()
    assert printed[0] == "['0', '536870912'] eth0"
    assert printed[1:3] == ["True", "3000000"]
    assert "is changing this host's settings" in printed[3]


def test_another_gateway_that_came_meanwhile_stays(world: World) -> None:
    """By a lease, or by hand: of the route only the attributes are as before."""
    printed = world.host("""
        def routes():
            return subprocess.run(["ip", "route", "show", "default"], capture_output=True, text=True).stdout

        for wanted in (None, "131072"):
            with place(isolation="host") as here:
                here.apply([RouteAttribute(name="window", value=wanted)])
                here.run(["ip", "route", "replace", "default", "via", "198.18.0.7", "dev", "eth0"])
                here.apply([RouteAttribute(name="window", value=wanted)])
                assert ("window" in routes()) is (wanted is not None)
            print(routes().strip())
            subprocess.run(["ip", "route", "replace", "default", "via", "198.18.0.1", "dev", "eth0"], check=True)
        """).splitlines()
    assert printed == ["default via 198.18.0.7 dev eth0"] * 2


def test_a_route_from_a_router_advertisement_is_left_to_its_router(world: World) -> None:
    """A change would make it permanent: advertisements do not renew or take back what somebody else has set."""
    printed = world.host("""
        def run(*words):
            return subprocess.run(["ip", "-6", "route", *words], capture_output=True, text=True, check=True).stdout

        advertised = ["default", "via", "fd00:198:18::1", "dev", "eth0", "proto", "ra", "metric", "100"]
        run("add", *advertised, "expires", "1800")
        before = run("show", "default")
        try:
            with place(isolation="host") as here:
                for wanted in (None, "131072", "65535", None, "131072"):
                    here.apply([RouteAttribute(name="window", value=wanted)])
                    assert ("window " + str(wanted) in run("get", "fd00:198:19::1")) is (wanted is not None)
                    assert "metric 100 expires 1" in run("show", "default")
                print([step.kind for step in here._undo_log.steps])
            after = run("show", "default")
            print(after.split(" expires ")[0] == before.split(" expires ")[0], "expires 1" in after)
        finally:
            run("del", *advertised)
        """).splitlines()
    assert printed == ["['attribute', 'routes']", "True True"]


def test_host_wide_settings_are_the_kernel_s_and_no_namespace_s(world: World) -> None:
    """The quirk `host-wide-settings`: this host is a namespace, in which the kernel shows them and refuses changes."""
    printed = world.host("""
        from downloader.campaign.configurations import settings_with
        from core.domain import Configuration

        def settings(*names):
            return settings_with(names, Configuration(name="WS", client="requests", levels={"window_scaling": "14"}))

        with place(isolation="host") as here:
            here.apply(settings())
            print(here.run(["sysctl", "-n", "net.ipv4.tcp_rmem"]).stdout.split()[2])
            before = here.run(["sysctl", "-n", "net.core.rmem_default", "net.core.rmem_max"]).stdout
            try:
                here.apply(settings("host-wide-settings"))
            except UpshiftError as error:
                print(error.sentence())
            assert here.run(["sysctl", "-n", "net.core.rmem_default", "net.core.rmem_max"]).stdout == before
        print("restored")
        """).splitlines()
    assert printed[0] == "536870912"
    assert f"the kernel refuses net.core.rmem_default={65_535 << 14}" in printed[1]
    # What was refused has nothing to be undone; the namespace's own settings are as before (`unchanged`).
    assert printed[2:] == ["restored"]


@pytest.mark.parametrize("isolation", ["netns", "host"])
def test_killed_at_random_moments(world: World, isolation: str, repeats: Repeats) -> None:
    body = f"""
        if os.fork() == 0:
            time.sleep(3)  # a child that keeps every descriptor of its parent
            os._exit(0)
        print("begin", flush=True)
        here = place(isolation={isolation!r})
        here.start(["sleep", "600"])
        here.prober()
        while True:
            here.apply(WANTED)
            python(here, GET, "http://198.18.1.1:8080/")
        """
    before = world.fingerprint()
    dice = random.Random(20260)
    changed = 0
    early, late = repeats(quick=1, soak=40), repeats(quick=1, soak=20)
    for moment in [dice.uniform(0.0, 0.5) for _ in range(early)] + [dice.uniform(0.5, 1.5) for _ in range(late)]:
        running = world.start("host", COMMON + textwrap.dedent(body), str(world.state))
        assert running.stdout is not None
        assert running.stdout.readline() == "begin\n"
        time.sleep(moment)
        assert running.poll() is None
        running.kill()
        running.wait()
        changed += bool(list(world.state.glob("host/*.json")))
        world.wait_for_guardians()
        assert world.changes(before) == {}, moment
        for pipe in (running.stdout, running.stderr):
            if pipe is not None:
                pipe.close()
    assert changed >= late // 2  # the kills did hit places that had something to undo


@pytest.mark.parametrize("isolation", ["netns", "host"])
def test_after_both_are_killed_the_next_run_restores(world: World, isolation: str) -> None:
    running = world.start(
        "host",
        COMMON
        + f"here = place(isolation={isolation!r})\nhere.apply(WANTED)\nprint('open', flush=True)\ntime.sleep(60)",
        str(world.state),
    )
    assert running.stdout and running.stdout.readline() == "open\n"
    for pid in (*world.guardians(), running.pid):
        os.kill(pid, signal.SIGKILL)
    running.communicate()
    assert list(world.state.glob("host/*.json"))
    printed = world.host("""
        with place(isolation="netns") as here:
            print(here.notes)
        """)
    assert "undid the changes of an earlier run" in printed


def test_a_killed_guardian_stops_the_campaign(world: World) -> None:
    printed = world.host("""
        here = place(isolation="host")
        here.apply(WANTED[:1])
        plan = json.loads(next((STATE / "host").glob("*.json")).read_text())
        os.kill(plan["guardian"][0], signal.SIGKILL)
        while here._undo_log._guardian.returncode is None:
            time.sleep(0.01)
        try:
            here.apply(WANTED[1:2])
        except UpshiftError as error:
            print(error.sentence())
        here.close()
        """)
    assert "guardian that restores this host has ended" in printed


def test_an_interface_that_the_kernel_is_removing_is_no_fault(world: World, repeats: Repeats) -> None:
    """The guardian had been killed, and the owner undid the changes just when the end of the namespace removed the
    interface: that failed for 7 of 100 interfaces, and the record of changes stayed."""
    times = repeats(quick=30, soak=300)
    body = f"""
        import random
        from vantage.host.undo import UndoStep, undo_step

        chance = random.Random(1)
        link = UndoStep(kind="link", name="ups0")
        feature = UndoStep(kind="feature", name="ups0", value="tx-checksumming")
        for step in (link, feature) * {times}:
            argv = ["unshare", "--net", "sh", "-c", "echo; exec sleep 60"]
            with subprocess.Popen(argv, stdout=subprocess.PIPE) as holder:
                holder.stdout.readline()
                words = f"ip link add ups0 type veth peer name eth0 netns {{holder.pid}}"
                subprocess.run(words.split(), check=True)
                holder.kill()
            time.sleep(chance.uniform(0, 0.03))
            undo_step(step)
            deadline = time.monotonic() + 10
            while subprocess.run(["ip", "link", "show", "dev", "ups0"], capture_output=True).returncode == 0:
                assert time.monotonic() < deadline
                time.sleep(0.005)
        """
    world.host(body, timeout_s=60 + 2 * times)


def test_bad_wishes_are_one_sentence_and_change_nothing(world: World) -> None:
    printed = world.host("""
        for wish in ({"nameservers": ["10.0.0.53"]}, {"isolation": "vm"}):
            try:
                place(**wish)
            except UpshiftError as error:
                print(error.sentence())
        for name in ("nothing0", "lo"):
            try:
                HostPlace("MUC", uplink=name, nameservers=["198.18.1.1"])
            except UpshiftError as error:
                print(error.sentence())
        with place() as here:
            try:
                here.apply([Sysctl(name="net.ipv4.tcp_no_such", value="1")])
            except UpshiftError as error:
                print(error.sentence())
        """).splitlines()
    assert [
        word in line
        for word, line in zip(
            (
                "10.0.0.53 is outside",
                "unknown isolation 'vm'",
                "no network interface named 'nothing0'",
                "no IPv4",
                "tcp_no_such",
            ),
            printed,
            strict=True,
        )
    ] == [True] * 5
