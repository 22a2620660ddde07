//! Determines which users can create, rename or remove entries in the directories of settings, state, logs, sockets,
//! jobs and journals. If another user controls such a directory, a child process works in it as that user.
//!
//! **Invariant:** root opens, creates or removes an entry only in a directory in which no other user can do so. In a
//! directory of another user, a child process that has become that user (`zmove as-user`) does the work. A directory
//! that several users can change is refused. See `docs/decisions/0011-roots-directories.md`.

mod child;
mod commands;
mod environment;
mod terminal;

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::unistd::{Uid, User};
use rustix::io::Errno;
use zmove_disk::path_parts;

use crate::display::terminal::quoted;
use crate::value::exit::{Exit, failure};

pub(crate) use child::{Child, become_user, close_inherited, run_as};
pub(crate) use commands::settle;
pub(crate) use environment::adopt_environment;
pub(crate) use terminal::{end_with, run_apart};

/// Which users other than root can create, rename or remove entries in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// No user other than root can change the directory.
    Root,
    /// One user can change the directory.
    User {
        /// ID of the user.
        user: u32,
        /// The directory itself, or an entry on the path to the directory, that belongs to the user.
        entry: PathBuf,
    },
    /// A group or all users can change the directory.
    Others {
        /// The directory itself, or an entry on the path to the directory, to which these users can write.
        entry: PathBuf,
        /// The permission bits of the entry.
        mode: u32,
    },
}

impl Control {
    /// Determines which users control a directory. The directory need not exist.
    ///
    /// # Errors
    /// Returns an error if an entry on the path cannot be inspected or is not a directory.
    pub(crate) fn of(directory: &Path) -> io::Result<Self> {
        let path = std::path::absolute(directory)?;
        let mut walk = Walk::new(&path)?;
        while let Some(name) = walk.rest.pop() {
            if let Some(control) = walk.step(&name)? {
                return Ok(control);
            }
        }
        Ok(walk.shared.unwrap_or(Self::Root))
    }

    /// Determines which users control a directory, like [`of`](Self::of). If only root controls the directory, also
    /// checks its entries, because an entry may belong to another user.
    ///
    /// # Errors
    /// Returns an error under the same conditions as [`of`](Self::of).
    pub(crate) fn with_entries(directory: &Path) -> io::Result<Self> {
        let control = Self::of(directory)?;
        if control != Self::Root {
            return Ok(control);
        }
        let entries = match fs::read_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::Root),
            entries => entries?,
        };
        for entry in entries {
            let path = entry?.path();
            // For a symbolic link, the path of its target is checked too. If the link is dangling, the existing part of
            // that path is checked.
            let control = match fs::symlink_metadata(&path) {
                Ok(found) if found.is_symlink() => match Self::of(&path)? {
                    Self::Others { entry, .. } if !entry.is_dir() => Self::Root,
                    control => control,
                },
                Ok(found) => entry_controller(&path, &found, root_of_files()?),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Self::Root,
                Err(error) => return Err(error),
            };
            if control != Self::Root {
                return Ok(control);
            }
        }
        Ok(Self::Root)
    }

    /// Returns the fault: the entry that other users can change, and the command that repairs its permissions. A sticky
    /// directory such as `/tmp` is meant to be shared, so no command changes it. Returns `None` if only root controls
    /// the directory.
    pub(crate) fn fault(&self) -> Option<OwnershipFault> {
        match self {
            Self::Root => None,
            Self::User { user, entry } => Some(OwnershipFault {
                text: format!("'{}' belongs to {}", entry.display(), name_of(*user)),
                mend: Some(format!("chown -h root {}", quoted(entry))),
            }),
            Self::Others { entry, mode } => Some(OwnershipFault {
                text: format!("'{}' has mode {mode:04o}", entry.display()),
                mend: (mode & STICKY == 0).then(|| format!("chmod go-w {}", quoted(entry))),
            }),
        }
    }
}

