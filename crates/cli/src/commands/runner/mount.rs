//! Where the target of a job on this host is mounted: after a reboot the mount may be missing, and the job would fill
//! the file system below, most often that of the root.
//!
//! A mount is known by its point and its kind, which outlive a reboot; device numbers do not.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{Mode, OFlags};
use zmove_engine::Location;
use zmove_types::Escaped;

use crate::args::PushArgs;
use crate::settings;
use crate::value::exit::{Exit, failure};

/// The mount that the target is on, as one word; none where the target is on another host, or on the root's file
/// system.
pub(crate) fn of_target(args: &PushArgs) -> Result<Option<OsString>> {
    let Some(target) = local_target(args) else {
        return Ok(None);
    };
    let mount = mount_of(&target)?;
    Ok((mount.point != Path::new("/")).then(|| mount.into_word()))
}

/// Refuses a target that is not on this mount any more, but on one above: that may pass.
pub(crate) fn demand(args: &PushArgs, word: &Path) -> Result<()> {
    let (Some(wanted), Some(target)) = (Mount::from_word(word.as_os_str()), local_target(args))
    else {
        return Ok(());
    };
    let found = mount_of(&target)?;
    // One that has come below is where the user meant.
    if found == wanted || found.point.starts_with(&wanted.point) && found.point != wanted.point {
        return Ok(());
    }
    let (point, kind) = (
        Escaped::path(&wanted.point),
        Escaped(wanted.kind.as_bytes()),
    );
    let (now, now_kind) = (Escaped::path(&found.point), Escaped(found.kind.as_bytes()));
    let text = format!(
        "'{point}' ({kind}), where the target was when the job was submitted, is not mounted: '{}' is on '{now}' \
         ({now_kind}) now, and nothing is written there",
        Escaped::path(&target)
    );
    Err(failure(Exit::Connection, text))
}

fn local_target(args: &PushArgs) -> Option<PathBuf> {
    // of a cluster it is a path at the receivers
    let target = args.paths.last().filter(|_| args.cluster.is_none())?;
    match Location::parse(target, settings::start(&args.dial)) {
        Ok(Location::Local(path)) => std::path::absolute(path).ok(),
        _ => None,
    }
}

/// A mount.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    point: PathBuf,
    kind: OsString,
}

impl Mount {
    /// `KIND:POINT`.
    fn into_word(self) -> OsString {
        OsString::from_vec(
            [
                self.kind.as_bytes(),
                b":",
                self.point.as_os_str().as_bytes(),
            ]
            .concat(),
        )
    }

    fn from_word(word: &OsStr) -> Option<Self> {
        let bytes = word.as_bytes();
        let at = bytes.iter().position(|&byte| byte == b':')?;
        let (kind, point) = (
            OsStr::from_bytes(&bytes[..at]),
            OsStr::from_bytes(&bytes[at + 1..]),
        );
        Some(Self {
            point: point.into(),
            kind: kind.to_owned(),
        })
    }
}

/// The mount of a path, or of the directory that it will be made in.
fn mount_of(path: &Path) -> Result<Mount> {
    // By way of its '.' a directory that is mounted on demand is, and none has to be readable.
    let open = |path: &Path| {
        rustix::fs::open(
            path.join("."),
            OFlags::PATH | OFlags::DIRECTORY,
            Mode::empty(),
        )
    };
    let directory = path.ancestors().find_map(|path| open(path).ok());
    let directory = directory.with_context(|| format!("open '{}'", Escaped::path(&path)))?;
    let info = format!("/proc/self/fdinfo/{}", directory.as_raw_fd());
    let info = std::fs::read_to_string(&info).with_context(|| format!("read '{info}'"))?;
    let id = info
        .lines()
        .find_map(|line| line.strip_prefix("mnt_id:"))
        .map(str::trim);
    let table = std::fs::read("/proc/self/mountinfo").context("read '/proc/self/mountinfo'")?;
    let mount = id.and_then(|id| mount_in(&table, id.as_bytes()));
    mount.with_context(|| format!("'{}' is on no mount", Escaped::path(&path)))
}

/// The mount with this number in the kernel's table: `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS... - KIND ...`.
fn mount_in(table: &[u8], id: &[u8]) -> Option<Mount> {
    let mut lines = table
        .split(|&byte| byte == b'\n')
        .map(|line| line.split(|&byte| byte == b' '));
    let mut words = lines.find(|words| words.clone().next() == Some(id))?;
    let point = OsString::from_vec(unescaped(words.nth(4)?)).into();
    let kind = words.skip_while(|word| *word != b"-").nth(1)?;
    Some(Mount {
        point,
        kind: OsString::from_vec(unescaped(kind)),
    })
}

/// Bytes in which the kernel has written some as `\040`.
fn unescaped(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&first, after)) = rest.split_first() {
        let octal = rest
            .get(1..4)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        match octal
            .filter(|_| first == b'\\')
            .and_then(|digits| u8::from_str_radix(digits, 8).ok())
        {
            Some(byte) => {
                plain.push(byte);
                rest = &rest[4..];
            }
            None => {
                plain.push(first);
                rest = after;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_found_by_its_number() {
        let table = b"29 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
            98 29 0:44 / /mnt/two\\040words rw shared:5 master:2 - nfs4 host:/x rw,vers=4.2\n";
        let mount = mount_in(table, b"98").unwrap();
        assert_eq!(
            mount,
            Mount {
                point: "/mnt/two words".into(),
                kind: "nfs4".into()
            }
        );
        assert_eq!(mount_in(table, b"29").unwrap().into_word(), "ext4:/");
        assert_eq!(mount_in(table, b"9"), None);
        assert_eq!(
            Mount::from_word(&mount_in(table, b"98").unwrap().into_word()),
            Some(mount)
        );
    }

    #[test]
    fn what_does_not_exist_yet_is_on_the_mount_of_its_directory() {
        assert_eq!(
            mount_of(Path::new("/proc/self/none/none")).unwrap().kind,
            "proc"
        );
        assert_eq!(
            mount_of(Path::new("/none/none")).unwrap().point,
            Path::new("/")
        );
    }
}
