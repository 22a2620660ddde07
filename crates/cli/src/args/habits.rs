//! Options that users of rsync, scp and other programs type out of habit. Options that describe the default behavior
//! are accepted. For other options, a hint names the replacement.

use std::ffi::OsString;
use std::str::FromStr;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command};
use zmove_types::{ByteCount, RateLimit, parse_size};

/// Returns options that are accepted but have no effect, because a push always behaves as they request.
pub(super) fn no_op_options() -> impl IntoIterator<Item = Arg> {
    let arg = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .help(help)
            .help_heading(HEADING)
            .action(ArgAction::SetTrue)
    };
    [
        arg(
            "recursive",
            "rsync's and scp's -r: send directories recursively (always on)",
        )
        .short('r'),
        arg(
            "partial",
            "rsync's --partial: resume large files (always on)",
        ),
        arg(
            "progress",
            "rsync's --progress: show the progress on a terminal (always on)",
        ),
        arg("stats", "rsync's --stats: print a summary (always on)"),
        arg(
            "human-readable",
            "rsync's --human-readable: print sizes with units (always on)",
        ),
        Arg::new("partial-progress")
            .short('P')
            .help("rsync's -P: --partial and --progress")
            .help_heading(HEADING)
            .action(ArgAction::SetTrue),
    ]
}

pub(crate) const HEADING: &str = "Compatibility with rsync and scp";

/// A rate in the syntax of rsync's `--bwlimit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bwlimit(pub(crate) Option<RateLimit>);

impl FromStr for Bwlimit {
    type Err = String;

    /// Parses a rate in KiB per second, or a size with a unit. The value 0 means no limit.
    fn from_str(text: &str) -> Result<Self, String> {
        let has_unit = text.ends_with(|last: char| !last.is_ascii_digit() && last != '.');
        let text = if has_unit {
            text.to_owned()
        } else {
            format!("{text}KiB")
        };
        let ByteCount(bytes) = parse_size(&text).map_err(|_| {
            format!("'{text}' is not a rate of rsync: write KiB per second as 1000, or with a unit as 10M")
        })?;
        Ok(Self((bytes > 0).then(|| RateLimit::nearest(bytes))))
    }
}

/// Removes the `h` from bundled short options such as `-avzh`. In such a bundle, `h` is rsync's option for sizes with
/// units. Users who want help type `-h` alone.
pub(super) fn strip_human_readable(command: &Command, mut words: Vec<OsString>) -> Vec<OsString> {
    let name = words
        .get(1)
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let Some(command) = command
        .find_subcommand(name)
        .filter(|command| has_short(command, 'r'))
    else {
        return words;
    };
    let typed = words.iter_mut().skip(2).take_while(|word| *word != "--");
    for word in typed {
        let letters = word
            .to_str()
            .and_then(|word| word.strip_prefix('-'))
            .unwrap_or_default();
        let takes_value = |letter: &char| {
            command
                .get_arguments()
                .any(|arg| arg.get_short() == Some(*letter) && arg.get_action().takes_values())
        };
        let is_bundle = letters.len() > 1
            && letters != "hh"
            && letters.bytes().all(|byte| byte.is_ascii_alphabetic());
        if is_bundle && !letters.chars().any(|letter| takes_value(&letter)) {
            *word = format!("-{}", letters.replace('h', "")).into();
        }
    }
    words
}

fn has_short(command: &Command, letter: char) -> bool {
    command
        .get_arguments()
        .any(|arg| arg.get_short() == Some(letter))
}

