//! A server that breaks its promises, which Caddy cannot be made to do: quiche, one connection, one wrong answer.

use std::net::UdpSocket;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quiche::h3;

/// What to do once the request is here. Every answer announces 10 bytes.
#[derive(Clone, Copy)]
pub enum Wrong {
    /// Send this many bytes and finish the stream.
    Body(usize),
    /// Send 5 bytes, then reset the stream with `H3_INTERNAL_ERROR`.
    Reset,
    /// Send 5 bytes, then close the connection with `H3_INTERNAL_ERROR`.
    Close,
}

/// Serves one connection in a thread, for ten seconds at most; gives the port.
pub fn start(certificate: &Path, key: &Path, wrong: Wrong) -> (u16, JoinHandle<()>) {
    let mut config = quiche::Config::new(quiche::PROTOCOL_VERSION).unwrap();
    config
        .load_cert_chain_from_pem_file(certificate.to_str().unwrap())
        .unwrap();
    config
        .load_priv_key_from_pem_file(key.to_str().unwrap())
        .unwrap();
    config
        .set_application_protos(h3::APPLICATION_PROTOCOL)
        .unwrap();
    config.set_initial_max_data(1 << 20);
    config.set_initial_max_stream_data_bidi_remote(1 << 20);
    config.set_initial_max_stream_data_uni(1 << 20);
    config.set_initial_max_streams_bidi(4);
    config.set_initial_max_streams_uni(4);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    (
        port,
        std::thread::spawn(move || serve(&socket, &mut config, wrong)),
    )
}

fn serve(socket: &UdpSocket, config: &mut quiche::Config, wrong: Wrong) {
    let to = socket.local_addr().unwrap();
    let mut buffer = vec![0; 65535];
    let mut out = [0; 1350];
    let deadline = Instant::now() + Duration::from_secs(10);
    socket
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let (size, from) = socket.recv_from(&mut buffer).unwrap();
    let scid = quiche::ConnectionId::from_ref(&[7; quiche::MAX_CONN_ID_LEN]);
    let mut connection = quiche::accept(&scid, None, to, from, config).unwrap();
    connection
        .recv(&mut buffer[..size], quiche::RecvInfo { from, to })
        .unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(5)))
        .unwrap();
    let mut http = None;
    while !connection.is_closed() && Instant::now() < deadline {
        if connection.is_established() && http.is_none() {
            http =
                h3::Connection::with_transport(&mut connection, &h3::Config::new().unwrap()).ok();
        }
        while let Some((stream, event)) = http
            .as_mut()
            .and_then(|http| http.poll(&mut connection).ok())
        {
            if matches!(event, h3::Event::Headers { .. }) {
                answer(http.as_mut().unwrap(), &mut connection, stream, wrong);
            }
        }
        while let Ok((size, info)) = connection.send(&mut out) {
            let _ = socket.send_to(&out[..size], info.to);
        }
        match socket.recv_from(&mut buffer) {
            Ok((size, from)) => {
                let _ = connection.recv(&mut buffer[..size], quiche::RecvInfo { from, to });
            }
            Err(_) => connection.on_timeout(),
        }
    }
}

fn answer(
    http: &mut h3::Connection,
    connection: &mut quiche::Connection,
    stream: u64,
    wrong: Wrong,
) {
    let fields = [
        h3::Header::new(b":status", b"200"),
        h3::Header::new(b"content-length", b"10"),
    ];
    http.send_response(connection, stream, &fields, false)
        .unwrap();
    let (size, end) = if let Wrong::Body(size) = wrong {
        (size, true)
    } else {
        (5, false)
    };
    http.send_body(connection, stream, &[b'x'; 100][..size], end)
        .unwrap();
    match wrong {
        Wrong::Body(_) => {}
        Wrong::Reset => connection
            .stream_shutdown(stream, quiche::Shutdown::Write, 0x102)
            .unwrap(),
        Wrong::Close => connection.close(true, 0x102, b"tired\r\n").unwrap(),
    }
}
