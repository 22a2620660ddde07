//! Parses the location of a target: `HOST:PATH`, `HOST:PORT:PATH`, `zmove://HOST:PORT/PATH`, or a path on this host.
//! With a user (`USER@HOST:PATH`), ssh starts a receiver on the host, and a port is the port of ssh.
//!
//! As in rsync and scp, a colon before the first slash marks a host, so `./a:b` is a local file. Digits between two
//! colons are a port. A relative path that starts with digits and a colon is written `HOST:./2024:x`.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use zmove_types::Escaped;

use crate::error::LocationError;

pub(crate) mod fuzzing;

/// The port of a receiver if the location contains none.
pub const DEFAULT_PORT: u16 = 5870;

/// A target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A path on this host.
    Local(OsString),
    /// A path at a receiver.
    Remote(Remote),
}

/// A path at a receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Name or address of the host.
    pub host: String,
    /// Port of the daemon.
    pub port: u16,
    /// Path at the receiver, as typed by the user.
    pub path: Vec<u8>,
    /// Login with which ssh starts a receiver, or `None` if a daemon is running.
    pub login: Option<Login>,
}

/// The user and port for ssh. The host is in `Remote`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    /// User name on the host. `None` leaves the choice to ssh.
    pub user: Option<String>,
    /// Port of the ssh server. `None` leaves the choice to ssh.
    pub port: Option<u16>,
}

/// How to reach a receiver on another host if the location contains no user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// A daemon that is already running.
    #[default]
    Daemon,
    /// A receiver that ssh starts, as for a location with a user.
    OverSsh,
}

impl fmt::Display for Remote {
    /// Formats the receiver for display: host and port of a daemon. Over ssh, `USER@HOST` or the host alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            host, port, login, ..
        } = self;
        if let Some(login) = login {
            return match &login.user {
                Some(user) => write!(f, "{user}@{host}"),
                None => write!(f, "{host}"),
            };
        }
        if host.contains(':') {
            write!(f, "[{host}]:{port}")
        } else {
            write!(f, "{host}:{port}")
        }
    }
}

impl Remote {
    /// Parses a receiver without a path: `HOST`, `HOST:PORT`, `[IPv6]:PORT`, or an IPv6 address alone. An IPv6 address
    /// may have a zone (`fe80::1%eth0`).
    ///
    /// # Errors
    /// The text has none of these forms.
    pub fn parse_endpoint(text: &str) -> Result<Self, LocationError> {
        if text.parse::<IpAddr>().is_ok() || has_zone(text) {
            return Ok(Self {
                host: text.to_owned(),
                port: DEFAULT_PORT,
                path: Vec::new(),
                login: None,
            });
        }
        Self::at_daemon(text.as_bytes(), b"")
    }

    /// Parses `HOST`, `HOST:PORT`, `[IPv6]` or `[IPv6]:PORT`, and combines it with `path`.
    fn at_daemon(endpoint: &[u8], path: &[u8]) -> Result<Self, LocationError> {
        let position = |bytes: &[u8], sought| bytes.iter().position(|&byte| byte == sought);
        let (host, port) = match endpoint.strip_prefix(b"[") {
            Some(bracketed) => match position(bracketed, b']') {
                Some(end) => (&bracketed[..end], &bracketed[end + 1..]),
                None => return Err(LocationError::BracketOpen(show(endpoint))),
            },
            None => endpoint.split_at(position(endpoint, b':').unwrap_or(endpoint.len())),
        };
        let port = match port {
            b"" => DEFAULT_PORT,
            [b':', digits @ ..] => parse_port(digits)?,
            _ => return Err(LocationError::NotHostPort(show(endpoint))),
        };
        Ok(Self {
            host: host_name(host)?,
            port,
            path: path.to_vec(),
            login: None,
        })
    }

    /// Returns whether the path is a valid port number. The user may have meant it as the port.
    pub(crate) fn has_path_like_port(&self) -> bool {
        self.login.is_none() && parse_port(&self.path).is_ok()
    }
}

