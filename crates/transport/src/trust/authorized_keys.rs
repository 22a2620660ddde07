//! The file `authorized_keys`: the keys that a daemon serves and the rights of each key.
//!
//! Each line holds one key. Fields are separated by spaces, and their order after the key is free:
//!
//! ```text
//! SHA256:AAEC… name=alice root=/data/alice root=/scratch write max-rate=10Gbit expires=2027-01-31
//! ```
//!
//! `name=` appears once. `root=` (an absolute path without `..`) may be repeated, and a line needs at least one
//! `root=` or `read-root=`. `write` permits writing to the roots, and `read` together with `write` permits both.
//! Without `write`, the key may only read. `read-root=` is a directory that the key may only read. `to=` is a daemon
//! (`HOST` or `HOST:PORT`) to which the key may order copies from this host. `set-ids` lets files keep their setuid
//! and setgid bits. `set-owner` lets the key set owners and groups. `lead` lets the key lead jobs with several
//! receivers. `max-rate=` and `expires=` (see [`Expiry`]) are optional limits. In a value, a space, a `%`, a control
//! character, or a byte that is not valid UTF-8 is written as `%` and two hex digits (`%20`).
//!
//! Instead of a key, a line may name a certificate authority and one of the holders that the authority certifies:
//!
//! ```text
//! ca=/etc/zmove/site-ca.pem crl=/etc/zmove/site-ca.crl cn=alice name=alice root=/data/alice write
//! ```
//!
//! `ca=` and `crl=` are PEM files. Relative paths are relative to the directory of this file. Without `crl=`, no
//! certificate is revoked. `cn=` is the only common name of the certificate's subject, and `san=` is one of its
//! alternative host names. A line must have either `cn=` or `san=`. If a key has a line of its own, only that line
//! applies to it. Empty lines and lines that begin with `#` are preserved and ignored. **Invariant:** a list with a
//! malformed line grants nothing to any key.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use zmove_types::RateLimit;

use super::authority::CertificateFault;
use super::file_cache::FileCache;
use super::{expiry::Expiry, file, fingerprint::Fingerprint, strict_modes};
use crate::channel::Claim;
use crate::error::{AuthorityError, AuthorizedKeysError};

pub(crate) mod fuzzing;
mod line;
mod vouched;

use vouched::Vouchers;

pub use line::GrantFault;

const AUTHORIZED_KEYS_FILE: &str = "authorized_keys";
const LOCK_FILE: &str = "authorized_keys.lock";

/// The keys that may connect, as listed when the file was loaded.
#[derive(Debug, Default)]
pub struct AuthorizedKeys {
    grants: Vec<Grant>,
    /// The index of each key's grant.
    keys: HashMap<Fingerprint, usize>,
    vouchers: Vouchers,
    writable_roots: Arc<[PathBuf]>,
}

/// The list of a daemon. The file is checked for changes at each connection, and reread only if it has changed.
#[derive(Debug)]
pub struct KeyList {
    home: PathBuf,
    list: FileCache<AuthorizedKeys, AuthorizedKeysError>,
}

/// The holder of a grant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// The holder of this key.
    Key(Fingerprint),
    /// The holder that an authority certifies under this name.
    Certified {
        /// The file with the authority's certificates.
        authority: PathBuf,
        /// The file with the authority's revocation lists, if any.
        revoked: Option<PathBuf>,
        /// The name in the certificate to which the grant applies.
        subject: Subject,
    },
}

/// The name in a certificate to which a grant applies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// The only common name of the certificate's subject.
    CommonName(String),
    /// One of the certificate's alternative host names.
    Host(String),
}

