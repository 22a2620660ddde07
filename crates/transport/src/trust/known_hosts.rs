//! The file `known_hosts`: the hosts that a client knows and the key of each host.
//!
//! Each line holds one host as `HOST:PORT SHA256:…`, with an IPv6 address in brackets. Empty lines and lines that begin
//! with `#` are preserved and ignored. A client reads the list before it dials, and adds a host after the user has
//! accepted it. **Invariant:** a pin is never replaced. Only the user can remove it. A list with a malformed line is
//! not used at all.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use super::{
    file,
    fingerprint::{Fingerprint, ParseFingerprintError},
};
use crate::endpoint::Endpoint;
use crate::error::{KeyFileError, KnownHostsError};

pub(crate) mod fuzzing;

const KNOWN_HOSTS_FILE: &str = "known_hosts";
/// The file with the list from before a host was removed.
const KNOWN_HOSTS_OLD: &str = "known_hosts.old";

/// The known hosts at the time when the list was read.
#[derive(Clone, Debug)]
pub struct KnownHosts {
    home: PathBuf,
    pins: HashMap<Endpoint, Pin>,
}

impl KnownHosts {
    /// Reads the list in `home`. A missing list is empty.
    ///
    /// # Errors
    ///
    /// Returns [`KnownHostsError`] if the file cannot be read or has a malformed line, or if users other than its owner
    /// can write to it.
    pub fn open(home: &Path) -> Result<Self, KnownHostsError> {
        let path = home.join(KNOWN_HOSTS_FILE);
        let bytes = file::read_trusted(&path)?.unwrap_or_default();
        let pins = parse(&path, &bytes)?;
        Ok(Self {
            home: home.into(),
            pins,
        })
    }

    /// Adds a host to the list, and writes it to disk. Does nothing if the host is already listed with the same key.
    ///
    /// # Errors
    ///
    /// Returns an error if the list has another key for the host, or if the file cannot be read or extended. Another
    /// process may have added the key in the meantime.
    pub fn pin(
        &mut self,
        host: &str,
        port: u16,
        fingerprint: Fingerprint,
    ) -> Result<(), KnownHostsError> {
        let host_key = key_of(host, port)?;
        let path = self.home.join(KNOWN_HOSTS_FILE);
        let (file, bytes) = read_locked(&path)?;
        self.pins = parse(&path, &bytes)?;
        match self.pins.get(&host_key) {
            Some(pin) if pin.fingerprint == fingerprint => Ok(()),
            Some(pin) => Err(KnownHostsError::Conflict {
                path,
                host: host_key,
                expected: pin.fingerprint,
                found: fingerprint,
            }),
            None => {
                append(&file, &bytes, &host_key, fingerprint).map_err(file::unwritten(&path))?;
                self.pins.insert(
                    host_key,
                    Pin {
                        fingerprint,
                        line: 0,
                    },
                );
                Ok(())
            }
        }
    }

    /// Removes a host from the list, writes the list to disk, and keeps the previous list in `known_hosts.old`. Returns
    /// the key of the host, or `None` if it was not in the list.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read or rewritten.
    pub fn remove(
        &mut self,
        host: &str,
        port: u16,
    ) -> Result<Option<Fingerprint>, KnownHostsError> {
        let host_key = key_of(host, port)?;
        let path = self.home.join(KNOWN_HOSTS_FILE);
        let (_locked, bytes) = read_locked(&path)?;
        self.pins = parse(&path, &bytes)?;
        let Some(pin) = self.pins.remove(&host_key) else {
            return Ok(None);
        };
        file::replace_list(&self.home.join(KNOWN_HOSTS_OLD), &bytes)?;
        file::replace_list(&path, &without(&bytes, &host_key))?;
        Ok(Some(pin.fingerprint))
    }

