//! Opens the directories that the clients of a daemon may access.
//!
//! **Invariant:** opening a root never follows a symbolic link that is inside a root to which a client may write. Such
//! a client could have created the link with the rights of this process, and could use it to redirect this process to
//! any directory. Directories are compared by device and inode, so the rule also covers bind mounts of a root or of a
//! directory in it. If such a root does not answer and its directory is unknown, no link is followed at all.

mod silent;

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{CWD, FileType};
use zmove_types::FileNumber;

use self::silent::RootLooks;
pub use self::silent::SilentRoots;
use super::trusted_path::{self, PathLink, path_of};
use super::{Tree, open_listable_or_drop_box};
use crate::metadata::entry::{number_at, number_of};
use crate::opening::by_name::open_at;
use crate::opening::proc::Mount;

/// The roots of one client.
#[derive(Clone, Debug)]
pub struct Roots {
    paths: Vec<PathBuf>,
    guard: RootGuard,
}

/// The rule that decides which paths a daemon may open as roots.
#[derive(Clone, Debug, Default)]
pub struct RootGuard {
    /// The roots to which any client may write.
    writable: Arc<[PathBuf]>,
    own: OwnPaths,
    /// Roots that stay closed.
    silent: SilentRoots,
    /// The threads that look at the writable roots. `None` if this process looks without a thread and may hang.
    looks: Option<RootLooks>,
}

