//! Shows a single journal of `zmove journal list`.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use zmove_receiver::journal::{FoundJournal, Unfinished, UnfinishedFile};
use zmove_types::ByteCount;

use super::{age, age_of_seconds, name};
use crate::display::terminal;

/// Maximum number of files that are listed by name. Further files are only counted, except in JSON.
const FILES_SHOWN_MAX: usize = 20;

/// Prints a journal as text.
pub(super) fn show(journal: &FoundJournal, names: &Names) {
    let name = name(&journal.path);
    let written = age(journal.modified);
    let in_use = if journal.in_use { ", in use" } else { "" };
    match &journal.contents {
        Ok(unfinished) => {
            let begin = &unfinished.begin;
            terminal::say(format_args!(
                "{name} into '{}'",
                String::from_utf8_lossy(&begin.target)
            ));
            terminal::say(format_args!(
                "  by {}, begun {} ago, last written {written} ago{in_use}",
                owner(unfinished, names),
                age_of_seconds(begin.begun)
            ));
            let [done, all] = here(unfinished).map(ByteCount);
            terminal::say(format_args!(
                "  {done} of {all} received; run the same command again to resume"
            ));
            show_files(&unfinished.files);
        }
        Err(error) => {
            terminal::say(format_args!("{name} cannot be read: {error}"));
            terminal::say(format_args!("  last written {written} ago{in_use}"));
        }
    }
}

fn show_files(files: &[UnfinishedFile]) {
    for file in files.iter().take(FILES_SHOWN_MAX) {
        let done = ByteCount(file.bytes_written());
        let all = ByteCount(file.part.source.bytes);
        terminal::say(format_args!(
            "  {done:>10} of {all:>10}  {}",
            file.part.path
        ));
    }
    let rest = files.len().saturating_sub(FILES_SHOWN_MAX);
    if rest > 0 {
        terminal::say(format_args!("  and {rest} more files"));
    }
}

/// The names of keys, by fingerprint.
pub(super) type Names = BTreeMap<String, String>;

fn owner(unfinished: &Unfinished, names: &Names) -> String {
    let owner = String::from_utf8_lossy(&unfinished.begin.owner);
    match (&*owner, names.get(&*owner)) {
        ("", _) => "a local push".to_owned(),
        (key, Some(name)) => format!("{name} (key {key})"),
        (key, None) => format!("key {key}, which is no longer allowed"),
    }
}

/// Returns two sums over the large files: the bytes that are already stored, and the total bytes.
fn here(unfinished: &Unfinished) -> [u64; 2] {
    let files = unfinished.files.iter();
    files.fold([0, 0], |[done, all], file| {
        [done + file.bytes_written(), all + file.part.source.bytes]
    })
}

/// Prints a journal as JSON.
pub(super) fn show_as_json(journal: &FoundJournal, names: &Names) {
    let mut value = json!({
        "journal": journal.path.to_string_lossy(),
        "in_use": journal.in_use,
        "bytes": journal.bytes,
        "last_written_seconds_ago": age(journal.modified).0.as_secs(),
    });
    match &journal.contents {
        Ok(unfinished) => {
            let begin = &unfinished.begin;
            value["transfer"] = json!(begin.transfer.to_string());
            value["owner"] = json!(String::from_utf8_lossy(&begin.owner));
            value["name"] = json!(names.get(&*String::from_utf8_lossy(&begin.owner)));
            [value["bytes_here"], value["bytes_of_files"]] = here(unfinished).map(Value::from);
            value["target"] = json!(String::from_utf8_lossy(&begin.target));
            value["begun"] = json!(begin.begun);
            value["same_boot"] = json!(unfinished.same_boot);
            value["files"] = unfinished.files.iter().map(json_of_file).collect();
        }
        Err(error) => value["error"] = json!(error.to_string()),
    }
    terminal::say(value);
}

fn json_of_file(file: &UnfinishedFile) -> Value {
    json!({
        "path": String::from_utf8_lossy(file.part.path.as_bytes()),
        "part": file.part.part.to_string(),
        "bytes": file.part.source.bytes,
        "bytes_written": file.bytes_written(),
        "bytes_flushed": file.bytes_flushed(),
    })
}
