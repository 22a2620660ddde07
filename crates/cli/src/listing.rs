//! The list of a dry run: one line for each entry, or one JSON object.
//!
//! **Invariant:** a line is one line, whatever a name holds: control characters, backslashes and bytes that are no UTF-8 are
//! escaped.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

use serde_json::{Value, json};
use zmove_types::{Change, ChangeKind, EntryForm, RelPath};

/// The lines for some entries.
pub(crate) fn lines(changes: &[Change]) -> String {
    changes.iter().fold(String::new(), |mut text, change| {
        let path = path(change);
        let link = match &change.form {
            EntryForm::Symlink(target) => format!(" -> {}", escaped(target)),
            EntryForm::File | EntryForm::Directory => String::new(),
        };
        let (sign, why) = match &change.kind {
            ChangeKind::Removed => ('-', String::new()),
            ChangeKind::Added => ('+', String::new()),
            ChangeKind::Changed(why) => ('~', format!(" ({why})")),
        };
        writeln!(text, "{sign} {path}{link}{why}").expect("writing to a string");
        text
    })
}

/// The same for a program.
pub(crate) fn as_json(change: &Change) -> Value {
    let (what, why) = match &change.kind {
        ChangeKind::Removed => ("removed", None),
        ChangeKind::Added => ("added", None),
        ChangeKind::Changed(why) => ("changed", Some(why.split(", ").collect::<Vec<_>>())),
    };
    let target = match &change.form {
        EntryForm::Symlink(target) => Some(escaped(target)),
        EntryForm::File | EntryForm::Directory => None,
    };
    json!({ "event": what, "path": path(change), "why": why, "link": target })
}

fn path(change: &Change) -> String {
    let path = match &change.path {
        path if path.is_root() => ".".to_owned(),
        path => escaped(RelPath::as_bytes(path)),
    };
    if change.form == EntryForm::Directory { path + "/" } else { path }
}

/// Text that stands for exactly these bytes.
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in OsStr::from_bytes(bytes).as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || c == '\\' {
                text.extend(c.escape_default());
            } else {
                text.push(c);
            }
        }
        chunk.invalid().iter().for_each(|byte| {
            write!(text, "\\x{byte:02x}").expect("writing to a string");
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_one_line() {
        let change =
            |kind, path: &[u8], form| Change { kind, path: RelPath::from_bytes(path).unwrap(), form };
        let changed = || ChangeKind::Changed("size, time".to_owned());
        let changes = [
            change(ChangeKind::Added, b"", EntryForm::Directory),
            change(ChangeKind::Added, "d/gr\u{fc}n\n\\".as_bytes(), EntryForm::File),
            change(changed(), b"caf\xe9\x1b", EntryForm::Directory),
            change(ChangeKind::Added, b"l", EntryForm::Symlink((*b"a\nb").into())),
        ];
        let expected = "+ ./\n+ d/gr\u{fc}n\\n\\\\\n~ caf\\xe9\\u{1b}/ (size, time)\n+ l -> a\\nb\n";
        assert_eq!(lines(&changes), expected);
        let shown = as_json(&changes[2]);
        assert_eq!((&shown["event"], &shown["why"]), (&json!("changed"), &json!(["size", "time"])));
    }
}
