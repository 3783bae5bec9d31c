//! A small HTTP/3 server by quiche, for tests and labs: any path gives the same number of zero bytes.
//!
//! It has no manners beyond QUIC's own: no address validation, no limit of connections. Do not let strangers reach it.

use std::collections::HashMap;
use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, UdpSocket};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use quiche::{ConnectionId, RecvInfo, h3};

const USAGE: &str = "usage: h3serve --listen ADDRESS:PORT --cert CHAIN.pem --key KEY.pem \
[--bytes N] [--status CODE] [--alpn NAME]

Serves HTTP/3 by quiche. Prints `listening ADDRESS:PORT` once it does.
  --bytes N     body of each answer [bytes], zeros; default 0
  --status CODE status of each answer; default 200
  --alpn NAME   the only protocol it speaks; default h3";

/// UDP payload of each packet: fits 1500 bytes with an IPv6 header.
const DATAGRAM_BYTES: usize = 1_350;
/// Longest sleep, so that idle connections are dropped in time.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

type Failed = Box<dyn std::error::Error>;

/// What the command line asks for.
struct Options {
    listen: SocketAddr,
    certificate: String,
    key: String,
    bytes: u64,
    status: u16,
    alpn: String,
}

/// A client's connection, and how much of each answer is still to be sent.
struct Client {
    quic: quiche::Connection,
    http: Option<h3::Connection>,
    left: HashMap<u64, u64>,
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(Some(options)) => options,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("h3serve: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match serve(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("h3serve: {error}");
            ExitCode::FAILURE
        }
    }
}

fn options() -> Result<Option<Options>, lexopt::Error> {
    use lexopt::prelude::*;

    let (mut listen, mut certificate, mut key) = (None, None, None);
    let (mut bytes, mut status, mut alpn) = (0, 200, "h3".to_owned());
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("listen") => listen = Some(parser.value()?.parse()?),
            Long("cert") => certificate = Some(parser.value()?.string()?),
            Long("key") => key = Some(parser.value()?.string()?),
            Long("bytes") => bytes = parser.value()?.parse()?,
            Long("status") => status = parser.value()?.parse()?,
            Long("alpn") => alpn = parser.value()?.string()?,
            Short('h') | Long("help") => {
                println!("{USAGE}");
                return Ok(None);
            }
            _ => return Err(argument.unexpected()),
        }
    }
    let (Some(listen), Some(certificate), Some(key)) = (listen, certificate, key) else {
        return Err("--listen, --cert and --key are needed".into());
    };
    Ok(Some(Options {
        listen,
        certificate,
        key,
        bytes,
        status,
        alpn,
    }))
}

fn configure(options: &Options) -> Result<quiche::Config, Failed> {
    let mut config = quiche::Config::new(quiche::PROTOCOL_VERSION)?;
    config.load_cert_chain_from_pem_file(&options.certificate)?;
    config.load_priv_key_from_pem_file(&options.key)?;
    config.set_application_protos(&[options.alpn.as_bytes()])?;
    config.set_max_idle_timeout(10_000);
    config.set_max_recv_udp_payload_size(DATAGRAM_BYTES);
    config.set_max_send_udp_payload_size(DATAGRAM_BYTES);
    config.set_initial_max_data(1 << 20);
    config.set_initial_max_stream_data_bidi_remote(1 << 18);
    config.set_initial_max_stream_data_uni(1 << 18);
    config.set_initial_max_streams_bidi(100);
    config.set_initial_max_streams_uni(3);
    config.set_disable_active_migration(true);
    Ok(config)
}