/// A violation of the ownership rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnershipFault {
    /// A description of the entry and of the users who can change it.
    pub(crate) text: String,
    /// The command that repairs the fault. `None` if the only remedy is to use another directory.
    pub(crate) mend: Option<String>,
}

impl OwnershipFault {
    /// Returns the remedy for a message.
    pub(crate) fn remedy(&self) -> String {
        let command = self.mend.as_ref().map(|command| format!("run: {command}"));
        command.unwrap_or_else(|| "use a directory that is not shared".to_owned())
    }
}

/// Returns whether the ownership rule applies to this process.
pub(crate) fn is_root() -> bool {
    Uid::effective().is_root()
}

/// Checks that only root controls `directory`. Does nothing if this process is not root. `purpose` describes the
/// contents of the directory in error messages.
///
/// # Errors
/// Returns an error if another user controls the directory, or if its owners cannot be determined.
pub(crate) fn require_root_control(directory: &Path, purpose: &str) -> Result<()> {
    if is_root() {
        require_control(directory, Control::with_entries, directory, purpose)?;
    }
    Ok(())
}

/// Checks that only root controls a file and its directory. Unlike [`require_root_control`], ignores the other entries
/// of the directory, because they are not used.
///
/// # Errors
/// Returns an error under the same conditions as [`require_root_control`].
pub(crate) fn require_root_control_of(file: &Path, purpose: &str) -> Result<()> {
    if is_root() {
        let path = std::path::absolute(file)?;
        let directory = path.parent().unwrap_or(&path);
        require_control(directory, Control::of, directory, purpose)?;
        require_control(&path, Control::of, directory, purpose)?;
    }
    Ok(())
}

/// Returns the user who must do the work in `directory`. A child process then runs as that user. Returns `None` if this
/// process can work in the directory itself.
///
/// # Errors
/// Returns an error if several users control the directory, if another user owns an entry in a directory of root, or if
/// the owners cannot be determined.
pub(crate) fn other_owner(directory: &Path, purpose: &str) -> Result<Option<u32>> {
    if !is_root() {
        return Ok(None);
    }
    match control_of(directory, Control::of)? {
        Control::User { user, .. } => Ok(Some(user)),
        _ => require_root_control(directory, purpose).map(|()| None),
    }
}

/// Determines with `find` which users control a path, and adds context to errors.
fn control_of(path: &Path, find: fn(&Path) -> io::Result<Control>) -> Result<Control> {
    find(path).with_context(|| format!("find out who can change '{}'", path.display()))
}

/// Returns an error about `directory` if users other than root control the path `way`.
fn require_control(
    way: &Path,
    find: fn(&Path) -> io::Result<Control>,
    directory: &Path,
    purpose: &str,
) -> Result<()> {
    let Some(fault) = control_of(way, find)?.fault() else {
        return Ok(());
    };
    Err(failure(
        Exit::File,
        format!(
            "root does not use '{}' for {purpose}: other users can change names in it, because {}; {} (for another \
             directory: sudo -H, or ZMOVE_HOME)",
            directory.display(),
            fault.text,
            fault.remedy()
        ),
    ))
}

/// Returns the name of a user for a message.
fn name_of(user: u32) -> String {
    match User::from_uid(Uid::from_raw(user)) {
        Ok(Some(user)) => format!("the user '{}'", user.name),
        _ => format!("user {user}"),
    }
}

/// A walk along a path through directories and symbolic links.
struct Walk {
    /// The part of the path that was resolved so far.
    here: PathBuf,
    /// The remaining components of the path, in reverse order.
    rest: Vec<OsString>,
    /// Set if other users can create entries in `here`, but its sticky bit prevents them from renaming or removing
    /// root's entries.
    shared: Option<Control>,
    links: usize,
    root: u32,
}

impl Walk {
    fn new(path: &Path) -> io::Result<Self> {
        Ok(Self {
            here: PathBuf::from("/"),
            rest: path_parts(path),
            shared: None,
            links: 0,
            root: root_of_files()?,
        })
    }

