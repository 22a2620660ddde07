//! `zmove key`: this identity.

use anyhow::Result;
use zmove_transport::Identity;

use crate::args::{KeyArgs, KeyCommand};
use crate::exit::Exit;
use crate::settings;
use crate::terminal;

/// Runs `zmove key`.
pub(crate) fn run(args: &KeyArgs) -> Result<Exit> {
    match args.command {
        KeyCommand::Show => {
            let identity = Identity::load_or_create(&settings::home(settings::Role::Client)?)?;
            terminal::print(format_args!("{}\n", identity.fingerprint()));
            Ok(Exit::Done)
        }
    }
}
