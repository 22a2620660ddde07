//! One line of `authorized_keys`: conversion between text and [`Grant`].
//!
//! The parent module describes the format. Values are percent-encoded byte by byte, so that any path can be written.
//! **Invariant:** `parse(render(grant)) == grant` for every grant that passes `check`.

use std::{
    ffi::{OsStr, OsString},
    fmt::Write as _,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Component, Path, PathBuf},
    str::FromStr,
};

use super::{Access, Grant, Holder, Subject};
use crate::trust::fingerprint::ParseFingerprintError;

/// The fault of a grant, or of a line that should contain one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrantFault {
    /// The line is not valid UTF-8.
    #[error("not UTF-8 text; write other bytes as % and two hex digits")]
    NotText,
    /// The first field is not a fingerprint.
    #[error("{field:?} is {fault}")]
    Fingerprint {
        /// The field.
        field: String,
        /// The reason why the field is not a fingerprint.
        fault: ParseFingerprintError,
    },
    /// A line with an authority must name exactly one holder, but names none or several.
    #[error("'ca=' needs one 'cn=' or 'san='")]
    Subject,
    /// This version does not know the field.
    #[error("unknown field {0:?}")]
    UnknownField(String),
    /// A field that may appear only once is repeated.
    #[error("repeated field {0:?}")]
    RepeatedField(String),
    /// A `%` is not followed by two hex digits.
    #[error("field {0:?} has a % without two hex digits")]
    Escape(String),
    /// The rate cannot be parsed.
    #[error("field {0:?} is not a rate: write bits per second as 500Mbit or 10Gbit")]
    Rate(String),
    /// The time cannot be parsed.
    #[error("field {0:?} is not a time in UTC: write 2027-01-31 or 2027-01-31T18:00:00Z")]
    Expiry(String),
    /// A destination is empty or not printable text.
    #[error("field {0:?} names no host: write HOST or HOST:PORT")]
    Destination(String),
    /// The name is missing, empty, or not printable text.
    #[error("name= is missing or not printable")]
    Name,
    /// There is no root.
    #[error("root= is missing")]
    NoRoot,
    /// A root is relative, or contains `..` or a NUL byte.
    #[error("root={} is not an absolute path without '..'", .0.display())]
    Root(PathBuf),
    /// An earlier line is for the same holder.
    #[error("the same key as on line {earlier}; join the two lines")]
    Duplicate {
        /// The number of the earlier line.
        earlier: usize,
    },
}

/// The names of all fields that may follow the first one.
const FIELDS: [&str; 14] = [
    "name",
    "root",
    "write",
    "read",
    "read-root",
    "to",
    "set-ids",
    "set-owner",
    "lead",
    "max-rate",
    "expires",
    "crl",
    "cn",
    "san",
];

/// Parses a line that is neither empty nor a comment.
pub(super) fn parse(line: &str) -> Result<Grant, GrantFault> {
    let mut fields = line.split_ascii_whitespace();
    let first = fields.next().unwrap_or_default();
    let mut fields = Fields(fields.collect());
    // A misspelled field is reported as unknown. Otherwise, the error would be about the missing field.
    let is_unknown = |field: &&&str| !FIELDS.contains(&field.split('=').next().unwrap_or_default());
    if let Some(unknown) = fields.0.iter().find(is_unknown) {
        return Err(GrantFault::UnknownField((*unknown).into()));
    }
    let holder = match Field::named("ca", first) {
        Some(authority) => Holder::Certified {
            authority: authority.path()?,
            revoked: fields.one("crl")?.map(Field::path).transpose()?,
            subject: fields.subject()?,
        },
        None => Holder::Key(first.parse().map_err(|fault| GrantFault::Fingerprint {
            field: first.into(),
            fault,
        })?),
    };
    let name = fields.one("name")?.ok_or(GrantFault::Name)?;
    let grant = Grant {
        holder,
        name: String::from_utf8(name.bytes()?).map_err(|_| GrantFault::Name)?,
        roots: fields.each("root", Field::path)?,
        access: match (fields.has("write")?, fields.has("read")?) {
            (false, _) => Access::ReadOnly,
            (true, false) => Access::WriteOnly,
            (true, true) => Access::ReadWrite,
        },
        read_roots: fields.each("read-root", Field::path)?,
        to: fields.each("to", |to| {
            to.text()
                .map_err(|_| GrantFault::Destination(to.field.into()))
        })?,
        set_ids: fields.has("set-ids")?,
        set_owner: fields.has("set-owner")?,
        lead: fields.has("lead")?,
        max_rate: fields.one_parsed("max-rate", GrantFault::Rate)?,
        expires: fields.one_parsed("expires", GrantFault::Expiry)?,
    };
    if let Some(unknown) = fields.0.first() {
        return Err(GrantFault::UnknownField((*unknown).into()));
    }
    check(&grant)?;
    Ok(grant)
}