/// The grant of one holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The holder.
    pub holder: Holder,
    /// The name of the holder in logs and reports.
    pub name: String,
    /// The directories that the holder may access, including everything below them. Absolute paths without `..`.
    pub roots: Vec<PathBuf>,
    /// The holder's permissions in `roots`.
    pub access: Access,
    /// Directories that the holder may only read, including everything below them. Absolute paths without `..`.
    pub read_roots: Vec<PathBuf>,
    /// The daemons, as `HOST` or `HOST:PORT`, to which the holder may order copies from this host. Default: none.
    pub to: Vec<String>,
    /// Whether files from the holder keep their setuid and setgid bits. Anyone who runs such a file on this host gets
    /// the privileges of the receiver's user. Default: no.
    pub set_ids: bool,
    /// Whether the holder may set owners and groups of entries (including their setuid and setgid bits), create device
    /// nodes, and set privileged attributes. The privileges of the receiver's user still apply. Default: no.
    pub set_owner: bool,
    /// Whether the holder may lead jobs of several receivers: begin and end them, and sign grants for their nodes.
    /// Default: no.
    pub lead: bool,
    /// Maximum rate of all connections of the holder together. Default: no limit.
    pub max_rate: Option<RateLimit>,
    /// The time at which the grant expires. Default: never.
    pub expires: Option<Expiry>,
}

impl Grant {
    /// Creates a grant for a key, without a rate limit or an expiry.
    #[must_use]
    pub fn new(fingerprint: Fingerprint, name: &str, roots: Vec<PathBuf>, access: Access) -> Self {
        let holder = Holder::Key(fingerprint);
        Self {
            holder,
            name: name.into(),
            roots,
            access,
            read_roots: Vec::new(),
            to: Vec::new(),
            set_ids: false,
            set_owner: false,
            lead: false,
            max_rate: None,
            expires: None,
        }
    }

    /// Returns all directories that the holder may access.
    pub fn every_root(&self) -> impl Iterator<Item = &PathBuf> {
        self.roots.iter().chain(&self.read_roots)
    }

    /// Returns the key of the grant, or `None` if the holder is certified by an authority.
    #[must_use]
    pub const fn key(&self) -> Option<Fingerprint> {
        match &self.holder {
            Holder::Key(key) => Some(*key),
            Holder::Certified { .. } => None,
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => write!(f, "{key}"),
            Self::Certified {
                authority, subject, ..
            } => write!(f, "{subject} of {}", authority.display()),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CommonName(name) => write!(f, "CN={name}"),
            Self::Host(name) => write!(f, "host {name}"),
        }
    }
}

/// The reason why a key is not admitted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Denial {
    /// The key is not in the list.
    #[error("unknown key {key}")]
    Unknown {
        /// The key.
        key: Fingerprint,
    },
    /// The grant of the key has expired.
    #[error("the permission of {name} ({key}) expired at {expires}")]
    Expired {
        /// The key.
        key: Fingerprint,
        /// The name of its holder.
        name: String,
        /// The time at which the grant expired.
        expires: Expiry,
    },
    /// The list has a line for a name in the peer's certificate, but the certificate is not valid.
    #[error("{name} ({key}): {fault}")]
    Certificate {
        /// The key.
        key: Fingerprint,
        /// The name of the holder in the list.
        name: String,
        /// The reason why the certificate is not valid.
        fault: CertificateFault,
    },
    /// The key is not in the list, and the job grant that it presented is not valid.
    #[error("unknown key {key} with an invalid grant: {fault}")]
    JobGrant {
        /// The key.
        key: Fingerprint,
        /// The fault of the grant, as text.
        fault: String,
    },
    /// The list has a line for the name in the peer's certificate, but the authority's files cannot be used.
    #[error("{source}")]
    Authority {
        /// The error of the files.
        source: Arc<AuthorityError>,
    },
}

/// The permissions of a key in its roots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Fetch files.
    ReadOnly,
    /// Store, compare and list files.
    WriteOnly,
    /// Fetch, store, compare and list files.
    ReadWrite,
}

impl Access {
    /// Returns whether files may be fetched.
    #[must_use]
    pub const fn reads(self) -> bool {
        matches!(self, Self::ReadOnly | Self::ReadWrite)
    }

    /// Returns whether files may be stored.
    #[must_use]
    pub const fn writes(self) -> bool {
        matches!(self, Self::WriteOnly | Self::ReadWrite)
    }
}

