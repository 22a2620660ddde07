//! `zmove clean`: removes the leftovers of killed transfers from a local or remote tree.

mod report;

use std::os::unix::ffi::OsStrExt;
use std::pin::pin;
use std::sync::Arc;

use anyhow::Result;
use zmove_engine::{DialSettings, Location, ReceiverConfig, Remote, clean_locally, fresh_transfer};
use zmove_sender::{CleanEvent, clean};
use zmove_wire::{Intent, Open, Overwrite};

use crate::args::CleanArgs;
use crate::commands::transfer::{interrupted, reach};
use crate::display::prompt::Prompt;
use crate::settings::{self, Role};
use crate::value::exit::Exit;

use report::CleanReport;

/// Runs `zmove clean`.
pub(crate) fn run(args: &CleanArgs) -> Result<Exit> {
    let (location, dial) = settings::clean(args, Arc::new(Prompt))?;
    let mut report = CleanReport::new(args);
    settings::block_on(2, async {
        let mut tell = |event| report.take(event);
        match &location {
            Location::Local(path) => clean_here(open(args, path.as_bytes())?, &mut tell).await,
            Location::Remote(remote) => {
                let open = open(args, &remote.path)?;
                clean_there(open, remote, &dial.unwrap_or_default(), &mut tell).await
            }
        }
    })?;
    Ok(report.end())
}

fn open(args: &CleanArgs, target: &[u8]) -> Result<Open> {
    let intent = if args.dry_run {
        Intent::CleanPreview
    } else {
        Intent::Clean
    };
    Ok(Open {
        intent,
        overwrite: Overwrite::Nothing,
        ..Open::new(target.to_vec(), fresh_transfer()?.0)
    })
}

/// Runs the client and the receiver of the cleanup in this process.
async fn clean_here(open: Open, tell: &mut (dyn FnMut(CleanEvent) + Send)) -> Result<()> {
    let home = settings::home(Role::Client).ok();
    let receiver = ReceiverConfig {
        journals: home.map(|home| settings::journals(&home)),
        ..ReceiverConfig::default()
    };
    Ok(clean_locally(open, receiver, tell, interrupted()).await?)
}

async fn clean_there(
    open: Open,
    remote: &Remote,
    dial: &DialSettings,
    tell: &mut (dyn FnMut(CleanEvent) + Send),
) -> Result<()> {
    let mut stop = pin!(interrupted());
    let reached = reach(remote, dial, stop.as_mut()).await?;
    let cleaned = clean(open, reached.link, tell, stop).await;
    reached.route.close().await;
    if let Some(cause) = reached.route.black_hole() {
        return Err(cause.clone().into());
    }
    cleaned?;
    reached.route.end().await;
    Ok(())
}