impl Location {
    /// Parses a target.
    ///
    /// # Errors
    /// The text is not a valid location.
    pub fn parse(text: &OsStr, start: Start) -> Result<Self, LocationError> {
        let bytes = text.as_bytes();
        if bytes.is_empty() {
            return Err(LocationError::Empty);
        }
        if let Some(rest) = bytes.strip_prefix(b"zmove://") {
            if start == Start::OverSsh {
                return Err(LocationError::UrlOverSsh);
            }
            return parse_url(rest).map(Self::Remote);
        }
        if has_scheme(bytes) {
            return Err(LocationError::Scheme(show(bytes)));
        }
        refuse_unbracketed(bytes)?;
        if bytes.starts_with(b":") {
            return Err(LocationError::NoHost(show(bytes)));
        }
        let Some(AtHost { host, rest }) = split_host(bytes)? else {
            return Ok(Self::Local(text.to_owned()));
        };
        let (user, host) = split_user(host)?;
        let host = host_name(host)?;
        let (port, path) = split_port(rest)?;
        let login = (start == Start::OverSsh || user.is_some()).then_some(Login { user, port });
        let port = port.filter(|_| login.is_none()).unwrap_or(DEFAULT_PORT);
        if path.starts_with(b":") {
            return Err(LocationError::Module(show(bytes)));
        }
        let path = match &login {
            Some(_) => from_home(path)?,
            None if begins_at_home(path) => return Err(LocationError::HomeAtDaemon(show(path))),
            None => path,
        };
        Ok(Self::Remote(Remote {
            host,
            port,
            path: path.to_vec(),
            login,
        }))
    }

    /// Parses a target on storage that several receivers share: `HOST,HOST:PATH`. Each host may have a port. Returns
    /// the location at the first receiver, and the other receivers with the same path.
    ///
    /// # Errors
    /// The text is not a valid location.
    pub fn parse_several(text: &OsStr, start: Start) -> Result<(Self, Vec<Remote>), LocationError> {
        let bytes = text.as_bytes();
        let head = bytes.split(|&byte| byte == b'/').next().unwrap_or_default();
        let comma = head.iter().rposition(|&byte| byte == b',');
        let Some(comma) = comma.filter(|&comma| head[comma..].contains(&b':')) else {
            let location = Self::parse(text, start)?;
            match &location {
                Self::Remote(remote) if names_another(&remote.path, start) => {
                    return Err(LocationError::PathTwice(show(bytes)));
                }
                _ => return Ok((location, Vec::new())),
            }
        };
        let first = &bytes[..comma];
        let last = &bytes[comma + 1..];
        let Self::Remote(last) = Self::parse(OsStr::from_bytes(last), start)? else {
            return Err(LocationError::NoHost(show(bytes)));
        };
        if last.login.is_some() || first.contains(&b'@') {
            return Err(LocationError::SeveralOverSsh(show(bytes)));
        }
        let at_daemon = |endpoint| Remote::at_daemon(endpoint, &last.path);
        let mut remotes = first
            .split(|&byte| byte == b',')
            .map(at_daemon)
            .collect::<Result<Vec<_>, _>>()?;
        remotes.push(last);
        let others = remotes.split_off(1);
        Ok((Self::Remote(remotes.swap_remove(0)), others))
    }
}

/// Returns whether the text is an IPv6 address with a zone, which names the network interface (RFC 4007).
fn has_zone(text: &str) -> bool {
    text.split_once('%').is_some_and(|(address, zone)| {
        address.parse::<Ipv6Addr>().is_ok()
            && is_word(zone)
            && !zone.contains([':', '[', ']', '/', '@'])
    })
}

/// Returns whether the text starts with a URL scheme, such as `s3://`. It would otherwise be parsed as a host.
fn has_scheme(bytes: &[u8]) -> bool {
    let end = bytes.windows(3).position(|window| window == b"://");
    let scheme = end.map_or(&b""[..], |end| &bytes[..end]);
    scheme.first().is_some_and(u8::is_ascii_alphabetic)
        && scheme
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte))
}

