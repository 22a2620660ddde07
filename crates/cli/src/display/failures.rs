//! The failures of a transfer by kind. If thousands of entries fail for the same cause, a few are named and the rest
//! are counted, so that the cause stands out.

use std::collections::{BTreeMap, BTreeSet};

use rustix::io::Errno;
use serde_json::{Value, json};
use zmove_wire::FaultCode;

use crate::display::terminal;
use crate::value::cause::errno_name;
use crate::value::exit::{Exit, InTransfer};

/// Appends advice on how to continue after the target was full.
macro_rules! once_there_is_room {
    ($remedy:literal) => {
        concat!(
            $remedy,
            " Complete files stay. Run the same command again when there is room. Partial data of large files is kept; \
             to free it, run 'zmove journal clean --all' on the receiver."
        )
    };
}

/// The number of failures of each kind.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    kinds: BTreeMap<String, u64>,
    /// Advice for the causes of the failures.
    advice: BTreeSet<&'static str>,
}

impl Failures {
    /// Counts a failure. Returns true if the failure must be printed, which applies to the first failures of each kind.
    pub(crate) fn count(&mut self, message: &str) -> bool {
        let kind = kind(message);
        if !self.kinds.contains_key(&kind) {
            self.advice.extend(advice_for(&kind));
        }
        let is_one_too_many = self.kinds.len() >= KINDS_MAX && !self.kinds.contains_key(&kind);
        let failures = self
            .kinds
            .entry(if is_one_too_many {
                OTHERS.to_owned()
            } else {
                kind
            })
            .or_default();
        *failures += 1;
        *failures <= NAMED_MAX
    }

    /// Returns a line for each kind that has failures which were not printed.
    pub(crate) fn unnamed(&self) -> impl Iterator<Item = String> {
        let unnamed = self
            .kinds
            .iter()
            .filter(|(_, failures)| **failures > NAMED_MAX);
        unnamed.map(|(kind, failures)| {
            format!("{kind}: {} more (-v names each)", failures - NAMED_MAX)
        })
    }

    /// Returns a line of advice for each cause that the user can remove.
    pub(crate) fn advice(&self) -> impl Iterator<Item = &'static str> {
        self.advice.iter().copied()
    }
}

/// Version of the objects that `--json` prints, which `docs/schema/events.json` describes.
pub(crate) const SCHEMA: u32 = 1;

/// Prints the last object of a transfer that ended without a summary.
pub(crate) fn print_end(error: &anyhow::Error, exit: Exit) {
    let message = terminal::causes(error).to_string();
    let mut event = parts(&message);
    event["event"] = "error".into();
    event["message"] = message.into();
    event["schema"] = json!(SCHEMA);
    event["transfer"] = json!(
        error
            .downcast_ref()
            .map(|InTransfer { transfer, .. }| transfer)
    );
    event["exit"] = json!(exit as i32);
    terminal::print(format_args!("{event}\n"));
}

/// Splits a message `SIDE: OPERATION 'PATH': CAUSE` into its parts, for JSON. A missing part is null. Messages from
/// another host are available only as text, so they must be parsed.
pub(crate) fn parts(message: &str) -> Value {
    let message = without_places(message);
    let (side, rest) = match message.split_once(": ") {
        Some((side @ ("sender" | "receiver"), rest)) => (Some(side), rest),
        _ => (None, message),
    };
    let whole = rest.split_once(" '").and_then(|(operation, rest)| {
        let (path, cause) = rest.rsplit_once("': ")?;
        Some([operation, path, cause])
    });
    let part = |number: usize| whole.map(|whole| whole[number]);
    let cause = part(2);
    let number = cause.and_then(|cause| {
        cause
            .rsplit_once("(os error ")?
            .1
            .split_once(')')?
            .0
            .parse()
            .ok()
    });
    let cause = cause.map(|cause| cause.split(" (os error ").next().unwrap_or(cause));
    json!({
        "side": side,
        "operation": part(0),
        "path": part(1),
        "cause": cause,
        "errno": number.and_then(errno_name),
    })
}

/// Returns a message without its suffixes that name the receiver and the cluster node on which the failure occurred.
pub(crate) fn without_places(message: &str) -> &str {
    match message.rsplit_once(" (at ") {
        Some((said, place)) if place.ends_with(')') && !place.contains('\'') => {
            without_places(said)
        }
        _ => message,
    }
}

/// Returns the advice for failures of a kind. A failure is available only as text, because it may come from another
/// process, so the text is compared with the message of each code.
fn advice_for(kind: &str) -> Option<&'static str> {
    let known = ADVICE
        .iter()
        .find(|(side, code, _)| kind.starts_with(side) && kind.contains(&code.to_string()));
    known.map(|(_, _, advice)| *advice)
}

/// Returns a message without its names. All text from the first quotation mark to the last is removed.
fn kind(message: &str) -> String {
    match (message.find('\''), message.rfind('\'')) {
        (Some(first), Some(last)) => {
            format!("{}{}", message[..first].trim_end(), &message[last + 1..])
        }
        _ => message.to_owned(),
    }
}

