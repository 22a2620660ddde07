//! The messages over ssh's pipes: one line of JSON in each direction, with the protocol version.
//!
//! **Invariant:** a message with an unknown member is refused, since the member may change a permission.

use std::net::IpAddr;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use zmove_transport::{Fingerprint, TransportChoice};
use zmove_wire::{PROTOCOL_VERSION, check_version};

use crate::connecting::settings::PortRange;
use crate::error::SshMessageError;

pub(crate) mod fuzzing;

/// The request to a receiver that ssh started.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceiveRequest {
    version: u16,
    /// The only key that the receiver allows.
    pub key: String,
    /// Transports on which the receiver listens. If the sender may use either transport, the receiver listens for both
    /// on the same port.
    pub carriers: TransportChoice,
    /// Ports on which the receiver may listen, or `None` for any.
    pub ports: Option<PortRange>,
    /// Whether the receiver listens only on the loopback interface.
    pub loopback: bool,
    /// Whether the receiver accepts unencrypted lanes.
    pub allow_clear: bool,
    /// Whether the receiver is one of the two hosts of a copy and runs until its standard input ends.
    pub copies: bool,
}

/// The answer of a receiver that is ready for connections.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceiveReply {
    version: u16,
    /// Key of the receiver.
    pub key: String,
    /// Port on which the receiver listens.
    pub port: u16,
    /// Address under which ssh reached the host.
    pub address: Option<IpAddr>,
    /// Path of the receiver's program, which also connects lanes. `None` if the path is not UTF-8.
    pub program: Option<String>,
}

impl ReceiveRequest {
    /// Creates a request with the current protocol version.
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
            loopback: false,
            allow_clear,
            copies: false,
        }
    }

    /// Returns the request as a line of text.
    #[must_use]
    pub fn line(&self) -> String {
        to_json(self) + "\n"
    }

    /// Parses a request.
    ///
    /// # Errors
    /// The line is not a valid request or has another protocol version.
    pub fn read(line: &str) -> Result<Self, SshMessageError> {
        parsed(line.as_bytes(), SshMessageError::Request)
    }
}

impl ReceiveReply {
    /// Creates an answer of this program with the current protocol version.
    #[must_use]
    pub fn new(key: Fingerprint, port: u16, address: Option<IpAddr>) -> Self {
        let program = std::env::current_exe().ok();
        Self {
            version: PROTOCOL_VERSION,
            key: key.to_string(),
            port,
            address,
            program: program.and_then(|path| path.into_os_string().into_string().ok()),
        }
    }

    /// Returns the answer as a line of text, preceded by a line break.
    #[must_use]
    pub fn line(&self) -> String {
        // The remote shell may have printed text without a final line break.
        format!("\n{MARK}{}\n", to_json(self))
    }

    /// Returns the answer to a request with another version as a line of text. It contains only the version of this
    /// side.
    #[must_use]
    pub fn other_version_line() -> String {
        format!("\n{MARK}{{\"version\":{PROTOCOL_VERSION}}}\n")
    }

    /// Parses a line. Returns `None` for other output of the remote shell.
    ///
    /// # Errors
    /// The line is an answer that is invalid or has another protocol version.
    pub fn read(line: &[u8]) -> Result<Option<Self>, SshMessageError> {
        let Some(json) = line.strip_prefix(MARK.as_bytes()) else {
            return Ok(None);
        };
        parsed(json, SshMessageError::Answer).map(Some)
    }
}

fn to_json(said: &impl Serialize) -> String {
    serde_json::to_string(said).expect("numbers and texts can be written")
}

/// Parses a line after checking its version, because another version may have other members.
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

/// The prefix of the receiver's answer. No output of a login shell starts with it.
const MARK: &str = "zmove-receive ";
/// Upper bound of a request's length, in bytes. All requests are shorter.
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

    /// The version is read even if the rest of the format has changed.
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

    /// A new member may restrict a permission. A receiver that ignored it would do more than the sender allows.
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
