//! What TLS at a door needs: the runner's certificate and key, and the authority of its clients.
//!
//! **Invariant:** who has no certificate of that authority is read no request of.

mod judge;
mod reminders;

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::OFlags;
use rustls::client::verify_server_name;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{InconsistentKeys, RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use crate::error::ApiError;
use judge::{judge_authority, judge_server, now};
pub use reminders::Reminders;

/// Files in PEM.
#[derive(Clone, Copy, Debug)]
pub struct TlsFiles<'a> {
    /// The runner's certificate, and those that lead to its authority.
    pub certificate: &'a Path,
    /// The key of the certificate, for its owner alone.
    pub key: &'a Path,
    /// The authority of the clients' certificates: each of them is the user.
    pub client_authority: &'a Path,
}

/// What TLS at a door needs.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<ServerConfig>,
    names: Names,
    reminders: Reminders,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// One cannot be read, does not hold what it should or what a client could use now, or is a key that others may
    /// read.
    pub fn read(files: &TlsFiles<'_>) -> Result<Self, ApiError> {
        let (chain, key) = (
            certificates(files.certificate, CERTIFICATE)?,
            key(files.key)?,
        );
        let names = Names::of(&chain[0]).map_err(unfit(files.certificate, CERTIFICATE))?;
        judge_server(&chain[0], now()).map_err(unfit(files.certificate, CERTIFICATE))?;
        let mut reminders = Reminders::default();
        // Of those that follow, clients may need none.
        chain
            .iter()
            .for_each(|certificate| reminders.add(CERTIFICATE, files.certificate, certificate));
        let mut roots = RootCertStore::empty();
        for root in certificates(files.client_authority, AUTHORITY)? {
            // The handshake takes whatever is named as an authority for one, whenever.
            judge_authority(&root, now()).map_err(unfit(files.client_authority, AUTHORITY))?;
            reminders.add(AUTHORITY, files.client_authority, &root);
            roots
                .add(root)
                .map_err(unfit(files.client_authority, AUTHORITY))?;
        }
        let provider = Arc::new(default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider));
        let verifier = verifier
            .build()
            .map_err(unfit(files.client_authority, AUTHORITY))?;
        let config =
            ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]);
        let config = config
            .expect("the provider has suites of TLS 1.3")
            .with_client_cert_verifier(verifier);
        let mut config = config
            .with_single_cert(chain, key)
            .map_err(|error| not_its_key(files, error))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // Each connection shows its certificate anew, so that none begins beyond its time.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self {
            config: Arc::new(config),
            names,
            reminders,
        })
    }

    /// What is to be said while it is used.
    #[must_use]
    pub fn reminders(&self) -> Reminders {
        self.reminders.clone()
    }

    /// What takes clients in.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        Arc::clone(&self.config).into()
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }
}

