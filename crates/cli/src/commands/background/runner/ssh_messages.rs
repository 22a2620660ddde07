//! Reads the messages that ssh wrote during a job, whose standard error is the job's log. ssh has the same exit code
//! for a broken connection, which may recover, and for a refused key, which will not.

use std::io::{Read as _, Seek as _, SeekFrom};

use anyhow::Result;
use zmove_engine::{ConnectError, PushError, SshError};
use zmove_types::printable;

use crate::value::exit::{Exit, failure};

/// Returns the current length of the log.
pub(crate) fn log_len() -> u64 {
    std::fs::metadata(STANDARD_ERROR).map_or(0, |log| log.len())
}

/// Adds the last message of a failed ssh to the error of a job. Changes the exit code if the message shows that no
/// further attempt can succeed. `said` is the length of the log before the attempt, in bytes.
pub(crate) fn add_ssh_message(error: anyhow::Error, said: u64) -> anyhow::Error {
    let may_be_final = match ssh_error(&error) {
        Some(SshError::NotReached { .. }) => true,
        // The last message comes from the host's shell or from the zmove on that host.
        Some(SshError::NoProgram { .. } | SshError::Early { .. }) => false,
        _ => return error,
    };
    let Ok(words) = messages_after(said) else {
        return error;
    };
    let Some(last) = words.lines().rev().find(|line| !line.trim().is_empty()) else {
        return error;
    };
    let exit = if may_be_final && is_final(&words) {
        Exit::Authentication
    } else {
        Exit::of(&error)
    };
    failure(exit, format!("{error:#}: {}", printable(last.trim())))
}

fn ssh_error(error: &anyhow::Error) -> Option<&SshError> {
    let connect = match error.downcast_ref() {
        Some(PushError::Connect(error)) => Some(error),
        _ => error.downcast_ref(),
    };
    match connect {
        Some(ConnectError::Ssh(error)) => Some(error),
        _ => None,
    }
}

fn messages_after(said: u64) -> Result<String> {
    let mut log = std::fs::File::open(STANDARD_ERROR)?;
    let end = log.metadata()?.len();
    log.seek(SeekFrom::Start(
        said.max(end.saturating_sub(WORDS_BYTES_MAX)),
    ))?;
    let mut words = Vec::new();
    log.take(WORDS_BYTES_MAX).read_to_end(&mut words)?;
    Ok(String::from_utf8_lossy(&words).into_owned())
}

/// Returns whether ssh refused the host's key, or the host refused all keys of the user.
fn is_final(words: &str) -> bool {
    const FINAL: [&str; 4] = [
        "Host key verification failed",
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "host key is known for",
        "Permission denied (",
    ];
    words
        .lines()
        .any(|line| FINAL.into_iter().any(|text| line.contains(text)))
}

const STANDARD_ERROR: &str = "/proc/self/fd/2";
const WORDS_BYTES_MAX: u64 = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_key_is_told_from_a_path_that_is_down() {
        for (words, expected) in [
            (
                "No ED25519 host key is known for [127.0.0.1]:2 and you have requested strict checking.",
                true,
            ),
            ("Host key verification failed.\r\n", true),
            (
                "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\nmore",
                true,
            ),
            ("alice@dtn: Permission denied (publickey).", true),
            (
                "ssh: connect to host dtn port 22: Connection refused",
                false,
            ),
            (
                "ssh: Could not resolve hostname dtn: Temporary failure in name resolution",
                false,
            ),
            (
                "kex_exchange_identification: Connection closed by remote host",
                false,
            ),
            ("bash: zmove: Permission denied", false),
        ] {
            assert_eq!(is_final(words), expected, "{words}");
        }
    }
}
