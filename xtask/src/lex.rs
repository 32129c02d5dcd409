//! Cuts Rust source into tokens, for the rules to look at.
//!
//! A file's text comes in; its tokens, comments and string literals come out, each with its line. A rule that looks at
//! tokens cannot be fooled by a comment or a string, and one that looks at comments cannot be fooled by code. This is
//! no parser: it knows literals, comments, identifiers and `::`, and takes every other character by itself.

/// A piece of text and its line, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct At {
    pub line: usize,
    pub text: String,
}

/// The pieces of one file.
#[derive(Debug, Default)]
pub struct Lexed {
    /// Identifiers, numbers, `::`, and single characters. A string literal is `"`, a character literal `'`; a lifetime
    /// keeps its quote.
    pub tokens: Vec<At>,
    /// Each line of each comment, without its slashes.
    pub comments: Vec<At>,
    /// The text between the quotes of each string literal, at the line where it begins.
    pub strings: Vec<At>,
}

/// Cuts `text` into its pieces.
pub fn lex(text: &str) -> Lexed {
    let mut cutter = Cutter { signs: text.chars().collect(), at: 0, line: 1, out: Lexed::default() };
    while cutter.at < cutter.signs.len() {
        cutter.step();
    }
    cutter.out
}

struct Cutter {
    signs: Vec<char>,
    at: usize,
    line: usize,
    out: Lexed,
}

impl Cutter {
    fn step(&mut self) {
        let sign = self.signs[self.at];
        match (sign, self.peek(1)) {
            ('/', Some('/')) => self.line_comment(),
            ('/', Some('*')) => self.block_comment(),
            ('"', _) => self.string(),
            ('\'', _) => self.quote(),
            (':', Some(':')) => {
                self.token("::".into());
                self.at += 2;
            }
            _ if is_word(sign) => self.word(),
            _ if sign.is_whitespace() => self.advance(),
            _ => {
                self.token(sign.into());
                self.at += 1;
            }
        }
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.signs.get(self.at + ahead).copied()
    }

    fn token(&mut self, text: String) {
        self.out.tokens.push(At { line: self.line, text });
    }

    fn advance(&mut self) {
        if self.peek(0) == Some('\n') {
            self.line += 1;
        }
        self.at += 1;
    }

    fn line_comment(&mut self) {
        let start = self.at;
        while self.peek(0).is_some_and(|sign| sign != '\n') {
            self.at += 1;
        }
        self.comment(start, self.at);
    }

    fn comment(&mut self, start: usize, end: usize) {
        let text: String = self.signs[start..end].iter().collect();
        let text = text.trim_start_matches(['/', '*', '!']).trim().to_owned();
        self.out.comments.push(At { line: self.line, text });
    }

    fn block_comment(&mut self) {
        let (mut depth, mut start) = (0, self.at);
        loop {
            match (self.peek(0), self.peek(1)) {
                (Some('/'), Some('*')) => {
                    depth += 1;
                    self.at += 2;
                }
                (Some('*'), Some('/')) => {
                    depth -= 1;
                    self.at += 2;
                }
                (Some('\n'), _) => {
                    self.comment(start, self.at);
                    self.advance();
                    start = self.at;
                }
                (Some(_), _) => self.at += 1,
                (None, _) => return,
            }
            if depth == 0 {
                return self.comment(start, self.at);
            }
        }
    }

    fn string(&mut self) {
        self.token("\"".into());
        let line = self.line;
        self.at += 1;
        let start = self.at;
        while let Some(sign) = self.peek(0) {
            match sign {
                '"' => break,
                '\\' => {
                    self.at += 1;
                    self.advance();
                }
                _ => self.advance(),
            }
        }
        self.keep_string(line, start, 1);
    }

    fn raw_string(&mut self, hashes: usize) {
        self.token("\"".into());
        let line = self.line;
        self.at += hashes + 1;
        let start = self.at;
        while self.at < self.signs.len() {
            let closes = self.peek(0) == Some('"') && (1..=hashes).all(|h| self.peek(h) == Some('#'));
            if closes {
                break;
            }
            self.advance();
        }
        self.keep_string(line, start, hashes + 1);
    }

    fn keep_string(&mut self, line: usize, start: usize, closing: usize) {
        let end = self.at.min(self.signs.len());
        let text = self.signs[start.min(end)..end].iter().collect();
        self.out.strings.push(At { line, text });
        self.at += closing;
    }

    /// Takes a character literal or a lifetime.
    fn quote(&mut self) {
        if self.peek(1) == Some('\\') {
            self.at += 3;
            while self.peek(0).is_some_and(|sign| sign != '\'') {
                self.at += 1;
            }
            self.at += 1;
            self.token("'".into());
        } else if self.peek(2) == Some('\'') {
            self.at += 3;
            self.token("'".into());
        } else {
            // A lifetime keeps its quote, so that `'static` is not taken for the word `static`.
            let start = self.at;
            self.at += 1;
            while self.peek(0).is_some_and(is_word) {
                self.at += 1;
            }
            self.token(self.signs[start..self.at].iter().collect());
        }
    }

    fn word(&mut self) {
        let start = self.at;
        while self.peek(0).is_some_and(is_word) {
            self.at += 1;
        }
        let text: String = self.signs[start..self.at].iter().collect();
        if matches!(text.as_str(), "r" | "br" | "cr") {
            let hashes = self.signs[self.at..].iter().take_while(|sign| **sign == '#').count();
            if self.peek(hashes) == Some('"') {
                return self.raw_string(hashes);
            }
        }
        // The prefix of `b"…"` or `c"…"` belongs to the literal, and is no token.
        if !(matches!(text.as_str(), "b" | "c") && self.peek(0) == Some('"')) {
            self.token(text);
        }
    }
}

fn is_word(sign: char) -> bool {
    sign.is_alphanumeric() || sign == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<String> {
        lex(text).tokens.into_iter().map(|token| token.text).collect()
    }

    #[test]
    fn strings_and_comments_are_not_code() {
        let lexed = lex("let a = \"x.unwrap() // no\"; // y.unwrap()\n/* z\n /* deep */ */ b");
        let code: Vec<_> = lexed.tokens.iter().map(|t| t.text.as_str()).collect();
        assert_eq!(code, ["let", "a", "=", "\"", ";", "b"]);
        assert_eq!(lexed.tokens[5].line, 3);
        assert_eq!(lexed.strings[0].text, "x.unwrap() // no");
        assert_eq!(lexed.comments[0].text, "y.unwrap()");
    }

    #[test]
    fn raw_strings_end_at_their_own_hashes() {
        assert_eq!(tokens(r###"r#"a " b"# c r"d" br##""#"## e"###), ["\"", "c", "\"", "\"", "e"]);
    }

    #[test]
    fn escapes_do_not_end_a_string() {
        assert_eq!(tokens(r#"("a\"b\\", x)"#), ["(", "\"", ",", "x", ")"]);
    }

    #[test]
    fn a_lifetime_is_not_a_character() {
        assert_eq!(
            tokens(r"fn f<'a>(x: &'static u8) { '}'; '\''; '\u{7d}'; b'{' }"),
            [
                "fn", "f", "<", "'a", ">", "(", "x", ":", "&", "'static", "u8", ")", "{", "'", ";", "'", ";",
                "'", ";", "b", "'", "}"
            ]
        );
    }

    #[test]
    fn a_string_over_lines_keeps_the_count() {
        let lexed = lex("a \"1\n2\\\n3\" b");
        assert_eq!(lexed.tokens.last().map(|token| token.line), Some(3));
        assert_eq!(lexed.strings[0].line, 1);
    }
}
