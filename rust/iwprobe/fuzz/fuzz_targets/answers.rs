//! HTTP answers and TLS records, however they are cut.
#![no_main]

use iwprobe::answer::Answer;
use iwprobe::talk::Talk;
use iwprobe::tls::{Tls, settings};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&size, rest)) = data.split_first() else {
        return;
    };
    let size = usize::from(size) + 1;
    let (mut whole, mut parts) = (Answer::default(), Answer::default());
    whole.push(rest);
    rest.chunks(size).for_each(|part| parts.push(part));
    if rest.len() < 16_000 {
        assert_eq!(
            (whole.status, whole.content_length),
            (parts.status, parts.content_length)
        );
        assert_eq!(
            (&whole.location, &whole.cookie),
            (&parts.location, &parts.cookie)
        );
        assert_eq!(whole.is_complete(), parts.is_complete());
    }
    let (mut talk, mut out) = (Talk::default(), Vec::new());
    talk.reset(Tls::new(&settings().unwrap(), "a.test").ok().map(Box::new));
    talk.open(&mut out);
    rest.chunks(size)
        .for_each(|part| talk.input(part, &mut out));
    assert!(!talk.is_requested());
});
