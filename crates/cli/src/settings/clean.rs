//! The settings of `zmove clean`.

use std::sync::Arc;

use anyhow::Result;
use zmove_engine::{Confirm, DialSettings, Location, PathCheck};

use super::dial;
use super::mistyped_paths::{refuse_host_without_path, refuse_user_without_colon};
use crate::args::CleanArgs;
use crate::value::exit::refuse;

/// Returns the target to clean. If the target is on another host, also returns the settings for connecting to that
/// host. `ask` confirms the key of an unknown host.
///
/// # Errors
/// Returns an error if an option has an invalid value, or if the target is malformed.
pub(crate) fn clean(
    args: &CleanArgs,
    ask: Arc<dyn Confirm>,
) -> Result<(Location, Option<DialSettings>)> {
    let (location, also) = Location::parse_several(&args.target, dial::start(&args.dial))?;
    refuse(&[(
        !also.is_empty(),
        "name only one receiver to clean: the receivers share their storage",
    )])?;
    refuse_host_without_path(&args.target)?;
    refuse_user_without_colon(&args.target)?;
    let Location::Remote(remote) = &location else {
        return Ok((location, None));
    };
    let dial = DialSettings {
        // The single lane carries no data.
        streams: Some(1),
        path_check: PathCheck::First,
        ..dial::settings(&args.dial, remote, ask)?
    };
    Ok((location, Some(dial)))
}