/// The rule for following a link.
type MayFollow = Arc<dyn Fn(&PathLink<'_>) -> io::Result<()> + Send + Sync>;

/// The daemon's own files and directories, which no client may access.
#[derive(Clone, Debug, Default)]
pub struct OwnPaths(Arc<[OwnPath]>);

#[derive(Debug)]
struct OwnPath {
    path: PathBuf,
    /// The directories that contain the path, or a symbolic link that was followed to reach the path.
    around: HashSet<FileNumber>,
}

/// A root to which a client may write.
#[derive(Debug)]
struct WritableRoot {
    path: PathBuf,
    number: FileNumber,
}

impl Roots {
    /// Creates the roots of a client. A relative path that the client sends is resolved below the first root.
    #[must_use]
    pub const fn new(paths: Vec<PathBuf>, guard: RootGuard) -> Self {
        Self { paths, guard }
    }

    /// Returns the paths of the roots.
    #[must_use]
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Opens one of the roots.
    ///
    /// # Errors
    /// Returns the errors of [`RootGuard::open`].
    pub fn open(&self, root: &Path) -> io::Result<Tree> {
        self.guard.open(root)
    }
}

/// Creates the roots of a daemon's only client, which may write to all of them.
impl From<Vec<PathBuf>> for Roots {
    fn from(paths: Vec<PathBuf>) -> Self {
        let guard = RootGuard::new(paths.clone().into(), OwnPaths::default());
        Self::new(paths, guard)
    }
}

impl RootGuard {
    /// Creates the rule for a process without other threads. Clients may write to the roots `writable`.
    #[must_use]
    pub fn new(writable: Arc<[PathBuf]>, own: OwnPaths) -> Self {
        Self {
            writable,
            own,
            ..Self::default()
        }
    }

    /// Keeps these roots closed. The process never accesses them.
    #[must_use]
    pub fn without(self, silent: SilentRoots) -> Self {
        Self { silent, ..self }
    }

    /// Looks at client-writable roots in threads, so that a root that does not answer blocks no other root.
    #[must_use]
    pub fn with_threads(self) -> Self {
        Self {
            looks: Some(RootLooks::default()),
            ..self
        }
    }

    /// Returns this rule for other client-writable roots. Both rules share their threads.
    #[must_use]
    pub fn for_writable(&self, writable: Arc<[PathBuf]>) -> Self {
        Self {
            writable,
            ..self.clone()
        }
    }

    /// Opens a root.
    ///
    /// # Errors
    /// Returns the system's error. Also returns an error if the path contains a link of another user or a link in a
    /// client-writable root, or if the root contains the daemon's own files.
    pub fn open(&self, root: &Path) -> io::Result<Tree> {
        let reached = self.walk(root)?;
        let opened = open_listable_or_drop_box(|flags| open_at(&reached, ".", flags))?;
        Ok(Tree::at(Arc::new(opened)))
    }

    /// Resolves the symbolic links in the path of a future root. The result is the path of the directory that was
    /// opened and checked, so nobody can replace a component in between.
    ///
    /// # Errors
    /// Returns the errors of [`Self::open`].
    pub fn resolve(&self, directory: &Path) -> io::Result<PathBuf> {
        let reached = self.walk(directory)?;
        let stat = rustix::fs::fstat(&reached)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        path_of(&reached)
    }

    fn walk(&self, root: &Path) -> io::Result<OwnedFd> {
        self.silent.check(root)?;
        let mut writable = None;
        let reached = trusted_path::walk(root, |link| {
            link.check_owner()?;
            let writable = match &mut writable {
                Some(writable) => writable,
                none => none.insert(self.find_writable()?),
            };
            check_link(writable, link)
        })?;
        self.own.check_root(number_of(&reached)?)?;
        Ok(reached)
    }

    /// Returns the roots to which any client may write. Omits roots that cannot be opened.
    ///
    /// If the path of a root contains a client's link, that client chooses the root's directory. So roots without links
    /// in their paths are resolved first. Then the other roots are resolved, and links inside the first roots are not
    /// followed.
    fn find_writable(&self) -> io::Result<Vec<WritableRoot>> {
        let is_silent = |root: &&PathBuf| self.silent.check(root).is_err();
        if let Some(root) = self.writable.iter().find(is_silent) {
            return Err(silent::silent(root, ANSWER_MAX));
        }
        let without_links =
            self.number_all(Arc::new(|_| Err(io::ErrorKind::PermissionDenied.into())))?;
        self.number_all(Arc::new(move |link| {
            link.check_owner()?;
            check_link(&without_links, link)
        }))
    }

    fn number_all(&self, may_follow: MayFollow) -> io::Result<Vec<WritableRoot>> {
        let number = move |root: &Path| {
            let opened = trusted_path::walk(root, &*may_follow).ok()?;
            number_of(&opened).ok()
        };
        if let Some(looks) = &self.looks {
            return looks.look(&self.writable, ANSWER_MAX, number);
        }
        let found = self.writable.iter().filter_map(|root| {
            let number = number(root)?;
            Some(WritableRoot {
                path: root.clone(),
                number,
            })
        });
        Ok(found.collect())
    }
}

/// Maximum time for the access to a client-writable root before it counts as silent.
const ANSWER_MAX: Duration = Duration::from_secs(10);

impl OwnPaths {
    /// Locates the daemon's own files and directories. They need not exist.
    #[must_use]
    pub fn find(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        Self(paths.into_iter().map(OwnPath::find).collect())
    }

    /// Refuses a root that contains one of the daemon's own paths.
    fn check_root(&self, root: FileNumber) -> io::Result<()> {
        let Some(own) = self.0.iter().find(|own| own.around.contains(&root)) else {
            return Ok(());
        };
        let path = own.path.display();
        let text = format!(
            "'{path}' lies in it and belongs to the daemon itself, so no client may use it; choose other directories \
             as roots, or keep the daemon's files elsewhere"
        );
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    }
}

impl OwnPath {
    fn find(path: PathBuf) -> Self {
        let mut around = HashSet::new();
        let mut enclose = |place: &OwnedFd| {
            // Without `/proc`, only the path that was used to open the directory is known.
            around.extend(
                AncestorDirectories::of(place)
                    .into_iter()
                    .flat_map(|around| around.numbers),
            );
        };
        let whole = std::path::absolute(&path).unwrap_or_else(|_| path.clone());
        for existing in whole.ancestors() {
            let reached = trusted_path::walk(existing, |link| {
                enclose(link.directory);
                Ok(())
            });
            if let Ok(reached) = reached {
                enclose(&reached);
                break;
            }
        }
        around.extend(ancestor_numbers(&whole));
        Self { path, around }
    }
}

/// Refuses a link that is inside one of the roots.
fn check_link(roots: &[WritableRoot], link: &PathLink<'_>) -> io::Result<()> {
    if roots.is_empty() {
        return Ok(());
    }
    let around = AncestorDirectories::of(link.directory)?;
    match roots.iter().find(|root| around.has(root.number)) {
        None => Ok(()),
        Some(root) => Err(link_refused(&root.path, &around.path.join(link.name))),
    }
}

fn link_refused(root: &Path, link: &Path) -> io::Error {
    let root = root.display();
    let link = link.display();
    let text = format!(
        "the link '{link}' is not followed, because it lies in the root '{root}', where a client may write; replace \
         it with a directory, or remove one of the two roots from authorized_keys"
    );
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

/// A directory, with all directories above it on every path to it.
struct AncestorDirectories {
    path: PathBuf,
    numbers: HashSet<FileNumber>,
}

impl AncestorDirectories {
    fn of(directory: &OwnedFd) -> io::Result<Self> {
        let path = path_of(directory)?;
        let mounts = std::fs::read("/proc/self/mountinfo")?;
        let mut numbers: HashSet<_> = ancestor_numbers(&path).collect();
        numbers.insert(number_of(directory)?);
        if let Some(mount) = Mount::of(&mounts, directory, &path) {
            let others = paths_of(&mounts, &mount, &path);
            numbers.extend(others.iter().flat_map(|other| ancestor_numbers(other)));
        }
        Ok(Self { path, numbers })
    }

    fn has(&self, directory: FileNumber) -> bool {
        self.numbers.contains(&directory)
    }
}

/// Returns the device and inode numbers of a path without links and of all directories above it, as far as they exist.
fn ancestor_numbers(path: &Path) -> impl Iterator<Item = FileNumber> {
    let number = |path: &Path| number_at(CWD, path).ok();
    path.ancestors().filter_map(number)
}

/// Returns the paths of a directory through all mounts of its file system.
fn paths_of(mounts: &[u8], mount: &Mount, path: &Path) -> Vec<PathBuf> {
    let Ok(below) = path.strip_prefix(&mount.point) else {
        return Vec::new();
    };
    let place = mount.root.join(below);
    let same = Mount::all(mounts).filter(|other| other.device == mount.device);
    let paths = same.filter_map(|other| {
        let below = place.strip_prefix(&other.root).ok()?;
        Some(other.point.join(below))
    });
    paths.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opening::unanswered::Unanswered;
    use std::os::unix::fs::symlink;

    /// Creates `data` and `data/in`, to which clients may write, as well as `secret` and `outside`.
    fn yard() -> (tempfile::TempDir, RootGuard) {
        let home = tempfile::tempdir().unwrap();
        let real = home.path().canonicalize().unwrap();
        for name in ["data/in", "data/deep/er", "secret/data", "outside"] {
            std::fs::create_dir_all(real.join(name)).unwrap();
        }
        let writable = ["data", "data/in"].map(|name| real.join(name));
        (
            home,
            RootGuard::new(Arc::from(writable), OwnPaths::default()),
        )
    }

    fn is_same(tree: &Tree, path: &Path) -> bool {
        number_of(tree.fd()).unwrap() == number_at(CWD, path).unwrap()
    }

    #[test]
    fn a_link_in_a_root_that_clients_write_to_is_not_followed() {
        let (home, guard) = yard();
        let at = |name: &str| home.path().join(name);
        symlink(at("secret"), at("data/link")).unwrap();
        symlink("../../../secret", at("data/deep/er/link")).unwrap();
        symlink(at("data/link"), at("outside/link")).unwrap();
        std::fs::remove_dir(at("data/in")).unwrap();
        symlink("/", at("data/in")).unwrap();
        let ways = [
            "data/link",
            "data/link/data",
            "data/deep/er/link",
            "outside/link",
            "data/in",
        ];
        for name in ways {
            let path = at(name);
            let error = guard.open(&path).unwrap_err().to_string();
            assert!(error.contains("lies in the root"), "{name}: {error}");
            assert!(guard.resolve(&path).is_err(), "{name}");
        }
        for name in ["data", "data/deep/er", "secret/data"] {
            assert!(
                is_same(&guard.open(&at(name)).unwrap(), &at(name)),
                "{name}"
            );
        }
    }

    /// A client has replaced the inner root with a link to `/`. All other links are below `/`.
    #[test]
    fn a_link_outside_of_all_roots_is_followed() {
        let (home, guard) = yard();
        let at = |name: &str| home.path().join(name);
        std::fs::remove_dir(at("data/in")).unwrap();
        symlink("/", at("data/in")).unwrap();
        symlink(at("secret"), at("link")).unwrap();
        symlink("../data/deep", at("outside/deep")).unwrap();
        assert!(is_same(
            &guard.open(&at("link/data")).unwrap(),
            &at("secret/data")
        ));
        assert!(is_same(
            &guard.open(&at("outside/deep/er")).unwrap(),
            &at("data/deep/er")
        ));
    }

    #[test]
    fn the_path_of_a_root_to_be_has_no_links_and_none_of_another_user_is_followed() {
        let (home, guard) = yard();
        let at = |name: &str| home.path().canonicalize().unwrap().join(name);
        symlink(at("secret"), at("link")).unwrap();
        assert_eq!(guard.resolve(&at("link/data")).unwrap(), at("secret/data"));
        std::fs::write(at("file"), "").unwrap();
        let error = guard.resolve(&at("file")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
        if std::os::unix::fs::lchown(at("link"), Some(65_534), None).is_err() {
            return eprintln!("skipped: only root can give a link away");
        }
        let error = guard.resolve(&at("link/data")).unwrap_err().to_string();
        assert!(error.contains("belongs to user 65534"), "{error}");
    }

    /// A client may have created any link in the root that does not answer.
    #[test]
    fn no_link_is_followed_while_a_writable_root_is_silent() {
        let (home, guard) = yard();
        let at = |name: &str| home.path().canonicalize().unwrap().join(name);
        symlink(at("secret"), at("link")).unwrap();
        assert!(guard.open(&at("link")).is_ok());
        let silent = Unanswered::at(None, ANSWER_MAX);
        let guard = guard
            .for_writable(Arc::from([at("data")]))
            .without([(at("data"), silent)].into_iter().collect());
        for root in ["link", "data"] {
            let error = guard.open(&at(root)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{root}: {error}");
        }
        guard.open(&at("secret")).unwrap();
    }

    /// Two different paths lead to the same directory.
    #[test]
    fn a_root_that_is_given_by_a_link_is_one_that_clients_write_to() {
        let (home, _) = yard();
        let at = |name: &str| home.path().canonicalize().unwrap().join(name);
        symlink(at("data"), at("given")).unwrap();
        symlink(at("secret"), at("data/link")).unwrap();
        let guard = RootGuard::new(
            Arc::from([at("given"), at("not there")]),
            OwnPaths::default(),
        );
        assert!(is_same(&guard.open(&at("given")).unwrap(), &at("data")));
        for name in ["data/link", "given/link"] {
            assert!(guard.open(&at(name)).is_err(), "{name}");
        }
    }

    #[test]
    fn a_root_with_files_of_the_daemon_is_refused() {
        let (home, _) = yard();
        let at = |name: &str| home.path().join(name);
        symlink(at("secret"), at("outside/link")).unwrap();
        for (own, around) in [
            ("data/in", &["", "data", "data/in"][..]),
            ("data/new/er", &["", "data"]),
            (
                "outside/link/data",
                &["", "outside", "secret", "secret/data"],
            ),
        ] {
            let guard = RootGuard::new(Arc::default(), OwnPaths::find([at(own)]));
            for root in [
                "",
                "data",
                "data/in",
                "data/deep",
                "outside",
                "secret",
                "secret/data",
            ] {
                let refused = guard.open(&at(root)).is_err() && guard.resolve(&at(root)).is_err();
                assert_eq!(refused, around.contains(&root), "{own} in '{root}'");
            }
        }
    }

    #[test]
    fn a_bind_mount_is_the_directory_that_is_mounted() {
        let mounts = b"22 1 254:0 / / rw - ext4 /dev/vda rw\n\
            40 22 254:0 /data/part /mnt/b rw - ext4 /dev/vda rw\n\
            41 22 254:1 / /other rw - ext4 /dev/vdb rw\n";
        let paths = |path: &str| {
            let mount = Mount::containing(mounts, Path::new(path)).unwrap();
            paths_of(mounts, &mount, Path::new(path))
        };
        assert_eq!(
            paths("/mnt/b/x"),
            [Path::new("/data/part/x"), Path::new("/mnt/b/x")]
        );
        assert_eq!(
            paths("/data/part"),
            [Path::new("/data/part"), Path::new("/mnt/b")]
        );
        assert_eq!(paths("/other/x"), [Path::new("/other/x")]);
    }
}
