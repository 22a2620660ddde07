//! `zmove receive`: the far end of a transfer over ssh.

use anyhow::Result;
use zmove_engine::ReceiverConfig;
use zmove_far::receive::Received;
use zmove_far::{FarEnd, receive};
use zmove_tools::sweep::measure_target;

use crate::commands::transfer::receiver;
use crate::settings::{self, Role};
use crate::value::exit::Exit;

/// Runs `zmove receive`.
pub(crate) fn run() -> Result<Exit> {
    let end = FarEnd {
        config: ReceiverConfig {
            measure_storage: Some(measure_target),
            ..receiver()
        },
        home: settings::home(Role::Client).ok(),
    };
    Ok(match receive(end)? {
        Received::Ended => Exit::Done,
        Received::OtherVersion => Exit::Incompatible,
    })
}