/// How clients may name a door: as its certificate does, or else they could not know that it is the runner's.
#[derive(Clone, Debug)]
pub(crate) struct Names(CertificateDer<'static>);

impl Names {
    fn of(certificate: &CertificateDer<'static>) -> Result<Self, rustls::Error> {
        ParsedCertificate::try_from(certificate)?;
        Ok(Self(certificate.clone()))
    }

    /// Whether a client may name the door so; an address of IPv6 stands in brackets.
    pub(crate) fn contain(&self, name: &str) -> bool {
        let inner = name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'))
            .unwrap_or(name);
        let (Ok(certificate), Ok(name)) = (
            ParsedCertificate::try_from(&self.0),
            ServerName::try_from(inner),
        ) else {
            return false;
        };
        verify_server_name(&certificate, &name).is_ok()
    }
}

#[cfg(test)]
impl Names {
    /// The names of a certificate made for them.
    pub(crate) fn issued(names: &[&str]) -> Self {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let certificate = rcgen::generate_simple_self_signed(names).unwrap().cert;
        Self::of(certificate.der()).unwrap()
    }
}

fn certificates(path: &Path, what: &'static str) -> Result<Vec<CertificateDer<'static>>, ApiError> {
    let (bytes, _) = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.and_then(|found| {
        if found.is_empty() {
            Err(pem::Error::NoItemsFound)
        } else {
            Ok(found)
        }
    });
    found.map_err(|error| not_pem(path, what, &bytes, &error))
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, ApiError> {
    let (bytes, mode) = read(path)?;
    if mode & 0o077 != 0 {
        return Err(ApiError::Exposed {
            path: path.to_owned(),
            mode,
        });
    }
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| not_pem(path, KEY, &bytes, &error))
}

fn not_pem(path: &Path, what: &'static str, bytes: &[u8], error: &pem::Error) -> ApiError {
    let cause = match error {
        pem::Error::NoItemsFound if bytes.is_empty() => "the file is empty".to_owned(),
        pem::Error::NoItemsFound if what == KEY => {
            "the file holds none in PEM, or an encrypted one: decrypt it by openssl pkey -in FILE -out FILE"
                .to_owned()
        }
        pem::Error::NoItemsFound => "the file holds none in PEM (BEGIN CERTIFICATE)".to_owned(),
        error => error.to_string(),
    };
    ApiError::Tls {
        what,
        path: path.to_owned(),
        cause,
    }
}

/// What to say of a key that cannot be used with the certificate.
fn not_its_key(files: &TlsFiles<'_>, error: rustls::Error) -> ApiError {
    let certificate = files.certificate.display();
    let cause = match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => format!(
            "it does not belong to the certificate in '{certificate}': name the key with which that one was requested"
        ),
        error => error.to_string(),
    };
    ApiError::Tls {
        what: KEY,
        path: files.key.to_owned(),
        cause,
    }
}

/// What to say of a file whose parts are in order, and do not do.
fn unfit<Cause: ToString>(path: &Path, what: &'static str) -> impl FnOnce(Cause) -> ApiError {
    let path = path.to_owned();
    move |cause| ApiError::Tls {
        what,
        path,
        cause: cause.to_string(),
    }
}

/// What a file holds, and who may use it, both of the same one.
fn read(path: &Path) -> Result<(Vec<u8>, u32), ApiError> {
    let read = || -> io::Result<_> {
        // A FIFO would be opened only once somebody writes to it.
        let at_once = OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(at_once)
            .open(path)?;
        let found = file.metadata()?;
        if !found.is_file() {
            let other = "it is a directory, a FIFO or a device: name a regular file";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, other));
        }
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok((bytes, found.mode() & 0o777))
    };
    read().map_err(|source| ApiError::Io {
        operation: "read",
        path: path.to_owned(),
        source,
    })
}

/// What is read of a file; a bundle of all public authorities is smaller.
const FILE_BYTES_MAX: u64 = 1 << 20;

