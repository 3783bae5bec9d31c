//! Capture files as streams of raw packets.

pub mod frame;
pub mod pcap;
pub mod pcapng;
pub mod window;

use crate::error::ScanError;
use frame::Next;
use pcap::Pcap;
use pcapng::Pcapng;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use window::Window;

enum Format {
    Pcap(Pcap),
    Pcapng(Pcapng),
    /// The file is cut before its first packet.
    Cut,
}

/// A capture file of any supported format.
pub struct Capture {
    window: Window,
    format: Format,
}

impl Capture {
    /// Opens a file: pcap or pcapng, plain or compressed by gzip or zstd, detected by their first bytes.
    ///
    /// # Errors
    /// The file cannot be read, is empty, or is not a capture.
    pub fn open(path: &Path) -> Result<Self, ScanError> {
        Self::from_reader(Box::new(File::open(path)?))
    }

    /// Reads a capture from a stream.
    ///
    /// # Errors
    /// As for [`Capture::open`].
    pub fn from_reader(mut source: Box<dyn Read + Send + Sync>) -> Result<Self, ScanError> {
        let mut head = [0; 4];
        let got = read_up_to(&mut source, &mut head)?;
        if got == 0 {
            return Err(ScanError::Empty);
        }
        let whole = io::Cursor::new(head[..got].to_vec()).chain(source);
        let window = match head {
            [0x1f, 0x8b, 8, ..] => Window::new(Box::new(flate2::read::MultiGzDecoder::new(whole))),
            [0x28, 0xb5, 0x2f, 0xfd] => Window::new(Box::new(zstd::Decoder::new(whole)?)),
            _ => Window::new(Box::new(whole)),
        };
        Self::from_window(window)
    }

    fn from_window(mut window: Window) -> Result<Self, ScanError> {
        match window.ensure(12) {
            // Compressed formats come in blocks: where the first is cut, nothing can be read, and nothing is wrong.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Ok(Self {
                    window,
                    format: Format::Cut,
                });
            }
            Err(_) => return Err(ScanError::NotACapture),
            Ok(_) => {}
        }
        let head = window.bytes();
        if head.is_empty() {
            return Err(ScanError::Empty);
        }
        let format = if Pcapng::recognises(head) {
            Format::Pcapng(Pcapng::default())
        } else if Pcap::recognises(head) {
            let Some(pcap) = Pcap::open(&mut window)? else {
                return Ok(Self {
                    window,
                    format: Format::Cut,
                });
            };
            if !pcap.link.is_known() {
                return Err(ScanError::LinkType(pcap.link.0));
            }
            Format::Pcap(pcap)
        } else if Pcapng::may_begin(head) {
            Format::Cut
        } else {
            return Err(ScanError::NotACapture);
        };
        Ok(Self { window, format })
    }

    /// The records at hand that take no reading, of a classic pcap file: its format, and bytes that begin with a record.
    /// Say with [`Capture::pass`] how many of them are done, then ask [`Capture::next_record`].
    #[inline]
    #[must_use]
    pub fn at_hand(&self) -> Option<(Pcap, &[u8])> {
        match &self.format {
            Format::Pcap(pcap) => Some((*pcap, self.window.bytes())),
            _ => None,
        }
    }

    /// Moves past bytes of [`Capture::at_hand`].
    #[inline]
    pub fn pass(&mut self, count: usize) {
        self.window.consume(count);
    }

    /// The next record.
    pub fn next_record(&mut self) -> Next<'_> {
        match &mut self.format {
            Format::Pcap(pcap) => pcap.next_record(&mut self.window),
            Format::Pcapng(pcapng) => pcapng.next_record(&mut self.window),
            Format::Cut => Next::Cut("the file ends before its first packet".into()),
        }
    }
}

fn read_up_to(source: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match source.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(count) => got += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}
