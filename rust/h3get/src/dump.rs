//! A copy of request and response as JSON, as quiche's own example client writes it with `--dump-json`.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use quiche::h3::{Header, NameValue};
use serde::Serialize;
use serde_json::json;

/// Bytes of the body to keep: the default of the example client.
const MOST_BODY: usize = 10_000;

#[derive(Debug, Serialize)]
struct Field {
    name: String,
    value: String,
}

/// What is copied while a download runs.
#[derive(Debug)]
pub struct Dump {
    file: File,
    request: Vec<Field>,
    response: Vec<Field>,
    body: Vec<u8>,
}

impl Dump {
    /// Creates the file, and its folder.
    pub fn create(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        Ok(Self {
            file: File::create(path)?,
            request: Vec::new(),
            response: Vec::new(),
            body: Vec::new(),
        })
    }

    pub fn on_request(&mut self, headers: &[Header]) {
        self.request = fields(headers);
    }

    pub fn on_headers(&mut self, headers: &[Header]) {
        self.response = fields(headers);
    }

    pub fn on_body(&mut self, bytes: &[u8]) {
        let room = MOST_BODY.saturating_sub(self.body.len()).min(bytes.len());
        self.body.extend_from_slice(&bytes[..room]);
    }

    /// Writes what was copied.
    pub fn write(self) -> io::Result<()> {
        let mut out = BufWriter::new(self.file);
        let entry = json!({
            "request": {"headers": self.request},
            "response": {"headers": self.response, "body": self.body},
        });
        serde_json::to_writer_pretty(&mut out, &json!({ "entries": [entry] }))?;
        out.flush()
    }
}

fn fields(headers: &[Header]) -> Vec<Field> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let field = |header: &Header| Field {
        name: text(header.name()),
        value: text(header.value()),
    };
    headers.iter().map(field).collect()
}