const CERTIFICATE: &str = "the certificate";
const KEY: &str = "the key";
const AUTHORITY: &str = "the authority of clients";

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd,
    };
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use zmove_jobs::Moment;

    use super::*;

    /// Files as a runner is given them.
    struct Made {
        directory: tempfile::TempDir,
    }

    impl Made {
        fn new() -> Self {
            let made = Self {
                directory: tempfile::tempdir().unwrap(),
            };
            let mut authority = CertificateParams::default();
            authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let authority =
                CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
            let key = KeyPair::generate().unwrap();
            let own = CertificateParams::new(vec!["localhost".to_owned()])
                .unwrap()
                .self_signed(&key)
                .unwrap();
            made.write("ca.pem", &authority.pem(), 0o644);
            made.write("cert.pem", &own.pem(), 0o644);
            made.write("key.pem", &key.serialize_pem(), 0o600);
            made
        }

        fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join(name)
        }

        fn write(&self, name: &str, text: &str, mode: u32) {
            std::fs::write(self.path(name), text).unwrap();
            std::fs::set_permissions(self.path(name), Permissions::from_mode(mode)).unwrap();
        }

        fn read(&self) -> Result<Tls, ApiError> {
            let [certificate, key, client_authority] =
                ["cert.pem", "key.pem", "ca.pem"].map(|name| self.path(name));
            Tls::read(&TlsFiles {
                certificate: &certificate,
                key: &key,
                client_authority: &client_authority,
            })
        }

        #[track_caller]
        fn refused(&self, file: &str, part: &str) {
            let said = self.read().unwrap_err().to_string();
            let path = self.path(file).display().to_string();
            assert!(said.contains(&path) && said.contains(part), "{said}");
        }
    }

    #[test]
    fn a_door_is_named_as_its_certificate_does() {
        let names = Names::issued(&[
            "dtn.example.org",
            "*.lab.example.org",
            "192.0.2.7",
            "2001:db8::7",
        ]);
        for name in [
            "dtn.example.org",
            "DTN.Example.ORG",
            "a.lab.example.org",
            "192.0.2.7",
            "[2001:db8::7]",
        ] {
            assert!(names.contain(name), "{name}");
        }
        let others = [
            "localhost",
            "127.0.0.1",
            "example.org",
            "dtn.example.org.evil.example",
            "192.0.2.8",
            "",
        ];
        for name in others.into_iter().chain([
            "a.b.lab.example.org",
            "[2001:db8::8]",
            "[",
            "*.lab.example.org",
        ]) {
            assert!(!names.contain(name), "{name}");
        }
    }

    #[test]
    fn a_key_that_others_may_use_is_refused() {
        let made = Made::new();
        for mode in [0o640, 0o604, 0o620, 0o601] {
            std::fs::set_permissions(made.path("key.pem"), Permissions::from_mode(mode)).unwrap();
            made.refused("key.pem", &format!("has mode {mode:03o}"));
        }
        std::fs::set_permissions(made.path("key.pem"), Permissions::from_mode(0o400)).unwrap();
        made.read().unwrap();
    }

    #[test]
    fn what_is_no_certificate_key_or_authority_is_refused_by_name() {
        let made = Made::new();
        let damaged = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
        for file in ["cert.pem", "ca.pem", "key.pem"] {
            let good = std::fs::read_to_string(made.path(file)).unwrap();
            for (bad, why) in [
                ("", "the file is empty"),
                ("hello", "the file holds none in PEM"),
                ("-----BEGIN CERTIFICATE-----\n", "use the "),
            ] {
                std::fs::write(made.path(file), bad).unwrap();
                made.refused(file, why);
            }
            std::fs::write(made.path(file), damaged).unwrap();
            made.refused(file, "use the ");
            std::fs::remove_file(made.path(file)).unwrap();
            made.refused(file, "No such file");
            std::fs::create_dir(made.path(file)).unwrap();
            made.refused(file, "name a regular file");
            std::fs::remove_dir(made.path(file)).unwrap();
            // Nobody writes to it.
            mknodat(
                CWD,
                made.path(file),
                FileType::Fifo,
                Mode::RUSR | Mode::WUSR,
                0,
            )
            .unwrap();
            made.refused(file, "name a regular file");
            std::fs::remove_file(made.path(file)).unwrap();
            made.write(file, &good, 0o600);
        }
        made.write(
            "key.pem",
            &KeyPair::generate().unwrap().serialize_pem(),
            0o600,
        );
        let certificate = made.path("cert.pem").display().to_string();
        made.refused(
            "key.pem",
            &format!("it does not belong to the certificate in '{certificate}'"),
        );
    }

    #[test]
    fn what_no_client_could_use_is_refused_by_name() {
        let made = Made::new();
        let issued = |year, names: &[&str], is_ca| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            let mut params = CertificateParams::new(names).unwrap();
            params.not_after = date_time_ymd(year, 1, 15);
            params.is_ca = is_ca;
            let key =
                KeyPair::from_pem(&std::fs::read_to_string(made.path("key.pem")).unwrap()).unwrap();
            params.self_signed(&key).unwrap().pem()
        };
        let authority = || IsCa::Ca(BasicConstraints::Unconstrained);
        let good = issued(2100, &["localhost"], IsCa::NoCa);
        made.write("cert.pem", &issued(2020, &["localhost"], IsCa::NoCa), 0o644);
        made.refused("cert.pem", "it expired at 2020-01-1");
        made.write("cert.pem", &issued(2100, &[], IsCa::NoCa), 0o644);
        made.refused(
            "cert.pem",
            "it names no host: issue one with subjectAltName",
        );
        made.write("cert.pem", &good, 0o644);
        made.write("ca.pem", &issued(2020, &[], authority()), 0o644);
        made.refused("ca.pem", "it expired at 2020-01-1");
        // Behind one that is in order, too.
        made.write("ca.pem", &(issued(2100, &[], authority()) + &good), 0o644);
        made.refused("ca.pem", "it is no authority's");
        made.write("ca.pem", &issued(2100, &[], authority()), 0o644);
        assert_eq!(
            made.read().unwrap().reminders().due(Moment(i64::MAX)).len(),
            4
        );
    }
}
