//! The connections that a session is given.

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

/// The connections to the other side: control and lanes, of which this side has the ends `L`.
#[derive(Debug)]
pub struct Link<L = Box<dyn LaneSink>> {
    /// The transfer's id, as the lanes have sent it.
    pub transfer: TransferId,
    /// The cipher of the lanes, as they have sent it.
    pub cipher: Cipher,
    /// The control connection, on which nothing has been sent; where the receiver has dialled, both have greeted.
    pub control: (ControlReader, ControlWriter),
    /// Lanes as they come up, on which the greeting has been sent; an error is the reason why one did not come up.
    pub lanes: mpsc::Receiver<Result<L, LaneError>>,
    /// The supply of further lanes; `None` where there can be none.
    pub supply: Option<LaneSupply>,
    /// What is said beside the transfer to a receiver that has dialled. `None`: this side has dialled.
    pub relay: Option<Relay>,
    /// What the receiver may hold here.
    pub quota: Arc<dyn PeerQuota>,
}

impl Link {
    /// Sends the greeting and the opening. One that may begin a shared job is sent only
    /// when the receiver has room, which is to be heard within `silence_max`: what has been said may be carried out,
    /// whether this side waits in line or not.
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

/// Whether an opening may begin a shared job.
pub(crate) fn may_begin_job(open: &Open) -> bool {
    open.shared_job
        .as_ref()
        .is_some_and(|opening| opening.beginning == Beginning::Allowed)
}

/// Whether the receiver has room for the session at once: it says otherwise together with its greeting.
async fn has_room(reader: &mut ControlReader) -> Result<(), SessionError> {
    reader.greeting().await?;
    if !reader.has_message() {
        return Ok(());
    }
    let message = reader.receive().await?.ok_or(ControlError::Closed)?;
    Err(not_opened(decode_message(&message)?))
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
    /// The usual congestion control, by its kernel name, where [`LOSS_TOLERANT`](crate::LOSS_TOLERANT) may be used
    /// in its place and it in the place of that. `None`: only the one at first is used.
    pub usual: Option<String>,
}

#[cfg(test)]
mod tests {
    use zmove_wire::{ToSender, Waiting};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use zmove_transport::control_pair;
    use zmove_types::SharedJobId;
    use zmove_wire::{NodeName, SharedJobOpening};

    use super::*;
    use crate::control::relay::NoQuota;

    const TRANSFER: TransferId = TransferId([7; 16]);

    /// How asking ends where the receiver has said this, and what it has heard.
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
        let node = NodeName::new("a").unwrap();
        let shared_job = Some(Box::new(SharedJobOpening {
            job: SharedJobId([1; 16]),
            beginning,
            leads: true,
            node,
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
