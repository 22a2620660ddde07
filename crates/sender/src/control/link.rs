//! The connections of a session.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use zmove_transport::{ControlError, ControlReader, ControlWriter, LaneError, LaneSink};
use zmove_types::{Beginning, TransferId};
use zmove_wire::{Cipher, Greeting, Open, Role, ToReceiver, decode_message, encode_message};

use crate::control::not_opened;
use crate::control::relay::{PeerQuota, Relay};
use crate::error::SessionError;

/// The control connection and the lanes to the peer. `L` is the type of this side's end of a lane.
#[derive(Debug)]
pub struct Link<L = Box<dyn LaneSink>> {
    /// ID of the transfer, as sent on the lanes.
    pub transfer: TransferId,
    /// Cipher of the lanes, as sent on the lanes.
    pub cipher: Cipher,
    /// The control connection. If the receiver has dialed, both sides have already sent their greetings. Otherwise
    /// nothing has been sent on the connection.
    pub control: (ControlReader, ControlWriter),
    /// Delivers each lane once it is connected and has sent its greeting. Delivers an error for each lane that could
    /// not be connected.
    pub lanes: mpsc::Receiver<Result<L, LaneError>>,
    /// Supply of additional lanes, or `None` if no additional lanes can be dialed.
    pub supply: Option<LaneSupply>,
    /// Relay messages for a receiver that has dialed, or `None` if this side has dialed.
    pub relay: Option<Relay>,
    /// The quota for the receiver's use of this host's memory and threads.
    pub quota: Arc<dyn PeerQuota>,
}

impl Link {
    /// Sends the greeting and the opening. An opening that may begin a shared job is sent only after the receiver has
    /// reported that it has room, which it must do within `silence_max`. Otherwise the receiver could act on the
    /// opening of a sender that has already left the queue.
    pub(crate) async fn ask(
        &mut self,
        open: Open,
        silence_max: Duration,
    ) -> Result<(), SessionError> {
        let mut opening = if self.relay.is_some() {
            Vec::new()
        } else {
            self.greeting().encode().to_vec()
        };
        if may_begin_job(&open) {
            self.control.1.send(&std::mem::take(&mut opening)).await?;
            let room = timeout(silence_max, has_room(&mut self.control.0)).await;
            room.unwrap_or(Err(SessionError::Silent))
                .map_err(|error| match error {
                    refused @ SessionError::Refused(_) => refused,
                    error => SessionError::NothingAsked(Box::new(error)),
                })?;
        }
        opening.extend(encode_message(&ToReceiver::Open(open)));
        Ok(self.control.1.send_order(&opening).await?)
    }

    pub(crate) fn greeting(&self) -> Greeting {
        Greeting {
            cipher: self.cipher,
            ..Greeting::new(Role::Control, self.transfer)
        }
    }
}

/// Returns whether an opening may begin a shared job.
pub(crate) fn may_begin_job(open: &Open) -> bool {
    open.shared_job
        .as_ref()
        .is_some_and(|opening| opening.beginning == Beginning::Allowed)
}

/// Checks that the receiver has room for the session. A receiver that has no room reports this together with its
/// greeting.
async fn has_room(reader: &mut ControlReader) -> Result<(), SessionError> {
    reader.greeting().await?;
    if !reader.has_message() {
        return Ok(());
    }
    let message = reader.receive().await?.ok_or(ControlError::Closed)?;
    Err(not_opened(decode_message(&message)?))
}

/// A supply of additional lanes.
#[derive(Debug)]
pub struct LaneSupply {
    /// Requests for additional lanes, each with the number of lanes wanted. Every requested lane is delivered or fails
    /// in the same way as the first lanes.
    pub more: mpsc::UnboundedSender<u16>,
    /// Number of lanes requested so far, not counting the lanes in `again`.
    pub asked: u16,
    /// Number of replacements that were requested for lanes that failed to connect.
    pub again: u16,
    /// How the number of lanes is chosen.
    pub number: LaneCount,
    /// How the lanes react to packet loss.
    pub congestion: LossReaction,
}

/// How the number of lanes is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneCount {
    /// The initial number of lanes is kept. More lanes are dialed only to replace lost lanes.
    Fixed,
    /// The tuner chooses the number of lanes.
    Tuned {
        /// Minimum number of lanes that suits the path.
        least: u16,
    },
}

/// The initial reaction of the lanes' congestion control to packet loss.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LossReaction {
    /// Whether congestion control ignores loss instead of reducing the rate.
    pub tolerant: bool,
    /// Kernel name of the usual congestion control, if the push may switch between it and
    /// [`LOSS_TOLERANT`](crate::LOSS_TOLERANT). `None` if the push keeps the initial congestion control.
    pub usual: Option<String>,
}

#[cfg(test)]
mod tests {
    use zmove_wire::{ToSender, Waiting};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use zmove_transport::control_pair;
    use zmove_types::SharedJobId;
    use zmove_wire::SharedJobOpening;

    use super::*;
    use crate::control::relay::NoQuota;

    const TRANSFER: TransferId = TransferId([7; 16]);

    /// Returns the result of `ask` if the receiver has sent the bytes in `said`, and the bytes that `ask` sends to the
    /// receiver.
    async fn asked(beginning: Beginning, said: &[u8]) -> (Result<(), SessionError>, Vec<u8>) {
        let (own, mut peer) = tokio::io::duplex(64 * 1024);
        peer.write_all(said).await.unwrap();
        let mut link = Link {
            transfer: TRANSFER,
            cipher: Cipher::Tls,
            control: control_pair(own),
            lanes: mpsc::channel(1).1,
            supply: None,
            relay: None,
            quota: Arc::new(NoQuota),
        };
        let shared_job = Some(Box::new(SharedJobOpening {
            job: SharedJobId([1; 16]),
            beginning,
            leads: true,
        }));
        let open = Open {
            shared_job,
            ..Open::new(b"t".to_vec(), [1; 16])
        };
        let ended = link.ask(open, Duration::from_secs(20)).await;
        drop(link);
        let mut heard = Vec::new();
        peer.read_to_end(&mut heard).await.unwrap();
        (ended, heard)
    }

    #[tokio::test(start_paused = true)]
    async fn the_opening_of_a_job_is_not_said_before_it_is_known_that_there_is_room() {
        let greeting = Greeting::new(Role::Control, TRANSFER).encode().to_vec();
        let waiting = ToSender::Waiting(Waiting {
            ahead: 0,
            text: "full".to_owned(),
        });
        let in_line = [greeting.clone(), encode_message(&waiting)].concat();
        let (ended, heard) = asked(Beginning::Allowed, &in_line).await;
        assert!(ended.is_err_and(|error| error.is_busy()));
        assert_eq!(heard.len(), Greeting::BYTES);
        let (ended, heard) = asked(Beginning::Allowed, &[]).await;
        assert!(matches!(ended, Err(SessionError::NothingAsked(silent)) if silent.is_lost()));
        assert_eq!(heard.len(), Greeting::BYTES);
        for (beginning, said) in [
            (Beginning::Allowed, &greeting),
            (Beginning::UnderWay, &in_line),
        ] {
            let (ended, heard) = asked(beginning, said).await;
            ended.unwrap();
            assert!(heard.len() > Greeting::BYTES, "{beginning:?}");
        }
    }
}
