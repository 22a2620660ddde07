//! The keys a daemon serves, and what each may do: the file `authorized_keys`.
//!
//! One key in a line; fields are separated by spaces, the order after the key is free:
//!
//! ```text
//! SHA256:AAEC… name=alice root=/data/alice root=/scratch write
//! ```
//!
//! `name=` once, `root=` once or more (absolute, without `..`), `write` where the key may also write. In a value a
//! space, a `%`, a control character or a byte that is not UTF-8 is written as `%` and two hex digits (`%20`).
//! Empty lines and lines that begin with `#` are kept and skipped.
//! **Invariant:** a list with a line that is not understood grants nothing to anybody.

use std::path::{Path, PathBuf};

use super::{file, fingerprint::Fingerprint};
use crate::error::AuthorizedKeysError;

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod line;

pub use line::GrantFault;

const AUTHORIZED_KEYS_FILE: &str = "authorized_keys";
const LOCK_FILE: &str = "authorized_keys.lock";

/// The keys that may connect, as read when loaded.
#[derive(Clone, Debug, Default)]
pub struct AuthorizedKeys {
    grants: Vec<Grant>,
}

/// What the holder of one key may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The key.
    pub fingerprint: Fingerprint,
    /// What logs and reports call its holder.
    pub name: String,
    /// The directories it may reach, each with all below it: absolute, without `..`.
    pub roots: Vec<PathBuf>,
    /// Whether it may write there.
    pub access: Access,
}

/// What a key may do below its roots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Fetch files.
    ReadOnly,
    /// Fetch and store files.
    ReadWrite,
}

impl AuthorizedKeys {
    /// Reads the list in `home`; a missing one has no keys.
    ///
    /// # Errors
    ///
    /// The file cannot be read, others can write to it, or it has a line that is not understood; see
    /// [`AuthorizedKeysError`].
    pub fn load(home: &Path) -> Result<Self, AuthorizedKeysError> {
        let lines = read_lines(&home.join(AUTHORIZED_KEYS_FILE))?;
        let grants = lines.into_iter().filter_map(|line| line.grant).collect();
        Ok(Self { grants })
    }

    /// Adds a key to the list in `home`, on disk at once. A key that is there already gets the new name, the roots of
    /// both, and the wider access of both.
    ///
    /// # Errors
    ///
    /// The grant is invalid, or the list cannot be read or written.
    pub fn allow(home: &Path, grant: Grant) -> Result<(), AuthorizedKeysError> {
        let fingerprint = grant.fingerprint;
        line::check(&grant).map_err(|fault| AuthorizedKeysError::Invalid { fingerprint, fault })?;
        let path = home.join(AUTHORIZED_KEYS_FILE);
        let write_error = |source| AuthorizedKeysError::Write { path: path.clone(), source };
        file::create_home(home).map_err(write_error)?;
        // The list itself is replaced, so a lock on it would not keep writers apart.
        let lock = file::open_locked(&home.join(LOCK_FILE)).map_err(write_error)?;
        let mut lines = read_lines(&path)?;
        merge(&mut lines, grant);
        file::replace(&path, &render(&lines)).map_err(write_error)?;
        drop(lock);
        Ok(())
    }

    /// What a key may do; `None` means nothing.
    #[must_use]
    pub fn find(&self, fingerprint: &Fingerprint) -> Option<&Grant> {
        self.grants.iter().find(|grant| grant.fingerprint == *fingerprint)
    }

    /// All grants, in the order of the list.
    #[must_use]
    pub fn grants(&self) -> &[Grant] {
        &self.grants
    }
}

/// A line as it stands in the file, with what it grants if it is not empty or a comment.
struct Line {
    text: String,
    grant: Option<Grant>,
}

fn read_lines(path: &Path) -> Result<Vec<Line>, AuthorizedKeysError> {
    let contents =
        file::read(path).map_err(|source| AuthorizedKeysError::Read { path: path.into(), source })?;
    let Some(contents) = contents else { return Ok(Vec::new()) };
    if contents.mode & 0o022 != 0 {
        return Err(AuthorizedKeysError::Exposed { path: path.into(), mode: contents.mode });
    }
    parse_lines(path, &contents.bytes)
}

fn parse_lines(path: &Path, bytes: &[u8]) -> Result<Vec<Line>, AuthorizedKeysError> {
    let mut lines = Vec::new();
    if bytes.is_empty() {
        return Ok(lines);
    }
    let whole = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    for (number, bytes) in (1..).zip(whole.split(|byte| *byte == b'\n')) {
        let line = parse_line(bytes, &lines);
        let damaged = |fault| AuthorizedKeysError::Damaged { path: path.into(), line: number, fault };
        lines.push(line.map_err(damaged)?);
    }
    Ok(lines)
}

fn parse_line(bytes: &[u8], earlier: &[Line]) -> Result<Line, GrantFault> {
    let text = std::str::from_utf8(bytes).map_err(|_| GrantFault::NotText)?.to_owned();
    if text.trim().is_empty() || text.trim_start().starts_with('#') {
        return Ok(Line { text, grant: None });
    }
    let grant = line::parse(&text)?;
    match earlier.iter().position(|line| line.holds(grant.fingerprint)) {
        Some(index) => Err(GrantFault::Duplicate { earlier: index + 1 }),
        None => Ok(Line { text, grant: Some(grant) }),
    }
}

impl Line {
    fn holds(&self, fingerprint: Fingerprint) -> bool {
        self.grant.as_ref().is_some_and(|grant| grant.fingerprint == fingerprint)
    }
}

