//! The word by which a client over TCP shows that it is the user's own: it can read a file that only the user can.

use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::ApiError;

/// The token.
#[derive(Clone)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// The token of a file, which is made with a new one if it is not there.
    ///
    /// # Errors
    /// The file cannot be read or made, or others can read it.
    pub fn of_file(path: &Path) -> Result<Self, ApiError> {
        let fail = |operation| move |source| ApiError::Io { operation, path: path.to_owned(), source };
        let no_follow = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let mut file = match OpenOptions::new().read(true).custom_flags(no_follow).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Self::make(path),
            file => file.map_err(fail("open"))?,
        };
        let metadata = file.metadata().map_err(fail("look at"))?;
        if !metadata.is_file() || metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(ApiError::TokenForeign(path.to_owned()));
        }
        if metadata.mode() & 0o077 != 0 {
            return Err(ApiError::TokenOpen(path.to_owned()));
        }
        let mut text = String::new();
        (&mut file).take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(fail("read"))?;
        let text = text.trim();
        let fits = text.len() >= LETTERS_MIN && text.bytes().all(|byte| byte.is_ascii_graphic());
        if fits { Ok(Self(text.to_owned())) } else { Err(ApiError::TokenNonsense(path.to_owned())) }
    }

    fn make(path: &Path) -> Result<Self, ApiError> {
        let fail = |operation| move |source| ApiError::Io { operation, path: path.to_owned(), source };
        let mut bytes = [0_u8; 32];
        let filled = getrandom(&mut bytes[..], GetRandomFlags::empty()).map_err(io::Error::from);
        filled.map_err(fail("draw a token for"))?;
        let mut text = String::new();
        bytes.iter().try_for_each(|byte| write!(text, "{byte:02x}")).expect("a string takes all");
        let mut file: File =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(fail("create"))?;
        writeln!(file, "{text}").map_err(fail("write"))?;
        Ok(Self(text))
    }

    /// Whether this is the token. The time that it takes tells nothing but the length.
    #[must_use]
    pub(crate) fn is(&self, said: &[u8]) -> bool {
        let own = self.0.as_bytes();
        let differs = own.iter().zip(said).fold(0, |differs, (own, said)| differs | (own ^ said));
        own.len() == said.len() && std::hint::black_box(differs) == 0
    }
}

const FILE_BYTES_MAX: u64 = 4096;
/// The fewest letters of a token that somebody else has made.
const LETTERS_MIN: usize = 32;

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_token_is_made_once_for_its_user_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let made = Token::of_file(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        let read = Token::of_file(&path).unwrap();
        assert!(read.is(made.0.as_bytes()) && made.0.len() == 64);
        for other in ["", &made.0[1..], &made.0.replace(['0', '1', '2', '3'], "f")] {
            assert!(!made.is(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn a_token_that_others_can_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        Token::of_file(&path).unwrap();
        for mode in [0o644, 0o640, 0o604, 0o620] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let refused = Token::of_file(&path).unwrap_err();
            assert!(matches!(refused, ApiError::TokenOpen(_)), "{mode:o}: {refused}");
        }
    }

    #[test]
    fn a_file_that_is_no_token_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        std::fs::write(&path, "short\n").unwrap();
        set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert!(matches!(Token::of_file(&path), Err(ApiError::TokenNonsense(_))));
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(Token::of_file(&link), Err(ApiError::Io { .. })));
        assert!(matches!(Token::of_file(directory.path()), Err(ApiError::TokenForeign(_))));
    }
}
