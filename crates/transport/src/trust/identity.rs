//! This side's own key and its certificate.
//!
//! Every command loads the key once at its start. The first command on a host creates the key. **Invariant:** if
//! several processes create the key concurrently, all of them use the same key. A key file that other users can read is
//! never used.

use std::{fmt, path::Path, sync::Arc};

use rcgen::{Certificate, CertificateParams, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::SignatureScheme;
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};

use super::{SERVER_NAME, file, fingerprint::Fingerprint, provider, strict_modes};
use crate::error::{IdentityError, KeyFileError};

pub(crate) mod fuzzing;
mod job_grant;

pub use job_grant::job_grant_signer;

const KEY_FILE: &str = "key.pem";
/// The file to which a replaced key is moved.
const KEY_OLD: &str = "key.pem.old";
/// The file with the certificates for the key: first the certificate from an authority, then the intermediate
/// certificates.
const CERTIFICATE_FILE: &str = "cert.pem";
const CERTIFICATE_OLD: &str = "cert.pem.old";
const SIGNED_CONTEXT: &[u8] = b"zmove signed text v1\0";
const SEED_CONTEXT: &str = "zmove 2026-11-21 secrets derived from the key";

/// A key pair (ECDSA P-256) with the certificates that are presented to peers. Cheap to clone.
#[derive(Clone)]
pub struct Identity {
    certified: Arc<CertifiedKey>,
    fingerprint: Fingerprint,
    /// The seed from which other secrets of this side are derived.
    seed: [u8; 32],
}

impl Identity {
    /// Reads the key and its self-signed certificate from `key.pem` in `home`. If the file does not exist, creates it
    /// with access for this user only. If there is also a `cert.pem`, its certificates are presented to peers instead
    /// of the self-signed certificate.
    ///
    /// # Errors
    ///
    /// Returns [`IdentityError`] if the file cannot be read or written, is readable by other users, or is damaged.
    pub fn load_or_create(home: &Path) -> Result<Self, IdentityError> {
        let identity = Self::own(home)?;
        let path = home.join(CERTIFICATE_FILE);
        match file::read(&path)? {
            Some(contents) => identity
                .certified_by(&contents.bytes)
                .ok_or(IdentityError::Certificate { path }),
            None => Ok(identity),
        }
    }

    /// Reads the key like [`load_or_create`](Self::load_or_create), for a daemon that runs as `user`. Fails if a user
    /// other than root and `user` can choose the key.
    ///
    /// # Errors
    ///
    /// Same as [`load_or_create`](Self::load_or_create), and [`KeyFileError`](crate::KeyFileError).
    pub fn load_or_create_guarded(home: &Path, user: u32) -> Result<Self, IdentityError> {
        for file in [KEY_FILE, CERTIFICATE_FILE] {
            strict_modes::check_for(&home.join(file), user)?;
        }
        let identity = Self::load_or_create(home)?;
        // This check also applies to a new key, which other users may be able to replace.
        strict_modes::check_for(&home.join(KEY_FILE), user)?;
        Ok(identity)
    }

    fn own(home: &Path) -> Result<Self, IdentityError> {
        let path = home.join(KEY_FILE);
        // A leftover temporary file may contain a private key.
        for name in [KEY_FILE, KEY_OLD] {
            file::remove_unfinished(&home.join(name));
        }
        if let Some(contents) = file::read(&path)? {
            return Self::parse(&path, &contents);
        }
        file::create(&path, new_pem()?.as_bytes())?;
        // Another process may have created the file first, so it is read again.
        let contents = file::read(&path)?.ok_or_else(|| KeyFileError::missing(&path))?;
        Self::parse(&path, &contents)
    }

    /// Generates a new key without storing it in a file.
    ///
    /// # Errors
    ///
    /// Returns an error if no key could be generated.
    pub fn for_once() -> Result<Self, IdentityError> {
        let (key, certificate) = generate().map_err(IdentityError::Generate)?;
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        Self::new(key, certificate.der().clone()).map_err(IdentityError::Fresh)
    }

    /// Returns whether `home` contains a key, usable or not.
    ///
    /// # Errors
    ///
    /// Returns an error if the existence of the file cannot be determined.
    pub fn exists(home: &Path) -> Result<bool, IdentityError> {
        let path = home.join(KEY_FILE);
        Ok(path
            .try_exists()
            .map_err(|source| KeyFileError::Read { path, source })?)
    }

    /// Replaces the key in `home` with a new one. The old key is kept in `key.pem.old`, and its `cert.pem`, if any, in
    /// `cert.pem.old`. The key file always exists and is always complete.
    ///
    /// # Errors
    ///
    /// Returns [`IdentityError`] if the old key cannot be read, or if the new one cannot be generated or stored.
    pub fn replace(home: &Path) -> Result<Self, IdentityError> {
        let path = home.join(KEY_FILE);
        let Some(old) = file::read(&path)? else {
            return Self::load_or_create(home);
        };
        let pem = new_pem()?;
        file::replace(&home.join(KEY_OLD), &old.bytes)?;
        put_aside(&home.join(CERTIFICATE_FILE), &home.join(CERTIFICATE_OLD))?;
        file::replace(&path, pem.as_bytes())?;
        Self::load_or_create(home)
    }

