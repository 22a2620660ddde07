//! One line of `authorized_keys`: text ↔ [`Grant`].
//!
//! The form is described in the parent module. A value is percent-encoded byte by byte, so that any path fits.
//! **Invariant:** `parse(render(grant)) == grant` for every grant that passes `check`.

use std::{
    ffi::OsString,
    fmt::Write as _,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Component, Path, PathBuf},
};

use super::{Access, Grant};
use crate::trust::fingerprint::{Fingerprint, ParseFingerprintError};

const NAME: &str = "name=";
const ROOT: &str = "root=";
const WRITE: &str = "write";

/// What is wrong with a grant, or with the line that should hold one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrantFault {
    /// The line is not UTF-8.
    #[error("not UTF-8 text; write other bytes as % and two hex digits")]
    NotText,
    /// The first field is no fingerprint.
    #[error("{field:?} is {fault}")]
    Fingerprint {
        /// The field.
        field: String,
        /// Why not.
        fault: ParseFingerprintError,
    },
    /// A field that this version does not know.
    #[error("unknown field {field:?}")]
    UnknownField {
        /// The field.
        field: String,
    },
    /// A field that may stand only once.
    #[error("repeated field {field:?}")]
    RepeatedField {
        /// The second of the two.
        field: String,
    },
    /// A `%` without two hex digits.
    #[error("field {field:?} has a % without two hex digits")]
    Escape {
        /// The field.
        field: String,
    },
    /// No name, an empty one, or one that is not printable text.
    #[error("no printable name=")]
    Name,
    /// No root at all.
    #[error("no root=")]
    NoRoot,
    /// A root that is relative, has `..`, or has a NUL.
    #[error("root={} is not an absolute path without `..`", root.display())]
    Root {
        /// The root.
        root: PathBuf,
    },
    /// The key stands in an earlier line already.
    #[error("the key of line {earlier} again; join the two lines")]
    Duplicate {
        /// The earlier line.
        earlier: usize,
    },
}

/// Reads a line that is neither empty nor a comment.
pub(super) fn parse(text: &str) -> Result<Grant, GrantFault> {
    let mut fields = text.split_ascii_whitespace();
    let mut draft = Draft::new(fields.next().unwrap_or_default())?;
    for field in fields {
        draft.add(field)?;
    }
    draft.finish()
}

/// Writes a grant as a line without its end.
pub(super) fn render(grant: &Grant) -> String {
    let mut line = format!("{} {NAME}{}", grant.fingerprint, encode(grant.name.as_bytes()));
    for root in &grant.roots {
        line.push(' ');
        line.push_str(ROOT);
        line.push_str(&encode(root.as_os_str().as_bytes()));
    }
    if grant.access == Access::ReadWrite {
        line.push(' ');
        line.push_str(WRITE);
    }
    line
}

/// What every grant must satisfy, whether read or made.
pub(super) fn check(grant: &Grant) -> Result<(), GrantFault> {
    if grant.name.is_empty() || grant.name.chars().any(char::is_control) {
        return Err(GrantFault::Name);
    }
    if grant.roots.is_empty() {
        return Err(GrantFault::NoRoot);
    }
    match grant.roots.iter().find(|root| !is_safe_root(root)) {
        Some(root) => Err(GrantFault::Root { root: root.clone() }),
        None => Ok(()),
    }
}

fn is_safe_root(root: &Path) -> bool {
    let climbs = root.components().any(|component| component == Component::ParentDir);
    root.is_absolute() && !climbs && !root.as_os_str().as_bytes().contains(&0)
}

/// A grant of which some fields have been read.
struct Draft {
    fingerprint: Fingerprint,
    name: Option<String>,
    roots: Vec<PathBuf>,
    access: Access,
}

impl Draft {
    fn new(field: &str) -> Result<Self, GrantFault> {
        let fingerprint =
            field.parse().map_err(|fault| GrantFault::Fingerprint { field: field.into(), fault })?;
        Ok(Self { fingerprint, name: None, roots: Vec::new(), access: Access::ReadOnly })
    }

    fn add(&mut self, field: &str) -> Result<(), GrantFault> {
        let escape = || GrantFault::Escape { field: field.into() };
        let repeated = || Err(GrantFault::RepeatedField { field: field.into() });
        if let Some(value) = field.strip_prefix(ROOT) {
            let root = decode(value).ok_or_else(escape)?;
            self.roots.push(OsString::from_vec(root).into());
        } else if let Some(value) = field.strip_prefix(NAME) {
            let name = String::from_utf8(decode(value).ok_or_else(escape)?).map_err(|_| GrantFault::Name)?;
            if self.name.replace(name).is_some() {
                return repeated();
            }
        } else if field == WRITE {
            if self.access == Access::ReadWrite {
                return repeated();
            }
            self.access = Access::ReadWrite;
        } else {
            return Err(GrantFault::UnknownField { field: field.into() });
        }
        Ok(())
    }

    fn finish(self) -> Result<Grant, GrantFault> {
        let Self { fingerprint, name, roots, access } = self;
        let grant = Grant { fingerprint, name: name.ok_or(GrantFault::Name)?, roots, access };
        check(&grant)?;
        Ok(grant)
    }
}