/// Returns whether the text after a path repeats the path at another host, as in `/data,HOST:/data`.
fn names_another(path: &[u8], start: Start) -> bool {
    let Some(comma) = path.iter().position(|&byte| byte == b',') else {
        return false;
    };
    let before_comma = |path: &[u8]| {
        path.split(|&byte| byte == b',')
            .next()
            .unwrap_or_default()
            .to_vec()
    };
    let other = match Location::parse(OsStr::from_bytes(&path[comma + 1..]), start) {
        Ok(Location::Remote(other)) => before_comma(&other.path),
        _ => return false,
    };
    // Compares components, because the same path can be written in several ways.
    let [one, other] =
        [&path[..comma], &other].map(|path| Path::new(OsStr::from_bytes(path)).components());
    one.eq(other)
}

/// Returns the path relative to the login's home directory. A leading `~` or `~/` is removed, as a shell would expand
/// it.
fn from_home(path: &[u8]) -> Result<&[u8], LocationError> {
    match path.strip_prefix(b"~/") {
        Some(path) => Ok(path),
        None if path == b"~" => Ok(b""),
        None if begins_at_home(path) => Err(LocationError::HomeOfAnother(show(path))),
        None => Ok(path),
    }
}

/// Returns whether a shell would expand the start of the path to a home directory: `~`, `~/…` or `~USER/…`. A single
/// name such as `~lock` may well be a file.
fn begins_at_home(path: &[u8]) -> bool {
    path == b"~" || path.starts_with(b"~") && path.contains(&b'/')
}

/// Refuses an IPv6 address without brackets, alone or before a colon. Otherwise, the address would be split at its
/// first colon.
fn refuse_unbracketed(bytes: &[u8]) -> Result<(), LocationError> {
    let head = bytes.split(|&byte| byte == b'/').next().unwrap_or_default();
    let host = head.rsplit(|&byte| byte == b'@').next().unwrap_or_default();
    let before = |sought| {
        host.iter()
            .rposition(|&byte| byte == sought)
            .map_or(host, |at| &host[..at])
    };
    let is_address =
        |text| std::str::from_utf8(text).is_ok_and(|text| text.parse::<Ipv6Addr>().is_ok());
    if [host, before(b':'), before(b'%')]
        .into_iter()
        .any(is_address)
    {
        return Err(LocationError::Unbracketed(show(bytes)));
    }
    Ok(())
}

/// Returns whether the text can be passed to a program as one argument that is not an option.
fn is_word(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('-')
        && !text.contains(|c: char| c.is_whitespace() || c.is_control())
}

/// The two parts of a target on another host.
struct AtHost<'a> {
    /// The host, possibly with a user.
    host: &'a [u8],
    /// Everything after the colon.
    rest: &'a [u8],
}

/// Splits a target at the first colon into the host (possibly with a user) and the rest. Returns `None` for a local
/// path.
fn split_host(bytes: &[u8]) -> Result<Option<AtHost<'_>>, LocationError> {
    let slash = bytes
        .iter()
        .position(|&byte| byte == b'/')
        .unwrap_or(bytes.len());
    let colon = bytes[..slash].iter().position(|&byte| byte == b':');
    let bracket = bytes[..colon.unwrap_or(slash)]
        .iter()
        .position(|&byte| byte == b'[');
    let colon = match bracket.filter(|&at| at == 0 || bytes[at - 1] == b'@') {
        Some(start) => {
            let end = bytes[start..].windows(2).position(|pair| pair == b"]:");
            let Some(end) = end else {
                return Err(LocationError::BracketAlone(show(bytes)));
            };
            Some(start + end + 1)
        }
        None => colon,
    };
    let split = |colon| AtHost {
        host: &bytes[..colon],
        rest: &bytes[colon + 1..],
    };
    Ok(colon.map(split))
}

