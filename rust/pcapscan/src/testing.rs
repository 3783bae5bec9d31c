//! Hand-made packets for tests: raw IP records in a pcap file.

/// A pcap file of raw IP packets.
#[derive(Debug)]
pub struct Writer {
    bytes: Vec<u8>,
}

/// What a packet is made of.
#[derive(Debug, Clone, Copy)]
pub struct Packet {
    /// Capture time, ns.
    pub time_ns: u64,
    /// Whether the client sends it (198.18.0.1:40000), else the server (198.18.0.2:443).
    pub from_client: bool,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgment number.
    pub ack: u32,
    /// Flags.
    pub flags: u16,
    /// Window.
    pub window: u16,
    /// Payload, B.
    pub len: u16,
    /// Identification.
    pub id: u16,
    /// TSval and TSecr.
    pub timestamps: Option<(u32, u32)>,
}

impl Default for Writer {
    fn default() -> Self {
        let mut bytes = 0xa1b2_3c4du32.to_le_bytes().to_vec();
        for word in [0x0004_0002u32, 0, 0, 65_535, 1] {
            bytes.extend(word.to_le_bytes());
        }
        Self { bytes }
    }
}

impl Writer {
    /// Adds a packet on Ethernet, its payload cut off as by a snap length.
    pub fn packet(&mut self, packet: &Packet) -> &mut Self {
        self.packet_of(40_000, packet)
    }

    /// Adds a packet of the client that has this port.
    #[expect(clippy::cast_possible_truncation, reason = "times of tests are small")]
    pub fn packet_of(&mut self, client_port: u16, packet: &Packet) -> &mut Self {
        let header: u16 = if packet.timestamps.is_some() { 32 } else { 20 };
        let total = 20 + header + packet.len;
        let (from, to) = if packet.from_client {
            (1u8, 2u8)
        } else {
            (2, 1)
        };
        let (source, destination) = if packet.from_client {
            (client_port, 443u16)
        } else {
            (443, client_port)
        };
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00, 0x45, 0]);
        frame.extend(total.to_be_bytes());
        frame.extend(packet.id.to_be_bytes());
        frame.extend([0x40, 0, 64, 6, 0, 0, 198, 18, 0, from, 198, 18, 0, to]);
        frame.extend(source.to_be_bytes());
        frame.extend(destination.to_be_bytes());
        frame.extend(packet.seq.to_be_bytes());
        frame.extend(packet.ack.to_be_bytes());
        frame.extend((header << 10 | packet.flags).to_be_bytes());
        frame.extend(packet.window.to_be_bytes());
        frame.extend([0; 4]);
        if let Some((tsval, tsecr)) = packet.timestamps {
            frame.extend([1, 1, 8, 10]);
            frame.extend(tsval.to_be_bytes());
            frame.extend(tsecr.to_be_bytes());
        }
        for word in [
            (packet.time_ns / 1_000_000_000) as u32,
            (packet.time_ns % 1_000_000_000) as u32,
            frame.len() as u32,
            u32::from(total) + 14,
        ] {
            self.bytes.extend(word.to_le_bytes());
        }
        self.bytes.extend(frame);
        self
    }

    /// Adds a record of another file.
    pub fn append(&mut self, record: &[u8]) {
        self.bytes.extend(record);
    }

    /// The file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
