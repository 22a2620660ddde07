//! The prompt before the helper program is sent to a host without zmove.

use std::io::{self, IsTerminal};

use zmove_engine::{BoxError, ConfirmHelper, HelperOffer};
use zmove_types::ByteCount;

use super::prompt::is_yes;
use super::terminal;

/// Asks on the terminal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HelperPrompt;

/// Reports the program, without asking.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnnounceHelper;

impl ConfirmHelper for HelperPrompt {
    fn confirm(&self, offer: &HelperOffer) -> Result<(), BoxError> {
        let HelperOffer {
            remote,
            path,
            bytes,
            digest,
        } = offer;
        let path = path.display();
        let size = ByteCount(*bytes);
        if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
            return Err(format!(
                "{remote} has no zmove of this protocol version: run again with --bootstrap to send a helper program \
                 there ({path}, {size}, SHA-256 {digest}), or install zmove there"
            )
            .into());
        }
        eprint!(
            "The host {remote} has no zmove of this protocol version. zmove can send a helper program there:\n  \
             {path}\n  {size}, SHA-256 {digest}\nSend and run it (yes/no)? "
        );
        if is_yes(&mut io::stdin().lock(), &mut io::stderr())? {
            return Ok(());
        }
        Err("the helper program was not sent: install zmove there, or give its path with --remote-zmove".into())
    }
}

impl ConfirmHelper for AnnounceHelper {
    fn confirm(&self, offer: &HelperOffer) -> Result<(), BoxError> {
        terminal::warn(format_args!(
            "sending a helper program to {}: {} ({}, SHA-256 {})",
            offer.remote,
            offer.path.display(),
            ByteCount(offer.bytes),
            offer.digest
        ));
        Ok(())
    }
}