/// Adds a hint for the unknown word to a usage error, and removes the guesses of clap.
pub(crate) fn hint(error: &mut clap::Error) {
    let kind = error.kind();
    let (named, guess) = match kind {
        ErrorKind::UnknownArgument => (ContextKind::InvalidArg, ContextKind::SuggestedArg),
        ErrorKind::InvalidSubcommand | ErrorKind::ArgumentConflict => (
            ContextKind::InvalidSubcommand,
            ContextKind::SuggestedSubcommand,
        ),
        ErrorKind::InvalidValue => (ContextKind::InvalidArg, ContextKind::SuggestedValue),
        _ => return,
    };
    let word = match error.get(named) {
        Some(ContextValue::String(word)) => word.clone(),
        _ => String::new(),
    };
    let is_option = word.starts_with('-');
    let is_key = word.starts_with("SHA256:");
    // If a fingerprint follows the host, clap reports it as a subcommand that conflicts with the host.
    if kind == ErrorKind::ArgumentConflict && !is_key {
        return;
    }
    // clap suggests that the option be passed as a value. Users hardly ever mean this.
    error.remove(ContextKind::Suggested);
    let about = match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => usage.to_string(),
        _ => String::new(),
    };
    let is_close = match error.get(guess) {
        _ if kind == ErrorKind::InvalidValue => true,
        Some(ContextValue::String(guess)) => is_typo(&word, guess),
        Some(ContextValue::Strings(guesses)) => guesses.iter().any(|guess| is_typo(&word, guess)),
        _ => false,
    };
    let of_jobs = JOBS
        .iter()
        .find(|(command, _)| about.contains(command))
        .map(|(_, hint)| *hint);
    let of_jobs = of_jobs.filter(|_| !is_close && !is_option);
    let of_word = HINTS
        .iter()
        .find(|(words, _)| words.contains(&&*word))
        .map(|(_, hint)| *hint);
    let of_word = of_word.filter(|_| is_option || kind == ErrorKind::InvalidSubcommand);
    let is_trusted = is_key && about.contains("zmove trust");
    let known = of_jobs.or(is_trusted.then_some(KEY)).or(of_word);
    if known.is_some() || !is_close {
        error.remove(guess);
    }
    let is_at_root = about.contains("zmove <COMMAND>");
    let is_without_command = kind == ErrorKind::InvalidSubcommand && is_at_root && !is_close;
    if let Some(hint) = known.or(is_without_command.then_some("'zmove copy SRC... DST' copies")) {
        error.insert(
            ContextKind::Suggested,
            ContextValue::StyledStrs(vec![hint.into()]),
        );
    }
}