    /// Returns the fingerprint by which peers know this key.
    #[must_use]
    pub const fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Signs a text. Recipients find the public key in the certificate of the result.
    ///
    /// # Errors
    ///
    /// Returns an error if the key cannot sign.
    pub fn sign(&self, text: &[u8]) -> Result<Signed, rustls::Error> {
        let signature = self.signature_of(&signed_text(text))?;
        Ok(Signed {
            certificate: self.certified.cert[0].to_vec(),
            signature,
        })
    }

    fn signature_of(&self, bytes: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        let scheme = SignatureScheme::ECDSA_NISTP256_SHA256;
        let signer = self.certified.key.choose_scheme(&[scheme]);
        let signer =
            signer.ok_or_else(|| rustls::Error::General("the key is not ECDSA P-256".into()))?;
        signer.sign(bytes)
    }

    /// Returns the same key with the certificates in `pem`, or `None` if they are damaged or for another key.
    fn certified_by(self, pem: &[u8]) -> Option<Self> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(pem)
            .collect::<Result<_, _>>()
            .ok()?;
        let same = Fingerprint::of_certificate(chain.first()?).ok()? == self.fingerprint;
        let certified = Arc::new(CertifiedKey::new(chain, Arc::clone(&self.certified.key)));
        same.then_some(Self { certified, ..self })
    }

    /// Returns the key and its certificates in the form that TLS needs.
    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.certified)
    }

    /// Derives a secret for one purpose. The secret does not change until the key is replaced.
    pub(crate) fn derive(&self, context: &str) -> [u8; 32] {
        blake3::derive_key(context, &self.seed)
    }

    fn parse(path: &Path, contents: &file::Contents) -> Result<Self, IdentityError> {
        if contents.mode & 0o077 != 0 {
            return Err(IdentityError::Exposed {
                path: path.into(),
                mode: contents.mode,
            });
        }
        let not_pem = |fault| IdentityError::NotPem {
            path: path.into(),
            fault,
        };
        let key = PrivateKeyDer::from_pem_slice(&contents.bytes).map_err(not_pem)?;
        let certificate = CertificateDer::from_pem_slice(&contents.bytes).map_err(not_pem)?;
        Self::new(key, certificate).map_err(|source| IdentityError::Unusable {
            path: path.into(),
            source,
        })
    }

    fn new(
        key: PrivateKeyDer<'static>,
        certificate: CertificateDer<'static>,
    ) -> Result<Self, rustls::Error> {
        let fingerprint = Fingerprint::of_certificate(&certificate)?;
        let seed = blake3::derive_key(SEED_CONTEXT, key.secret_der());
        let certified = Arc::new(CertifiedKey::from_der(vec![certificate], key, &provider())?);
        Ok(Self {
            certified,
            fingerprint,
            seed,
        })
    }
}

/// A signature and the certificate of the key that made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The certificate in DER form.
    pub certificate: Vec<u8>,
    /// The signature.
    pub signature: Vec<u8>,
}

impl Signed {
    /// Returns the fingerprint of the key that signed `text`, or `None` if the signature is not valid.
    #[must_use]
    pub fn signer_of(&self, text: &[u8]) -> Option<Fingerprint> {
        signer_of(&self.certificate, &self.signature, &signed_text(text))
    }
}

/// Returns the fingerprint of the key in `certificate` if that key signed `bytes`, or `None` if the signature is not
/// valid.
fn signer_of(certificate: &[u8], signature: &[u8], bytes: &[u8]) -> Option<Fingerprint> {
    let certificate = CertificateDer::from(certificate);
    let entity = webpki::EndEntityCert::try_from(&certificate).ok()?;
    let algorithm = webpki::aws_lc_rs::ECDSA_P256_SHA256;
    entity.verify_signature(algorithm, bytes, signature).ok()?;
    Fingerprint::of_certificate(&certificate).ok()
}

/// Returns the bytes to sign. Their prefix distinguishes them from signed texts of other protocols.
fn signed_text(text: &[u8]) -> Vec<u8> {
    [SIGNED_CONTEXT, text].concat()
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("fingerprint", &self.fingerprint)
            .finish_non_exhaustive()
    }
}

/// Renames a file if it exists.
fn put_aside(path: &Path, old: &Path) -> Result<(), KeyFileError> {
    match std::fs::rename(path, old) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(file::unwritten(old)(error))
        }
        _ => Ok(()),
    }
}

/// Returns the contents of a new key file: the key followed by its certificate.
fn new_pem() -> Result<String, IdentityError> {
    let (key, certificate) = generate().map_err(IdentityError::Generate)?;
    Ok(key.serialize_pem() + &certificate.pem())
}