/// Splits off the user before the last `@`, as ssh does, and removes the brackets of the host.
fn split_user(bytes: &[u8]) -> Result<(Option<String>, &[u8]), LocationError> {
    let bare = |host| {
        <[u8]>::strip_prefix(host, b"[")
            .and_then(|host| host.strip_suffix(b"]"))
            .unwrap_or(host)
    };
    let Some(at) = bytes.iter().rposition(|&byte| byte == b'@') else {
        return Ok((None, bare(bytes)));
    };
    match std::str::from_utf8(&bytes[..at]) {
        Ok(user) if is_word(user) => Ok((Some(user.to_owned()), bare(&bytes[at + 1..]))),
        _ => Err(LocationError::User(show(&bytes[..at]))),
    }
}

/// Splits off the port, which is digits followed by another colon.
fn split_port(rest: &[u8]) -> Result<(Option<u16>, &[u8]), LocationError> {
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 || rest.get(digits) != Some(&b':') {
        return Ok((None, rest));
    }
    Ok((Some(parse_port(&rest[..digits])?), &rest[digits + 1..]))
}

fn parse_port(digits: &[u8]) -> Result<u16, LocationError> {
    match std::str::from_utf8(digits)
        .ok()
        .and_then(|text| text.parse().ok())
    {
        Some(port) if port > 0 => Ok(port),
        _ => Err(LocationError::Port(show(digits))),
    }
}

fn parse_url(rest: &[u8]) -> Result<Remote, LocationError> {
    let slash = rest.iter().position(|&byte| byte == b'/');
    let slash = slash.ok_or_else(|| LocationError::UrlWithoutPath(show(rest)))?;
    Remote::at_daemon(&rest[..slash], &rest[slash..])
}

fn host_name(bytes: &[u8]) -> Result<String, LocationError> {
    if bytes.contains(&b'@') {
        return Err(LocationError::UserAtDaemon(show(bytes)));
    }
    match std::str::from_utf8(bytes) {
        // A host name with a bracket or a slash would be parsed differently if a user typed the displayed location.
        Ok(name) if is_word(name) && !name.contains(['[', ']', '/']) => Ok(name.to_owned()),
        _ => Err(LocationError::Host(show(bytes))),
    }
}