fn merge(lines: &mut Vec<Line>, new: Grant) {
    let old = lines.iter_mut().find(|line| line.holds(new.fingerprint));
    match old {
        Some(line) => {
            let merged = union(line.grant.take(), new);
            *line = Line { text: line::render(&merged), grant: Some(merged) };
        }
        None => lines.push(Line { text: line::render(&new), grant: Some(new) }),
    }
}

fn union(old: Option<Grant>, new: Grant) -> Grant {
    let (mut roots, old_access) = old.map_or((Vec::new(), new.access), |old| (old.roots, old.access));
    for root in new.roots {
        if !roots.contains(&root) {
            roots.push(root);
        }
    }
    Grant { roots, access: old_access.max(new.access), ..new }
}

fn render(lines: &[Line]) -> Vec<u8> {
    lines.iter().flat_map(|line| [line.text.as_bytes(), b"\n"]).flatten().copied().collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, fs::Permissions, os::unix::fs::PermissionsExt as _};

    use super::*;

    const ONE: Fingerprint = Fingerprint([1; 32]);
    const TWO: Fingerprint = Fingerprint([2; 32]);

    fn grant(fingerprint: Fingerprint, name: &str, roots: &[&str], access: Access) -> Grant {
        let roots = roots.iter().map(PathBuf::from).collect();
        Grant { fingerprint, name: name.into(), roots, access }
    }

    #[test]
    fn missing_list_has_no_keys() {
        let home = tempfile::tempdir().unwrap();
        let keys = AuthorizedKeys::load(home.path()).unwrap();
        assert_eq!((keys.find(&ONE), keys.grants().len()), (None, 0));
    }

    #[test]
    fn allowed_key_is_found_and_the_list_is_private() {
        let home = tempfile::tempdir().unwrap();
        let alice = grant(ONE, "alice", &["/data/a b"], Access::ReadOnly);
        AuthorizedKeys::allow(home.path(), alice.clone()).unwrap();
        assert_eq!(AuthorizedKeys::load(home.path()).unwrap().find(&ONE), Some(&alice));
        let mode = fs::metadata(home.path().join(AUTHORIZED_KEYS_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
    }

    #[test]
    fn second_grant_for_a_key_is_merged_and_other_lines_stay() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(AUTHORIZED_KEYS_FILE);
        let kept = format!("# site keys\n\n {TWO}  name=bob root=/b ");
        fs::write(&path, &kept).unwrap();
        AuthorizedKeys::allow(home.path(), grant(ONE, "alice", &["/a", "/c"], Access::ReadWrite)).unwrap();
        AuthorizedKeys::allow(home.path(), grant(ONE, "anna", &["/c", "/d"], Access::ReadOnly)).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("{kept}\n{ONE} name=anna root=/a root=/c root=/d write\n"));
    }

    #[test]
    fn empty_list_gets_no_empty_line() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(AUTHORIZED_KEYS_FILE);
        fs::write(&path, "").unwrap();
        AuthorizedKeys::allow(home.path(), grant(ONE, "alice", &["/a"], Access::ReadOnly)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{ONE} name=alice root=/a\n"));
    }

    #[test]
    fn damaged_line_is_named_and_not_rewritten() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(AUTHORIZED_KEYS_FILE);
        let text = format!("# keys\n{ONE} name=alice root=/a speed=1\n");
        fs::write(&path, &text).unwrap();
        let error =
            AuthorizedKeys::allow(home.path(), grant(TWO, "b", &["/"], Access::ReadOnly)).unwrap_err();
        let expected = format!("read {}, line 2: unknown field \"speed=1\"", path.display());
        assert_eq!(error.to_string(), expected);
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }

    #[test]
    fn key_in_two_lines_is_refused() {
        let line = format!("{ONE} name=alice root=/a\n");
        let error = parse_lines(Path::new("list"), format!("{line}{line}").as_bytes()).err().unwrap();
        let AuthorizedKeysError::Damaged { line: 2, fault, .. } = error else { panic!("{error:?}") };
        assert_eq!(fault, GrantFault::Duplicate { earlier: 1 });
    }

    #[test]
    fn list_that_others_can_write_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(AUTHORIZED_KEYS_FILE);
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o664)).unwrap();
        let error = AuthorizedKeys::load(home.path()).unwrap_err();
        assert!(matches!(error, AuthorizedKeysError::Exposed { mode: 0o664, .. }), "{error:?}");
    }

    #[test]
    fn invalid_grant_is_refused() {
        let home = tempfile::tempdir().unwrap();
        for bad in [grant(ONE, "", &["/"], Access::ReadOnly), grant(ONE, "a", &["b"], Access::ReadOnly)] {
            let error = AuthorizedKeys::allow(home.path(), bad).unwrap_err();
            assert!(matches!(error, AuthorizedKeysError::Invalid { .. }), "{error:?}");
        }
        assert!(!home.path().join(AUTHORIZED_KEYS_FILE).exists());
    }

    #[test]
    fn writers_at_once_lose_nothing() {
        let home = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for index in 0..16 {
                let grant = grant(Fingerprint([index; 32]), "a", &["/"], Access::ReadOnly);
                let home = home.path();
                scope.spawn(move || AuthorizedKeys::allow(home, grant).unwrap());
            }
        });
        assert_eq!(AuthorizedKeys::load(home.path()).unwrap().grants().len(), 16);
    }
}
