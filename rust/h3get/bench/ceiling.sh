#!/bin/sh
# How fast can h3get go on this host? Two servers (Caddy, and h3serve, which sends with UDP GSO), two
# paths (loopback, a veth pair with GRO), with and without UDP_GRO. Everything is inside two network namespaces that
# have no route out (198.18.0.0/15).
#
#   usage: bench/ceiling.sh RELEASE_DIR [MEGABYTES] [REPEATS]  needs root, caddy, openssl, iproute2, python3;
#          RELEASE_DIR holds h3get and h3serve: cargo build --release -p h3get -p h3serve
#
# One line per download: server and path, gro, Mbit/s of body over the whole download, client CPU-s per GB, share of a core,
# packets per receive call, socket drops.
set -eu
release=$(realpath "$1"); h3get=$release/h3get; megabytes=${2:-400}; repeats=${3:-5}
work=$(mktemp -d /dev/shm/h3get-bench.XXXXXX)
client=h3c$$; server=h3s$$; children=
finish() {
    for child in $children; do kill "$child" 2>/dev/null || true; done
    ip netns del "$client" 2>/dev/null || true
    ip netns del "$server" 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT INT TERM

ip netns add "$client"; ip netns add "$server"
ip link add vc netns "$client" type veth peer name vs netns "$server"
ip -n "$client" addr add 198.18.7.1/24 dev vc; ip -n "$server" addr add 198.18.7.2/24 dev vs
for n in "$client" "$server"; do ip -n "$n" link set lo up; done
ip -n "$client" link set vc up; ip -n "$server" link set vs up
# What `ethtool -K vc gro on` does; on veth it turns on NAPI, and with it GRO.
ip netns exec "$client" python3 - vc <<'PY'
import array, fcntl, socket, struct, sys
SIOCETHTOOL, ETHTOOL_SGRO = 0x8946, 0x2C
value = array.array("B", struct.pack("II", ETHTOOL_SGRO, 1))
request = struct.pack("16sP", sys.argv[1].encode(), value.buffer_info()[0])
fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), SIOCETHTOOL, request)
PY

cd "$work"; mkdir files
head -c "${megabytes}M" /dev/urandom > files/f
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=bench.test \
    -addext subjectAltName=DNS:bench.test -keyout key.pem -out cert.pem 2>/dev/null
cat > Caddyfile <<C
{
  admin off
  auto_https disable_redirects
  skip_install_trust
}
https://bench.test:8443 {
  tls $work/cert.pem $work/key.pem
  root * $work/files
  file_server
}
C
export HOME="$work" XDG_DATA_HOME="$work" XDG_CONFIG_HOME="$work"
for n in "$client" "$server"; do
    ip netns exec "$n" caddy run --adapter caddyfile --config Caddyfile 2>"caddy-$n.log" & children="$children $!"
done
ip netns exec "$client" "$release/h3serve" --listen 127.0.0.1:8444 --cert cert.pem --key key.pem --bytes "${megabytes}000000" &
children="$children $!"
ip netns exec "$server" "$release/h3serve" --listen 198.18.7.2:8444 --cert cert.pem --key key.pem --bytes "${megabytes}000000" &
children="$children $!"
sleep 2

fetch() { # name address port option...
    name=$1 address=$2 port=$3; shift 3
    ip netns exec "$client" "$h3get" --url "https://bench.test:$port/f" --address "$address" --ca cert.pem \
        --budget-s 120 --allow 198.18.0.0/15 --allow 127.0.0.0/8 "$@" |
        python3 -c '
import json, sys
r = json.load(sys.stdin); q = r["quic"]
assert r["outcome"] == "ok", r
t, b = r["last_byte_s"], r["body_bytes"]
print(f"""{sys.argv[1]:14} gro={q["gro"]!s:5} {b * 8 / t / 1e6:7.0f} Mbit/s {r["client_cpu_s"] / b * 1e9:6.2f} CPU-s/GB"""
      f""" {r["client_cpu_s"] / t:5.2f} core {q["packets_received"] / q["receive_calls"]:6.2f} pkt/call {r["socket_drops"]} drops""")' "$name"
}
echo "load before: $(cut -d' ' -f1-3 /proc/loadavg)"
i=0
while [ "$i" -lt "$repeats" ]; do
    for option in "" --no-gro; do
        fetch caddy-lo 127.0.0.1 8443 $option
        fetch caddy-veth 198.18.7.2 8443 $option
        fetch h3serve-lo 127.0.0.1 8444 $option
        fetch h3serve-veth 198.18.7.2 8444 $option
    done
    i=$((i + 1))
done
echo "load after: $(cut -d' ' -f1-3 /proc/loadavg)"
