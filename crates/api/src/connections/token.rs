//! The token by which a TCP client proves that it acts for the user: only the user can read the file that contains it.
//!
//! **Invariant:** each runner has its own token. A process that listens on the port of a runner that has ended receives
//! that runner's token from clients, but cannot use it with the next runner.

use std::fmt::{self, Write as _};
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::ApiError;

/// A secret that authenticates clients.
#[derive(Clone)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Generates a token and replaces the file that contains the previous one. The new file is created from scratch, so
    /// the owner, the mode and the content of the old file do not matter.
    ///
    /// # Errors
    /// The file cannot be written, or the system provides no random bytes.
    pub fn renewed(path: &Path) -> Result<Self, ApiError> {
        let fail = |operation| {
            move |source| ApiError::Io {
                operation,
                path: path.to_owned(),
                source,
            }
        };
        let mut bytes = [0_u8; 32];
        let filled = getrandom(&mut bytes[..], GetRandomFlags::empty()).map_err(io::Error::from);
        filled.map_err(fail("generate a token for"))?;
        let mut text = String::new();
        bytes
            .iter()
            .try_for_each(|byte| write!(text, "{byte:02x}"))
            .expect("a string takes all");
        let new = path.with_extension("new");
        // A runner that was killed may have left this file.
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(fail("remove the copy of")(error));
            }
            _ => {}
        }
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new);
        writeln!(file.map_err(fail("create"))?, "{text}").map_err(fail("write"))?;
        std::fs::rename(&new, path).map_err(fail("replace"))?;
        Ok(Self(text))
    }

    /// Compares the token in a time that depends only on its length.
    #[must_use]
    pub(crate) fn is(&self, said: &[u8]) -> bool {
        let own = self.0.as_bytes();
        let differs = own
            .iter()
            .zip(said)
            .fold(0, |differs, (own, said)| differs | (own ^ said));
        own.len() == said.len() && std::hint::black_box(differs) == 0
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    #[test]
    fn a_token_is_new_each_time_and_for_its_user_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let first = Token::renewed(&path).unwrap();
        set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        let second = Token::renewed(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_to_string(&path).unwrap().trim(), second.0);
        assert!(
            second.is(second.0.as_bytes())
                && !second.is(first.0.as_bytes())
                && second.0.len() == 64
        );
        for other in [
            "",
            &second.0[1..],
            &second.0.replace(['0', '1', '2', '3'], "g"),
        ] {
            assert!(!second.is(other.as_bytes()), "{other}");
        }
        assert_eq!(
            directory.path().read_dir().unwrap().count(),
            1,
            "nothing is left beside it"
        );
    }
}
