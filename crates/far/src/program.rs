//! The command line of the helper program: `zmove-far receive`, `zmove-far lane PORT` and `zmove-far --version`.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use zmove_disk::ThreadCountCache;
use zmove_engine::ReceiverConfig;
use zmove_wire::PROTOCOL_VERSION;

use crate::accounts::GetentAccounts;
use crate::lane;
use crate::receive::{FarEnd, receive};
use crate::runtime;

/// Runs the helper and ends the process.
pub fn main() -> ! {
    let code = match run() {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("zmove-far: {error:#}");
            1
        }
    };
    // As in `zmove`, threads may still run.
    zmove_uring::exit_without_destructors(code)
}

fn run() -> Result<()> {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    match words.as_slice() {
        [word] if word == "--version" => {
            let release = env!("CARGO_PKG_VERSION");
            // Only this process writes the output, and a failure shows in the missing line.
            println!("zmove-far {release}, protocol version {PROTOCOL_VERSION}");
            Ok(())
        }
        [word] if word == "receive" => {
            runtime::require_memory()?;
            runtime::raise_file_limit();
            zmove_sockopt::resolve_without_plugins();
            receive(far_end())?;
            Ok(())
        }
        [word, port] if word == "lane" => {
            let port = port.to_str().and_then(|port| port.parse().ok());
            lane::connect(port.context("the port is not a number")?)
        }
        _ => bail!(
            "this is the far end of a transfer over ssh; 'zmove push' and 'zmove pull' start it"
        ),
    }
}

/// Returns the settings of a receiver that runs as this user.
fn far_end() -> FarEnd {
    let home = home();
    let storage = home.as_deref().map(ThreadCountCache::in_home);
    FarEnd {
        config: ReceiverConfig {
            storage: storage.unwrap_or_default(),
            journals: home.as_deref().map(|home| home.join("journal")),
            accounts: Arc::new(GetentAccounts),
            ..ReceiverConfig::default()
        },
        home,
    }
}

/// Returns the directory of the user's keys and journals, which is also that of `zmove`. Returns `None` if others could
/// put links into it.
fn home() -> Option<PathBuf> {
    let named = |variable| {
        let path = std::env::var_os(variable).filter(|path| !path.is_empty());
        path.map(PathBuf::from)
    };
    if let Some(home) = named("ZMOVE_HOME") {
        return Some(home);
    }
    let home = named("HOME")?;
    let found = home.metadata().ok()?;
    let is_own = found.uid() == rustix::process::geteuid().as_raw();
    (is_own && found.mode() & 0o022 == 0).then(|| home.join(".config/zmove"))
}