    /// Returns all hosts as `HOST:PORT` with their keys, sorted by name.
    #[must_use]
    pub fn pins(&self) -> Vec<(String, Fingerprint)> {
        let pins = self.pins.iter();
        let mut pins: Vec<_> = pins
            .map(|(host, pin)| (host.to_string(), pin.fingerprint))
            .collect();
        pins.sort();
        pins
    }

    /// Returns the pinned key of a host, if any. The host name is not case-sensitive.
    #[must_use]
    pub fn lookup(&self, host: &str, port: u16) -> Option<Fingerprint> {
        let host_key = Endpoint::canonical(host, port)?;
        self.pins.get(&host_key).map(|pin| pin.fingerprint)
    }
}

/// The fault of a line in the list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostLineFault {
    /// The line does not have two fields, or is not text.
    #[error("not of the form 'HOST:PORT SHA256:…'")]
    Form,
    /// The first field is not a host and port.
    #[error("{0:?} is not HOST:PORT")]
    Host(String),
    /// The second field is not a fingerprint.
    #[error("{field:?} is {fault}")]
    Fingerprint {
        /// The field.
        field: String,
        /// The fault of the field.
        fault: ParseFingerprintError,
    },
    /// An earlier line has another key for the same host.
    #[error("another key for the host of line {earlier}; remove one of the two")]
    Conflict {
        /// The number of the earlier line.
        earlier: usize,
    },
}

#[derive(Clone, Copy, Debug)]
struct Pin {
    fingerprint: Fingerprint,
    /// The number of the line, starting at 1, or 0 if the pin was added after the list was read.
    line: usize,
}

/// Reads the current list. No other process can change it while the returned file is open.
fn read_locked(path: &Path) -> Result<(File, Vec<u8>), KeyFileError> {
    // The list may be a symbolic link to another file. The lock must be on that file.
    let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let file = file::open_locked(path)?;
    let contents = file::read_open(&file).map_err(|source| KeyFileError::Read {
        path: path.into(),
        source,
    })?;
    Ok((file, contents.bytes))
}

fn key_of(host: &str, port: u16) -> Result<Endpoint, KnownHostsError> {
    Endpoint::canonical(host, port).ok_or_else(|| KnownHostsError::HostName(host.into()))
}

fn parse(path: &Path, bytes: &[u8]) -> Result<HashMap<Endpoint, Pin>, KnownHostsError> {
    let mut pins = HashMap::new();
    for (line, text) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
        add_line(&mut pins, line, text).map_err(|fault| KnownHostsError::Damaged {
            path: path.into(),
            line,
            fault,
        })?;
    }
    Ok(pins)
}

fn add_line(
    pins: &mut HashMap<Endpoint, Pin>,
    line: usize,
    bytes: &[u8],
) -> Result<(), HostLineFault> {
    let text = std::str::from_utf8(bytes)
        .map_err(|_| HostLineFault::Form)?
        .trim();
    // After a power loss, the file may end with zero bytes: it was extended for a line that was never flushed.
    let never_written = bytes.iter().all(|byte| *byte == 0);
    if never_written || text.is_empty() || text.starts_with('#') {
        return Ok(());
    }
    let (host_key, fingerprint) = parse_line(text)?;
    let pin = pins.entry(host_key).or_insert(Pin { fingerprint, line });
    if pin.fingerprint == fingerprint {
        Ok(())
    } else {
        Err(HostLineFault::Conflict { earlier: pin.line })
    }
}

fn parse_line(text: &str) -> Result<(Endpoint, Fingerprint), HostLineFault> {
    let fields: Vec<_> = text.split_ascii_whitespace().collect();
    let [host, key] = fields[..] else {
        return Err(HostLineFault::Form);
    };
    let host_key = Endpoint::parse(host).ok_or_else(|| HostLineFault::Host(host.into()))?;
    let fingerprint = key.parse().map_err(|fault| HostLineFault::Fingerprint {
        field: key.into(),
        fault,
    })?;
    Ok((host_key, fingerprint))
}

