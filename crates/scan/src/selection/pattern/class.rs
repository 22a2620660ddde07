//! Bracket expressions of gitignore syntax (`[a-z]`, `[!0-9]`, `[[:space:]]`).
//!
//! **Invariant:** a translated expression never matches a `/`.

use super::PatternError;

/// A parsed bracket expression.
#[derive(Debug)]
pub(super) struct Class {
    negated: bool,
    /// Whether each ASCII character is listed in the brackets.
    named: [bool; 128],
}

impl Class {
    /// Parses the text after a `[`. Returns the expression and the text after the closing `]`.
    pub(super) fn read(text: &str) -> Result<(Self, &str), PatternError> {
        let (negated, mut rest) = match text.strip_prefix(['!', '^']) {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let mut class = Self {
            negated,
            named: [false; 128],
        };
        let mut before = None;
        // A `]` in the first position is literal.
        let mut first = true;
        loop {
            match rest.strip_prefix(']') {
                Some(after) if !first => return Ok((class, after)),
                _ => (before, rest) = class.read_item(rest, before)?,
            }
            first = false;
        }
    }

    /// Parses a character, a named class, or the end of a range that started with `before`.
    fn read_item<'a>(
        &mut self,
        rest: &'a str,
        before: Option<u8>,
    ) -> Result<(Option<u8>, &'a str), PatternError> {
        if let Some((members, after)) = rest.strip_prefix("[:").and_then(split_name) {
            let is_member = named_class(members)
                .ok_or_else(|| PatternError::UnknownClass(members.to_owned()))?;
            (0..128)
                .filter(is_member)
                .for_each(|byte| self.named[usize::from(byte)] = true);
            return Ok((None, after));
        }
        let range_end = rest.strip_prefix('-').filter(|rest| !rest.starts_with(']'));
        if let Some((from, end)) = before.zip(range_end) {
            let (to, after) = read_character(end)?;
            if to < from {
                return Err(PatternError::ReversedRange(from.into(), to.into()));
            }
            (from..=to).for_each(|byte| self.named[usize::from(byte)] = true);
            return Ok((None, after));
        }
        let (byte, after) = read_character(rest)?;
        self.named[usize::from(byte)] = true;
        Ok((Some(byte), after))
    }

    /// Writes the expression in `globset` syntax: as alternatives, or as a negated class in which every character is
    /// literal.
    pub(super) fn write(mut self, glob: &mut String) -> Result<(), PatternError> {
        self.named[usize::from(b'/')] = self.negated;
        let members = (0_u8..128)
            .filter(|&byte| self.named[usize::from(byte)])
            .map(char::from);
        if self.negated {
            let first = members.clone().filter(|&member| member == ']');
            let last = members.clone().filter(|&member| member == '-');
            let others = members.filter(|member| !matches!(member, ']' | '-'));
            glob.push_str("[^");
            glob.extend(first.chain(others).chain(last));
            glob.push(']');
            return Ok(());
        }
        let alternatives: Vec<_> = members.map(|member| format!("\\{member}")).collect();
        match alternatives.as_slice() {
            [] => return Err(PatternError::Nothing),
            [only] => glob.push_str(only),
            several => glob.push_str(&format!("{{{}}}", several.join(","))),
        }
        Ok(())
    }
}

fn read_character(text: &str) -> Result<(u8, &str), PatternError> {
    let text = text.strip_prefix('\\').unwrap_or(text);
    let character = text.chars().next().ok_or(PatternError::Unclosed)?;
    if !character.is_ascii() {
        return Err(PatternError::NotAscii(character));
    }
    Ok((text.as_bytes()[0], &text[1..]))
}

/// Splits the name of a class from the text after it. The name ends at the first `]`, which must follow a colon.
fn split_name(text: &str) -> Option<(&str, &str)> {
    let (name, after) = text.split_once(']')?;
    Some((name.strip_suffix(':')?, after))
}

fn named_class(name: &str) -> Option<fn(&u8) -> bool> {
    Some(match name {
        "alnum" => u8::is_ascii_alphanumeric,
        "alpha" => u8::is_ascii_alphabetic,
        "blank" => |byte| matches!(byte, b' ' | b'\t'),
        "cntrl" => u8::is_ascii_control,
        "digit" => u8::is_ascii_digit,
        "graph" => u8::is_ascii_graphic,
        "lower" => u8::is_ascii_lowercase,
        "print" => |byte| matches!(byte, b' '..=b'~'),
        "punct" => u8::is_ascii_punctuation,
        "space" => |byte| matches!(byte, b' ' | b'\t'..=b'\r'),
        "upper" => u8::is_ascii_uppercase,
        "xdigit" => u8::is_ascii_hexdigit,
        _ => return None,
    })
}