/// Text as it is, all else as `%` and two hex digits.
fn encode(value: &[u8]) -> String {
    let mut encoded = String::with_capacity(value.len());
    for chunk in value.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c.is_whitespace() || c.is_control() || c == '%' {
                true => encode_bytes(&mut encoded, c.encode_utf8(&mut [0; 4]).as_bytes()),
                false => encoded.push(c),
            }
        }
        encode_bytes(&mut encoded, chunk.invalid());
    }
    encoded
}

fn encode_bytes(encoded: &mut String, bytes: &[u8]) {
    for byte in bytes {
        write!(encoded, "%{byte:02X}").expect("writing to a string does not fail");
    }
}

fn decode(value: &str) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        if *byte == b'%' {
            let (digits, after) = after.split_at_checked(2)?;
            decoded.push(hex_digit(digits[0])? << 4 | hex_digit(digits[1])?);
            rest = after;
        } else {
            decoded.push(*byte);
            rest = after;
        }
    }
    Some(decoded)
}

fn hex_digit(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ONE: Fingerprint = Fingerprint([1; 32]);

    fn fault_of(fields: &str) -> GrantFault {
        parse(&format!("{ONE} {fields}")).unwrap_err()
    }

    #[test]
    fn reads_the_documented_form() {
        let grant = parse(&format!("{ONE}  root=/data/a%20b\twrite name=alice%25 root=/scratch ")).unwrap();
        let roots = vec!["/data/a b".into(), "/scratch".into()];
        let expected = Grant { fingerprint: ONE, name: "alice%".into(), roots, access: Access::ReadWrite };
        assert_eq!(grant, expected);
    }

    #[test]
    fn readable_text_stays_readable() {
        assert_eq!(encode("/données/#1=x".as_bytes()), "/données/#1=x");
        assert_eq!(encode(b"/a b\n%\xff\x7f\xc3"), "/a%20b%0A%25%FF%7F%C3");
        assert_eq!(encode("\u{a0}\u{2028}".as_bytes()), "%C2%A0%E2%80%A8");
    }

    #[test]
    fn names_the_field_at_fault() {
        let unknown = |field: &str| GrantFault::UnknownField { field: field.into() };
        let repeated = |field: &str| GrantFault::RepeatedField { field: field.into() };
        let escape = |field: &str| GrantFault::Escape { field: field.into() };
        let root = |root: &str| GrantFault::Root { root: root.into() };
        for (fields, fault) in [
            ("name=a root=/ speed=1", unknown("speed=1")),
            ("name=a root=/ Write", unknown("Write")),
            ("name=a root=/ write=1", unknown("write=1")),
            ("name=a name=b root=/", repeated("name=b")),
            ("name=a root=/ write write", repeated("write")),
            ("name=a root=/%", escape("root=/%")),
            ("name=a root=/%2", escape("root=/%2")),
            ("name=a root=/%+2", escape("root=/%+2")),
            ("name=a root=data", root("data")),
            ("name=a root=", root("")),
            ("name=a root=/a/../b", root("/a/../b")),
            ("name=a root=/a%00", root("/a\0")),
            ("name=a", GrantFault::NoRoot),
            ("root=/", GrantFault::Name),
            ("name= root=/", GrantFault::Name),
            ("name=%0a root=/", GrantFault::Name),
            ("name=%ff root=/", GrantFault::Name),
        ] {
            assert_eq!(fault_of(fields), fault, "{fields}");
        }
        let fault = GrantFault::Fingerprint { field: "name=a".into(), fault: ParseFingerprintError };
        assert_eq!(parse("name=a root=/"), Err(fault));
    }

    fn any_root() -> impl Strategy<Value = PathBuf> {
        proptest::collection::vec(1_u8.., 0..40)
            .prop_map(|bytes| PathBuf::from(OsString::from_vec([b"/".as_slice(), &bytes].concat())))
            .prop_filter("a root has no ..", |root| is_safe_root(root))
    }

    fn any_grant() -> impl Strategy<Value = Grant> {
        let name = "[^\\p{Cc}]{1,20}";
        let access = prop_oneof![Just(Access::ReadOnly), Just(Access::ReadWrite)];
        (any::<[u8; 32]>(), name, proptest::collection::vec(any_root(), 1..4), access).prop_map(
            |(key, name, roots, access)| Grant { fingerprint: Fingerprint(key), name, roots, access },
        )
    }

    proptest! {
        #[test]
        fn line_round_trip(grant in any_grant()) {
            let line = render(&grant);
            prop_assert!(!line.chars().any(char::is_control), "{}", line);
            let read = parse(&line).unwrap();
            for (read, written) in read.roots.iter().zip(&grant.roots) {
                prop_assert_eq!(read.as_os_str(), written.as_os_str());
            }
            prop_assert_eq!(read, grant);
        }

        #[test]
        fn no_line_panics(text in ".*") {
            let _outcome = parse(&format!("{ONE} {text}"));
        }
    }
}
