//! The sources of a transfer that a receiver has asked for: found beneath the roots of its key, globs among them.
//!
//! **Invariant:** for a key with roots every source is opened from the root's descriptor without following a link, and
//! no glob looks into anything else; the names that globs match are bounded.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use zmove_disk::{Tree, open_beneath};
use zmove_scan::{ScanRoot, glob_matches, is_glob};
use zmove_types::{Escaped, Name, RelPath};
use zmove_wire::limits::{FETCH_MATCHES_MAX, FETCH_SOURCE_BYTES_MAX};
use zmove_wire::{Refusal, RefusalCode, SourcePath, TargetShape, TopName};

/// Where a peer may read.
#[derive(Clone, Debug)]
pub(crate) enum ReadAccess {
    /// Anywhere this process may: the user who has started it.
    Anywhere,
    /// Beneath these roots; a relative source is beneath the first.
    Beneath(Vec<PathBuf>),
}

/// The sources that exist.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) roots: Vec<ScanRoot>,
    /// The shape that they give the target.
    pub(crate) shape: TargetShape,
    /// The sources that cannot be opened, and why, each in a line.
    pub(crate) missing: Vec<String>,
}

/// The directory that sources are looked for in.
enum Ground {
    /// A root of the key, and its path.
    Root(Arc<OwnedFd>, PathBuf),
    /// The file system as this process sees it.
    Own,
}

/// A source that exists.
struct Source {
    root: ScanRoot,
    /// The name at the target; `None` where its contents are meant.
    top: Option<Name>,
    /// The names that it brings to the top of the target, where there are other sources.
    tops: Vec<Vec<u8>>,
    is_directory: bool,
}

/// The path of a source on its ground, as bytes; without an empty or single-dot component where it is beneath a root.
struct Wanted<'a> {
    ground: &'a Ground,
    /// The components, each perhaps a glob.
    path: Vec<u8>,
    /// Whether the contents of a directory are meant.
    contents: bool,
}

impl Sources {
    /// Finds the sources that were asked for. May block on files.
    ///
    /// # Errors
    /// None exists, one lies outside the roots, or two would get one name.
    pub(crate) fn find(asked: &[SourcePath], access: &ReadAccess) -> Result<Self, Refusal> {
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for SourcePath(path) in asked {
            if path.len() > FETCH_SOURCE_BYTES_MAX || path.contains(&0) {
                return Err(refuse(RefusalCode::Protocol, "a source is too long or holds a NUL byte".into()));
            }
            let (ground, wanted, contents) = locate(path, access)?;
            let wanted = Wanted { ground: &ground, path: wanted, contents };
            for path in wanted.expand()? {
                match wanted.look_at(&path) {
                    Ok(source) => {
                        let tops = match &source.top {
                            Some(top) => vec![top.as_bytes().to_vec()],
                            // a directory that cannot be listed brings no names; the scan reports it
                            None if asked.len() > 1 => ground.names(&path).unwrap_or_default(),
                            None => Vec::new(),
                        };
                        found.push(Source { tops, ..source });
                    }
                    Err(error) => missing
                        .push(format!("sender: open '{}': {error}", Escaped::path(&ground.shown(&path)))),
                }
            }
        }
        refuse_same_names(&found)?;
        if found.is_empty() {
            let text =
                format!("nothing to send: {}", missing.first().map_or("no source is there", |first| first));
            return Err(refuse(RefusalCode::Target, text));
        }
        let shape = shape(&found);
        Ok(Self { roots: found.into_iter().map(|source| source.root).collect(), shape, missing })
    }
}

/// The ground of a source, its path there, and whether its contents are meant.
fn locate(source: &[u8], access: &ReadAccess) -> Result<(Ground, Vec<u8>, bool), Refusal> {
    let last = source.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let contents = matches!(last, b"" | b"." | b"..");
    let ReadAccess::Beneath(roots) = access else {
        let path = if source.is_empty() { b"." } else { source };
        return Ok((Ground::Own, path.to_vec(), contents));
    };
    let (root, rest) = choose_root(source, roots)?;
    let tree = Tree::open_guarded(root).map_err(|error| {
        refuse(RefusalCode::Target, format!("open root '{}': {error}", Escaped::path(root)))
    })?;
    let parts: Vec<_> =
        rest.split(|&byte| byte == b'/').filter(|part| !matches!(*part, b"" | b".")).collect();
    let path = parts.join(&b'/');
    let clean = RelPath::from_bytes(&path)
        .map_err(|error| refuse(RefusalCode::Denied, format!("source '{}': {error}", Escaped(source))))?;
    let opened = tree.open_directory(&RelPath::root());
    let opened = opened.map_err(|error| refuse(RefusalCode::Target, error.to_string()))?;
    Ok((Ground::Root(opened, root.to_owned()), clean.as_bytes().to_vec(), contents || clean.is_root()))
}

