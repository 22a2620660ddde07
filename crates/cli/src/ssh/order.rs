//! What is said over ssh's pipes: one line of JSON each way.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use zmove_transport::Fingerprint;

use super::PortRange;
use crate::args::ListenArg;

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;

/// What the receiver is to do.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    version: u32,
    /// The only key that it lets in.
    pub(crate) key: String,
    /// What it listens for.
    pub(crate) carriers: ListenArg,
    /// Where it may listen.
    pub(crate) ports: Option<PortRange>,
    /// Whether lanes in clear are taken.
    pub(crate) allow_clear: bool,
}

/// That the receiver listens.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ready {
    version: u32,
    /// The receiver's key.
    pub(crate) key: String,
    pub(crate) port: u16,
    /// The address at which ssh has come to that host.
    pub(crate) address: Option<IpAddr>,
}

impl Order {
    pub(crate) fn new(
        key: Fingerprint,
        carriers: ListenArg,
        ports: Option<PortRange>,
        allow_clear: bool,
    ) -> Self {
        Self { version: VERSION, key: key.to_string(), carriers, ports, allow_clear }
    }

    /// As it is said.
    ///
    /// # Errors
    /// None that is known.
    pub(crate) fn line(&self) -> Result<String> {
        Ok(serde_json::to_string(self)? + "\n")
    }

    /// Reads one.
    ///
    /// # Errors
    /// It makes no sense, or is of another version.
    pub(crate) fn read(line: &str) -> Result<Self> {
        let order: Self =
            serde_json::from_str(line).context("read what is to be done from standard input")?;
        check(order.version)?;
        Ok(order)
    }
}

impl Ready {
    pub(crate) fn new(key: Fingerprint, port: u16, address: Option<IpAddr>) -> Self {
        Self { version: VERSION, key: key.to_string(), port, address }
    }

    /// As it is said.
    ///
    /// # Errors
    /// None that is known.
    pub(crate) fn line(&self) -> Result<String> {
        // a shell may have said something without ending its line
        Ok(format!("\n{MARK}{}\n", serde_json::to_string(self)?))
    }

    /// Reads a line; `None` is something else that the remote shell has to say.
    ///
    /// # Errors
    /// It makes no sense, or is of another version.
    pub(crate) fn read(line: &[u8]) -> Result<Option<Self>> {
        let Some(json) = line.strip_prefix(MARK.as_bytes()) else { return Ok(None) };
        let ready: Self = serde_json::from_slice(json).context("read what the receiver says over ssh")?;
        check(ready.version)?;
        Ok(Some(ready))
    }
}

fn check(version: u32) -> Result<()> {
    ensure!(version == VERSION, "the other side speaks version {version} over ssh, this one {VERSION}");
    Ok(())
}

const VERSION: u32 = 1;
/// Before the answer, which a shell's own words do not begin with.
const MARK: &str = "zmove-receive ";
/// An order is shorter.
pub(crate) const ORDER_BYTES_MAX: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let ports = Some("50000-50100".parse().unwrap());
        let order = Order::new(Fingerprint([7; 32]), ListenArg::Quic, ports, true);
        let line = order.line().unwrap();
        assert!(line.len() < 4096 && line.ends_with('\n'));
        assert_eq!(Order::read(&line).unwrap(), order);
        let ready = Ready::new(Fingerprint([8; 32]), 50_001, Some("192.0.2.7".parse().unwrap()));
        let line = ready.line().unwrap();
        assert_eq!(Ready::read(line.trim().as_bytes()).unwrap(), Some(ready));
    }

    #[test]
    fn what_a_shell_says_is_passed_over_and_nonsense_is_not() {
        assert_eq!(Ready::read(b"Welcome to dtn07").unwrap(), None);
        assert!(Ready::read(b"zmove-receive {}").is_err());
        let later = Order { version: 2, ..Order::new(Fingerprint([7; 32]), ListenArg::Both, None, false) };
        assert!(Order::read(&later.line().unwrap()).unwrap_err().to_string().contains("version 2"));
    }
}
