//! The messages over ssh's pipes: one line of JSON each way, with the version of the protocol.
//!
//! **Invariant:** a member that this program does not know is refused, since it may change a permission.

use std::net::IpAddr;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use zmove_transport::{Fingerprint, TransportChoice};
use zmove_wire::{PROTOCOL_VERSION, check_version};

use crate::connecting::settings::PortRange;
use crate::error::SshMessageError;

pub(crate) mod fuzzing;

/// The request to a receiver that ssh starts.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceiveRequest {
    version: u16,
    /// The only key that the receiver lets in.
    pub key: String,
    /// The transports on which the receiver listens. A sender that may take either needs both, at the same port.
    pub carriers: TransportChoice,
    /// The ports at which the receiver may listen; `None` for any.
    pub ports: Option<PortRange>,
    /// Whether the receiver takes lanes in clear.
    pub allow_clear: bool,
    /// Whether the receiver is one of the two hosts of a copy, and stays until its standard input ends.
    pub copies: bool,
}

/// The answer of a receiver that listens.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceiveReply {
    version: u16,
    /// The receiver's key.
    pub key: String,
    /// The port at which it listens.
    pub port: u16,
    /// The address at which ssh has reached that host.
    pub address: Option<IpAddr>,
}

impl ReceiveRequest {
    /// A request of this protocol version.
    #[must_use]
    pub fn new(
        key: Fingerprint,
        carriers: TransportChoice,
        ports: Option<PortRange>,
        allow_clear: bool,
    ) -> Self {
        Self {
            version: PROTOCOL_VERSION,
            key: key.to_string(),
            carriers,
            ports,
            allow_clear,
            copies: false,
        }
    }

    /// The request as a line of text.
    #[must_use]
    pub fn line(&self) -> String {
        in_words(self) + "\n"
    }

    /// Parses a request.
    ///
    /// # Errors
    /// The line cannot be parsed, or is of another version.
    pub fn read(line: &str) -> Result<Self, SshMessageError> {
        parsed(line.as_bytes(), SshMessageError::Request)
    }
}

impl ReceiveReply {
    /// An answer of this protocol version.
    #[must_use]
    pub fn new(key: Fingerprint, port: u16, address: Option<IpAddr>) -> Self {
        Self {
            version: PROTOCOL_VERSION,
            key: key.to_string(),
            port,
            address,
        }
    }

    /// The answer as a line of text, with a line break before it.
    #[must_use]
    pub fn line(&self) -> String {
        // A shell may have written something without ending its line.
        format!("\n{MARK}{}\n", in_words(self))
    }

    /// The answer to a request of another version, as a line of text: the version of this side alone.
    #[must_use]
    pub fn other_version_line() -> String {
        format!("\n{MARK}{{\"version\":{PROTOCOL_VERSION}}}\n")
    }

    /// Parses a line; `None` is other output of the remote shell.
    ///
    /// # Errors
    /// The line is an answer that cannot be parsed, or is of another version.
    pub fn read(line: &[u8]) -> Result<Option<Self>, SshMessageError> {
        let Some(json) = line.strip_prefix(MARK.as_bytes()) else {
            return Ok(None);
        };
        parsed(json, SshMessageError::Answer).map(Some)
    }
}

fn in_words(said: &impl Serialize) -> String {
    serde_json::to_string(said).expect("numbers and texts can be written")
}

/// Parses a line, once its version is known: another version may have other members.
fn parsed<M: DeserializeOwned>(
    line: &[u8],
    fault: fn(serde_json::Error) -> SshMessageError,
) -> Result<M, SshMessageError> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u16,
    }
    let Versioned { version } = serde_json::from_slice(line).map_err(fault)?;
    check_version(version)?;
    serde_json::from_slice(line).map_err(fault)
}

/// The prefix of the receiver's answer, with which no output of a login shell begins.
const MARK: &str = "zmove-receive ";
/// The upper bound of a request's length, in bytes; every request is shorter.
pub const RECEIVE_REQUEST_BYTES_MAX: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let ports = Some("50000-50100".parse().unwrap());
        let request = ReceiveRequest::new(Fingerprint([7; 32]), TransportChoice::Quic, ports, true);
        let copies = ReceiveRequest {
            copies: true,
            ..ReceiveRequest::new(Fingerprint([7; 32]), TransportChoice::Auto, None, false)
        };
        for request in [request, copies] {
            let line = request.line();
            assert!(line.len() < 4096 && line.ends_with('\n'));
            assert_eq!(ReceiveRequest::read(&line).unwrap(), request);
        }
        let ready = ReceiveReply::new(
            Fingerprint([8; 32]),
            50_001,
            Some("192.0.2.7".parse().unwrap()),
        );
        let line = ready.line();
        assert_eq!(
            ReceiveReply::read(line.trim().as_bytes()).unwrap(),
            Some(ready)
        );
    }

    #[test]
    fn what_a_shell_says_is_passed_over_and_nonsense_is_not() {
        assert_eq!(ReceiveReply::read(b"Welcome to dtn07").unwrap(), None);
        assert!(ReceiveReply::read(b"zmove-receive {}").is_err());
    }

    /// Whatever else the other version has changed.
    #[test]
    fn the_version_is_that_of_the_protocol() {
        let line = r#"{"version":9,"new":[1]}"#;
        let request = ReceiveRequest::read(line).unwrap_err();
        let answer = ReceiveReply::read(format!("{MARK}{line}").as_bytes()).unwrap_err();
        for error in [request, answer] {
            let text = error.to_string();
            assert!(
                text.contains("protocol version 9, this one speaks version 1"),
                "{text}"
            );
        }
    }

    /// A new member may be a permission: a receiver that passed it over would do more than the sender allows.
    #[test]
    fn a_member_that_is_not_known_is_refused() {
        let more = |line: String| line.trim().replacen('{', r#"{"read_only":true,"#, 1);
        let key = Fingerprint([7; 32]);
        let request = ReceiveRequest::new(key, TransportChoice::Auto, None, false).line();
        assert!(ReceiveRequest::read(&request).is_ok());
        assert!(matches!(
            ReceiveRequest::read(&more(request)),
            Err(SshMessageError::Request(_))
        ));
        let reply = ReceiveReply::new(key, 1, None).line();
        assert!(ReceiveReply::read(reply.trim().as_bytes()).is_ok());
        assert!(matches!(
            ReceiveReply::read(more(reply).as_bytes()),
            Err(SshMessageError::Answer(_))
        ));
    }
}
