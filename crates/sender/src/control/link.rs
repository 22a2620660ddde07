//! The connections that a session is given.

use tokio::sync::mpsc;
use zmove_transport::{ControlReader, ControlWriter, LaneError, LaneSink};
use zmove_types::TransferId;
use zmove_wire::{Cipher, Greeting, Open, Role, Version, encode_message};

use crate::error::SessionError;

/// The ways to the receiver.
#[derive(Debug)]
pub struct Link {
    /// The transfer's id, as the lanes have presented it.
    pub transfer: TransferId,
    /// How the lanes go on, as they have said.
    pub cipher: Cipher,
    /// The newest version that may be spoken, as TLS has agreed on control.
    pub version: Version,
    /// The control connection, on which nothing has been said.
    pub control: (ControlReader, ControlWriter),
    /// Lanes as they come up, on which the greeting has been sent; an error is why one did not.
    pub lanes: mpsc::Receiver<Result<Box<dyn LaneSink>, LaneError>>,
    /// How there can be more of them; none where there cannot.
    pub supply: Option<LaneSupply>,
}

impl Link {
    /// Greets and asks for leave, in the words of the version.
    pub(crate) async fn ask(&mut self, open: Open) -> Result<(), SessionError> {
        if self.version < Version::V4 && open.keeping.is_some_and(|keeping| keeping.asked) {
            return Err(SessionError::OldReceiver);
        }
        let mut opening = self.greeting().encode().to_vec();
        opening.extend(encode_message(&open.into_message(self.version)));
        Ok(self.control.1.send(&opening).await?)
    }

    pub(crate) fn greeting(&self) -> Greeting {
        Greeting { cipher: self.cipher, ..Greeting::new(Role::Control, self.transfer) }
    }
}

/// Lanes on demand.
#[derive(Debug)]
pub struct LaneSupply {
    /// Asks for so many more lanes: each comes up, or fails, as those before.
    pub more: mpsc::UnboundedSender<u16>,
    /// How many have been asked for already.
    pub asked: u16,
    /// Who says how many there shall be.
    pub number: LaneNumber,
    /// How they answer to loss.
    pub congestion: LossAnswer,
}

/// How many lanes there shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneNumber {
    /// As many as there were at first: more are dialled only in the place of those that are lost.
    Fixed,
    /// As many as help.
    Tuned {
        /// The fewest that suit the path.
        least: u16,
    },
}

/// What the lanes' congestion control makes of loss at first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LossAnswer {
    /// Whether it takes no notice of loss, and does not send less.
    pub tolerant: bool,
    /// Between which two there is a choice; none where nothing else is to be used.
    pub choice: Option<CongestionChoice>,
}

/// Two congestion controls, by their kernel names: either may be used in the place of the other where that gains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CongestionChoice {
    /// The one that is used otherwise.
    pub usual: String,
    /// The one that takes no notice of loss.
    pub tolerant: String,
}
