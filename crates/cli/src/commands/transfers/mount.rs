//! Checks where the local target and sources of a transfer are mounted. After a reboot, a mount may be missing. In that
//! case, a job would fill the file system below its target. It could also read an empty mount point as its source, and
//! empty a mirror.
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

/// Returns the environment variables that record the current mounts of the target and the sources for the process of a
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

/// Returns an encoded record of the target's mount, or `None` if the target is on another host or on the root file
/// system. The record contains no file system ID, because another file system may be mounted at the same place later.
/// For example, backup disks are rotated.
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

/// Refuses the target if its recorded mount is missing, so that the target is on a different mount. The recorded mount
/// may return, so the job is retried.
fn check_target_mount(args: &PushArgs, word: &OsStr) -> Result<()> {
    let Some((wanted, target)) = Mount::from_word(word.as_bytes()).zip(local_target(args)) else {
        return Ok(());
    };
    let found = mount_of(&target)?;
    // A target on a new mount below the recorded one is accepted, because its path is still inside the recorded mount.
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

/// Returns an encoded record of the mounts that contain the local sources, and of the mounts below the sources that are
/// sent. The record has one line for each mount. Returns `None` if all sources are entirely on the root file system.
fn of_sources(args: &PushArgs) -> Result<Option<OsString>> {
    let (_, sources) = args.paths.split_last().expect("two are demanded");
    let selection = args.selection.selection()?;
    let mut words = Vec::<Vec<u8>>::new();
    for source in sources.iter().filter(|source| !names_other_host(source)) {
        let path = Path::new(source);
        let is_link = path.is_symlink() && !source.as_bytes().ends_with(b"/");
        // A missing source is skipped, because it may still appear. A symbolic link to a missing file is sent as a
        // link.
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

/// Refuses the sources if a recorded mount is missing, or if another file system is mounted at its mount point. The
/// recorded mount may return, so the job is retried.
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
            Ok(false) => "nothing is mounted there (mount it first)".to_owned(),
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
    // If a cluster is given, the target is a path at the receivers, not on this host.
    let target = args.paths.last().filter(|_| args.cluster.is_none())?;
    match Location::parse(target, settings::start(&args.dial)) {
        Ok(Location::Local(path)) => std::path::absolute(path).ok(),
        _ => None,
    }
}

/// Environment variable that records the mount on which the target must be.
const OF_TARGET: &str = "ZMOVE_JOB_MOUNT";
/// Environment variable that records the mounts that make up the sources.
const OF_SOURCES: &str = "ZMOVE_JOB_SOURCE_MOUNTS";
/// Maximum size of a record of mounts, in bytes. The kernel refuses environment variables of 128 KiB or more.
const WORD_BYTES_MAX: usize = 100_000;
