//! Shell globs for single names: `*`, `?`, `[a-z]`, `[!a]`, and `\` to make the next character literal. A user may type
//! them in the path of a source on another host. That host matches the glob against its names, and the requesting host
//! checks the received names again.
//!
//! **Invariant:** a glob matches bytes, and matching takes at most time proportional to the product of both lengths. A
//! glob matches a name that starts with a dot only if the glob starts with a dot too.

/// Returns whether a path component is a glob.
#[must_use]
pub fn is_glob(name: &[u8]) -> bool {
    name.iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
}

/// Returns whether a name matches a glob. A glob with an unclosed `[` matches nothing.
#[must_use]
pub fn glob_matches(glob: &[u8], name: &[u8]) -> bool {
    if name.first() == Some(&b'.') && glob.first() != Some(&b'.') {
        return false;
    }
    let mut at_glob = 0;
    let mut at_name = 0;
    // The position in the glob after its last `*`, and the position in the name from which the rest of the glob must
    // match. After each failure, the `*` matches one more byte of the name.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if glob.get(at_glob) == Some(&b'*') {
            at_glob += 1;
            star = Some((at_glob, at_name));
            continue;
        }
        let step = name
            .get(at_name)
            .and_then(|byte| match_one(&glob[at_glob..], *byte));
        match (step, star) {
            (Some(taken), _) => {
                at_glob += taken;
                at_name += 1;
            }
            (None, _) if at_glob == glob.len() && at_name == name.len() => return true,
            (None, Some((after, begun))) if begun < name.len() => {
                star = Some((after, begun + 1));
                (at_glob, at_name) = (after, begun + 1);
            }
            (None, _) => return false,
        }
    }
}

/// Returns the length in bytes of the first element of the glob if that element matches `byte`, or `None` otherwise.
fn match_one(glob: &[u8], byte: u8) -> Option<usize> {
    match glob {
        [b'?', ..] => Some(1),
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [b'[', class @ ..] => {
            let (negated, class) = match class {
                [b'!' | b'^', rest @ ..] => (true, rest),
                rest => (false, rest),
            };
            // A `]` directly after the opening bracket is a member of the class.
            let end = 1 + class.iter().skip(1).position(|byte| *byte == b']')?;
            let is_member = is_member(&class[..end], byte);
            (is_member != negated).then_some(2 + usize::from(negated) + end)
        }
        [literal, ..] => (*literal == byte).then_some(1),
        [] => None,
    }
}

fn is_member(class: &[u8], byte: u8) -> bool {
    let mut rest = class;
    while let [first, after @ ..] = rest {
        if let [b'-', last, beyond @ ..] = after {
            if (*first..=*last).contains(&byte) {
                return true;
            }
            rest = beyond;
        } else if *first == byte {
            return true;
        } else {
            rest = after;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_as_a_shell_s_do() {
        let matches = |glob: &str, name: &str| glob_matches(glob.as_bytes(), name.as_bytes());
        for (glob, name) in [
            ("*", "a"),
            ("*", ""),
            ("a*c", "abbc"),
            ("a*b*c", "aXbYbZc"),
            ("?.txt", "a.txt"),
            ("[a-c]x", "bx"),
            ("[!a-c]x", "dx"),
            ("[]a]", "]"),
            ("[a-]", "-"),
            ("\\*", "*"),
            (".*", ".a"),
            ("a", "a"),
        ] {
            assert!(matches(glob, name), "{glob} {name}");
        }
        for (glob, name) in [
            ("*", ".a"),
            ("?a", ".a"),
            ("[.]a", ".a"),
            ("a*c", "abb"),
            ("[a-c]x", "dx"),
            ("[!a-c]x", "ax"),
            ("[a", "a"),
            ("[a", "[a"),
            ("\\*", "a"),
            ("a", "ab"),
            ("ab", "a"),
            ("", "a"),
        ] {
            assert!(!matches(glob, name), "{glob} {name}");
        }
    }

    #[test]
    fn many_stars_take_little_time() {
        let glob = "*a".repeat(100) + "b";
        assert!(!glob_matches(glob.as_bytes(), "a".repeat(255).as_bytes()));
    }
}
