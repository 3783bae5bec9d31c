//! The socket under quinn: ours, connected, so that a refused port is seen, drops are counted, and the clock starts with
//! the first datagram.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};

use clientkit::{Batch, Clock, Socket};
use nix::errno::Errno;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::Notify;

/// The clients' socket as quinn wants it.
#[derive(Debug)]
pub struct Link {
    /// The same socket for the runtime, which tells when it can be read.
    ready: UdpSocket,
    socket: Mutex<Socket>,
    local: SocketAddr,
    clock: OnceLock<Clock>,
    started: Notify,
    fault: OnceLock<Errno>,
    faulted: Notify,
    receive_calls: AtomicU64,
}

impl Link {
    /// Takes the socket; call it inside the runtime.
    pub fn new(socket: Socket) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            ready: UdpSocket::from_std(socket.as_fd().try_clone_to_owned()?.into())?,
            local: socket.local,
            socket: Mutex::new(socket),
            clock: OnceLock::new(),
            started: Notify::new(),
            fault: OnceLock::new(),
            faulted: Notify::new(),
            receive_calls: AtomicU64::new(0),
        }))
    }

    /// Waits for the first datagram; gives the clock that it started.
    pub async fn started(&self) -> Clock {
        loop {
            if let Some(clock) = self.clock.get() {
                return *clock;
            }
            self.started.notified().await;
        }
    }

    /// Waits for an error of the socket. quinn would not tell it.
    pub async fn fault(&self) -> Errno {
        loop {
            if let Some(errno) = self.fault.get() {
                return *errno;
            }
            self.faulted.notified().await;
        }
    }

    /// The socket itself.
    pub fn socket(&self) -> MutexGuard<'_, Socket> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receive calls that gave data.
    pub fn receive_calls(&self) -> u64 {
        self.receive_calls.load(Ordering::Relaxed)
    }

    fn break_off(&self, errno: Errno) {
        let _ = self.fault.set(errno); // the first one counts
        self.faulted.notify_one();
    }

    /// Fills buffers with what is waiting, one receive call each.
    fn receive(&self, bufs: &mut [IoSliceMut<'_>], meta: &mut [RecvMeta]) -> io::Result<usize> {
        let mut socket = self.socket();
        let mut filled = 0;
        for (buffer, meta) in bufs.iter_mut().zip(meta) {
            let Some(Batch { bytes, segment }) = socket.receive(buffer)? else {
                break;
            };
            *meta = RecvMeta {
                addr: socket.peer,
                len: bytes,
                stride: segment,
                ecn: None,
                dst_ip: None,
            };
            filled += 1;
        }
        if filled == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.receive_calls
            .fetch_add(filled as u64, Ordering::Relaxed);
        Ok(filled)
    }
}

impl AsyncUdpSocket for Link {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        if self.clock.get().is_none() {
            let _ = self.clock.set(Clock::start());
            self.started.notify_one();
        }
        if let Err(errno) = self.socket().send(transmit.contents) {
            self.break_off(errno);
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.ready.poll_recv_ready(cx))?;
            match self
                .ready
                .try_io(Interest::READABLE, || self.receive(bufs, meta))
            {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    let errno = error
                        .raw_os_error()
                        .map_or(Errno::UnknownErrno, Errno::from_raw);
                    self.break_off(errno);
                    return Poll::Pending; // the download ends
                }
                Ok(filled) => return Poll::Ready(Ok(filled)),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }
}

/// [`Socket::send`] waits for room itself, and briefly: there is next to nothing to send.
#[derive(Debug)]
struct AlwaysWritable;

impl UdpPoller for AlwaysWritable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
