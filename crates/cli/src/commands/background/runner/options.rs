//! The options of `zmove submit` that clients of the API may set, read from their clap definitions.

use std::any::TypeId;

use clap::{Arg, ArgAction, Args as _, Command};
use zmove_api::{SubmitOption, ValueType};
use zmove_jobs::JobId;

use crate::args::{JOB, SubmitArgs};

/// Returns all options that clients may set, sorted by name.
pub(super) fn of_submit() -> Vec<SubmitOption> {
    let command = SubmitArgs::augment_args(Command::new("submit"));
    let mut options: Vec<_> = command.get_arguments().filter_map(option).collect();
    options.sort_unstable_by(|a, b| a.word.cmp(&b.word));
    options
}

fn option(arg: &Arg) -> Option<SubmitOption> {
    let word = arg.get_long()?;
    if !ALLOWED.contains(&word) {
        return None;
    }
    let takes = if !arg.get_action().takes_values() {
        ValueType::Nothing
    } else if arg
        .get_value_names()
        .is_some_and(|names| names.iter().any(|name| name == "FILE"))
    {
        ValueType::File
    } else if is_number(arg) {
        ValueType::Number
    } else {
        ValueType::Text(
            arg.get_possible_values()
                .iter()
                .map(|value| value.get_name().to_owned())
                .collect(),
        )
    };
    Some(SubmitOption {
        word: word.to_owned(),
        help: arg.get_help().map(ToString::to_string).unwrap_or_default(),
        takes,
        repeats: matches!(arg.get_action(), ArgAction::Append),
        is_job_option: arg.get_help_heading() == Some(JOB),
    })
}

fn is_number(arg: &Arg) -> bool {
    let id = arg.get_value_parser().type_id();
    let numbers = [
        TypeId::of::<i32>(),
        TypeId::of::<u16>(),
        TypeId::of::<u64>(),
        TypeId::of::<JobId>(),
    ];
    numbers.into_iter().any(|number| id == number)
}

/// The options that a client may set. A new option of `zmove submit` must be added here explicitly.
const ALLOWED: &[&str] = &[
    "acls",
    "after",
    "allow-empty",
    "archive",
    "at",
    "checksum",
    "chown",
    "cipher",
    "cluster",
    "congestion",
    "deadline",
    "delete",
    "delta",
    "direct",
    "durability",
    "every",
    "exclude",
    "files-from",
    "filter-from",
    "force",
    "from0",
    "group",
    "groupmap",
    "hard-links",
    "ignore-errors",
    "ignore-existing",
    "include",
    "inplace",
    "io-engine",
    "label",
    "limit",
    "links",
    "manifest",
    "max-bytes",
    "max-delete",
    "max-entries",
    "max-size",
    "min-size",
    "no-A",
    "no-D",
    "no-H",
    "no-S",
    "no-X",
    "no-g",
    "no-o",
    "no-p",
    "no-preserve",
    "no-t",
    "no-wait",
    "notify",
    "numeric-ids",
    "omit-dir-times",
    "one-file-system",
    "owner",
    "perms",
    "preserve",
    "priority",
    "proofs",
    "require-mount",
    "rescan",
    "rest",
    "sparse",
    "ssh",
    "ssh-ports",
    "streams",
    "strict-metadata",
    "submission-id",
    "timeout",
    "times",
    "trace",
    "transport",
    "update",
    "usermap",
    "verify",
    "via",
    "watch",
    "xattrs",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_safe_is_there_as_it_is_typed() {
        let options = of_submit();
        let of = |word: &str| options.iter().find(|option| option.word == word);
        let takes = |word: &str| {
            of(word).map(|option| (option.takes.clone(), option.repeats, option.is_job_option))
        };
        assert_eq!(takes("watch"), Some((ValueType::Nothing, false, true)));
        assert_eq!(takes("after"), Some((ValueType::Number, true, true)));
        assert_eq!(
            takes("include"),
            Some((ValueType::Text(Vec::new()), true, false))
        );
        assert_eq!(takes("files-from"), Some((ValueType::File, false, false)));
        assert_eq!(takes("filter-from"), Some((ValueType::File, true, false)));
        let values = ["none", "end", "file"].map(str::to_owned).to_vec();
        assert_eq!(
            takes("durability"),
            Some((ValueType::Text(values), false, false))
        );
    }

    #[test]
    fn each_option_is_either_allowed_or_refused() {
        let command = SubmitArgs::augment_args(Command::new("submit"));
        let words: Vec<_> = command.get_arguments().filter_map(Arg::get_long).collect();
        let listed: Vec<_> = ALLOWED.iter().chain(REFUSED).copied().collect();
        let mut unlisted = words.clone();
        unlisted.retain(|word| !listed.contains(word));
        assert_eq!(unlisted, Vec::<&str>::new(), "list them");
        let mut unknown = listed;
        unknown.retain(|word| {
            !words.contains(word) || ALLOWED.contains(word) && REFUSED.contains(word)
        });
        assert_eq!(
            unknown,
            Vec::<&str>::new(),
            "they do not exist, or are in both lists"
        );
        let offered: Vec<_> = of_submit().into_iter().map(|option| option.word).collect();
        assert_eq!(offered, ALLOWED);
    }

    /// Options that no client may set, because they name a program to run, trust a key, belong to a terminal, or exist
    /// only for users of rsync.
    const REFUSED: &[&str] = &[
        "accept-new",
        "bootstrap",
        "bwlimit",
        "compress",
        "detach",
        "dry-run",
        "human-readable",
        "json",
        "no-progress",
        "partial",
        "progress",
        "quiet",
        "recursive",
        "remote-zmove",
        "ssh-command",
        "stats",
        "strict",
        "verbose",
    ];
}
