//! Who is told what becomes of jobs: by a webhook, a mail or a command, at least once each.
//!
//! The file `tell.toml` names the [`Channel`]s. What is to be told is in the outbox of the store, with the state that
//! it tells; the runner's [`Teller`] makes a delivery for each channel of it, tries each until it is made or given up,
//! and notes that afterwards. Who hears of an event twice knows it again by its id.
//!
//! **Invariant:** nothing here holds up a job: the teller is a thread of its own, and each channel one of its own too.

mod address;
mod command;
mod config;
mod keys;
mod mail;
mod message;
mod secret;
mod teller;
mod webhook;

pub use config::{Channel, Channels, TellError};
pub(crate) use teller::Teller;

use crate::moment::Moment;
use crate::store::Try;
use message::Message;

impl Channel {
    /// Tells that somebody tries whether this channel works, now.
    ///
    /// # Errors
    /// It does not, for this reason.
    pub fn try_out(&self, store: &str) -> Result<(), String> {
        match self.tell(&Message::test(store, Moment::now())) {
            Try::Delivered => Ok(()),
            Try::NotNow(why) | Try::Never(why) => Err(why),
        }
    }
}
