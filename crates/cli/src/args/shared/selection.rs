//! Options that select entries of the sources, for the commands that transfer, compare or scan trees.
//!
//! **Invariant:** rules keep the order of the command line. The rules in a file take the position of the file's option.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::builder::{OsStringValueParser, PathBufValueParser, TypedValueParser};
use clap::{ArgMatches, Command, FromArgMatches};
use zmove_scan::{
    Effect, FileSystems, PathList, PatternError, Rule, ScanRoot, Selection, Separator,
};
use zmove_types::{ByteCount, Escaped, parse_size};

use crate::value::exit::usage_error;

pub(crate) mod fuzzing;

/// Options that select files.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Selection")]
pub(crate) struct SelectionArgs {
    #[command(flatten)]
    rules: RuleArgs,
    /// Only the paths listed in this file; '-' is stdin
    ///
    /// The file has one path per line, relative to SRC. There must be exactly one SRC. Listed directories are created
    /// without their contents.
    #[arg(long, value_name = "FILE")]
    pub(crate) files_from: Option<PathBuf>,
    /// Paths in that file end in NUL ('find -print0')
    #[arg(short = '0', long, requires = "files_from")]
    from0: bool,
    /// Do not cross file system boundaries
    ///
    /// A directory on which another file system is mounted counts as empty.
    #[arg(short = 'x', long)]
    one_file_system: bool,
    /// Skip files larger than SIZE, such as 100MiB or 2GB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_size: Option<ByteCount>,
    /// Skip files smaller than SIZE
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    min_size: Option<ByteCount>,
}

/// The rules in the order of the command line.
#[derive(Debug, Default)]
struct RuleArgs(Vec<RuleArg>);

#[derive(Clone, Debug)]
enum RuleArg {
    Pattern(Effect, OsString),
    File(PathBuf),
}

/// The same rules as clap parses them, grouped by option.
#[derive(Debug, clap::Args)]
struct RulesByOption {
    /// Exclude entries that match, as in a .gitignore
    ///
    /// '/x' matches only x at the top of the target.
    #[arg(long, value_name = "PATTERN", value_parser = pattern(Effect::Exclude))]
    exclude: Vec<RuleArg>,
    /// Include entries that an earlier --exclude skips
    ///
    /// The last matching pattern decides.
    #[arg(long, value_name = "PATTERN", value_parser = pattern(Effect::Include))]
    include: Vec<RuleArg>,
    /// Read rules from a .gitignore file; '-' is stdin
    ///
    /// A pattern after '!' includes entries again.
    #[arg(long, value_name = "FILE",
        value_parser = PathBufValueParser::new().map(RuleArg::File))]
    filter_from: Vec<RuleArg>,
}

fn pattern(effect: Effect) -> impl TypedValueParser<Value = RuleArg> {
    OsStringValueParser::new().map(move |text| RuleArg::Pattern(effect, text))
}

impl SelectionArgs {
    /// Returns whether any rules or paths of the selection are read from a file.
    pub(crate) fn reads_files(&self) -> bool {
        self.files().next().is_some()
    }

    /// Returns whether the selection has size limits.
    pub(crate) fn bounds_sizes(&self) -> bool {
        self.min_size.is_some() || self.max_size.is_some()
    }

    /// Returns the selection by rules and sizes. Returns `None` if neither rules nor size limits were given.
    pub(crate) fn selection(&self) -> Result<Option<Arc<Selection>>> {
        let min = self.min_size.map_or(0, |size| size.0);
        let max = self.max_size.map_or(u64::MAX, |size| size.0);
        if min > max {
            return Err(usage_error(
                "--min-size is larger than --max-size: no file can match",
            ));
        }
        if self.files().filter(|path| is_stdin(path)).count() > 1 {
            return Err(usage_error(
                "stdin ('-') can be only one of --filter-from and --files-from",
            ));
        }
        let mut rules = Vec::new();
        for arg in &self.rules.0 {
            match arg {
                RuleArg::Pattern(effect, pattern) => rules.push(pattern_rule(*effect, pattern)?),
                RuleArg::File(path) => rules.extend(file_rules(path)?),
            }
        }
        if rules.is_empty() && !self.bounds_sizes() {
            return Ok(None);
        }
        let selection = Selection::new(&rules, min..=max);
        let selection = selection
            .map_err(|error| usage_error(format!("the patterns of the selection: {error}")))?;
        Ok(Some(Arc::new(selection)))
    }