impl AuthorizedKeys {
    /// Reads the list in `home`. A missing list has no keys.
    ///
    /// # Errors
    ///
    /// Returns [`AuthorizedKeysError`] if the file cannot be read, is writable by other users, or has a malformed line.
    pub fn load(home: &Path) -> Result<Self, AuthorizedKeysError> {
        let lines = read_lines(&home.join(AUTHORIZED_KEYS_FILE))?;
        let grants: Vec<_> = lines.into_iter().filter_map(|line| line.grant).collect();
        let keys = grants
            .iter()
            .enumerate()
            .filter_map(|(number, grant)| Some((grant.key()?, number)));
        Ok(Self {
            keys: keys.collect(),
            vouchers: Vouchers::new(home, &grants),
            writable_roots: grants.iter().flat_map(write_roots).collect(),
            grants,
        })
    }

    /// Reads the list like [`load`](Self::load), for a daemon that runs as `user`. Fails if any user other than root
    /// and `user` can change the list.
    ///
    /// # Errors
    ///
    /// Same as [`load`](Self::load), and [`KeyFileError`](crate::KeyFileError).
    pub fn load_guarded(home: &Path, user: u32) -> Result<Self, AuthorizedKeysError> {
        strict_modes::check_for(&home.join(AUTHORIZED_KEYS_FILE), user)?;
        Self::load(home)
    }

    /// Adds a key to the list in `home` and returns the resulting grant. The file is written and flushed. If the key is
    /// already in the list, it gets the new name and the rights of both grants, and new limits replace old ones.
    ///
    /// # Errors
    ///
    /// Returns an error if the grant is invalid, or if the list cannot be read or written.
    pub fn allow(home: &Path, grant: Grant) -> Result<Grant, AuthorizedKeysError> {
        line::check(&grant).map_err(|fault| AuthorizedKeysError::Invalid {
            holder: grant.holder.to_string(),
            fault,
        })?;
        rewrite(home, |lines| merge(lines, grant))
    }

    /// Removes a key, or all keys with a name, from the list in `home`. Returns their grants. The file is written and
    /// flushed.
    ///
    /// # Errors
    ///
    /// Returns an error if the list cannot be read or written.
    pub fn remove(home: &Path, key_or_name: &str) -> Result<Vec<Grant>, AuthorizedKeysError> {
        let key = key_or_name.parse::<Fingerprint>().ok();
        let meant = |grant: &Grant| match key {
            Some(key) => grant.key() == Some(key),
            None => grant.name == key_or_name,
        };
        rewrite(home, |lines| {
            let gone = lines.extract_if(.., |line| line.grant.as_ref().is_some_and(meant));
            gone.filter_map(|line| line.grant).collect()
        })
    }

    /// Returns the grant of a connection's peer, if it is valid now.
    ///
    /// # Errors
    ///
    /// Returns the reason if the peer has no valid grant.
    pub fn authorize(&self, claim: &Claim, now: SystemTime) -> Result<&Grant, Denial> {
        let key = claim.key;
        let grant = match self.find(&key) {
            Some(grant) => grant,
            None => self.vouchers.authorize(&self.grants, claim, now)?,
        };
        match grant.expires.filter(|expires| expires.has_come(now)) {
            Some(expires) => Err(Denial::Expired {
                key,
                name: grant.name.clone(),
                expires,
            }),
            None => Ok(grant),
        }
    }

    /// Returns the grant of a key, even if it has expired, or `None` if the key has no grant. Only
    /// [`authorize`](Self::authorize) checks the expiry.
    #[must_use]
    pub fn find(&self, fingerprint: &Fingerprint) -> Option<&Grant> {
        self.keys
            .get(fingerprint)
            .map(|number| &self.grants[*number])
    }

    /// Returns all grants, in the order of the list.
    #[must_use]
    pub fn grants(&self) -> &[Grant] {
        &self.grants
    }

    /// Returns the roots to which the holder of any grant may write. Includes the roots of expired grants.
    #[must_use]
    pub fn writable_roots(&self) -> Arc<[PathBuf]> {
        Arc::clone(&self.writable_roots)
    }
}

impl KeyList {
    /// Creates a reference to the list in `home`.
    #[must_use]
    pub fn new(home: PathBuf) -> Self {
        Self {
            home,
            list: FileCache::default(),
        }
    }

