//! File names, paths and text from other hosts, formatted for display.

use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::os::unix::ffi::OsStrExt;

/// A name or path, formatted as a single line that is safe to print and can be mapped back to the bytes. Invalid UTF-8
/// is printed as `\xe9`, a backslash as `\\`, and [unprintable](is_unprintable) characters as `\n` or `\u{202e}`.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(pub &'a [u8]);

impl<'a> Escaped<'a> {
    /// Wraps a path for display.
    #[must_use]
    pub fn path(path: &'a (impl AsRef<OsStr> + ?Sized)) -> Self {
        Self(path.as_ref().as_bytes())
    }
}

/// Returns whether a character could affect other output: control characters, line separators, and characters that
/// change the text direction.
#[must_use]
pub fn is_unprintable(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}')
}

/// Replaces each [unprintable](is_unprintable) character in a text from another host with the replacement character. An
/// honest host has already escaped the names in the text.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if is_unprintable(c) { '\u{fffd}' } else { c })
        .collect()
}

/// Text that is formatted with control characters escaped, so that it cannot control the terminal.
#[derive(Clone, Copy, Debug)]
pub struct Printable<T>(pub T);

impl<T: fmt::Display> fmt::Display for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.to_string().chars().try_for_each(|c| {
            if is_unprintable(c) {
                write!(f, "{}", c.escape_default())
            } else {
                f.write_char(c)
            }
        })
    }
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if is_unprintable(c) || c == '\\' {
                    write!(f, "{}", c.escape_default())?;
                } else {
                    f.write_char(c)?;
                }
            }
            chunk
                .invalid()
                .iter()
                .try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_stands_for_exactly_these_bytes() {
        let pairs: [(&[u8], &str); 5] = [
            ("gr\u{fc}n '\"$".as_bytes(), "gr\u{fc}n '\"$"),
            (b"caf\xe9", "caf\\xe9"),
            (b"a\\xe9", "a\\\\xe9"),
            (
                "a\u{202e}b\u{2066}\u{2028}".as_bytes(),
                "a\\u{202e}b\\u{2066}\\u{2028}",
            ),
            (b"a\x1b[2J\n", "a\\u{1b}[2J\\n"),
        ];
        pairs
            .into_iter()
            .for_each(|(bytes, shown)| assert_eq!(Escaped(bytes).to_string(), shown));
    }

    #[test]
    fn a_name_cannot_command_the_terminal() {
        let text = "a\x1b[2Jb\nc\u{e9}\u{202e}";
        assert_eq!(
            Printable(text).to_string(),
            "a\\u{1b}[2Jb\\nc\u{e9}\\u{202e}"
        );
    }
}
