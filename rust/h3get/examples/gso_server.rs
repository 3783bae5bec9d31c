//! A server that is fast enough to find h3get's ceiling: HTTP/3 by quiche, sending with UDP GSO, any path gives the
//! same number of zero bytes. For `bench/ceiling.sh` only: one connection at a time, no manners.
//!
//! usage: `gso_server LISTEN CERT.pem KEY.pem BYTES`

use std::collections::HashSet;
use std::io::IoSlice;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg, setsockopt, sockopt};
use quiche::h3;

/// UDP payload of each packet: 1500 less IPv4, IPv6-safe.
const DATAGRAM: usize = 1350;
/// Datagrams for one send call; the kernel takes at most 64, and 65507 bytes.
const BURST: usize = 48;
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

type Failed = Box<dyn std::error::Error>;

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, listen, certificate, key, bytes] = arguments.as_slice() else {
        return Err("usage: gso_server LISTEN CERT.pem KEY.pem BYTES".into());
    };
    let bytes: u64 = bytes.parse()?;
    let socket = UdpSocket::bind(listen)?;
    let _ = setsockopt(&socket, sockopt::RcvBuf, &(8 << 20));
    let _ = setsockopt(&socket, sockopt::SndBuf, &(8 << 20));
    let mut config = configure(certificate, key)?;
    loop {
        if let Err(error) = serve(&socket, &mut config, bytes) {
            eprintln!("{error}");
        }
    }
}

fn configure(certificate: &str, key: &str) -> Result<quiche::Config, Failed> {
    let mut config = quiche::Config::new(quiche::PROTOCOL_VERSION)?;
    config.load_cert_chain_from_pem_file(certificate)?;
    config.load_priv_key_from_pem_file(key)?;
    config.set_application_protos(h3::APPLICATION_PROTOCOL)?;
    config.set_max_idle_timeout(5000);
    config.set_max_send_udp_payload_size(DATAGRAM);
    config.set_initial_max_data(1 << 20);
    config.set_initial_max_stream_data_bidi_remote(1 << 20);
    config.set_initial_max_stream_data_uni(1 << 20);
    config.set_initial_max_streams_bidi(16);
    config.set_initial_max_streams_uni(16);
    config.enable_pacing(false);
    Ok(config)
}

/// Waits for a connection and serves it until it is closed.
fn serve(socket: &UdpSocket, config: &mut quiche::Config, bytes: u64) -> Result<(), Failed> {
    let local = socket.local_addr()?;
    let mut buffer = vec![0; 65535];
    socket.set_read_timeout(None)?;
    let (size, peer) = socket.recv_from(&mut buffer)?;
    if quiche::Header::from_slice(&mut buffer[..size], quiche::MAX_CONN_ID_LEN)?.ty
        != quiche::Type::Initial
    {
        return Ok(()); // the tail of an earlier connection
    }
    let mut scid = [0; quiche::MAX_CONN_ID_LEN];
    boring::rand::rand_bytes(&mut scid)?;
    let scid = quiche::ConnectionId::from_ref(&scid);
    let mut connection = quiche::accept(&scid, None, local, peer, config)?;
    connection.recv(
        &mut buffer[..size],
        quiche::RecvInfo {
            from: peer,
            to: local,
        },
    )?;
    let mut http = None;
    let mut open: HashSet<u64> = HashSet::new();
    let mut left = bytes;
    while !connection.is_closed() {
        if connection.is_established() && http.is_none() {
            http = Some(h3::Connection::with_transport(
                &mut connection,
                &h3::Config::new()?,
            )?);
        }
        if let Some(http) = http.as_mut() {
            answer(http, &mut connection, &mut open, &mut left)?;
        }
        let sent = send(socket, &mut connection, peer)?;
        receive(socket, &mut connection, &mut buffer, sent)?;
    }
    Ok(())
}

fn answer(
    http: &mut h3::Connection,
    connection: &mut quiche::Connection,
    open: &mut HashSet<u64>,
    left: &mut u64,
) -> Result<(), Failed> {
    while let Ok((stream, event)) = http.poll(connection) {
        if matches!(event, h3::Event::Headers { .. }) {
            let length = left.to_string();
            let fields = [
                h3::Header::new(b":status", b"200"),
                h3::Header::new(b"content-length", length.as_bytes()),
            ];
            http.send_response(connection, stream, &fields, false)?;
            open.insert(stream);
        }
    }
    for stream in open.clone() {
        while *left > 0 {
            let size = usize::try_from(*left)
                .unwrap_or(usize::MAX)
                .min(ZEROS.len());
            match http.send_body(connection, stream, &ZEROS[..size], size as u64 == *left) {
                Ok(size) => *left -= size as u64,
                Err(_) => break,
            }
        }
    }
    Ok(())
}

/// Sends one burst; gives the number of datagrams.
fn send(
    socket: &UdpSocket,
    connection: &mut quiche::Connection,
    peer: SocketAddr,
) -> Result<usize, Failed> {
    let mut burst = vec![0; BURST * DATAGRAM];
    let (mut filled, mut count, mut segment) = (0, 0, 0);
    while count < BURST {
        let Ok((size, _)) = connection.send(&mut burst[filled..filled + DATAGRAM]) else {
            break;
        };
        filled += size;
        count += 1;
        segment = segment.max(size);
        if size < segment {
            break; // only the last segment may be shorter
        }
    }
    if count == 0 {
        return Ok(0);
    }
    let size = u16::try_from(segment)?;
    let control = [ControlMessage::UdpGsoSegments(&size)];
    let slices = [IoSlice::new(&burst[..filled])];
    match sendmsg(
        socket.as_raw_fd(),
        &slices,
        &control,
        MsgFlags::empty(),
        Some(&SockaddrStorage::from(peer)),
    ) {
        Ok(_) | Err(Errno::EAGAIN | Errno::ENOBUFS) => Ok(count),
        Err(error) => Err(error.into()),
    }
}

/// Takes in what is waiting; waits for it when nothing could be sent.
fn receive(
    socket: &UdpSocket,
    connection: &mut quiche::Connection,
    buffer: &mut [u8],
    sent: usize,
) -> Result<(), Failed> {
    let to = socket.local_addr()?;
    if sent == 0 {
        let timer = connection.timeout().unwrap_or(Duration::from_secs(1));
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(timer.max(Duration::from_micros(100))))?;
        match socket.recv_from(buffer) {
            Ok((size, from)) => {
                let _ = connection.recv(&mut buffer[..size], quiche::RecvInfo { from, to });
            }
            Err(_) => connection.on_timeout(),
        }
    }
    socket.set_nonblocking(true)?;
    while let Ok((size, from)) = socket.recv_from(buffer) {
        let _ = connection.recv(&mut buffer[..size], quiche::RecvInfo { from, to });
    }
    socket.set_nonblocking(false)?;
    if connection.timeout() == Some(Duration::ZERO) {
        connection.on_timeout();
    }
    Ok(())
}