    /// Returns the current list.
    ///
    /// # Errors
    ///
    /// Same as [`AuthorizedKeys::load_guarded`].
    pub fn current(&self) -> Result<Arc<AuthorizedKeys>, Arc<AuthorizedKeysError>> {
        let path = self.home.join(AUTHORIZED_KEYS_FILE);
        let in_the_file = |error: &_| matches!(error, AuthorizedKeysError::Damaged { .. });
        self.list
            .get_strict(&[&path], || AuthorizedKeys::load(&self.home), in_the_file)
    }
}

/// A line of the file. It has a grant unless it is empty or a comment.
struct ListLine {
    text: String,
    grant: Option<Grant>,
}

/// Changes the list and writes it to disk, while a lock excludes other writers.
fn rewrite<T>(
    home: &Path,
    change: impl FnOnce(&mut Vec<ListLine>) -> T,
) -> Result<T, AuthorizedKeysError> {
    let path = home.join(AUTHORIZED_KEYS_FILE);
    // The list itself is replaced, so a separate file is locked.
    let lock = file::open_locked(&home.join(LOCK_FILE))?;
    let mut lines = read_lines(&path)?;
    let changed = change(&mut lines);
    file::replace_list(&path, &render(&lines))?;
    drop(lock);
    Ok(changed)
}

fn read_lines(path: &Path) -> Result<Vec<ListLine>, AuthorizedKeysError> {
    parse_lines(path, &file::read_trusted(path)?.unwrap_or_default())
}

fn parse_lines(path: &Path, bytes: &[u8]) -> Result<Vec<ListLine>, AuthorizedKeysError> {
    let mut lines = Vec::new();
    let mut holders = HashMap::new();
    for (number, bytes) in (1..).zip(bytes.split_inclusive(|byte| *byte == b'\n')) {
        let line = parse_line(bytes.strip_suffix(b"\n").unwrap_or(bytes)).and_then(|line| {
            let holder = line.grant.as_ref().map(|grant| grant.holder.clone());
            match holder.and_then(|holder| holders.insert(holder, number)) {
                Some(earlier) => Err(GrantFault::Duplicate { earlier }),
                None => Ok(line),
            }
        });
        let damaged = |fault| AuthorizedKeysError::Damaged {
            path: path.into(),
            line: number,
            fault,
        };
        lines.push(line.map_err(damaged)?);
    }
    Ok(lines)
}

fn parse_line(bytes: &[u8]) -> Result<ListLine, GrantFault> {
    let text = std::str::from_utf8(bytes)
        .map_err(|_| GrantFault::NotText)?
        .to_owned();
    if text.trim().is_empty() || text.trim_start().starts_with('#') {
        return Ok(ListLine { text, grant: None });
    }
    let grant = Some(line::parse(&text)?);
    Ok(ListLine { text, grant })
}

fn merge(lines: &mut Vec<ListLine>, new: Grant) -> Grant {
    let holds = |line: &ListLine| {
        line.grant
            .as_ref()
            .is_some_and(|grant| grant.holder == new.holder)
    };
    let old = lines.iter_mut().find(|line| holds(line));
    let merged = match old.as_ref().and_then(|line| line.grant.clone()) {
        Some(old) => union(old, new),
        None => new,
    };
    let line = ListLine {
        text: line::render(&merged),
        grant: Some(merged.clone()),
    };
    match old {
        Some(old) => *old = line,
        None => lines.push(line),
    }
    merged
}

fn union(old: Grant, new: Grant) -> Grant {
    let writes = both(write_roots(&old), write_roots(&new));
    let reads = both(read_roots(&old), read_roots(&new));
    // The union must not give more rights than the two grants together.
    let (roots, access, read_roots) = match (writes.is_empty(), reads.len() == writes.len()) {
        (true, _) => (reads, Access::ReadOnly, Vec::new()),
        (false, true) if reads.iter().all(|root| writes.contains(root)) => {
            (writes, Access::ReadWrite, Vec::new())
        }
        _ => (writes, Access::WriteOnly, reads),
    };
    let max_rate = new.max_rate.or(old.max_rate);
    let expires = new.expires.or(old.expires);
    let to = both(old.to, new.to);
    Grant {
        holder: new.holder,
        name: new.name,
        roots,
        access,
        read_roots,
        to,
        set_ids: old.set_ids || new.set_ids,
        set_owner: old.set_owner || new.set_owner,
        lead: old.lead || new.lead,
        max_rate,
        expires,
    }
}

