//! The settings of a probe.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use anyhow::Result;
use zmove_engine::{Confirm, DialSettings, LaterLanes, Location, PathCheck, Remote, Start};
use zmove_types::Escaped;

use super::dial;
use crate::args::ProbeArgs;
use crate::value::exit::usage_error;

/// Returns the receiver of a probe, and the settings for connecting to it. `ask` confirms the key of an unknown host.
///
/// # Errors
/// Returns an error if an option has an invalid value.
pub(crate) fn probe(args: &ProbeArgs, ask: Arc<dyn Confirm>) -> Result<(Remote, DialSettings)> {
    let remote = receiver(&args.host, dial::start(&args.dial))?;
    if args.streams.len() > ROUNDS_MAX {
        return Err(usage_error(format!(
            "--streams accepts at most {ROUNDS_MAX} numbers"
        )));
    }
    if let Some(tree) = args.tree.as_deref().filter(|tree| !tree.exists()) {
        return Err(usage_error(format!(
            "--for '{}': no such directory",
            Escaped::path(&tree)
        )));
    }
    let dial = DialSettings {
        // The first lane only measures the time to the first byte. Each measurement opens its own lanes.
        streams: Some(1),
        more: LaterLanes::NewSet,
        path_check: PathCheck::First,
        ..dial::settings(&args.dial, &remote, ask)?
    };
    Ok((remote, dial))
}

/// Parses a receiver in the syntax of `push`. Unlike `push`, accepts a receiver without a path.
fn receiver(text: &OsStr, start: Start) -> Result<Remote> {
    let location = match Location::parse(text, start)? {
        Location::Local(host) if !host.as_bytes().contains(&b'/') => {
            let mut whole = host;
            whole.push(":");
            Location::parse(&whole, start)?
        }
        location => location,
    };
    let Location::Remote(remote) = location else {
        let text = Escaped::path(text);
        return Err(usage_error(format!(
            "'{text}' is not a receiver: write HOST or HOST:PATH"
        )));
    };
    if !remote.path.is_empty() && remote.path.iter().all(u8::is_ascii_digit) {
        let host = &remote.host;
        let digits = String::from_utf8_lossy(&remote.path);
        return Err(usage_error(format!(
            "'{digits}' may be a port or a directory: write '{host}:{digits}:' or '{host}:./{digits}'"
        )));
    }
    Ok(remote)
}

/// Maximum number of measurements for which a receiver waits.
const ROUNDS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receivers_are_written_as_for_a_push_and_need_no_path() {
        let read = |text: &str| {
            receiver(OsStr::new(text), Start::Daemon)
                .map(|remote| (remote.to_string(), String::from_utf8(remote.path).unwrap()))
                .map_err(|error| error.to_string())
        };
        let expect = |host: &str, path: &str| Ok((host.to_owned(), path.to_owned()));
        assert_eq!(read("dtn"), expect("dtn:5870", ""));
        assert_eq!(read("dtn:"), expect("dtn:5870", ""));
        assert_eq!(read("dtn:/data"), expect("dtn:5870", "/data"));
        assert_eq!(read("dtn:99:"), expect("dtn:99", ""));
        assert_eq!(read("[::1]:99:in"), expect("[::1]:99", "in"));
        assert_eq!(read("alice@dtn"), expect("alice@dtn", ""));
        assert_eq!(read("zmove://dtn:7/d"), expect("dtn:7", "/d"));
        assert_eq!(read("dtn:./99"), expect("dtn:5870", "./99"));
        assert!(
            read("dtn:99")
                .unwrap_err()
                .contains("write 'dtn:99:' or 'dtn:./99'")
        );
        assert!(read("/data").is_err() && read("./x").is_err());
    }
}
