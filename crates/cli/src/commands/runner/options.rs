//! The options of `zmove submit` that clients of the API may set, as clap has them.

use std::any::TypeId;

use clap::{Arg, ArgAction, Args as _, Command};
use zmove_api::{SubmitOption, Takes};
use zmove_jobs::JobId;

use crate::args::{JOB, SubmitArgs, habits};

/// All of them.
pub(super) fn of_submit() -> Vec<SubmitOption> {
    let command = SubmitArgs::augment_args(Command::new("submit"));
    let mut options: Vec<_> = command.get_arguments().filter_map(option).collect();
    options.sort_unstable_by(|a, b| a.word.cmp(&b.word));
    options
}

fn option(arg: &Arg) -> Option<SubmitOption> {
    let word = arg.get_long()?;
    let heading = arg.get_help_heading();
    if REFUSED.contains(&word) || arg.is_hide_set() || heading == Some(habits::HEADING) {
        return None;
    }
    let takes = if !arg.get_action().takes_values() {
        Takes::Nothing
    } else if arg
        .get_value_names()
        .is_some_and(|names| names.iter().any(|name| name == "FILE"))
    {
        Takes::File
    } else if is_number(arg) {
        Takes::Number
    } else {
        Takes::Text(
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
        of_job: heading == Some(JOB),
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

/// What is not for a client to say: the programs that are run, which keys are trusted, and what belongs to a terminal.
const REFUSED: [&str; 9] = [
    "accept-new",
    "detach",
    "dry-run",
    "json",
    "quiet",
    "remote-zmove",
    "ssh-command",
    "strict",
    "verbose",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_safe_is_there_as_it_is_typed() {
        let options = of_submit();
        let of = |word: &str| options.iter().find(|option| option.word == word);
        let takes = |word: &str| {
            of(word).map(|option| (option.takes.clone(), option.repeats, option.of_job))
        };
        assert_eq!(takes("watch"), Some((Takes::Nothing, false, true)));
        assert_eq!(takes("after"), Some((Takes::Number, true, true)));
        assert_eq!(
            takes("include"),
            Some((Takes::Text(Vec::new()), true, false))
        );
        assert_eq!(takes("files-from"), Some((Takes::File, false, false)));
        assert_eq!(takes("filter-from"), Some((Takes::File, true, false)));
        let values = ["none", "end", "file"].map(str::to_owned).to_vec();
        assert_eq!(
            takes("durability"),
            Some((Takes::Text(values), false, false))
        );
        for refused in [
            "accept-new",
            "ssh-command",
            "rsh",
            "remote-zmove",
            "json",
            "compress",
        ] {
            assert_eq!(takes(refused), None, "{refused}");
        }
        let command = SubmitArgs::augment_args(Command::new("submit"));
        for refused in REFUSED {
            assert!(
                command
                    .get_arguments()
                    .any(|arg| arg.get_long() == Some(refused)),
                "{refused}"
            );
        }
    }
}