fn write_roots(grant: &Grant) -> Vec<PathBuf> {
    if grant.access.writes() {
        grant.roots.clone()
    } else {
        Vec::new()
    }
}

fn read_roots(grant: &Grant) -> Vec<PathBuf> {
    let roots = if grant.access.reads() {
        grant.roots.clone()
    } else {
        Vec::new()
    };
    both(roots, grant.read_roots.clone())
}

fn both<T: PartialEq>(mut roots: Vec<T>, more: Vec<T>) -> Vec<T> {
    for root in more {
        if !roots.contains(&root) {
            roots.push(root);
        }
    }
    roots
}

fn render(lines: &[ListLine]) -> Vec<u8> {
    lines
        .iter()
        .flat_map(|line| [line.text.as_bytes(), b"\n"])
        .flatten()
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, fs::Permissions, os::unix::fs::PermissionsExt as _};

    use super::*;

    const ONE: Fingerprint = Fingerprint([1; 32]);
    const TWO: Fingerprint = Fingerprint([2; 32]);

    fn grant(fingerprint: Fingerprint, name: &str, roots: &[&str], access: Access) -> Grant {
        let roots = roots.iter().map(PathBuf::from).collect();
        Grant::new(fingerprint, name, roots, access)
    }

    #[test]
    fn limits_stay_until_there_are_new_ones() {
        let home = tempfile::tempdir().unwrap();
        let plain = || grant(ONE, "alice", &["/a"], Access::ReadOnly);
        let expires = |date: &str| Some(date.parse().unwrap());
        let first = Grant {
            max_rate: Some("1Gbit".parse().unwrap()),
            expires: expires("2027-01-31"),
            ..plain()
        };
        assert_eq!(
            AuthorizedKeys::allow(home.path(), first.clone()).unwrap(),
            first
        );
        assert_eq!(AuthorizedKeys::allow(home.path(), plain()).unwrap(), first);
        let later = Grant {
            expires: expires("2028-01-31"),
            ..plain()
        };
        let merged = AuthorizedKeys::allow(home.path(), later.clone()).unwrap();
        assert_eq!(
            (merged.max_rate, merged.expires),
            (first.max_rate, later.expires)
        );
        assert_eq!(
            AuthorizedKeys::load(home.path()).unwrap().grants(),
            [merged]
        );
    }

    #[test]
    fn keys_and_names_are_taken_out_and_other_lines_stay() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(AUTHORIZED_KEYS_FILE);
        let key = |number: u8| Fingerprint([number; 32]);
        let line = |number, name| format!("{}  name={name} root=/a\n", key(number));
        let text = [
            "# site keys\n",
            &line(1, "alice"),
            "\n",
            &line(2, "bob"),
            &line(3, "alice"),
            &line(4, "eve"),
        ];
        fs::write(&path, text.concat()).unwrap();
        let remove = |which: &str| {
            let gone = AuthorizedKeys::remove(home.path(), which).unwrap();
            gone.iter().filter_map(Grant::key).collect::<Vec<_>>()
        };
        assert_eq!(
            (remove("nobody"), remove(&key(9).to_string())),
            (vec![], vec![])
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), text.concat());
        assert_eq!(remove(&key(4).to_string()), [key(4)]);
        assert_eq!(remove("alice"), [key(1), key(3)]);
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            format!("# site keys\n\n{}", line(2, "bob"))
        );
    }

    #[test]
    fn missing_list_has_no_keys() {
        let home = tempfile::tempdir().unwrap();
        let keys = AuthorizedKeys::load(home.path()).unwrap();
        assert_eq!((keys.find(&ONE), keys.grants().len()), (None, 0));
    }

    #[test]
    fn allowed_key_is_found_and_the_list_is_private() {
        let parent = tempfile::tempdir().unwrap();
        let home = parent.path().join("new");
        let alice = grant(ONE, "alice", &["/data/a b"], Access::ReadOnly);
        AuthorizedKeys::allow(&home, alice.clone()).unwrap();
        assert_eq!(
            AuthorizedKeys::load(&home).unwrap().find(&ONE),
            Some(&alice)
        );
        let mode = fs::metadata(home.join(AUTHORIZED_KEYS_FILE))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o7777, 0o600);
    }

    #[test]
    fn second_grant_for_a_key_is_merged_and_other_lines_stay() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(AUTHORIZED_KEYS_FILE);
        let kept = format!("# site keys\n\n {TWO}  name=bob root=/b ");
        fs::write(&path, &kept).unwrap();
        AuthorizedKeys::allow(
            home.path(),
            grant(ONE, "alice", &["/a", "/c"], Access::WriteOnly),
        )
        .unwrap();
        AuthorizedKeys::allow(
            home.path(),
            grant(ONE, "anna", &["/c", "/d"], Access::ReadOnly),
        )
        .unwrap();
        let text = || fs::read_to_string(&path).unwrap();
        let rights = "root=/a root=/c write read-root=/c read-root=/d";
        assert_eq!(text(), format!("{kept}\n{ONE} name=anna {rights}\n"));
        AuthorizedKeys::allow(home.path(), grant(ONE, "anna", &["/d"], Access::WriteOnly)).unwrap();
        AuthorizedKeys::allow(home.path(), grant(ONE, "anna", &["/a"], Access::ReadOnly)).unwrap();
        assert_eq!(
            text(),
            format!("{kept}\n{ONE} name=anna root=/a root=/c root=/d write read\n")
        );
    }

    #[test]
    fn empty_list_gets_no_empty_line() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(AUTHORIZED_KEYS_FILE);
        fs::write(&path, "").unwrap();
        AuthorizedKeys::allow(home.path(), grant(ONE, "alice", &["/a"], Access::ReadOnly)).unwrap();
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            format!("{ONE} name=alice root=/a\n")
        );
    }

    #[test]
    fn damaged_line_is_named_and_not_rewritten() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(AUTHORIZED_KEYS_FILE);
        let text = format!("# keys\n{ONE} name=alice root=/a speed=1\n");
        fs::write(&path, &text).unwrap();
        let error = AuthorizedKeys::allow(home.path(), grant(TWO, "b", &["/"], Access::ReadOnly))
            .unwrap_err();
        let expected = format!(
            "read {}, line 2: unknown field \"speed=1\" (correct or remove the line)",
            path.display()
        );
        assert_eq!(error.to_string(), expected);
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }

    #[test]
    fn key_in_two_lines_is_refused() {
        let line = format!("{ONE} name=alice root=/a\n");
        let error = parse_lines(Path::new("list"), format!("{line}{line}").as_bytes())
            .err()
            .unwrap();
        let AuthorizedKeysError::Damaged { line: 2, fault, .. } = error else {
            panic!("{error:?}")
        };
        assert_eq!(fault, GrantFault::Duplicate { earlier: 1 });
    }

    #[test]
    fn list_that_others_can_write_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(AUTHORIZED_KEYS_FILE);
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o664)).unwrap();
        let error = AuthorizedKeys::load(home.path()).unwrap_err();
        assert!(
            matches!(
                error,
                AuthorizedKeysError::File(crate::KeyFileError::Writable { mode: 0o664, .. })
            ),
            "{error:?}"
        );
    }

    #[test]
    fn invalid_grant_is_refused() {
        let home = tempfile::tempdir().unwrap();
        for bad in [
            grant(ONE, "", &["/"], Access::ReadOnly),
            grant(ONE, "a", &["b"], Access::ReadOnly),
        ] {
            let error = AuthorizedKeys::allow(home.path(), bad).unwrap_err();
            assert!(
                matches!(error, AuthorizedKeysError::Invalid { .. }),
                "{error:?}"
            );
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
        assert_eq!(
            AuthorizedKeys::load(home.path()).unwrap().grants().len(),
            16
        );
    }
}
