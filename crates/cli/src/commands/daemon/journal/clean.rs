//! `zmove journal clean`, and the same cleanup inside a daemon.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use zmove_receiver::journal::{
    CleanMode, CleanRule, Cleaned, PartFate, Unfinished, UnfinishedFile, Unreachable, clean,
};
use zmove_types::Escaped;

use super::{JournalResult, age, name};
use crate::args::JournalCleanArgs;
use crate::display::terminal;
use crate::value::age::Age;

/// Cleans the journals in a directory.
pub(super) fn run(args: &JournalCleanArgs, directory: &Path) -> Result<JournalResult> {
    let rule = CleanRule {
        older_than: if args.all {
            Duration::ZERO
        } else {
            args.older_than.0
        },
        unreachable: if args.all {
            Unreachable::Remove
        } else {
            Unreachable::Keep
        },
        mode: if args.dry_run {
            CleanMode::DryRun
        } else {
            CleanMode::Remove
        },
        roots: args.directory.is_some().then(|| args.roots.clone()),
    };
    let mut found = JournalResult::Nothing;
    for cleaned in clean(directory, &rule)? {
        tell(&cleaned, rule.mode);
        let whole = matches!(cleaned.removed, Ok(true));
        let failed = |fate: &PartFate| matches!(fate, PartFate::Failed(_));
        found.merge(if whole && !cleaned.parts.iter().any(failed) {
            JournalResult::Whole
        } else {
            JournalResult::Partial
        });
    }
    Ok(found)
}

/// Removes the journals that were last written more than `age` ago, and reports one line for each journal.
pub(crate) fn expire(directory: &Path, age: Age, tell: impl Fn(&dyn fmt::Display)) {
    let unreachable = Unreachable::Remove;
    let rule = CleanRule {
        older_than: age.0,
        unreachable,
        mode: CleanMode::Remove,
        roots: None,
    };
    match clean(directory, &rule) {
        Ok(cleaned) => cleaned
            .iter()
            .for_each(|cleaned| tell(&line(cleaned, rule.mode))),
        Err(error) => tell(&format_args!("clean journals: {error}")),
    }
}

/// Reports removed journals on standard output. Reports files that were kept on standard error.
fn tell(cleaned: &Cleaned, mode: CleanMode) {
    let line = line(cleaned, mode);
    if matches!(cleaned.removed, Ok(true)) {
        terminal::say(line)
    } else {
        terminal::warn(line)
    }
    let Ok(unfinished) = &cleaned.contents else {
        return;
    };
    for (file, fate) in unfinished.files.iter().zip(&cleaned.parts) {
        let path = part_path(unfinished, file);
        let why: &dyn fmt::Display = match fate {
            PartFate::Removed | PartFate::Gone => continue,
            PartFate::InUse => &"a running transfer has taken it over",
            PartFate::Replaced => &"it is not the file that the journal describes",
            PartFate::Foreign => &"its name is not that of a part file",
            PartFate::Outside => &"its target is not below a root in authorized_keys",
            PartFate::Elsewhere => &"its target is not the directory that the journal describes",
            PartFate::Failed(error) => error,
        };
        terminal::warn(format_args!("left '{}': {why}", Escaped::path(&path)));
    }
}

fn part_path(unfinished: &Unfinished, file: &UnfinishedFile) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    let target = Path::new(std::ffi::OsStr::from_bytes(&unfinished.begin.target));
    target
        .join(file.part.path.as_path())
        .with_file_name(file.part.part.as_os_str())
}

/// Returns a line that describes the result for one journal.
fn line(cleaned: &Cleaned, mode: CleanMode) -> String {
    let fate = match (&cleaned.removed, mode) {
        (Ok(true), CleanMode::Remove) => "removed",
        (Ok(true), CleanMode::DryRun) => "would remove",
        _ => "kept",
    };
    let about = match &cleaned.contents {
        Ok(unfinished) => {
            let target = String::from_utf8_lossy(&unfinished.begin.target);
            let removed = cleaned
                .parts
                .iter()
                .filter(|fate| matches!(fate, PartFate::Removed))
                .count();
            let all = cleaned.parts.len();
            let written = age(cleaned.modified);
            format!(" into '{target}', last written {written} ago: {removed} of {all} part files")
        }
        Err(error) => format!(", whose part files are not known: {error}"),
    };
    let why = match &cleaned.removed {
        Ok(true) => String::new(),
        Ok(false) => "; 'clean --all' removes it".to_owned(),
        Err(error) => format!("; {error}"),
    };
    format!("{fate} journal {}{about}{why}", name(&cleaned.path))
}