/// Serves until it is killed.
fn serve(options: &Options) -> Result<(), Failed> {
    let mut config = configure(options)?;
    let socket = UdpSocket::bind(options.listen)?;
    let local = socket.local_addr()?;
    println!("listening {local}");
    std::io::stdout().flush()?;
    let mut seed = [0; 32];
    boring::rand::rand_bytes(&mut seed)?;
    let mut clients: HashMap<Vec<u8>, Client> = HashMap::new();
    let mut buffer = vec![0; 65_535];
    loop {
        let timer = clients
            .values()
            .filter_map(|client| client.quic.timeout())
            .min();
        let wait = timer
            .unwrap_or(LONGEST_WAIT)
            .clamp(Duration::from_millis(1), LONGEST_WAIT);
        socket.set_read_timeout(Some(wait))?;
        match socket.recv_from(&mut buffer) {
            Ok((size, from)) => {
                let info = RecvInfo { from, to: local };
                if let Err(error) = take(
                    &mut buffer[..size],
                    info,
                    &mut clients,
                    &mut config,
                    &socket,
                    &seed,
                ) {
                    eprintln!("h3serve: {from}: {error}");
                }
            }
            // An ICMP error of a client that is gone comes as ConnectionRefused.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
        for client in clients.values_mut() {
            // quiche asks for this only when its timer has run out, and does nothing otherwise.
            if client
                .quic
                .timeout_instant()
                .is_some_and(|at| at <= Instant::now())
            {
                client.quic.on_timeout();
            }
            answer(client, options);
            send(client, &socket);
        }
        clients.retain(|_, client| !client.quic.is_closed());
    }
}

/// Gives a datagram to its connection; a first one makes a connection, or is told our versions.
fn take(
    data: &mut [u8],
    info: RecvInfo,
    clients: &mut HashMap<Vec<u8>, Client>,
    config: &mut quiche::Config,
    socket: &UdpSocket,
    seed: &[u8],
) -> Result<(), Failed> {
    let size = data.len();
    let header = quiche::Header::from_slice(data, quiche::MAX_CONN_ID_LEN)?;
    // A client goes on using its own choice until our first packet arrives, so ours follows from it.
    let ours = own_id(seed, &header.dcid);
    let known = [header.dcid.to_vec(), ours.clone()]
        .into_iter()
        .find(|name| clients.contains_key(name));
    if let Some(client) = known.and_then(|name| clients.get_mut(&name)) {
        client.quic.recv(data, info)?;
        return Ok(());
    }
    if matches!(
        header.ty,
        quiche::Type::Short | quiche::Type::VersionNegotiation
    ) || size < quiche::MIN_CLIENT_INITIAL_LEN
    {
        return Ok(()); // the tail of an earlier connection, or too small to begin one (RFC 9000, section 5.2.2)
    }
    if !quiche::version_is_supported(header.version) {
        let mut reply = [0; 1 << 10];
        let size = quiche::negotiate_version(&header.scid, &header.dcid, &mut reply)?;
        socket.send_to(&reply[..size], info.from)?;
        return Ok(());
    }
    if header.ty != quiche::Type::Initial {
        return Ok(());
    }
    let scid = ConnectionId::from_ref(&ours);
    let mut quic = quiche::accept(&scid, None, info.to, info.from, config)?;
    // Kept even if it failed: the client is told why, by the packet that closes it.
    let taken = quic.recv(data, info);
    let (http, left) = (None, HashMap::new());
    clients.insert(ours, Client { quic, http, left });
    taken?;
    Ok(())
}

/// The connection ID that we choose for a connection which a client began with `theirs`.
fn own_id(seed: &[u8], theirs: &[u8]) -> Vec<u8> {
    boring::sha::sha256(&[seed, theirs].concat())[..quiche::MAX_CONN_ID_LEN].to_vec()
}

/// Answers requests that are here, as far as flow control lets us.
fn answer(client: &mut Client, options: &Options) {
    if client.http.is_none() && client.quic.is_established() {
        client.http = h3::Config::new()
            .and_then(|config| h3::Connection::with_transport(&mut client.quic, &config))
            .ok();
    }
    let Some(http) = client.http.as_mut() else {
        return;
    };
    while let Ok((stream, event)) = http.poll(&mut client.quic) {
        if let h3::Event::Headers { list, .. } = event {
            let head = list.iter().any(|field| {
                h3::NameValue::name(field) == b":method" && h3::NameValue::value(field) == b"HEAD"
            });
            let body = if head { 0 } else { options.bytes };
            let status = options.status.to_string();
            let length = options.bytes.to_string();
            let fields = [
                h3::Header::new(b":status", status.as_bytes()),
                h3::Header::new(b"server", b"h3serve"),
                h3::Header::new(b"content-length", length.as_bytes()),
            ];
            if http
                .send_response(&mut client.quic, stream, &fields, body == 0)
                .is_ok()
                && body > 0
            {
                client.left.insert(stream, body);
            }
        }
    }
    client.left.retain(|stream, left| {
        while *left > 0 {
            let size = usize::try_from(*left)
                .unwrap_or(usize::MAX)
                .min(ZEROS.len());
            let last = size as u64 == *left;
            match http.send_body(&mut client.quic, *stream, &ZEROS[..size], last) {
                Ok(sent) => *left -= sent as u64,
                Err(h3::Error::Done | h3::Error::StreamBlocked) => return true,
                Err(_) => return false, // the client gave this stream up
            }
        }
        false
    });
}

fn send(client: &mut Client, socket: &UdpSocket) {
    let mut out = [0; DATAGRAM_BYTES];
    while let Ok((size, info)) = client.quic.send(&mut out) {
        // A full send queue loses the datagram, as any path may; QUIC sends its content again.
        let _ = socket.send_to(&out[..size], info.to);
    }
}
