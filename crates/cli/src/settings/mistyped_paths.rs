//! Refuses paths that were probably meant to be on another host. Otherwise, such a path would be treated as a name on
//! this host, and a target would become a local directory.

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use zmove_engine::{Location, LocationError, Start};
use zmove_transport::KnownHosts;
use zmove_types::Escaped;

use super::{Role, home};
use crate::value::exit::usage_error;

/// Refuses a target that names one or several hosts without a path. Accepts the target if a file with this name exists
/// on this host.
pub(super) fn refuse_host_without_path(target: &OsStr) -> Result<()> {
    let text = target.to_string_lossy();
    let name = text.trim_end_matches('/');
    if name.contains(['/', ':']) || exists(target) {
        return Ok(());
    }
    // A name with a slash at the end probably means a directory, so it counts as a host only if it contains `@`.
    let has_slash = name.len() < text.len();
    let is_host = |name: &str| {
        name.contains('@')
            || !has_slash && (name.parse::<IpAddr>().is_ok() || is_pinned(name) || is_found(name))
    };
    if name.split(',').any(is_host) {
        return Err(usage_error(format!(
            "'{0}' is a host without a path: write '{0}:PATH' (for a local directory with this name write './{0}')",
            Escaped(name.as_bytes())
        )));
    }
    Ok(())
}

/// Refuses a target such as `USER@HOST/PATH` if neither this path nor its parent directory exists on this host.
pub(super) fn refuse_user_without_colon(target: &OsStr) -> Result<()> {
    let bytes = target.as_bytes();
    let slash = bytes.iter().position(|&byte| byte == b'/');
    let (host, path) = bytes.split_at(slash.unwrap_or(bytes.len()));
    let has_parent = || Path::new(target).parent().is_none_or(exists);
    if !host.contains(&b'@') || host.contains(&b':') || exists(target) || has_parent() {
        return Ok(());
    }
    let [host, path, target] = [host, path, bytes].map(Escaped);
    Err(usage_error(format!(
        "'{target}' is a local path, but there is no local directory '{host}': for a path on that host write \
         '{host}:{path}' (for a local directory write './{target}')"
    )))
}

/// Refuses a source that is written as a URL. Accepts the source if a file with this name exists on this host.
pub(super) fn refuse_schemes(sources: &[OsString]) -> Result<()> {
    let missing = sources.iter().filter(|source| !exists(source));
    missing
        .map(|source| Location::parse(source, Start::Daemon))
        .try_for_each(|parsed| match parsed {
            Err(error @ LocationError::Scheme(_)) => Err(error.into()),
            _ => Ok(()),
        })
}

/// Returns the paths that name a host, as in rsync and scp, although a file with this name exists on this host.
pub(crate) fn hosts_that_are_files(paths: &[OsString]) -> Vec<OsString> {
    let names_host = |path: &&OsString| {
        let parsed = Location::parse(path, Start::Daemon);
        matches!(parsed, Ok(Location::Remote(_))) && exists(path)
    };
    paths.iter().filter(names_host).cloned().collect()
}

fn exists(path: impl AsRef<Path>) -> bool {
    let path = path.as_ref();
    path.as_os_str().is_empty() || path.symlink_metadata().is_ok()
}

fn is_pinned(name: &str) -> bool {
    let known = home(Role::Client)
        .ok()
        .and_then(|home| KnownHosts::open(&home).ok());
    let mut pins = known
        .map(|known| known.pins())
        .unwrap_or_default()
        .into_iter();
    pins.any(|(host, _)| {
        host.rsplit_once(':')
            .is_some_and(|(host, _)| host.eq_ignore_ascii_case(name))
    })
}

/// Returns whether a name that has the form of a domain name resolves to an address. Names of other forms are usually
/// file names, so they are not looked up.
fn is_found(name: &str) -> bool {
    let is_domain = name.rsplit_once('.').is_some_and(|(host, last)| {
        !host.is_empty() && last.len() > 1 && last.bytes().all(|byte| byte.is_ascii_alphabetic())
    });
    if !is_domain {
        return false;
    }
    let (found_in, found) = std::sync::mpsc::channel();
    let name = name.to_owned();
    let look_up = move || found_in.send((&*name, 0).to_socket_addrs().is_ok());
    if std::thread::Builder::new().spawn(look_up).is_err() {
        return false;
    }
    found.recv_timeout(LOOKUP_MAX).unwrap_or(false)
}

/// Maximum time to resolve a name that may not be meant as a host.
const LOOKUP_MAX: Duration = Duration::from_secs(1);
