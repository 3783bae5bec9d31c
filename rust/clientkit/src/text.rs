//! Makes untrusted text safe to print and to store.

/// One line, no control characters, at most 200 characters.
#[must_use]
pub fn one_line(text: &str) -> String {
    clean(text, 200)
}

/// `text` without control characters (each becomes a space), cut after `most` characters.
#[must_use]
pub fn clean(text: &str, most: usize) -> String {
    let hostile = |c: char| {
        c.is_control()
            || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars()
        .take(most)
        .map(|c| if hostile(c) { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_is_made_safe() {
        assert_eq!(one_line("a\r\n\u{1b}[31mb\u{202e}c"), "a   [31mb c");
        assert_eq!(clean(&"ü".repeat(300), 200).chars().count(), 200);
    }
}