fn show(bytes: &[u8]) -> String {
    Escaped(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(text: &str) -> (String, u16, String) {
        match Location::parse(OsStr::new(text), Start::Daemon).unwrap() {
            Location::Remote(Remote {
                host,
                port,
                path,
                login: None,
            }) => (host, port, String::from_utf8(path).unwrap()),
            location => panic!("{location:?}"),
        }
    }

    fn login(text: &str, start: Start) -> (String, String, Option<u16>) {
        match Location::parse(OsStr::new(text), start).unwrap() {
            Location::Remote(remote) => {
                let port = remote.login.as_ref().unwrap().port;
                (
                    remote.to_string(),
                    String::from_utf8(remote.path).unwrap(),
                    port,
                )
            }
            location @ Location::Local(_) => panic!("{location:?}"),
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
        assert_eq!(
            remote("dtn:a@[b]:c"),
            expect("dtn", DEFAULT_PORT, "a@[b]:c")
        );
        assert_eq!(remote("dtn:2024"), expect("dtn", DEFAULT_PORT, "2024"));
        assert_eq!(
            remote("dtn:./2024:x"),
            expect("dtn", DEFAULT_PORT, "./2024:x")
        );
        assert_eq!(
            remote("[fd00::1]:/d"),
            expect("fd00::1", DEFAULT_PORT, "/d")
        );
        assert_eq!(remote("[fd00::1]:7:d:e"), expect("fd00::1", 7, "d:e"));
        let zone = "fe80::1%eth0";
        assert_eq!(remote(&format!("[{zone}]:7:d")), expect(zone, 7, "d"));
        assert_eq!(
            remote(&format!("[{zone}]:")),
            expect(zone, DEFAULT_PORT, "")
        );
        assert_eq!(remote("zmove://dtn:7/d/e"), expect("dtn", 7, "/d/e"));
        assert_eq!(remote("zmove://dtn/d"), expect("dtn", DEFAULT_PORT, "/d"));
        assert_eq!(remote("zmove://[::1]:7/d"), expect("::1", 7, "/d"));
    }

    #[test]
    fn the_path_of_several_receivers_stands_once() {
        let parse = |text: &str| Location::parse_several(OsStr::new(text), Start::Daemon);
        let several = |text: &str| -> Vec<(String, Vec<u8>)> {
            let (Location::Remote(first), others) = parse(text).unwrap() else {
                panic!("{text}")
            };
            std::iter::once(first)
                .chain(others)
                .map(|remote| (remote.to_string(), remote.path))
                .collect()
        };
        let expect = |remotes: &[&str], path: &str| -> Vec<(String, Vec<u8>)> {
            remotes
                .iter()
                .map(|remote| ((*remote).to_owned(), path.into()))
                .collect()
        };
        assert_eq!(
            several("a,b:6102:/data,x"),
            expect(&["a:5870", "b:6102"], "/data,x")
        );
        for path in [
            "/data,b:/other",
            "/data,b:/data/x",
            "/,b:",
            "./data,b:/x",
            "/data,b",
            "/data,/data",
        ] {
            assert_eq!(
                several(&format!("a:{path}")),
                expect(&["a:5870"], path),
                "{path}"
            );
        }
        for text in [
            "a:/data,b:/data",
            "a:/data/,b:7:/data/",
            "a:7:/data,b:/data,c:/data",
            "a:./d,b:./d",
            "a:/d/,b:/d",
            "a:/d,b:/./d/",
        ] {
            assert_eq!(
                parse(text),
                Err(LocationError::PathTwice(text.to_owned())),
                "{text}"
            );
        }
    }

    #[test]
    fn a_user_means_ssh() {
        let expect = |host: &str, path: &str, port| (host.to_owned(), path.to_owned(), port);
        assert_eq!(
            login("alice@dtn:/d", Start::Daemon),
            expect("alice@dtn", "/d", None)
        );
        assert_eq!(
            login("alice@site.org@dtn:22022:d", Start::Daemon),
            expect("alice@site.org@dtn", "d", Some(22022))
        );
        assert_eq!(
            login("alice@[fd00::1]:/d", Start::Daemon),
            expect("alice@fd00::1", "/d", None)
        );
        assert_eq!(
            login("alice@dtn:~/d", Start::Daemon),
            expect("alice@dtn", "d", None)
        );
        assert_eq!(
            login("alice@dtn:~", Start::Daemon),
            expect("alice@dtn", "", None)
        );
        assert_eq!(login("dtn:/d", Start::OverSsh), expect("dtn", "/d", None));
        assert_eq!(
            login("dtn:5870:/d", Start::OverSsh),
            expect("dtn", "/d", Some(5870))
        );
    }

    #[test]
    fn endpoints() {
        let parse = |text| {
            Remote::parse_endpoint(text)
                .map(|remote| (remote.host, remote.port))
                .ok()
        };
        let expect = |host: &str, port| Some((host.to_owned(), port));
        assert_eq!(parse("dtn"), expect("dtn", DEFAULT_PORT));
        assert_eq!(parse("dtn:7"), expect("dtn", 7));
        assert_eq!(parse("192.0.2.7:7"), expect("192.0.2.7", 7));
        assert_eq!(parse("fd00::1"), expect("fd00::1", DEFAULT_PORT));
        assert_eq!(parse("[fd00::1]"), expect("fd00::1", DEFAULT_PORT));
        assert_eq!(parse("[fd00::1]:7"), expect("fd00::1", 7));
        for text in ["fe80::1%eth0", "[fe80::1%eth0]"] {
            assert_eq!(parse(text), expect("fe80::1%eth0", DEFAULT_PORT), "{text}");
        }
        assert_eq!(parse("[fe80::1%eth0]:7"), expect("fe80::1%eth0", 7));
        for text in [
            "",
            ":7",
            "dtn:",
            "dtn:x",
            "dtn:0",
            "dtn:7:x",
            "[fd00::1",
            "[fd00::1]7",
            "fe80::1%",
            "fe80::1%eth0:7",
            "fe80::1%eth0/x",
            "alice@dtn",
            "a b",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn local_forms() {
        for text in ["/a:b", "./a:b", "dir", "dir/", "./:x"] {
            let location = Location::parse(OsStr::new(text), Start::Daemon).unwrap();
            assert_eq!(location, Location::Local(text.into()), "{text}");
        }
    }

    #[test]
    fn what_could_be_either_is_refused() {
        let parse = |text: &str, start| Location::parse(OsStr::new(text), start);
        assert_eq!(parse("", Start::Daemon), Err(LocationError::Empty));
        assert_eq!(
            parse(":x", Start::Daemon),
            Err(LocationError::NoHost(":x".to_owned()))
        );
        for text in [
            "::1:x",
            "::1",
            "2001:db8::7:x/y",
            "2001:db8::7:5870:x",
            "fe80::1%eth0:x",
            "alice@::1:x",
        ] {
            assert_eq!(
                parse(text, Start::Daemon),
                Err(LocationError::Unbracketed(text.to_owned())),
                "{text}"
            );
        }
        assert_eq!(
            parse("dtn::x", Start::Daemon),
            Err(LocationError::Module("dtn::x".to_owned()))
        );
        for path in ["~", "~/x", "~bob/x"] {
            let refused = Err(LocationError::HomeAtDaemon(path.to_owned()));
            assert_eq!(
                parse(&format!("dtn:{path}"), Start::Daemon),
                refused,
                "{path}"
            );
        }
        let refused = Err(LocationError::HomeOfAnother("~bob/x".to_owned()));
        assert_eq!(parse("alice@dtn:~bob/x", Start::Daemon), refused);
        assert_eq!(parse("dtn:~bob/x", Start::OverSsh), refused);
        assert_eq!(remote("dtn:~lock"), expect("dtn", DEFAULT_PORT, "~lock"));
        assert_eq!(remote("dtn:./~/x"), expect("dtn", DEFAULT_PORT, "./~/x"));
        assert_eq!(login("dtn:~/x", Start::OverSsh).1, "x");
    }

    #[test]
    fn no_scheme_is_a_host() {
        for text in ["s3://bucket/x", "gs://b", "svn+ssh://h/x", "s3.eu-1://b"] {
            for start in [Start::Daemon, Start::OverSsh] {
                let parsed = Location::parse(OsStr::new(text), start);
                assert_eq!(parsed, Err(LocationError::Scheme(text.to_owned())));
            }
        }
        assert_eq!(remote("s3:/x://y"), expect("s3", DEFAULT_PORT, "/x://y"));
    }

    #[test]
    fn malformed_locations_name_their_fault() {
        use LocationError::{BracketAlone, Host, Port, UrlWithoutPath, User, UserAtDaemon};
        type Fault = fn(String) -> LocationError;
        let table: [(&str, Fault, &str); 13] = [
            ("@dtn:/d", User, ""),
            ("-oProxyCommand=x@dtn:/d", User, "-oProxyCommand=x"),
            ("a b@dtn:/d", User, "a b"),
            ("-oProxyCommand=x:/d", Host, "-oProxyCommand=x"),
            ("zmove://a@dtn/d", UserAtDaemon, "a@dtn"),
            ("[[fd00::1]:eth0]:/d", Host, "[fd00::1"),
            ("[a/b]:/d", Host, "a/b"),
            ("zmove://a]:7/d", Host, "a]"),
            ("dtn:0:/d", Port, "0"),
            ("dtn:70000:/d", Port, "70000"),
            ("[::1", BracketAlone, "[::1"),
            ("zmove://dtn", UrlWithoutPath, "dtn"),
            ("zmove://dtn:x/d", Port, "x"),
        ];
        for (text, error, shown) in table {
            let parsed = Location::parse(OsStr::new(text), Start::Daemon);
            assert_eq!(parsed, Err(error(shown.to_owned())), "{text}");
        }
        let parsed = Location::parse(OsStr::new("zmove://dtn/d"), Start::OverSsh);
        assert_eq!(parsed, Err(LocationError::UrlOverSsh));
    }
}