/// Formats a grant as a line without a line break.
pub(super) fn render(grant: &Grant) -> String {
    let mut fields = render_holder(&grant.holder);
    fields.push(encoded("name", &grant.name));
    fields.extend(grant.roots.iter().map(|root| encoded("root", root)));
    fields.extend(grant.access.writes().then(|| "write".to_owned()));
    fields.extend((grant.access == Access::ReadWrite).then(|| "read".to_owned()));
    fields.extend(
        grant
            .read_roots
            .iter()
            .map(|root| encoded("read-root", root)),
    );
    fields.extend(grant.to.iter().map(|to| encoded("to", to)));
    fields.extend(grant.set_ids.then(|| "set-ids".to_owned()));
    fields.extend(grant.set_owner.then(|| "set-owner".to_owned()));
    fields.extend(grant.lead.then(|| "lead".to_owned()));
    fields.extend(grant.max_rate.map(|rate| format!("max-rate={rate}")));
    fields.extend(grant.expires.map(|expires| format!("expires={expires}")));
    fields.join(" ")
}

fn render_holder(holder: &Holder) -> Vec<String> {
    let Holder::Certified {
        authority,
        revoked,
        subject,
    } = holder
    else {
        return vec![holder.to_string()];
    };
    let mut fields = vec![encoded("ca", authority)];
    fields.extend(revoked.as_ref().map(|revoked| encoded("crl", revoked)));
    fields.push(match subject {
        Subject::CommonName(name) => encoded("cn", name),
        Subject::Host(name) => encoded("san", name),
    });
    fields
}

/// Checks the requirements for every grant, both parsed and new ones.
pub(super) fn check(grant: &Grant) -> Result<(), GrantFault> {
    if grant.name.is_empty() || grant.name.chars().any(char::is_control) {
        return Err(GrantFault::Name);
    }
    if grant.roots.is_empty() && grant.read_roots.is_empty() {
        return Err(GrantFault::NoRoot);
    }
    if let Some(to) = grant
        .to
        .iter()
        .find(|to| to.is_empty() || to.chars().any(char::is_control))
    {
        return Err(GrantFault::Destination(to.clone()));
    }
    match grant
        .roots
        .iter()
        .chain(&grant.read_roots)
        .find(|root| !is_safe_root(root))
    {
        Some(root) => Err(GrantFault::Root(root.clone())),
        None => Ok(()),
    }
}

fn is_safe_root(root: &Path) -> bool {
    let climbs = root
        .components()
        .any(|component| component == Component::ParentDir);
    root.is_absolute() && !climbs && !root.as_os_str().as_bytes().contains(&0)
}

/// The fields of a line that have not been parsed yet.
struct Fields<'a>(Vec<&'a str>);

impl<'a> Fields<'a> {
    /// Removes all fields with this name and returns their values.
    fn each<T>(
        &mut self,
        name: &str,
        read: impl Fn(Field<'a>) -> Result<T, GrantFault>,
    ) -> Result<Vec<T>, GrantFault> {
        let named = |field: &mut &'a str| Field::named(name, field).is_some();
        let found = self.0.extract_if(.., named);
        found
            .filter_map(|field| Field::named(name, field))
            .map(read)
            .collect()
    }

    /// Removes a field that may appear only once.
    fn one(&mut self, name: &str) -> Result<Option<Field<'a>>, GrantFault> {
        match self.each(name, Ok)?[..] {
            [] => Ok(None),
            [field] => Ok(Some(field)),
            [_, again, ..] => Err(GrantFault::RepeatedField(again.field.into())),
        }
    }

    fn one_parsed<T: FromStr>(
        &mut self,
        name: &str,
        fault: impl Fn(String) -> GrantFault,
    ) -> Result<Option<T>, GrantFault> {
        let parsed = |Field { field, value }| value.parse().map_err(|_| fault(field.into()));
        self.one(name)?.map(parsed).transpose()
    }

    /// Removes a flag, which is a field without a value. Returns whether it was present.
    fn has(&mut self, name: &str) -> Result<bool, GrantFault> {
        match self.0.extract_if(.., |field| *field == name).count() {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(GrantFault::RepeatedField(name.into())),
        }
    }

