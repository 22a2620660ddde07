//! Where a target is: `HOST:PATH`, `HOST:PORT:PATH`, `zmove://HOST:PORT/PATH`, or a path on this host.
//!
//! As with rsync and scp, a colon before the first slash makes a host; `./a:b` is a local file. Digits between two colons
//! are a port, so a relative path that begins with such digits is written `HOST:./2024:x`.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use anyhow::{Result, bail};

/// The port of a receiver that names none.
pub(crate) const DEFAULT_PORT: u16 = 5870;

/// A target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// On this host.
    Local(OsString),
    /// At a receiver.
    Remote(Remote),
}

/// A path at a receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) path: Vec<u8>,
}

impl fmt::Display for Remote {
    /// The host and port, as they are shown to the user.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, .. } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl Location {
    /// Reads a target.
    pub(crate) fn parse(text: &OsStr) -> Result<Self> {
        let bytes = text.as_bytes();
        if let Some(rest) = bytes.strip_prefix(b"zmove://") {
            return parse_url(rest).map(Self::Remote);
        }
        let Some((host, rest)) = split_host(bytes)? else {
            return Ok(Self::Local(text.to_owned()));
        };
        let host = host_name(host)?;
        let (port, path) = split_port(rest)?;
        Ok(Self::Remote(Remote { host, port, path: path.to_vec() }))
    }
}

/// The host before the first colon and what is behind it; `None` for a local path.
fn split_host(bytes: &[u8]) -> Result<Option<(&[u8], &[u8])>> {
    if bytes.starts_with(b"[") {
        let end = bytes.windows(2).position(|pair| pair == b"]:");
        let Some(end) = end else { bail!("'{}': write an IPv6 target as [ADDRESS]:PATH", show(bytes)) };
        return Ok(Some((&bytes[1..end], &bytes[end + 2..])));
    }
    let colon = bytes.iter().position(|&byte| byte == b':');
    let slash = bytes.iter().position(|&byte| byte == b'/').unwrap_or(bytes.len());
    Ok(colon.filter(|&colon| colon < slash && colon > 0).map(|colon| (&bytes[..colon], &bytes[colon + 1..])))
}

/// Digits before another colon are a port.
fn split_port(rest: &[u8]) -> Result<(u16, &[u8])> {
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 || rest.get(digits) != Some(&b':') {
        return Ok((DEFAULT_PORT, rest));
    }
    Ok((parse_port(&rest[..digits])?, &rest[digits + 1..]))
}

fn parse_port(digits: &[u8]) -> Result<u16> {
    match std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok()) {
        Some(port) if port > 0 => Ok(port),
        _ => bail!("'{}' is no port: it must be 1 to 65535", show(digits)),
    }
}

fn parse_url(rest: &[u8]) -> Result<Remote> {
    let slash = rest.iter().position(|&byte| byte == b'/');
    let Some(slash) = slash else {
        bail!("'zmove://{}' has no path: write zmove://HOST:PORT/PATH", show(rest))
    };
    let (authority, path) = rest.split_at(slash);
    let (host, port) = match authority.strip_prefix(b"[") {
        Some(bracketed) => match bracketed.iter().position(|&byte| byte == b']') {
            Some(end) => (&bracketed[..end], &bracketed[end + 1..]),
            None => bail!("'{}': the bracket of the IPv6 address is not closed", show(authority)),
        },
        None => {
            let colon = authority.iter().position(|&byte| byte == b':').unwrap_or(authority.len());
            authority.split_at(colon)
        }
    };
    let port = match port {
        b"" => DEFAULT_PORT,
        [b':', digits @ ..] => parse_port(digits)?,
        _ => bail!("'{}' is no HOST:PORT", show(authority)),
    };
    Ok(Remote { host: host_name(host)?, port, path: path.to_vec() })
}

fn host_name(bytes: &[u8]) -> Result<String> {
    if bytes.contains(&b'@') {
        bail!("'{}': zmove knows users by their keys; write the host without 'USER@'", show(bytes));
    }
    match std::str::from_utf8(bytes) {
        Ok(name) if !name.is_empty() && !name.contains(char::is_whitespace) => Ok(name.to_owned()),
        _ => bail!("'{}' is no host name", show(bytes)),
    }
}

fn show(bytes: &[u8]) -> String {
    OsString::from_vec(bytes.to_vec()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(text: &str) -> (String, u16, String) {
        match Location::parse(OsStr::new(text)).unwrap() {
            Location::Remote(Remote { host, port, path }) => (host, port, String::from_utf8(path).unwrap()),
            Location::Local(path) => panic!("{path:?} is local"),
        }
    }

    fn expect(host: &str, port: u16, path: &str) -> (String, u16, String) {
        (host.to_owned(), port, path.to_owned())
    }

    #[test]
    fn remote_forms() {
        assert_eq!(remote("dtn:/data"), expect("dtn", DEFAULT_PORT, "/data"));
        assert_eq!(remote("dtn:"), expect("dtn", DEFAULT_PORT, ""));
        assert_eq!(remote("dtn:99:/data"), expect("dtn", 99, "/data"));
        assert_eq!(remote("dtn:2024"), expect("dtn", DEFAULT_PORT, "2024"));
        assert_eq!(remote("dtn:./2024:x"), expect("dtn", DEFAULT_PORT, "./2024:x"));
        assert_eq!(remote("[fd00::1]:/d"), expect("fd00::1", DEFAULT_PORT, "/d"));
        assert_eq!(remote("[fd00::1]:7:d:e"), expect("fd00::1", 7, "d:e"));
        assert_eq!(remote("zmove://dtn:7/d/e"), expect("dtn", 7, "/d/e"));
        assert_eq!(remote("zmove://dtn/d"), expect("dtn", DEFAULT_PORT, "/d"));
        assert_eq!(remote("zmove://[::1]:7/d"), expect("::1", 7, "/d"));
    }

    #[test]
    fn local_forms() {
        for text in ["/a:b", "./a:b", "dir", "dir/", ":x"] {
            assert_eq!(Location::parse(OsStr::new(text)).unwrap(), Location::Local(text.into()), "{text}");
        }
    }

    #[test]
    fn nonsense_is_explained() {
        for text in ["user@dtn:/d", "dtn:0:/d", "dtn:70000:/d", "[::1", "zmove://dtn", "zmove://dtn:x/d"] {
            assert!(Location::parse(OsStr::new(text)).is_err(), "{text}");
        }
    }
}
