//! Responses of HTTP/3 however they are cut: blocks of header fields and bytes of the body, in any order.
#![no_main]

use std::time::Duration;

use clientkit::{Field, Response, Url, one_line};
use libfuzzer_sys::fuzz_target;

const NOW: Duration = Duration::from_millis(7);

/// `name:value`, where a pseudo-header's name begins with a colon.
fn field(line: &[u8]) -> Field<'_> {
    let colon = line.iter().skip(1).position(|byte| *byte == b':');
    colon.map_or((line, &[]), |at| (&line[..=at], &line[at + 2..]))
}

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = Url::parse(text);
        assert!(!one_line(text).contains('\n'));
    }
    let Some((&most, mut rest)) = data.split_first() else {
        return;
    };
    let most = (most < 128).then_some(u64::from(most));
    let mut response = Response::new(most, Some(0));
    let mut is_over = false;
    while let (false, Some((&size, after))) = (is_over, rest.split_first()) {
        let (part, left) = after.split_at(after.len().min(usize::from(size >> 1)));
        rest = left;
        is_over = if size & 1 == 0 {
            let fields: Vec<_> = part.split(|byte| *byte == b'\n').map(field).collect();
            response.on_headers(&fields, NOW).is_some()
        } else {
            response.on_body(part, NOW).is_some()
        };
    }
    assert!(most.is_none_or(|most| response.body_bytes <= most));
    let _ = response.on_finished();
});
