//! `zmove pull`, from the arguments to the summary.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use zmove_engine::{Connector, RemotePull, RetryPolicy};
use zmove_jobs::host_name;
use zmove_tools::sweep::Shares;

use crate::args::PushArgs;
use crate::commands::mount;
use crate::commands::push::manifest;
use crate::commands::transfer::{
    TransferEnd, display, exit_of, interrupted, local_receiver, resumable,
};
use crate::display::prompt::Prompt;
use crate::display::summary::proofs;
use crate::display::terminal;
use crate::settings::{self, PullSettings, Role};
use crate::value::exit::Exit;

/// Runs `zmove pull`.
pub(crate) fn run(args: PushArgs, started: Instant) -> Result<Exit> {
    pull(&PullSettings::new(args, Arc::new(Prompt))?, started)
}

/// Runs a pull with these settings.
pub(crate) fn pull(settings: &PullSettings, started: Instant) -> Result<Exit> {
    let args = &settings.args;
    mount::require(args)?;
    let display = display(args, &settings.remote.host, &host_name())?;
    // With `--checksum`, the host does not report which of the compared files it sent. All files were at least
    // compared.
    let received = if args.checksum {
        &["compared"]
    } else {
        proofs(args)
    };
    let manifest = manifest(args, host_name(), received)?;
    let storage = settings::storage(args.storage, |notice| terminal::warn(notice));
    let home = settings::home(Role::Client)?;
    let pulled = settings::block_on(2, async {
        let pulling = RemotePull {
            sender: RetryPolicy {
                connector: Connector {
                    home: &home,
                    remote: &settings.remote,
                    settings: &settings.dial,
                    listener: &display,
                },
                // A list of paths is kept in memory, so it can be sent again after a reconnect.
                timeout: args.retry_timeout(),
                busy_timeout: args.busy_timeout(),
            },
            fetch: settings.fetch.clone(),
            list: settings.list.clone(),
            sources: settings.sources.clone(),
            receiver: local_receiver(storage, args.listed.clone()),
            observer: display.observer(),
        };
        Ok(pulling.pull(manifest, started, interrupted()).await?)
    });
    let pulled = pulled.map_err(|error| resumable(error, args));
    let ended = TransferEnd::of(display, args, pulled)?;
    let exit = exit_of(&ended.result.summary, args);
    Ok(ended.print(args, &Shares::default(), exit))
}