fn choose_root<'a>(source: &'a [u8], roots: &'a [PathBuf]) -> Result<(&'a Path, &'a [u8]), Refusal> {
    if !source.starts_with(b"/") {
        let first = roots.first();
        let first = first.ok_or_else(|| refuse(RefusalCode::Denied, "this key has no roots".into()))?;
        return Ok((first, source));
    }
    let path = Path::new(std::ffi::OsStr::from_bytes(source));
    let longest =
        roots.iter().filter(|root| path.starts_with(root)).max_by_key(|root| root.as_os_str().len());
    longest
        .and_then(|root| Some((root.as_path(), path.strip_prefix(root).ok()?.as_os_str().as_bytes())))
        .ok_or_else(|| {
            let allowed: Vec<_> = roots.iter().map(|root| format!("'{}'", Escaped::path(root))).collect();
            let text = format!(
                "'{}' lies in none of the roots that this key may read: {}",
                Escaped::path(path),
                allowed.join(", ")
            );
            refuse(RefusalCode::Denied, text)
        })
}

impl Ground {
    fn shown(&self, path: &[u8]) -> PathBuf {
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        match self {
            Self::Root(_, root) => root.join(path),
            Self::Own => path.to_owned(),
        }
    }

    /// The names in a directory; none where it cannot be listed.
    fn names(&self, path: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = match self {
            Self::Root(root, _) => open_beneath(root.as_fd(), &relative(path)?, flags)?,
            Self::Own => {
                let path = if path.is_empty() { b"." } else { path };
                rustix::fs::open(path, flags, Mode::empty())?
            }
        };
        let mut names = Vec::new();
        for entry in Dir::read_from(directory)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if !matches!(name.as_slice(), b"." | b"..") {
                names.push(name);
            }
            if names.len() > LISTED_MAX {
                return Err(Errno::TOOBIG.into());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn is_directory(&self, path: &[u8], contents: bool) -> io::Result<bool> {
        let follow = if contents { OFlags::empty() } else { OFlags::NOFOLLOW };
        let opened = match self {
            Self::Root(root, _) => open_beneath(root.as_fd(), &relative(path)?, OFlags::PATH)?,
            Self::Own => rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC | follow, Mode::empty())?,
        };
        let mode = rustix::fs::fstat(&opened)?.st_mode;
        Ok(FileType::from_raw_mode(mode) == FileType::Directory)
    }
}

/// The most names of a directory that a glob is held against.
const LISTED_MAX: usize = 1 << 20;

fn relative(path: &[u8]) -> io::Result<RelPath> {
    RelPath::from_bytes(path).map_err(|_| Errno::INVAL.into())
}

impl Wanted<'_> {
    /// The paths that the globs match, each once; the path itself where it has none, or where they match nothing.
    fn expand(&self) -> Result<Vec<Vec<u8>>, Refusal> {
        if !is_glob(&self.path) {
            return Ok(vec![self.path.clone()]);
        }
        let absolute = self.path.starts_with(b"/");
        let mut paths = vec![if absolute { b"/".to_vec() } else { Vec::new() }];
        for part in self.path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
            let mut next = Vec::new();
            for path in paths {
                if !is_glob(part) {
                    next.push(join(&path, part));
                    continue;
                }
                // what cannot be listed has no matches, as in a shell
                let names = self.ground.names(&path).unwrap_or_default();
                next.extend(
                    names.iter().filter(|name| glob_matches(part, name)).map(|name| join(&path, name)),
                );
                if next.len() > FETCH_MATCHES_MAX {
                    let text =
                        format!("'{}' matches more than {FETCH_MATCHES_MAX} names", Escaped(&self.path));
                    return Err(refuse(RefusalCode::Denied, text));
                }
            }
            paths = next;
        }
        paths.retain(|path| self.ground.is_directory(path, false).is_ok());
        if paths.is_empty() {
            paths.push(self.path.clone());
        }
        Ok(paths)
    }

    fn look_at(&self, path: &[u8]) -> io::Result<Source> {
        let is_directory = self.ground.is_directory(path, self.contents)?;
        if self.contents && !is_directory {
            return Err(Errno::NOTDIR.into());
        }
        let mut shown = self.ground.shown(path);
        if self.contents {
            shown.push("");
        }
        let name = path.rsplit(|&byte| byte == b'/').next().filter(|_| !self.contents);
        let top = name.map(Name::from_bytes).transpose().map_err(io::Error::other)?;
        let prefix = match &top {
            Some(name) => RelPath::root().join(name).map_err(io::Error::other)?,
            None => RelPath::root(),
        };
        let root = match self.ground {
            Ground::Root(fd, _) => ScanRoot::new(shown, prefix).beneath(Arc::clone(fd), relative(path)?),
            Ground::Own => ScanRoot::new(shown, prefix),
        };
        Ok(Source { root, top, tops: Vec::new(), is_directory })
    }
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let separator: &[u8] = if path.is_empty() || path.ends_with(b"/") { b"" } else { b"/" };
    [path, separator, name].concat()
}