/// Generates a key and its certificate. The certificate is valid for two millennia, because trust depends on the pin
/// and not on a date.
fn generate() -> Result<(KeyPair, Certificate), rcgen::Error> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut certificate = CertificateParams::new([SERVER_NAME.to_owned()])?;
    certificate
        .distinguished_name
        .push(DnType::CommonName, SERVER_NAME);
    let certificate = certificate.self_signed(&key)?;
    Ok((key, certificate))
}

#[cfg(test)]
mod tests {
    use std::{fs, fs::Permissions, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn second_load_finds_the_same_key() {
        let home = tempfile::tempdir().unwrap();
        let first = Identity::load_or_create(home.path()).unwrap().fingerprint();
        assert_eq!(
            Identity::load_or_create(home.path()).unwrap().fingerprint(),
            first
        );
    }

    #[test]
    fn a_signature_names_its_key_and_holds_for_its_text_alone() {
        let [one, other] = [(); 2].map(|()| Identity::for_once().unwrap());
        let signed = one.sign(b"text").unwrap();
        assert_eq!(signed.signer_of(b"text"), Some(one.fingerprint()));
        assert_eq!(signed.signer_of(b"other"), None);
        let forged = Signed {
            certificate: other.sign(b"text").unwrap().certificate,
            ..signed
        };
        assert_eq!(forged.signer_of(b"text"), None);
    }

    #[test]
    fn a_key_for_once_is_another_each_time() {
        let [one, other] = [(); 2].map(|()| Identity::for_once().unwrap());
        assert_ne!(one.fingerprint(), other.fingerprint());
    }

    #[test]
    fn key_and_home_are_private() {
        let parent = tempfile::tempdir().unwrap();
        let home = parent.path().join("new").join("zmove");
        Identity::load_or_create(&home).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&home), mode(&home.join(KEY_FILE))), (0o700, 0o600));
        assert_eq!(fs::read_dir(&home).unwrap().count(), 1);
    }

    #[test]
    fn a_replaced_key_is_kept_beside_the_new_one() {
        let home = tempfile::tempdir().unwrap();
        assert!(!Identity::exists(home.path()).unwrap());
        let first = Identity::replace(home.path()).unwrap().fingerprint();
        let text = fs::read(home.path().join(KEY_FILE)).unwrap();
        let second = Identity::replace(home.path()).unwrap().fingerprint();
        assert_ne!(first, second);
        assert_eq!(
            Identity::load_or_create(home.path()).unwrap().fingerprint(),
            second
        );
        let old = home.path().join(KEY_OLD);
        assert_eq!(fs::read(&old).unwrap(), text);
        assert_eq!(
            fs::metadata(&old).unwrap().permissions().mode() & 0o7777,
            0o600
        );
    }

    #[test]
    fn racing_first_uses_end_with_one_identity() {
        let home = tempfile::tempdir().unwrap();
        let start = std::sync::Barrier::new(16);
        let found: Vec<Fingerprint> = std::thread::scope(|scope| {
            let load = || {
                start.wait();
                Identity::load_or_create(home.path()).unwrap().fingerprint()
            };
            let threads: Vec<_> = (0..16).map(|_| scope.spawn(load)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(found.iter().all(|fingerprint| *fingerprint == found[0]));
    }

    #[test]
    fn key_that_others_can_read_is_refused() {
        let home = tempfile::tempdir().unwrap();
        Identity::load_or_create(home.path()).unwrap();
        let path = home.path().join(KEY_FILE);
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let error = Identity::load_or_create(home.path()).unwrap_err();
        assert!(
            matches!(&error, IdentityError::Exposed { mode: 0o640, .. }),
            "{error:?}"
        );
        assert!(
            error.to_string().contains("0640 lets other users read it"),
            "{error}"
        );
    }

    #[test]
    fn damaged_key_names_the_file_and_stays() {
        let home = tempfile::tempdir().unwrap();
        Identity::load_or_create(home.path()).unwrap();
        let path = home.path().join(KEY_FILE);
        let whole = fs::read_to_string(&path).unwrap();
        for damaged in [
            "",
            "junk",
            &whole[..whole.len() / 2],
            &whole[..60],
            &whole.replacen("M", "N", 1),
        ] {
            fs::write(&path, damaged).unwrap();
            let error = Identity::load_or_create(home.path()).unwrap_err();
            assert!(
                error.to_string().contains(path.to_str().unwrap()),
                "{error}"
            );
            assert_eq!(fs::read_to_string(&path).unwrap(), damaged);
        }
    }

    #[test]
    fn certificate_of_another_key_is_refused() {
        let [(key, _), (_, certificate)] = [(); 2].map(|()| generate().unwrap());
        let bytes = (key.serialize_pem() + &certificate.pem()).into();
        let contents = file::Contents { bytes, mode: 0o600 };
        let error = Identity::parse(Path::new(KEY_FILE), &contents).unwrap_err();
        assert!(matches!(error, IdentityError::Unusable { .. }), "{error:?}");
    }
}