    /// Follows the next component of the path. Returns `None` if only root controls this component.
    fn step(&mut self, name: &OsString) -> io::Result<Option<Control>> {
        let next = if name == ".." {
            self.here.parent().unwrap_or(Path::new("/")).to_owned()
        } else {
            self.here.join(name)
        };
        let found = match fs::symlink_metadata(&next) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // The entry does not exist. The directory in which it would be created determines the users who control
                // it.
                self.rest.clear();
                return Ok(None);
            }
            found => found?,
        };
        let shared = self.shared.take();
        if let Some(control) = controller_of(&next, &found, self.root) {
            let is_sticky = found.is_dir() && found.mode() & STICKY != 0;
            if !(is_sticky && matches!(control, Control::Others { .. })) {
                return Ok(Some(control));
            }
            self.shared = Some(control);
        }
        if found.is_symlink() {
            self.shared = shared;
            self.follow(&next)?;
        } else if found.is_dir() || self.rest.is_empty() {
            self.here = next;
        } else {
            return Err(Errno::NOTDIR.into());
        }
        Ok(None)
    }

    fn follow(&mut self, link: &Path) -> io::Result<()> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Errno::LOOP.into());
        }
        let target = fs::read_link(link)?;
        if target.is_absolute() {
            self.here = PathBuf::from("/");
            self.shared = None;
        }
        self.rest.extend(path_parts(&target));
        Ok(())
    }
}

/// Returns the users who control an entry in a directory of root. If the entry is a file, its permission bits are
/// ignored. They depend on the umask of the process that created the file, and they do not allow anyone to rename or
/// remove entries.
fn entry_controller(path: &Path, found: &Metadata, root: u32) -> Control {
    match controller_of(path, found, root) {
        Some(Control::Others { .. }) if !found.is_dir() => Control::Root,
        control => control.unwrap_or(Control::Root),
    }
}

/// Returns the users other than root who can change an entry. Returns `None` if only root can change it.
fn controller_of(path: &Path, found: &Metadata, root: u32) -> Option<Control> {
    let entry = || path.to_owned();
    if ![0, root].contains(&found.uid()) {
        return Some(Control::User {
            user: found.uid(),
            entry: entry(),
        });
    }
    let others_may_write = !found.is_symlink() && found.mode() & 0o022 != 0;
    others_may_write.then(|| Control::Others {
        entry: entry(),
        mode: found.mode() & 0o7777,
    })
}

/// Returns the owner of `/`, which counts as root in addition to user 0. In a user namespace, that user may have no ID
/// of the namespace and may have more privileges than this process.
fn root_of_files() -> io::Result<u32> {
    Ok(fs::metadata("/")?.uid())
}