/// Hints for the commands and options of other programs. Options include their dashes.
const HINTS: &[(&[&str], &str)] = &[
    (
        &["cp", "scp", "mv", "rsync"],
        "'zmove copy SRC... DST' copies in either direction",
    ),
    (
        &["get", "fetch", "download", "recv"],
        "'zmove pull HOST:SRC... DIR' fetches",
    ),
    (
        &["put", "send", "upload"],
        "'zmove push SRC... HOST:DST' sends",
    ),
    (
        &["sync", "mirror"],
        "'zmove push SRC/ HOST:DST' sends only differences; add --delete for a mirror",
    ),
    (
        &["ps", "ls", "list"],
        "'zmove jobs' lists the jobs on this host, and 'zmove status' the transfers of this host's daemon",
    ),
    (
        &["cancel", "pause", "resume", "wait", "attach", "kill"],
        "'zmove job ID cancel' (also pause, resume, wait, attach)",
    ),
    (
        &["rm", "delete"],
        "only 'zmove push --delete SRC/ HOST:DST' removes files",
    ),
    (
        &["check", "diff", "cmp"],
        "'zmove verify SRC DST' compares both ends by hash",
    ),
    (&["daemon", "server", "listen"], "'zmove serve' receives"),
    (
        &["keygen", "keys"],
        "'zmove key show' prints the fingerprint of your key, and creates the key at first use",
    ),
    (
        &["ping", "test", "bench"],
        "'zmove doctor HOST' and 'zmove probe HOST' test the path",
    ),
    (&["du", "stat"], "'zmove scan TREE' counts files by size"),
    (&["version"], "'zmove --version'"),
    // `--sparse` takes a value in zmove, but not in rsync.
    (
        &["--sparse <WHEN>"],
        "holes are always preserved; --sparse zeros turns zeros into holes, like rsync's --sparse",
    ),
    // `--timeout` is an option of other zmove commands.
    (
        &["--timeout"],
        "not needed here: the command gives up within seconds if a host does not answer",
    ),
    (
        &[
            "--delete-before",
            "--delete-during",
            "--del",
            "--delete-after",
            "--delete-delay",
        ],
        "--delete always removes at the end",
    ),
    (
        &["--delete-excluded"],
        "not supported: entries excluded by --exclude always stay at the target",
    ),
    (
        &["--size-only"],
        "not supported; -c compares contents instead of size and time",
    ),
    (
        &["-I", "--ignore-times"],
        "-c compares contents instead of size and time",
    ),
    (
        &["-L", "--copy-links", "-k", "--copy-dirlinks"],
        "symbolic links are sent as links; give their targets as sources instead",
    ),
    (
        &[
            "-b",
            "--backup",
            "--backup-dir",
            "--link-dest",
            "--copy-dest",
            "--compare-dest",
        ],
        "not supported",
    ),
    (
        &["-R", "--relative"],
        "use --files-from FILE: the paths in FILE are preserved, relative to SRC",
    ),
    (&["-W", "--whole-file"], "--delta never does this"),
    (
        &["-i", "--itemize-changes", "--list-only"],
        "-n lists the changes and their reasons",
    ),
    (
        &["--append", "--append-verify", "--partial-dir"],
        "not needed: large files are always resumed",
    ),
    (
        &[
            "-f",
            "--filter",
            "--exclude-from",
            "--include-from",
            "-C",
            "--cvs-exclude",
        ],
        "--filter-from FILE has rules as in a .gitignore; '!' includes again",
    ),
    (
        &["--rsync-path"],
        "--remote-zmove PATH is the path of zmove on that host",
    ),
    (&["--port"], "write the port after the host: HOST:PORT:PATH"),
    (
        &["--root"],
        "'zmove allow' grants keys access to directories",
    ),
    (
        &["-E", "--executability", "--chmod"],
        "modes are copied from the source; --no-p disables this",
    ),
    (
        &["--mkpath"],
        "not needed: missing parent directories of the target are created",
    ),
    (
        &["-s", "--protect-args", "--secluded-args"],
        "not needed: no shell interprets the paths",
    ),
    (&["--specials", "--devices"], "-D preserves both"),
    (
        &["--password-file"],
        "zmove uses keys instead of passwords: 'zmove key show', 'zmove allow'",
    ),
    (
        &["--compress-level", "--compress-choice"],
        "zmove does not compress data",
    ),
    (
        &["--checksum-choice", "--checksum-seed"],
        "zmove always compares and verifies contents with BLAKE3",
    ),
    (
        &[
            "--existing",
            "--modify-window",
            "--fuzzy",
            "--iconv",
            "--stop-after",
        ],
        "not supported",
    ),
    (
        &["-J", "-F"],
        "write the options of ssh in its command: -e 'ssh -J GATE'",
    ),
    (
        &["--info", "--debug", "--out-format", "--log-file"],
        "--json prints events for programs, and --trace FILE records the rates",
    ),
    (
        &["--remove-source-files"],
        "zmove never changes the source; after 'zmove verify' succeeds, you can remove it",
    ),
    (
        &["-m", "--prune-empty-dirs"],
        "not supported: empty directories are created",
    ),
    (
        &["--temp-dir", "-T", "--delay-updates"],
        "not needed: files are renamed into place when they are complete",
    ),
    (
        &["--fsync"],
        "not needed: all data is flushed at the end; --durability file flushes each file",
    ),
    (
        &["--parallel", "--threads", "-j", "--jobs"],
        "--streams N, or omit it: zmove chooses the number",
    ),
];

/// Hints for unknown commands of `zmove job`. Each hint belongs to a part of the usage line that clap reports.
const JOBS: &[(&str, &str)] = &[
    (
        "zmove jobs",
        "'zmove jobs' lists all jobs; 'zmove job ID' shows one job, by its number",
    ),
    (
        "zmove job ",
        "'zmove job ID' shows the job; 'zmove job ID COMMAND' accepts log, wait, attach, pause, resume, cancel, rerun",
    ),
];