fn shape(found: &[Source]) -> TargetShape {
    if let [Source { top: Some(name), is_directory: false, .. }] = found {
        return TargetShape::Single { name: name.clone() };
    }
    let tops: Option<Vec<_>> = found.iter().map(|source| source.top.clone().map(TopName)).collect();
    TargetShape::Directory { tops: tops.unwrap_or_default() }
}

/// Refuses two sources that bring entries under one name: luck would decide which of them the target gets.
fn refuse_same_names(found: &[Source]) -> Result<(), Refusal> {
    if found.len() < 2 {
        return Ok(());
    }
    let mut names = HashSet::new();
    for source in found {
        for top in &source.tops {
            if names.len() > FETCH_MATCHES_MAX {
                let text =
                    "too many names to find out whether two sources have the same: ask for them one by one";
                return Err(refuse(RefusalCode::Denied, text.into()));
            }
            if !names.insert(top.clone()) {
                let text = format!("two of the sources would become '{}' at the target", Escaped(top));
                return Err(refuse(RefusalCode::Target, text));
            }
        }
    }
    Ok(())
}

fn refuse(code: RefusalCode, text: String) -> Refusal {
    Refusal { code, text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn ask(root: &Path, sources: &[&str]) -> Result<Vec<String>, Refusal> {
        let asked: Vec<_> = sources.iter().map(|path| SourcePath(path.as_bytes().to_vec())).collect();
        let found = Sources::find(&asked, &ReadAccess::Beneath(vec![root.to_owned()]))?;
        let mut shown: Vec<_> = found
            .roots
            .iter()
            .map(|found| {
                let path = found.source.strip_prefix(root).unwrap().display().to_string();
                format!("{path}→{}", found.prefix)
            })
            .collect();
        shown.extend(found.missing.iter().map(|line| line.rsplit(": ").next().unwrap().to_owned()));
        Ok(shown)
    }

    fn tree() -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        for path in ["a/x.txt", "a/y.txt", "a/.hidden", "b/x.txt", "file"] {
            let path = home.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        symlink("/", home.path().join("out")).unwrap();
        home
    }

    #[test]
    fn sources_are_found_with_their_names_and_globs_match_names() {
        let home = tree();
        let ask = |sources: &[&str]| ask(home.path(), sources).unwrap();
        assert_eq!(ask(&["a"]), ["a→a"]);
        assert_eq!(ask(&["a/"]), ["a→."]);
        assert_eq!(ask(&["./a//x.txt"]), ["a/x.txt→x.txt"]);
        assert_eq!(ask(&["a/*.txt"]), ["a/x.txt→x.txt", "a/y.txt→y.txt"]);
        assert_eq!(ask(&["*/y.txt"]), ["a/y.txt→y.txt"]);
        assert_eq!(ask(&[""]), ["→."]);
        assert_eq!(ask(&["out"]), ["out→out"]);
        assert_eq!(ask(&["a", "none*"])[0], "a→a");
        assert_eq!(ask(&["a", "none"]).len(), 2);
        assert_eq!(ask(&[&format!("{}/b", home.path().display())]), ["b→b"]);
    }

    #[test]
    fn nothing_leads_out_of_the_root() {
        let home = tree();
        let refused = |sources: &[&str]| ask(home.path(), sources).unwrap_err();
        for source in ["..", "a/../../x", "/etc/passwd", "a/../file"] {
            assert_eq!(refused(&[source]).code, RefusalCode::Denied, "{source}");
        }
        for source in ["out/", "out/etc", "out/*", "out/etc/pass*"] {
            assert_eq!(refused(&[source]).code, RefusalCode::Target, "{source}");
        }
    }

    #[test]
    fn two_sources_with_one_name_are_refused() {
        let home = tree();
        for sources in [&["*/x.txt"][..], &["a/", "b/"], &["a/x.txt", "b/"]] {
            let refusal = ask(home.path(), sources).unwrap_err();
            assert!(refusal.text.contains("'x.txt'"), "{refusal:?}");
        }
    }
}
