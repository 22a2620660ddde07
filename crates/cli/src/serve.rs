//! `zmove serve`: the receiver in the foreground.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use zmove_receiver::{Daemon, Guests, ReceiverConfig};
use zmove_transport::{AuthorizedKeys, Identity, Listener, SocketConfig, TransportChoice};
use zmove_types::ByteCount;

use crate::age::Age;
use crate::args::{ListenArg, ServeArgs};
use crate::exit::Exit;
use crate::journal;
use crate::settings;
use crate::signals::EndSignals;
use crate::terminal;

/// With less, a receiver that has to wait for a core loses packets.
const UDP_BUFFER_BYTES_WANTED: usize = 4 << 20;

/// How often it is looked for journals that nobody has come back for.
const JOURNALS_EVERY: Duration = Duration::from_secs(60 * 60);

/// Runs `zmove serve` until it is told to stop.
pub(crate) fn run(args: &ServeArgs) -> Result<Exit> {
    let home = settings::home(settings::Role::Daemon)?;
    let identity = Identity::load_or_create(&home)?;
    if AuthorizedKeys::load(&home)?.grants().is_empty() {
        terminal::warn(
            "no sender may write here yet; run: zmove allow FINGERPRINT --name NAME --root DIR --write",
        );
    }
    let storage = settings::storage(args.storage);
    if args.allow_clear {
        terminal::warn("senders may send names and contents in clear (--allow-clear)");
    }
    let config = ReceiverConfig {
        disk: storage.disk,
        direct: storage.direct,
        allow_clear: args.allow_clear,
        journals: Some(settings::journals(&home)),
        ..ReceiverConfig::default()
    };
    let runtime = tokio::runtime::Runtime::new().context("start the runtime")?;
    runtime.block_on(async {
        let choice = match args.transport {
            ListenArg::Both => TransportChoice::Auto,
            ListenArg::Tcp => TransportChoice::Tcp,
            ListenArg::Quic => TransportChoice::Quic,
        };
        let listener = Listener::bind(args.listen, &identity, choice, &SocketConfig::default()).await?;
        let address = listener.local_addr().context("read the listening address")?;
        if let Some(held) = listener.udp_buffer_bytes().filter(|held| *held < UDP_BUFFER_BYTES_WANTED) {
            terminal::warn(format_args!(
                "QUIC has {} of buffer here and will be slow: raise net.core.rmem_max to 8 MiB",
                ByteCount(held as u64)
            ));
        }
        tokio::spawn(expire_journals(settings::journals(&home), args.journal_age));
        let daemon = Daemon::new(listener, Guests::Listed(home), config, |event| terminal::warn(event));
        let signals = EndSignals::listen().context("handle SIGTERM and SIGINT")?;
        terminal::print(format_args!(
            "zmove serve: listening on {address}, key {}\n",
            identity.fingerprint()
        ));
        daemon.serve(signals.first()).await;
        anyhow::Ok(())
    })?;
    runtime.shutdown_background();
    Ok(Exit::Done)
}

/// Removes journals that are too old, now and every hour.
async fn expire_journals(directory: PathBuf, age: Age) {
    let directory: Arc<Path> = directory.into();
    loop {
        let directory = Arc::clone(&directory);
        // a panic has been told, and the next hour may have more luck
        let _told = tokio::task::spawn_blocking(move || journal::expire(&directory, age)).await;
        tokio::time::sleep(JOURNALS_EVERY).await;
    }
}
