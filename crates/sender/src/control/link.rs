//! The connections that a session is given.

use std::sync::Arc;

use tokio::sync::mpsc;
use zmove_transport::{ControlReader, ControlWriter, LaneError, LaneSink};
use zmove_types::TransferId;
use zmove_wire::{Cipher, Greeting, Open, Proof, Role, Version, encode_message};

use crate::control::relay::{PeerQuota, Relay};
use crate::error::SessionError;

/// The connections to the receiver: control and lanes.
#[derive(Debug)]
pub struct Link {
    /// The transfer's id, as the lanes have sent it.
    pub transfer: TransferId,
    /// The cipher of the lanes, as they have sent it.
    pub cipher: Cipher,
    /// The newest version that may be spoken, as TLS has negotiated it for control.
    pub version: Version,
    /// The control connection, on which nothing has been sent; where the receiver has dialled, both have greeted.
    pub control: (ControlReader, ControlWriter),
    /// Lanes as they come up, on which the greeting has been sent; an error is the reason why one did not come up.
    pub lanes: mpsc::Receiver<Result<Box<dyn LaneSink>, LaneError>>,
    /// The supply of further lanes; `None` where there can be none.
    pub supply: Option<LaneSupply>,
    /// What is said beside the transfer to a receiver that has dialled. `None`: this side has dialled.
    pub relay: Option<Relay>,
    /// What the receiver may hold here. `None`: as much as the protocol allows, for a sender that
    /// works for its own user.
    pub quota: Option<Arc<dyn PeerQuota>>,
}

impl Link {
    /// Sends the greeting and the opening, in the form of the version.
    pub(crate) async fn ask(&mut self, open: Open) -> Result<(), SessionError> {
        let asks_for_more =
            open.verify || open.proof != Proof::Wire || open.keeping.is_some_and(|keeping| keeping.asked);
        if self.version < Version::V4 && asks_for_more {
            return Err(SessionError::OldReceiver);
        }
        let mut opening = if self.relay.is_some() { Vec::new() } else { self.greeting().encode().to_vec() };
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
    /// Asks for so many more lanes: each comes up, or fails, as the first ones do.
    pub more: mpsc::UnboundedSender<u16>,
    /// The number that has been asked for already.
    pub asked: u16,
    /// The number that has been asked for beside these, since some of them have come to nothing.
    pub again: u16,
    /// How the number of lanes is chosen.
    pub number: LaneNumber,
    /// How the lanes answer to loss.
    pub congestion: LossAnswer,
}

/// How the number of lanes is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneNumber {
    /// The number of lanes at first: more are dialled only in the place of lost ones.
    Fixed,
    /// The number of lanes that the tuner finds best.
    Tuned {
        /// The fewest that suit the path.
        least: u16,
    },
}

/// What the lanes' congestion control makes of loss at first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LossAnswer {
    /// Whether it ignores loss, and does not send less.
    pub tolerant: bool,
    /// The two congestion controls between which there is a choice; `None` where no other one is to be used.
    pub choice: Option<CongestionChoice>,
}

/// Two congestion controls, by their kernel names: either may be used in the place of the other where that gains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CongestionChoice {
    /// The usual congestion control.
    pub usual: String,
    /// The one that ignores loss.
    pub tolerant: String,
}