    /// Returns which file systems the scan may enter.
    pub(crate) fn file_systems(&self) -> FileSystems {
        if self.one_file_system {
            FileSystems::OfRoot
        } else {
            FileSystems::All
        }
    }

    /// Returns the list of paths below `root`. Returns `None` if no list was given.
    pub(crate) fn list(&self, root: impl FnOnce() -> ScanRoot) -> Result<Option<PathList>> {
        let listed = self.open_list()?;
        Ok(listed.map(|(path, reader)| PathList::new(root(), reader, path, self.separator())))
    }

    /// Returns the character that separates the paths in the list.
    pub(crate) fn separator(&self) -> Separator {
        if self.from0 {
            Separator::Nul
        } else {
            Separator::Newline
        }
    }

    /// Opens the list of paths. Returns `None` if no list was given.
    pub(crate) fn open_list(&self) -> Result<Option<(PathBuf, Box<dyn Read + Send>)>> {
        let Some(path) = &self.files_from else {
            return Ok(None);
        };
        let reader =
            open(path).with_context(|| format!("open --files-from '{}'", Escaped::path(&path)))?;
        Ok(Some((path.clone(), reader)))
    }

    /// Returns whether the selection can be read again. A list of paths from a pipe can be read only once.
    pub(crate) fn can_be_read_again(&self) -> bool {
        self.files_from
            .as_deref()
            .is_none_or(|path| !is_stdin(path) && path.is_file())
    }

    /// Makes the file at this path the list of the paths to select. Each path in the file is terminated by NUL.
    pub(crate) fn read_list(&mut self, file: impl Into<PathBuf>) {
        self.files_from = Some(file.into());
        self.from0 = true;
    }

    /// Returns whether any rules or paths of the selection are read from standard input.
    pub(crate) fn reads_stdin(&self) -> bool {
        self.files().any(|path| is_stdin(path))
    }

    /// Returns the files from which rules or paths of the selection are read.
    fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let filters = self.rules.0.iter().filter_map(|rule| match rule {
            RuleArg::File(path) => Some(path),
            RuleArg::Pattern(..) => None,
        });
        filters.chain(&self.files_from)
    }
}

fn pattern_rule(effect: Effect, pattern: &OsStr) -> Result<Rule> {
    let option = match effect {
        Effect::Exclude => "--exclude",
        Effect::Include => "--include",
    };
    Rule::new(effect, pattern.as_bytes()).map_err(|error| bad_pattern(option, pattern, &error))
}

fn file_rules(path: &Path) -> Result<Vec<Rule>> {
    let mut text = Vec::new();
    open(path)
        .and_then(|mut file| file.read_to_end(&mut text))
        .with_context(|| format!("read --filter-from '{}'", Escaped::path(&path)))?;
    rules_in(&text, path)
}

/// Parses the rules in `text`, which is the content of the file at `path`.
fn rules_in(text: &[u8], path: &Path) -> Result<Vec<Rule>> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let mut rules = Vec::new();
    for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
        let place = || {
            format!(
                "--filter-from '{}' line {}",
                Escaped::path(&path),
                index + 1
            )
        };
        let rule = Rule::from_line(line);
        rules.extend(rule.map_err(|error| bad_pattern(place(), OsStr::from_bytes(line), &error))?);
    }
    Ok(rules)
}

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