/// Maximum number of failures of each kind that are printed.
const NAMED_MAX: u64 = 10;
/// Maximum number of kinds that are distinguished. Messages may contain numbers in addition to names.
const KINDS_MAX: usize = 100;
/// The side, the code and the advice for causes that the user can remove. The first match counts, because the message
/// of `NoInodes` contains that of `ENOSPC`.
const ADVICE: [(&str, FaultCode, &str); 8] = [
    ("receiver: ", FaultCode::NoInodes, FREE_INODES),
    ("receiver: ", os(Errno::NOSPC), MAKE_ROOM),
    ("receiver: ", os(Errno::DQUOT), RAISE_QUOTA),
    ("receiver: ", os(Errno::ACCESS), PERMIT),
    ("receiver: ", os(Errno::ROFS), REMOUNT),
    ("receiver: ", os(Errno::NAMETOOLONG), SHORTEN),
    ("receiver: ", os(Errno::FBIG), SPLIT),
    ("sender: ", os(Errno::ACCESS), PERMIT_READING),
];
const fn os(error: Errno) -> FaultCode {
    FaultCode::Os(error.raw_os_error())
}
const FREE_INODES: &str = once_there_is_room!(
    "receiver: The file system has free space, but no free inodes ('df -i' shows them). Remove files there, or use a \
     file system with more inodes."
);
const MAKE_ROOM: &str = once_there_is_room!("receiver: No space left on device.");
const RAISE_QUOTA: &str = once_there_is_room!(
    "receiver: A quota of the user, group or directory is used up, even if the file system has free space. Remove \
     files there, or have the quota raised."
);
const PERMIT: &str = "receiver: Permission denied. The receiver's user needs write permission for the directories of \
                      these entries. Change their owner or mode, and run the same command again.";
const REMOUNT: &str =
    "receiver: Read-only file system. Mount it writable, and run the same command again.";
const SHORTEN: &str = "receiver: File name too long. The target's file system does not store such names. Shorten them \
                       at the source, or leave them out with --exclude.";
const SPLIT: &str = "receiver: File too large. The target's file system, or a limit of the receiver's process (ulimit \
                     -f), does not allow files of this size. Raise the limit, or choose another target.";
const PERMIT_READING: &str = "sender: Permission denied. The sender's user needs read permission for these entries. \
                              Grant it, or leave them out with --exclude.";
const OTHERS: &str = "failures of other kinds";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_a_kind_are_named_and_the_others_counted() {
        let mut failures = Failures::default();
        let named = (0..600)
            .filter(|file| failures.count(&format!("receiver: create 'it's {file}': denied")));
        assert_eq!(named.count(), 10);
        assert!(failures.count("receiver: create 'x': no space"));
        assert!(failures.count("sender: read 'x': denied"));
        let unnamed: Vec<_> = failures.unnamed().collect();
        assert_eq!(
            unnamed,
            ["receiver: create: denied: 590 more (-v names each)"]
        );
    }

    #[test]
    fn where_there_is_no_room_it_is_said_how_to_make_some() {
        let mut failures = Failures::default();
        failures.count("sender: read 'x': No space left on device (os error 28)");
        assert_eq!(failures.advice().next(), None, "that is no room here");
        for (side, cause, advice) in ADVICE {
            let mut failures = Failures::default();
            failures.count(&format!("{side}create 'x': {cause}"));
            failures.count(&format!("{side}create 'y': {cause} (at dtn2)"));
            assert_eq!(failures.advice().collect::<Vec<_>>(), [advice]);
        }
        // The words of a cause may also be those of a program, a plug-in or another cause.
        failures.count("receiver: verify 'x': the proxy says: Permission denied");
        assert_eq!(failures.advice().next(), None);
    }

    #[test]
    fn a_failure_has_its_parts() {
        let message = "receiver: write 'it's a: b': No space left on device (os error 28)";
        let expected = json!({ "side": "receiver", "operation": "write", "path": "it's a: b",
            "cause": "No space left on device", "errno": "ENOSPC" });
        assert_eq!(parts(message), expected);
        assert_eq!(
            parts(&format!("{message} (at 10.0.0.1:7) (at dtn2-1f)")),
            expected
        );
        for more in [
            " (at 10.0.0.1:7); complete files stay",
            ": no inodes are free",
        ] {
            assert_eq!(parts(&format!("{message}{more}")), expected);
        }
        let whole = parts("something else");
        assert!(
            whole.as_object().unwrap().values().all(Value::is_null) && whole["errno"].is_null()
        );
    }

    #[test]
    fn kinds_without_end_are_one_in_the_end() {
        let mut failures = Failures::default();
        let named = (0..1_000).filter(|at| failures.count(&format!("read at {at}")));
        assert_eq!(named.count(), KINDS_MAX + 10);
        let unnamed: Vec<_> = failures.unnamed().collect();
        assert_eq!(
            unnamed,
            ["failures of other kinds: 890 more (-v names each)"]
        );
    }
}
