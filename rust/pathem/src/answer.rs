//! Writing answers, whole or piece by piece.

use serde_json::Value;

/// A JSON array that is written element by element.
#[derive(Default)]
pub struct List {
    is_open: bool,
    is_closed: bool,
}

impl List {
    /// Writes one more element.
    pub fn add(&mut self, out: &mut Vec<u8>, value: &Value) {
        out.push(if self.is_open { b',' } else { b'[' });
        self.is_open = true;
        write(out, value);
    }

    /// Ends the array. True the first time.
    pub fn close(&mut self, out: &mut Vec<u8>) -> bool {
        if self.is_closed {
            return false;
        }
        self.is_closed = true;
        out.extend_from_slice(if self.is_open { b"]" } else { b"[]" });
        true
    }
}

/// Appends an answer line.
pub fn write_line(out: &mut Vec<u8>, value: &Value) {
    write(out, value);
    out.push(b'\n');
}

/// Appends one JSON value.
pub fn write(out: &mut Vec<u8>, value: &Value) {
    // Writing a Value into memory cannot fail.
    let _ = serde_json::to_writer(out, value);
}
