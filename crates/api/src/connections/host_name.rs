//! The names by which a client may address a listener in `Host`: those of the loopback interface and the public name of
//! a reverse proxy.

use std::str::FromStr;

use axum::http::uri::Authority;

/// The public name of a reverse proxy as it appears in `Host`: `NAME`, or `NAME:PORT` if the port is not 443.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicName(String);

impl FromStr for PublicName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.strip_suffix(":443").unwrap_or(text);
        let has_name = without_port(text).is_some_and(|name| !name.is_empty());
        if !has_name || text.contains('@') || text.parse::<Authority>().is_err() {
            return Err("write NAME or NAME:PORT, as in https://NAME:PORT/".to_owned());
        }
        Ok(Self(text.to_owned()))
    }
}

impl PublicName {
    pub(crate) fn matches(&self, host: &str) -> bool {
        self.0.eq_ignore_ascii_case(host)
    }
}

/// Returns whether a `Host` is a name of the loopback interface, with any port.
pub(crate) fn is_loopback(host: &str) -> bool {
    without_port(host).is_some_and(|name| {
        LOOPBACK
            .iter()
            .any(|known| known.eq_ignore_ascii_case(name))
    })
}

/// Returns the host of `HOST` or `HOST:PORT`.
fn without_port(authority: &str) -> Option<&str> {
    let end = authority.find(']').map_or(0, |end| end + 1);
    let Some(colon) = authority[end..].find(':') else {
        return Some(authority);
    };
    let name = &authority[..end + colon];
    let port = &authority[end + colon + 1..];
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    is_port.then_some(name)
}

const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_name_is_what_a_browser_sends() {
        for (text, host) in [
            ("dtn.example.org", "DTN.example.org"),
            ("dtn.example.org:443", "dtn.example.org"),
            ("dtn.example.org:8443", "dtn.example.org:8443"),
            ("[2001:db8::7]:8443", "[2001:db8::7]:8443"),
        ] {
            assert!(text.parse::<PublicName>().unwrap().matches(host), "{text}");
        }
        for text in [
            "",
            ":8443",
            "https://dtn.example.org",
            "dtn.example.org/",
            "a@dtn.example.org",
            "dtn.example.org:",
            "dtn.example.org:x",
            "dtn example.org",
        ] {
            assert!(text.parse::<PublicName>().is_err(), "{text}");
        }
    }
}