    fn subject(&mut self) -> Result<Subject, GrantFault> {
        match (self.one("cn")?, self.one("san")?) {
            (Some(name), None) => name.text().map(Subject::CommonName),
            (None, Some(name)) => name.text().map(Subject::Host),
            _ => Err(GrantFault::Subject),
        }
    }
}

/// A field and its value.
#[derive(Clone, Copy)]
struct Field<'a> {
    field: &'a str,
    value: &'a str,
}

impl<'a> Field<'a> {
    fn named(name: &str, field: &'a str) -> Option<Self> {
        let value = field.strip_prefix(name)?.strip_prefix('=')?;
        Some(Self { field, value })
    }

    /// Returns the value as a path. A relative path is relative to the directory of the list.
    fn path(self) -> Result<PathBuf, GrantFault> {
        Ok(OsString::from_vec(self.bytes()?).into())
    }

    /// Returns the value as printable text that is not empty.
    fn text(self) -> Result<String, GrantFault> {
        let text = String::from_utf8(self.bytes()?).map_err(|_| GrantFault::Subject)?;
        let printable = !text.is_empty() && !text.chars().any(char::is_control);
        if printable {
            Ok(text)
        } else {
            Err(GrantFault::Subject)
        }
    }

    fn bytes(self) -> Result<Vec<u8>, GrantFault> {
        decode(self.value).ok_or_else(|| GrantFault::Escape(self.field.into()))
    }
}

