//! `zmove clean`: removes the leftovers of killed transfers from a local or remote tree.

mod report;

use std::os::unix::ffi::OsStrExt;
use std::pin::pin;
use std::sync::Arc;

use anyhow::Result;
use zmove_engine::{DialSettings, Location, Remote, clean_locally, fresh_transfer};
use zmove_sender::{CleanEvent, clean};
use zmove_wire::{Intent, Open, Overwrite};

use crate::args::CleanArgs;
use crate::commands::transfer::{interrupted, reach, receiver};
use crate::display::prompt::Prompt;
use crate::settings;
use crate::value::exit::Exit;

use report::CleanReport;

/// Runs `zmove clean`.
pub(crate) fn run(args: &CleanArgs) -> Result<Exit> {
    let (location, dial) = settings::clean(args, Arc::new(Prompt))?;
    let mut report = CleanReport::new(args);
    settings::block_on(2, async {
        let mut tell = |event| report.take(event);
        match &location {
            // The client and the receiver of the cleanup run in this process.
            Location::Local(path) => {
                let open = open(args, path.as_bytes())?;
                Ok(clean_locally(open, receiver(), &mut tell, interrupted()).await?)
            }
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

async fn clean_there(
    open: Open,
    remote: &Remote,
    dial: &DialSettings,
    tell: &mut (dyn FnMut(CleanEvent) + Send),
) -> Result<()> {
    let mut stop = pin!(interrupted());
    let reached = reach(remote, dial, stop.as_mut()).await?;
    let cleaned = clean(open, reached.link, tell, stop).await;
    Ok(reached.route.end(cleaned).await?)
}
