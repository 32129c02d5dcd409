//! Text of others on its way to a terminal (SEC-5).
//!
//! Comes in: whatever a message, a key or a server carries. Goes out: the same on one line, with nothing in it that a
//! terminal obeys.

/// `text` with control characters spelled out, and those that turn the text around them.
pub fn harmless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            // Four digits as in JSON, so that an escaped JSON line is still JSON.
            c if c.is_control() || turns_text(c) => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

/// Whether a character makes a terminal show the text around it in another order than it stands, or on another line.
fn turns_text(c: char) -> bool {
    matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SEC-5.
    #[test]
    fn an_escape_sequence_in_a_key_does_not_reach_the_terminal() {
        assert_eq!(harmless("a\u{1b}[2Jb\n\u{9b}"), "a\\u001b[2Jb\\n\\u009b");
        assert_eq!(harmless("grüße 你好"), "grüße 你好");
        assert_eq!(harmless("a\u{202e}b\u{2066}\u{200f}c"), "a\\u202eb\\u2066\\u200fc");
    }
}