/// Formats a field with its value. Whitespace, control characters, `%` and bytes that are not valid UTF-8 are written
/// as `%` and two hex digits.
fn encoded(field: &str, value: impl AsRef<OsStr>) -> String {
    let mut encoded = format!("{field}=");
    for chunk in value.as_ref().as_bytes().utf8_chunks() {
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
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use proptest::prelude::*;

    use zmove_types::RateLimit;

    use super::*;
    use crate::trust::expiry::Expiry;
    use crate::trust::fingerprint::Fingerprint;

    const ONE: Fingerprint = Fingerprint([1; 32]);

    fn fault_of(fields: &str) -> GrantFault {
        parse(&format!("{ONE} {fields}")).unwrap_err()
    }

    #[test]
    fn reads_the_documented_form() {
        let grant = parse(&format!(
            "{ONE}  root=/data/a%20b\twrite name=alice%25 root=/scratch "
        ))
        .unwrap();
        let roots = vec!["/data/a b".into(), "/scratch".into()];
        let expected = Grant::new(ONE, "alice%", roots, Access::WriteOnly);
        assert_eq!(grant, expected);
        let line = format!("{ONE} name=a root=/ max-rate=10Gbit expires=2027-01-31");
        let limited = parse(&line).unwrap();
        assert_eq!(
            limited.max_rate.map(RateLimit::bytes_per_second),
            Some(1_250_000_000)
        );
        assert_eq!(render(&limited), format!("{line}T00:00:00Z"));
        let line = format!("{ONE} name=a root=/ to=dtn.example.org to=[::1]:5871");
        let sending = parse(&line).unwrap();
        assert_eq!(sending.to, ["dtn.example.org", "[::1]:5871"]);
        assert_eq!(render(&sending), line);
    }

    #[test]
    fn reads_a_line_with_an_authority() {
        let line = "ca=site-ca.pem crl=/etc/a%20b.crl cn=Alice%20A. name=alice root=/data write";
        let grant = parse(line).unwrap();
        let subject = Subject::CommonName("Alice A.".into());
        let (authority, revoked) = ("site-ca.pem".into(), Some("/etc/a b.crl".into()));
        assert_eq!(
            grant.holder,
            Holder::Certified {
                authority,
                revoked,
                subject
            }
        );
        assert_eq!(render(&grant), line);
        let line = "ca=/ca.pem san=dtn.example.org name=dtn root=/";
        assert_eq!(render(&parse(line).unwrap()), line);
        for (line, fault) in [
            ("ca=/ca.pem name=a root=/", GrantFault::Subject),
            ("ca=/ca.pem cn= name=a root=/", GrantFault::Subject),
            ("ca=/ca.pem cn=a san=b name=a root=/", GrantFault::Subject),
            ("ca=/ca.pem cn=%00 name=a root=/", GrantFault::Subject),
            (
                "ca=/ca.pem cn=a crl=b crl=b name=a root=/",
                GrantFault::RepeatedField("crl=b".into()),
            ),
            (
                "ca=/ca.pem cn=a ca=b name=a root=/",
                GrantFault::UnknownField("ca=b".into()),
            ),
        ] {
            assert_eq!(parse(line), Err(fault), "{line}");
        }
        assert_eq!(
            fault_of("cn=a name=a root=/"),
            GrantFault::UnknownField("cn=a".into())
        );
    }

    #[test]
    fn readable_text_stays_readable() {
        assert_eq!(encoded("root", "/données/#1=x"), "root=/données/#1=x");
        assert_eq!(
            encoded("root", OsStr::from_bytes(b"/a b\n%\xff\x7f\xc3")),
            "root=/a%20b%0A%25%FF%7F%C3"
        );
        assert_eq!(encoded("root", "\u{a0}\u{2028}"), "root=%C2%A0%E2%80%A8");
    }

    #[test]
    fn names_the_field_at_fault() {
        let unknown = |field: &str| GrantFault::UnknownField(field.into());
        let repeated = |field: &str| GrantFault::RepeatedField(field.into());
        let escape = |field: &str| GrantFault::Escape(field.into());
        let root = |root: &str| GrantFault::Root(root.into());
        for (fields, fault) in [
            ("name=a root=/ speed=1", unknown("speed=1")),
            ("name=a root=/ Write", unknown("Write")),
            ("nmae=a root=/", unknown("nmae=a")),
            ("name=a root=/ write=1", unknown("write=1")),
            ("name=a name=b root=/", repeated("name=b")),
            ("name=a root=/ write write", repeated("write")),
            ("name=a root=/ set-ids set-ids", repeated("set-ids")),
            ("name=a root=/%", escape("root=/%")),
            ("name=a root=/%2", escape("root=/%2")),
            ("name=a root=/%+2", escape("root=/%+2")),
            ("name=a root=data", root("data")),
            ("name=a root=", root("")),
            ("name=a root=/a/../b", root("/a/../b")),
            ("name=a root=/a%00", root("/a\0")),
            ("name=a root=/ to=", GrantFault::Destination("to=".into())),
            ("name=a", GrantFault::NoRoot),
            ("root=/", GrantFault::Name),
            ("name= root=/", GrantFault::Name),
            ("name=%0a root=/", GrantFault::Name),
            ("name=%ff root=/", GrantFault::Name),
            (
                "name=a root=/ max-rate=10",
                GrantFault::Rate("max-rate=10".into()),
            ),
            (
                "name=a root=/ max-rate=1MB max-rate=2MB",
                repeated("max-rate=2MB"),
            ),
            (
                "name=a root=/ expires=soon",
                GrantFault::Expiry("expires=soon".into()),
            ),
            (
                "name=a root=/ expires=2027-01-31 expires=2027-01-31",
                repeated("expires=2027-01-31"),
            ),
        ] {
            assert_eq!(fault_of(fields), fault, "{fields}");
        }
        let fault = GrantFault::Fingerprint {
            field: "name=a".into(),
            fault: ParseFingerprintError,
        };
        assert_eq!(parse("name=a root=/"), Err(fault));
    }

    fn any_root() -> impl Strategy<Value = PathBuf> {
        proptest::collection::vec(1_u8.., 0..40)
            .prop_map(|bytes| PathBuf::from(OsString::from_vec([b"/".as_slice(), &bytes].concat())))
            .prop_filter("a root has no ..", |root| is_safe_root(root))
    }

    fn any_grant() -> impl Strategy<Value = Grant> {
        let name = "[^\\p{Cc}]{1,20}";
        let access = prop_oneof![
            Just(Access::ReadOnly),
            Just(Access::WriteOnly),
            Just(Access::ReadWrite)
        ];
        let rate = proptest::option::of(
            (1000_u64..1 << 40).prop_map(|bytes| format!("{bytes}B").parse().unwrap()),
        );
        let days = proptest::option::of(0_u64..2_000_000);
        let rights = (any::<bool>(), any::<bool>(), any::<bool>());
        (
            any::<[u8; 32]>(),
            name,
            proptest::collection::vec(any_root(), 1..4),
            (access, rights),
            rate,
            days,
        )
            .prop_map(
                |(key, name, roots, (access, (set_ids, set_owner, lead)), max_rate, days)| {
                    let moment = |days| {
                        Expiry::after(
                            UNIX_EPOCH,
                            Duration::from_secs(days * 86_400 + days % 86_400),
                        )
                    };
                    let expires = days.and_then(moment);
                    Grant {
                        set_ids,
                        set_owner,
                        lead,
                        max_rate,
                        expires,
                        ..Grant::new(Fingerprint(key), &name, roots, access)
                    }
                },
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
            let _outcome = (parse(&format!("{ONE} {text}")), parse(&format!("ca=a {text}")));
        }
    }
}