/// Maximum number of symbolic links to follow, which is the kernel's limit.
const LINKS_MAX: usize = 40;
/// The permission bit of a directory in which users can remove only their own entries.
const STICKY: u32 = 0o1000;

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};

    use super::*;

    const USER: u32 = 65_534;

    /// Returns a directory of root in `/tmp`, or `None` if this process is not root.
    fn directory() -> Option<tempfile::TempDir> {
        if !is_root() {
            eprintln!("skipped: only root can give files away");
            return None;
        }
        Some(tempfile::tempdir().unwrap())
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_directory_belongs_to_whoever_can_change_a_step_of_the_way() {
        let Some(top) = directory() else { return };
        let at = |name: &str| top.path().join(name);
        fs::create_dir_all(at("a/b/c")).unwrap();
        symlink(at("a"), at("link")).unwrap();
        let paths = ["a/b/c", "a/b/c/missing/too", "link/b/c", "a/../a/b/c"];
        for entry in ["a", "a/b", "a/b/c"] {
            for path in paths {
                assert_eq!(Control::of(&at(path)).unwrap(), Control::Root, "{path}");
            }
            lchown(at(entry), Some(USER), None).unwrap();
            let user = Control::User {
                user: USER,
                entry: at(entry),
            };
            for path in paths {
                assert_eq!(Control::of(&at(path)).unwrap(), user, "{path}");
            }
            lchown(at(entry), Some(0), None).unwrap();
            for bits in [0o775, 0o757] {
                mode(&at(entry), bits);
                let others = Control::Others {
                    entry: at(entry),
                    mode: bits,
                };
                for path in paths {
                    assert_eq!(Control::of(&at(path)).unwrap(), others, "{path}");
                }
            }
            mode(&at(entry), 0o755);
        }
        lchown(at("link"), Some(USER), None).unwrap();
        assert!(
            matches!(Control::of(&at("link/b")).unwrap(), Control::User { entry, .. } if entry == at("link"))
        );
        assert_eq!(Control::of(&at("a/b")).unwrap(), Control::Root);
    }

    #[test]
    fn the_sticky_bit_keeps_the_entries_that_exist_and_no_others() {
        let Some(top) = directory() else { return };
        let at = |name: &str| top.path().join(name);
        fs::create_dir_all(at("t/mine")).unwrap();
        symlink("mine", at("t/link")).unwrap();
        symlink("nothing", at("t/dangling")).unwrap();
        mode(&at("t"), 0o1777);
        for path in ["t/mine", "t/mine/missing", "t/link", "t/link/.."] {
            let expected = if path.ends_with("..") {
                Control::Others {
                    entry: at("t"),
                    mode: 0o1777,
                }
            } else {
                Control::Root
            };
            assert_eq!(Control::of(&at(path)).unwrap(), expected, "{path}");
        }
        for path in ["t", "t/missing", "t/dangling", "t/missing/below"] {
            let control = Control::of(&at(path)).unwrap();
            assert!(
                matches!(control, Control::Others { mode: 0o1777, .. }),
                "{path}: {control:?}"
            );
        }
        lchown(at("t"), Some(USER), None).unwrap();
        assert!(matches!(
            Control::of(&at("t/mine")).unwrap(),
            Control::User { user: USER, .. }
        ));
    }

    #[test]
    fn an_entry_that_was_given_away_is_named() {
        let Some(top) = directory() else { return };
        let at = |name: &str| top.path().join(name);
        fs::create_dir_all(at("home/journal")).unwrap();
        fs::create_dir(at("other")).unwrap();
        fs::write(at("home/key.pem"), "").unwrap();
        symlink(at("other/list"), at("home/list")).unwrap();
        symlink("/proc/self/nothing", at("home/dangling")).unwrap();
        assert_eq!(Control::with_entries(&at("home")).unwrap(), Control::Root);
        assert_eq!(Control::with_entries(&at("none")).unwrap(), Control::Root);
        for entry in ["home", "home/journal", "home/key.pem", "other"] {
            lchown(at(entry), Some(USER), None).unwrap();
            let control = Control::with_entries(&at("home")).unwrap();
            assert_eq!(
                control,
                Control::User {
                    user: USER,
                    entry: at(entry)
                }
            );
            let fault = control.fault().unwrap();
            assert_eq!(
                fault.text,
                format!("'{}' belongs to the user 'nobody'", at(entry).display())
            );
            lchown(at(entry), Some(0), None).unwrap();
        }
        let mend = || {
            Control::with_entries(&at("home"))
                .unwrap()
                .fault()
                .unwrap()
                .mend
        };
        mode(&at("home/journal"), 0o777);
        let command = format!("chmod go-w {}", at("home/journal").display());
        assert_eq!(mend(), Some(command));
        mode(&at("home/journal"), 0o1777);
        assert_eq!(mend(), None, "users share it");
    }

    #[test]
    fn a_way_without_an_end_is_an_error() {
        let Some(top) = directory() else { return };
        symlink("round", top.path().join("round")).unwrap();
        fs::write(top.path().join("file"), "").unwrap();
        let fault = |name: &str| {
            Control::of(&top.path().join(name))
                .unwrap_err()
                .raw_os_error()
        };
        assert_eq!(fault("round"), Some(Errno::LOOP.raw_os_error()));
        assert_eq!(fault("file/below"), Some(Errno::NOTDIR.raw_os_error()));
    }
}