/// Hint for a fingerprint that follows the host of `zmove trust`.
const KEY: &str = "--fingerprint SHA256:... pins the key if it has this fingerprint";

/// Returns whether the typed word is probably a misspelling of the word that clap suggests. At most one letter in three
/// may differ.
fn is_typo(typed: &str, guess: &str) -> bool {
    let typed = typed.trim_start_matches('-');
    strsim::levenshtein(typed, guess.trim_start_matches('-')) <= typed.len().div_ceil(3)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::args::{Args, Command};

    fn told(words: &str) -> String {
        let mut error = Args::try_parse_from(words.split(' ')).unwrap_err();
        hint(&mut error);
        error.render().to_string()
    }

    fn tip(words: &str) -> Option<String> {
        told(words)
            .lines()
            .find_map(|line| line.trim().strip_prefix("tip: "))
            .map(str::to_owned)
    }

    #[test]
    fn what_rsync_and_scp_take_is_taken() {
        for options in [
            "-avP",
            "-rav",
            "-r",
            "-v",
            "-vv",
            "-aa",
            "-P",
            "--progress",
            "--partial",
            "--stats",
            "-z",
            "-avzP",
            "--compress",
            "--human-readable",
            "--bwlimit=10M",
            "--bwlimit 1000",
            "-e ssh",
            "--rsh=ssh",
            "-q -q",
        ] {
            for command in ["push", "pull", "copy"] {
                let words = format!("zmove {command} {options} a h:b");
                assert!(
                    Args::try_parse_from(words.split(' ')).is_ok(),
                    "{words}: {}",
                    told(&words)
                );
            }
        }
    }

    #[test]
    fn help_is_asked_for_by_a_letter_alone() {
        let read = |words: &str| {
            let read = Args::read(words.split(' ').map(OsString::from).collect());
            read.map_err(|error| error.kind())
        };
        let paths = |words: &str| match read(words).unwrap().command {
            Command::Push(args) => args.paths,
            other => panic!("{other:?}"),
        };
        for words in [
            "-avzh a b",
            "a -rh b",
            "a b -Phv",
            "a -n b",
            "a --exclude x b -a",
        ] {
            assert_eq!(paths(&format!("zmove push {words}")), ["a", "b"], "{words}");
        }
        assert_eq!(
            read("zmove push -h a b").unwrap_err(),
            ErrorKind::DisplayHelp
        );
        // An option that takes a value takes the rest of the word.
        assert_eq!(paths("zmove push -essh a b"), ["a", "b"]);
        for words in ["push a", "submit a -n", "copy -a a", "pull h:a"] {
            assert_eq!(
                read(&format!("zmove {words}")).unwrap_err(),
                ErrorKind::TooFewValues,
                "{words}"
            );
        }
    }

    #[test]
    fn a_key_behind_a_host_needs_its_option() {
        let key = "SHA256:EdZ6fkZdjHpvfnn+K4fKxJ9yy426OEA5vP3A0EE/l50";
        assert_eq!(tip(&format!("zmove trust dtn {key}")).as_deref(), Some(KEY));
        assert_eq!(tip("zmove trust dtn other"), None);
    }

    #[test]
    fn a_bwlimit_counts_as_rsync_does() {
        let bytes = |text: &str| {
            text.parse::<Bwlimit>()
                .map(|Bwlimit(rate)| rate.map(RateLimit::bytes_per_second))
        };
        assert_eq!(bytes("100"), Ok(Some(102_400)));
        assert_eq!(bytes("1.5"), Ok(Some(1536)));
        assert_eq!(bytes("10M"), Ok(Some(10_485_760)));
        assert_eq!(bytes("10m"), Ok(Some(10_485_760)));
        assert_eq!(bytes("10MB"), Ok(Some(10_000_000)));
        assert_eq!(bytes("0"), Ok(None));
        assert!(bytes("fast").is_err() && bytes("").is_err() && bytes("10Mbit").is_err());
    }

    #[test]
    fn the_limit_is_that_of_either_option() {
        let limit = |words: &str| {
            let Command::Push(args) = Args::try_parse_from(words.split(' ')).unwrap().command
            else {
                panic!("no push: {words}");
            };
            args.limit().map(RateLimit::bytes_per_second)
        };
        assert_eq!(limit("zmove push --bwlimit=1M a h:b"), Some(1_048_576));
        assert_eq!(limit("zmove push --limit 8Mbit a h:b"), Some(1_000_000));
        assert_eq!(limit("zmove push --bwlimit=0 a h:b"), None);
    }

    #[test]
    fn hints_fit() {
        for (words, expected) in [
            ("zmove cp a b", "'zmove copy SRC... DST'"),
            ("zmove get a b", "'zmove pull HOST:SRC... DIR'"),
            ("zmove ps", "'zmove jobs'"),
            ("zmove cancel 53", "'zmove job ID cancel'"),
            ("zmove sync a b", "'zmove push SRC/ HOST:DST'"),
            ("zmove run7 h:b", "'zmove copy SRC... DST' copies"),
            ("zmove pussh a b", "a similar subcommand exists: 'push'"),
            (
                "zmove push --exlude=x a b",
                "a similar argument exists: '--exclude'",
            ),
            (
                "zmove push --delete-after a b",
                "--delete always removes at the end",
            ),
            ("zmove push -W a b", "--delta never"),
            (
                "zmove push --sparse a b",
                "holes are always preserved; --sparse zeros",
            ),
            (
                "zmove push --transport tcpp a b",
                "a similar value exists: 'tcp'",
            ),
            ("zmove jobs nightly", "'zmove jobs' lists all"),
            ("zmove jobs 17", "'zmove jobs' lists all"),
            ("zmove job 17 status", "'zmove job ID' shows the job"),
            ("zmove job 17 stop", "'zmove job ID' shows the job"),
            ("zmove job cancel 17", "'zmove job ID' shows the job"),
            (
                "zmove job 17 cancle",
                "a similar subcommand exists: 'cancel'",
            ),
            ("zmove probe --timeout 5 h", "not needed here"),
        ] {
            let tip = tip(words).unwrap_or_default();
            assert!(tip.starts_with(expected), "{words}: {tip}");
        }
    }

    #[test]
    fn no_hint_misleads() {
        for words in [
            "zmove push --foo a b",
            "zmove -a a b",
            "zmove push -Q a b",
            "zmove serve --stats",
            "zmove scan -r x",
        ] {
            assert_eq!(tip(words), None, "{}", told(words));
        }
    }

    #[test]
    fn hints_name_what_there_is() {
        let command = Args::command();
        let push = command.find_subcommand("push").unwrap();
        let names: Vec<_> = push
            .get_arguments()
            .flat_map(|arg| arg.get_long_and_visible_aliases().unwrap_or_default())
            .collect();
        for (words, hint) in HINTS {
            for word in *words {
                let name = word.trim_start_matches('-');
                let is_there = if word.starts_with('-') {
                    *word != "--timeout" && names.contains(&name)
                } else {
                    let command = command.find_subcommand(name);
                    command.is_some_and(|command| !command.is_hide_set())
                };
                assert!(!is_there, "'{word}' is there");
            }
            for (at, _) in hint.match_indices("'zmove ") {
                let name = hint[at + 7..].split([' ', '\'']).next().unwrap();
                assert!(
                    name == "--version" || command.find_subcommand(name).is_some(),
                    "{hint}"
                );
            }
            let options = hint
                .split([' ', ',', ';', ':'])
                .filter_map(|word| word.strip_prefix("--"))
                .filter(|_| words[0].starts_with('-'));
            for word in options {
                assert!(names.contains(&word) || word == "exclude", "{hint}");
            }
        }
    }
}