/// Returns the list without the lines of one host.
fn without(bytes: &[u8], host_key: &Endpoint) -> Vec<u8> {
    let of_host = |line: &[u8]| {
        let text = std::str::from_utf8(line).unwrap_or_default().trim();
        !text.starts_with('#') && parse_line(text).is_ok_and(|(host, _)| host == *host_key)
    };
    bytes
        .split_inclusive(|byte| *byte == b'\n')
        .filter(|line| !of_host(line))
        .flatten()
        .copied()
        .collect()
}

/// Appends a line in a single write. If the last line has no line break, because of a crash or an editor, adds a line
/// break before the new line.
fn append(
    mut file: &File,
    before: &[u8],
    host_key: &Endpoint,
    fingerprint: Fingerprint,
) -> io::Result<()> {
    let end = if before.last().is_none_or(|byte| *byte == b'\n') {
        ""
    } else {
        "\n"
    };
    let line = format!("{end}{host_key} {fingerprint}\n");
    file.write_all(line.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const ONE: Fingerprint = Fingerprint([1; 32]);
    const TWO: Fingerprint = Fingerprint([2; 32]);

    fn fault_of(text: &str) -> (usize, HostLineFault) {
        match parse(Path::new("known_hosts"), text.as_bytes()) {
            Err(KnownHostsError::Damaged { line, fault, .. }) => (line, fault),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn pinned_host_is_found_again() {
        let home = tempfile::tempdir().unwrap();
        let mut hosts = KnownHosts::open(home.path()).unwrap();
        hosts.pin("DTN.example.org", 7171, ONE).unwrap();
        hosts.pin("2001:DB8::1", 7171, TWO).unwrap();
        for hosts in [hosts, KnownHosts::open(home.path()).unwrap()] {
            assert_eq!(hosts.lookup("dtn.EXAMPLE.org", 7171), Some(ONE));
            assert_eq!(hosts.lookup("dtn.example.org", 7172), None);
            assert_eq!(hosts.lookup("2001:db8:0::1", 7171), Some(TWO));
        }
        let text = fs::read_to_string(home.path().join(KNOWN_HOSTS_FILE)).unwrap();
        assert_eq!(
            text,
            format!("dtn.example.org:7171 {ONE}\n[2001:db8::1]:7171 {TWO}\n")
        );
    }

    #[test]
    fn a_list_that_others_can_write_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(KNOWN_HOSTS_FILE);
        fs::write(&path, format!("a:1 {ONE}\n")).unwrap();
        for mode in [0o600, 0o644, 0o664, 0o602] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let opened = KnownHosts::open(home.path());
            assert_eq!(opened.is_ok(), mode & 0o022 == 0, "{mode:o}");
            if let Err(error) = opened {
                let text = error.to_string();
                let command = format!("run: chmod go-w {}", path.display());
                assert!(text.ends_with(&command), "{text}");
            }
        }
    }

    #[test]
    fn comments_and_a_last_line_without_end_are_kept() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(KNOWN_HOSTS_FILE);
        fs::write(&path, format!("# mine\n\n a:1  {ONE} ")).unwrap();
        KnownHosts::open(home.path())
            .unwrap()
            .pin("b", 1, TWO)
            .unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("# mine\n\n a:1  {ONE} \nb:1 {TWO}\n"));
    }

    #[test]
    fn a_host_that_is_taken_out_leaves_the_others_as_they_are() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(KNOWN_HOSTS_FILE);
        let text = format!("# mine\na:1 {ONE}\n#a:1 {ONE}\n A:1  {ONE}\nb:1 {TWO}");
        fs::write(&path, &text).unwrap();
        let mut hosts = KnownHosts::open(home.path()).unwrap();
        assert_eq!(hosts.remove("c", 1).unwrap(), None);
        assert_eq!(hosts.remove("A", 1).unwrap(), Some(ONE));
        assert_eq!(
            (hosts.lookup("a", 1), hosts.lookup("b", 1)),
            (None, Some(TWO))
        );
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            format!("# mine\n#a:1 {ONE}\nb:1 {TWO}")
        );
        assert_eq!(
            fs::read_to_string(home.path().join(KNOWN_HOSTS_OLD)).unwrap(),
            text
        );
        // The file was replaced after the list was opened, so `pin` reads the list again.
        hosts.pin("a", 1, TWO).unwrap();
        assert_eq!(
            KnownHosts::open(home.path()).unwrap().lookup("a", 1),
            Some(TWO)
        );
    }

    #[test]
    fn pin_is_never_replaced() {
        let home = tempfile::tempdir().unwrap();
        let mut early = KnownHosts::open(home.path()).unwrap();
        KnownHosts::open(home.path())
            .unwrap()
            .pin("a", 1, ONE)
            .unwrap();
        early.pin("a", 1, ONE).unwrap();
        let error = early.pin("A", 1, TWO).unwrap_err();
        assert!(
            matches!(
                error,
                KnownHostsError::Conflict {
                    expected: ONE,
                    found: TWO,
                    ..
                }
            ),
            "{error:?}"
        );
        assert_eq!(early.lookup("a", 1), Some(ONE));
        let text = fs::read_to_string(home.path().join(KNOWN_HOSTS_FILE)).unwrap();
        assert_eq!(text, format!("a:1 {ONE}\n"));
    }

    #[test]
    fn writers_at_once_lose_nothing() {
        let home = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for port in 0..16 {
                let home = home.path();
                scope.spawn(move || KnownHosts::open(home).unwrap().pin("a", port, ONE).unwrap());
            }
        });
        let hosts = KnownHosts::open(home.path()).unwrap();
        assert!((0..16).all(|port| hosts.lookup("a", port) == Some(ONE)));
    }

    #[test]
    fn a_line_that_a_power_cut_left_as_zeros_does_not_count() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(KNOWN_HOSTS_FILE);
        let cut_off = format!("one:1 {ONE}\n\0\0\0\0\0\0\0");
        fs::write(&path, cut_off).unwrap();
        let mut known = KnownHosts::open(home.path()).unwrap();
        assert_eq!(known.pins(), [("one:1".to_owned(), ONE)]);
        known.pin("two", 2, TWO).unwrap();
        let again = KnownHosts::open(home.path()).unwrap();
        assert_eq!(
            (again.lookup("one", 1), again.lookup("two", 2)),
            (Some(ONE), Some(TWO))
        );
    }

    #[test]
    fn damaged_line_is_named() {
        let good = format!("a:1 {ONE}\n");
        assert_eq!(fault_of(&format!("{good}b:1")), (2, HostLineFault::Form));
        assert_eq!(
            fault_of(&format!("{good}\nb:1 {ONE} x")),
            (3, HostLineFault::Form)
        );
        for field in ["b", "b:", "b:+1", "b:65536", ":1", "::1:1", "[b:1", "b]:1"] {
            let fault = HostLineFault::Host(field.into());
            assert_eq!(
                fault_of(&format!("{good}{field} {ONE}")),
                (2, fault),
                "{field}"
            );
        }
        assert_eq!(
            fault_of(&format!("{good}A:1 {TWO}")),
            (2, HostLineFault::Conflict { earlier: 1 })
        );
        let fault = HostLineFault::Fingerprint {
            field: "SHA256:x".into(),
            fault: ParseFingerprintError,
        };
        assert_eq!(fault_of("b:1 SHA256:x"), (1, fault));
    }

    #[test]
    fn host_that_could_forge_a_line_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let mut hosts = KnownHosts::open(home.path()).unwrap();
        for host in ["", "a b", "a\nb", "#a", "a:b", "[a]"] {
            let error = hosts.pin(host, 1, ONE).unwrap_err();
            assert!(matches!(error, KnownHostsError::HostName(_)), "{error:?}");
        }
    }
}
