//! A client's `ClientHello`, read from its first datagrams as a server would.

use std::net::UdpSocket;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use boring::ssl::{
    ClientHello, ExtensionType, SelectCertError, SslContextBuilder, SslFiletype, SslMethod,
};

/// What a client opens with.
#[derive(Debug, Default, Clone)]
pub struct Hello {
    /// Datagrams that it took.
    pub datagrams: usize,
    /// Length of the message, without frames and packets around it.
    pub bytes: usize,
    /// Groups for which it holds a key share (RFC 8446, section 4.2.8).
    pub key_shares: Vec<u16>,
    /// Groups that it lists.
    pub groups: Vec<u16>,
}

/// Waits on `socket` for a client's first flight; `None` if it holds no whole `ClientHello`.
pub fn receive(socket: &UdpSocket, certificate: &Path, key: &Path) -> Option<Hello> {
    let seen: Arc<Mutex<Option<Hello>>> = Arc::default();
    let mut tls = SslContextBuilder::new(SslMethod::tls()).unwrap();
    tls.set_certificate_chain_file(certificate).unwrap();
    tls.set_private_key_file(key, SslFiletype::PEM).unwrap();
    let shared = Arc::clone(&seen);
    tls.set_select_certificate_callback(move |hello| {
        *shared.lock().unwrap() = Some(read(&hello));
        Err(SelectCertError::ERROR)
    });
    let mut config =
        quiche::Config::with_boring_ssl_ctx_builder(quiche::PROTOCOL_VERSION, tls).unwrap();
    let to = socket.local_addr().unwrap();
    let mut buffer = vec![0; 65535];
    let mut connection: Option<quiche::Connection> = None;
    socket
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    for number in 1.. {
        let (size, from) = socket.recv_from(&mut buffer).ok()?;
        // The first flight comes at once; a probe timeout would add copies of it later.
        socket
            .set_read_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        let connection = connection.get_or_insert_with(|| {
            let scid = quiche::ConnectionId::from_ref(&[7; quiche::MAX_CONN_ID_LEN]);
            quiche::accept(&scid, None, to, from, &mut config).unwrap()
        });
        let _ = connection.recv(&mut buffer[..size], quiche::RecvInfo { from, to });
        if let Some(mut hello) = seen.lock().unwrap().take() {
            hello.datagrams = number;
            return Some(hello);
        }
    }
    None
}

fn read(hello: &ClientHello<'_>) -> Hello {
    let extension = |kind| hello.get_extension(kind).unwrap_or_default();
    let mut key_shares = Vec::new();
    let mut rest = extension(ExtensionType::KEY_SHARE).get(2..).unwrap_or(&[]);
    while let [a, b, c, d, tail @ ..] = rest {
        key_shares.push(u16::from_be_bytes([*a, *b]));
        rest = &tail[usize::from(u16::from_be_bytes([*c, *d]))..];
    }
    let groups = extension(ExtensionType::SUPPORTED_GROUPS);
    Hello {
        datagrams: 0,
        bytes: hello.as_bytes().len(),
        key_shares,
        groups: groups
            .get(2..)
            .unwrap_or(&[])
            .chunks_exact(2)
            .map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
            .collect(),
    }
}