fn bad_pattern(place: impl fmt::Display, pattern: &OsStr, error: &PatternError) -> anyhow::Error {
    usage_error(format!(
        "{place}: pattern '{}': {error}",
        Escaped::path(&pattern)
    ))
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn open(path: &Path) -> std::io::Result<Box<dyn Read + Send>> {
    Ok(if is_stdin(path) {
        Box::new(std::io::stdin())
    } else {
        Box::new(File::open(path)?)
    })
}

impl clap::Args for RuleArgs {
    fn augment_args(command: Command) -> Command {
        RulesByOption::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        RulesByOption::augment_args_for_update(command)
    }
}

impl FromArgMatches for RuleArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let placed = |option| {
            let places = matches.indices_of(option).into_iter().flatten();
            places.zip(
                matches
                    .get_many::<RuleArg>(option)
                    .into_iter()
                    .flatten()
                    .cloned(),
            )
        };
        let mut rules: Vec<_> = ["exclude", "include", "filter_from"]
            .into_iter()
            .flat_map(placed)
            .collect();
        rules.sort_by_key(|(place, _)| *place);
        Ok(Self(rules.into_iter().map(|(_, rule)| rule).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use zmove_scan::PathKind;
    use zmove_types::RelPath;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        selection: SelectionArgs,
    }

    fn selection(words: &[&str]) -> Result<Option<Arc<Selection>>> {
        Line::try_parse_from([&["zmove"], words].concat())
            .unwrap()
            .selection
            .selection()
    }

    fn takes(words: &[&str], path: &str) -> bool {
        let path = RelPath::from_bytes(path.as_bytes()).unwrap();
        selection(words)
            .unwrap()
            .unwrap()
            .admits(&path, PathKind::Other)
    }

    fn refused(words: &[&str]) -> String {
        selection(words).unwrap_err().to_string()
    }

    #[test]
    fn rules_keep_the_order_of_the_command_line() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("rules");
        std::fs::write(&file, "\u{feff}*.c\n# a comment\n\n!b.*\n").unwrap();
        let file = file.to_str().unwrap();
        assert!(takes(&["--exclude", "*.c", "--include", "a.c"], "a.c"));
        assert!(!takes(&["--include", "a.c", "--exclude", "*.c"], "a.c"));
        assert!(!takes(&["--include=a.c", "--filter-from", file], "a.c"));
        assert!(takes(&["--filter-from", file, "--include=a.c"], "a.c"));
        assert!(takes(&["--exclude=b.c", "--filter-from", file], "b.c"));
        assert!(!takes(
            &["--filter-from", file, "--exclude=b.c", "--include=x"],
            "b.c"
        ));
    }

    #[test]
    fn nothing_selected_is_no_selection() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("rules");
        std::fs::write(&file, "# nothing\n").unwrap();
        assert!(selection(&[]).unwrap().is_none());
        assert!(
            selection(&["--filter-from", file.to_str().unwrap()])
                .unwrap()
                .is_none()
        );
        assert!(selection(&["--min-size", "1"]).unwrap().is_some());
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("rules");
        std::fs::write(&file, "ok\nx[\n").unwrap();
        let file = file.to_str().unwrap();
        let unclosed = "a '[' is not closed: write '\\[' for the character";
        assert_eq!(
            refused(&["--exclude", "a["]),
            format!("--exclude: pattern 'a[': {unclosed}")
        );
        assert_eq!(
            refused(&["--include", "a["]),
            format!("--include: pattern 'a[': {unclosed}")
        );
        assert_eq!(
            refused(&["--filter-from", file]),
            format!("--filter-from '{file}' line 2: pattern 'x[': {unclosed}")
        );
        assert_eq!(
            refused(&["--filter-from", "/none"]),
            "read --filter-from '/none'"
        );
        assert!(
            refused(&["--filter-from", "-", "--files-from", "-"])
                .starts_with("stdin ('-') can be only one")
        );
        assert!(
            refused(&["--min-size", "2K", "--max-size", "2KB"])
                .starts_with("--min-size is larger than --max-size")
        );
    }
}
