//! Checks where the local target and sources of a transfer are mounted. After a reboot, a mount may be missing. A job
//! would then fill the file system below its target, or read an empty mount point as its source and empty a mirror.
//!
//! A mount is identified by its mount point, its type and the ID of its file system, which survive a reboot. Device
//! numbers do not.

mod table;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::Result;
use zmove_engine::Location;
use zmove_jobs::variable;
use zmove_scan::{FileSystems, PathKind, Selection};
use zmove_types::{Escaped, RelPath};

use self::table::{Mount, mount_of, mounts_below};
use crate::args::PushArgs;
use crate::commands::transfer::names_other_host;
use crate::settings;
use crate::value::exit::{Exit, failure, usage_error};

/// Returns the environment variables that pass the current mounts of the target and the sources to the process of a
/// job.
pub(crate) fn recorded_mounts(args: &PushArgs) -> Result<Vec<OsString>> {
    let mounts = [
        (OF_TARGET, of_target(args)?),
        (OF_SOURCES, of_sources(args)?),
    ];
    let recorded = mounts.into_iter();
    Ok(recorded
        .filter_map(|(name, word)| Some(variable(name, &word?)))
        .collect())
}

/// Refuses to run this process of a job while a recorded mount is missing.
pub(crate) fn check_recorded_mounts(args: &PushArgs) -> Result<()> {
    if let Some(word) = std::env::var_os(OF_TARGET) {
        check_target_mount(args, &word)?;
    }
    std::env::var_os(OF_SOURCES).map_or(Ok(()), |word| check_source_mounts(&word))
}

/// Returns the mount of the target as one word, or `None` if the target is on another host or on the root file system.
/// The word has no file system ID, because another file system may be mounted there later: backup disks rotate.
fn of_target(args: &PushArgs) -> Result<Option<OsString>> {
    let Some(target) = local_target(args) else {
        return Ok(None);
    };
    let mount = Mount {
        id: None,
        ..mount_of(&target)?
    };
    Ok((mount.point != Path::new("/")).then(|| OsString::from_vec(mount.to_word())))
}

/// Refuses a target that is no longer on this mount but on one above it. The mount may return, so the job is retried.
fn check_target_mount(args: &PushArgs, word: &OsStr) -> Result<()> {
    let Some((wanted, target)) = Mount::from_word(word.as_bytes()).zip(local_target(args)) else {
        return Ok(());
    };
    let found = mount_of(&target)?;
    // A mount below the recorded one is accepted, because the target is still where the user meant.
    if found.is_same(&wanted)
        || found.point.starts_with(&wanted.point) && found.point != wanted.point
    {
        return Ok(());
    }
    let text = format!(
        "{}, where the target was when the job was submitted, is not mounted: '{}' is on {} now, and nothing is \
         written there",
        wanted.shown(),
        Escaped::path(&target),
        found.shown()
    );
    Err(failure(Exit::Connection, text))
}

/// Returns the mounts that make up the local sources, as one word with a line for each mount: the mounts of the
/// sources, and the mounts below them that are sent. Returns `None` if all sources are on the root file system only.
fn of_sources(args: &PushArgs) -> Result<Option<OsString>> {
    let (_, sources) = args.paths.split_last().expect("two are demanded");
    let selection = args.selection.selection()?;
    let mut words = Vec::<Vec<u8>>::new();
    for source in sources.iter().filter(|source| !names_other_host(source)) {
        let path = Path::new(source);
        let is_link = path.is_symlink() && !source.as_bytes().ends_with(b"/");
        // A missing source may still appear, and a symbolic link is sent as a link.
        let Ok(path) = path.canonicalize() else {
            continue;
        };
        if is_link {
            continue;
        }
        let own = Some(mount_of(&path)?).filter(|mount| mount.point != Path::new("/"));
        let below = if args.selection.files_from.is_none()
            && args.selection.file_systems() == FileSystems::All
        {
            mounts_below(&path)?
        } else {
            Vec::new()
        };
        let is_sent =
            |mount: &Mount| is_selected(selection.as_deref(), source, &path, &mount.point);
        let mounts = own.into_iter().chain(below.into_iter().filter(is_sent));
        words.extend(mounts.map(|mount| mount.to_word()));
    }
    words.sort_unstable();
    words.dedup();
    let word = words.join(&b'\n');
    if word.len() > WORD_BYTES_MAX {
        return Err(usage_error(format!(
            "{} file systems are mounted in the sources, more than a job can record: name fewer sources, or add -x",
            words.len()
        )));
    }
    Ok((!word.is_empty()).then(|| OsString::from_vec(word)))
}

/// Returns whether the rules select a mount point below a source.
fn is_selected(selection: Option<&Selection>, source: &OsStr, path: &Path, point: &Path) -> bool {
    let own_name = if source.as_bytes().ends_with(b"/") {
        None
    } else {
        path.file_name()
    };
    let below = point.strip_prefix(path).unwrap_or(Path::new(""));
    let sent = own_name.map_or_else(|| below.to_owned(), |name| Path::new(name).join(below));
    let sent = RelPath::from_bytes(sent.as_os_str().as_bytes());
    match (selection, sent) {
        (Some(selection), Ok(sent)) => selection.admits(&sent, PathKind::Directory),
        _ => true,
    }
}

/// Refuses the sources if one of these mounts is missing, or if another file system is mounted there. The mount may
/// return, so the job is retried.
fn check_source_mounts(word: &OsStr) -> Result<()> {
    let lines = word.as_bytes().split(|&byte| byte == b'\n');
    for wanted in lines.filter_map(Mount::from_word) {
        let found = mount_of(&wanted.point)?;
        if found.is_same(&wanted) {
            continue;
        }
        let instead = if found.point == wanted.point {
            format!(
                "another file system, {}, is mounted there now",
                found.shown()
            )
        } else {
            format!("{} is there now", found.shown())
        };
        let text = format!(
            "sender: {}, which belonged to the source when the job was submitted, is not mounted: {instead}, and \
             nothing is sent or removed (mount it, or submit the job anew)",
            wanted.shown()
        );
        return Err(failure(Exit::Connection, text));
    }
    Ok(())
}

/// Refuses a transfer unless a file system is mounted at each directory that `--require-mount` names.
pub(crate) fn require(args: &PushArgs) -> Result<()> {
    for directory in &args.require_mount {
        let found = directory
            .canonicalize()
            .map_err(anyhow::Error::from)
            .and_then(|path| Ok(mount_of(&path)?.point == path));
        let why = match found {
            Ok(true) => continue,
            Ok(false) => "nothing is mounted there".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        let text = format!(
            "--require-mount '{}': {why}; nothing is sent or removed",
            Escaped::path(directory)
        );
        return Err(failure(Exit::Connection, text));
    }
    Ok(())
}

fn local_target(args: &PushArgs) -> Option<PathBuf> {
    // With a cluster, the target is a path at the receivers.
    let target = args.paths.last().filter(|_| args.cluster.is_none())?;
    match Location::parse(target, settings::start(&args.dial)) {
        Ok(Location::Local(path)) => std::path::absolute(path).ok(),
        _ => None,
    }
}

/// Environment variable with the mount on which the target must be.
const OF_TARGET: &str = "ZMOVE_JOB_MOUNT";
/// Environment variable with the mounts that make up the sources.
const OF_SOURCES: &str = "ZMOVE_JOB_SOURCE_MOUNTS";
/// Maximum size of a record of mounts, in bytes. The kernel refuses a variable of 128 KiB.
const WORD_BYTES_MAX: usize = 100_000;
