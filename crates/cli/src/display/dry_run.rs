//! The list of a dry run, with one line or one JSON object for each entry.
//!
//! **Invariant:** each entry is exactly one line, whatever characters its name contains, because names are [`Escaped`].

use serde_json::{Value, json};
use zmove_types::{Change, ChangeKind, EntryForm, Escaped};

/// Returns one line for each entry.
pub(crate) fn lines(changes: &[Change]) -> String {
    let line = |change: &Change| {
        let path = path(change);
        let link = match &change.form {
            EntryForm::Symlink(target) => format!(" -> {}", Escaped(target)),
            EntryForm::Link(first) => format!(" => {first}"),
            EntryForm::File | EntryForm::Directory => String::new(),
        };
        let (sign, why) = match &change.kind {
            ChangeKind::Removed => ('-', String::new()),
            ChangeKind::Added => ('+', String::new()),
            ChangeKind::Changed(why) => ('~', format!(" ({why})")),
        };
        format!("{sign} {path}{link}{why}\n")
    };
    changes.iter().map(line).collect()
}

/// Returns the JSON object for an entry.
pub(crate) fn as_json(change: &Change) -> Value {
    let (what, why) = match &change.kind {
        ChangeKind::Removed => ("removed", None),
        ChangeKind::Added => ("added", None),
        ChangeKind::Changed(why) => ("changed", Some(why.split(", ").collect::<Vec<_>>())),
    };
    let target = match &change.form {
        EntryForm::Symlink(target) => Some(Escaped(target).to_string()),
        _ => None,
    };
    let mut line = json!({ "event": what, "path": path(change), "why": why, "link": target });
    if let EntryForm::Link(first) = &change.form {
        line["hard_link"] = first.to_string().into();
    }
    line
}

fn path(change: &Change) -> String {
    let path = change.path.to_string();
    if change.form == EntryForm::Directory {
        path + "/"
    } else {
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_types::RelPath;

    #[test]
    fn every_entry_is_one_line() {
        let change = |kind, path: &[u8], form| Change {
            kind,
            path: RelPath::from_bytes(path).unwrap(),
            form,
        };
        let changed = || ChangeKind::Changed("size, time".to_owned());
        let changes = [
            change(ChangeKind::Added, b"", EntryForm::Directory),
            change(
                ChangeKind::Added,
                "d/gr\u{fc}n\n\\".as_bytes(),
                EntryForm::File,
            ),
            change(changed(), b"caf\xe9\x1b", EntryForm::Directory),
            change(
                ChangeKind::Added,
                b"l",
                EntryForm::Symlink((*b"a\nb").into()),
            ),
            change(
                ChangeKind::Added,
                b"h",
                EntryForm::Link(RelPath::from_bytes(b"d/f").unwrap()),
            ),
        ];
        let expected = "+ ./\n+ d/gr\u{fc}n\\n\\\\\n~ caf\\xe9\\u{1b}/ (size, time)\n+ l -> a\\nb\n+ h => d/f\n";
        assert_eq!(lines(&changes), expected);
        assert_eq!(as_json(&changes[4])["hard_link"], json!("d/f"));
        let shown = as_json(&changes[2]);
        assert_eq!(
            (&shown["event"], &shown["why"]),
            (&json!("changed"), &json!(["size", "time"]))
        );
    }
}
