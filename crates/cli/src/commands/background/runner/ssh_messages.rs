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
    let Some(source) = ssh_error(&error).and_then(message_source) else {
        return error;
    };
    let Ok(words) = messages_after(said) else {
        return error;
    };
    let Some(last) = words.lines().rev().find(|line| !line.trim().is_empty()) else {
        return error;
    };
    let exit = if source == MessageSource::Ssh && is_final(&words) {
        Exit::Authentication
    } else {
        Exit::of(&error)
    };
    failure(exit, format!("{error:#}: {}", printable(last.trim())))
}

/// The program that wrote the last message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageSource {
    /// ssh, before the login.
    Ssh,
    /// The host's shell, or the zmove there.
    Host,
}

/// Returns the program that wrote the last message before this error, or `None` if no message belongs to the error.
const fn message_source(error: &SshError) -> Option<MessageSource> {
    match error {
        SshError::NotReached { .. } => Some(MessageSource::Ssh),
        SshError::NoProgram { .. }
        | SshError::NotExecutable { .. }
        | SshError::Early { .. }
        | SshError::Silent { .. }
        | SshError::Nonsense { .. } => Some(MessageSource::Host),
        _ => None,
    }
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
    use zmove_engine::RemoteOutput;

    use super::*;

    #[test]
    fn the_host_explains_each_error_after_the_login() {
        let [remote, zmove] = ["dtn", "zmove"].map(str::to_owned);
        let error = SshError::NotExecutable {
            remote,
            zmove,
            printed: RemoteOutput::default(),
        };
        assert_eq!(message_source(&error), Some(MessageSource::Host));
        let error = SshError::Wait(std::io::ErrorKind::Other.into());
        assert_eq!(message_source(&error), None);
    }

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
