//! Runs a prepared transfer as a push whose receiver has dialed this host, until it ends or is stopped.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;
use zmove_engine::StartedPush;
use zmove_receiver::unless_stopped;
use zmove_sender::{
    LaneCount, LaneSupply, Link, LossReaction, Manifest, Relay, SessionError, Summary,
};
use zmove_transport::blocking;
use zmove_wire::{Fetch, Fetching, ToSender, encode_message};

use super::{Prepared, SendingError, SendingSession, cut_off, flush_periodically};
use crate::sender_relay::{KeyQuota, Listeners, SenderRelay};
use crate::transfers::StopReason;

/// The reason why a transfer was stopped before its end.
enum StopCause {
    /// The operator of this host has ended the transfer, or the daemon is being stopped.
    CutOff(StopReason),
    /// The peer has started a newer transfer of the same run.
    Superseded,
    /// The peer does not read its messages.
    Unread,
}

impl StopCause {
    /// Returns the error with which a stopped transfer ends.
    fn into_error(self) -> SendingError {
        match self {
            Self::CutOff(StopReason::Stopping) => SessionError::Interrupted.into(),
            Self::CutOff(cut) => SendingError::CutOff(cut.refusal()),
            Self::Superseded => SendingError::Superseded,
            Self::Unread => SendingError::Unread,
        }
    }
}

impl Prepared {
    /// Sends the prepared files over the connections of `session`.
    pub(super) async fn run(
        self,
        session: SendingSession,
        stop: impl Future<Output = StopReason>,
    ) -> Result<Summary, SendingError> {
        let started = Instant::now();
        tokio::pin!(stop);
        let mut control = session.control;
        let lanes_max = session.share.portion.lanes;
        let beginning = async {
            let lease = session.run_leases.acquire(self.fetch.open.run).await;
            let fetching = ToSender::Fetching(Fetching { lanes_max });
            control.writer.send(&encode_message(&fetching)).await?;
            Ok::<_, SendingError>(lease)
        };
        let lease = match unless_stopped(stop.as_mut(), beginning).await {
            Ok(lease) => lease?,
            Err(cut) => return Err(cut_off(control, cut).await),
        };
        let quota = session.share.quota;
        let (sender_relay, words) =
            SenderRelay::new(quota.clone(), Listeners::Needed, session.meter);
        let supply = supply(&self.fetch, lanes_max, session.has_waited, &sender_relay);
        let manifest = self.manifest(&sender_relay);
        let missing = self.missing.len() as u64;
        sender_relay.fail_all(self.missing);
        let _until_the_end = self.held;
        let starting = move || StartedPush::new(self.job, self.config, manifest, started);
        let push = blocking(starting).await;
        let ending = Arc::clone(&sender_relay);
        let relay = Relay {
            words,
            last: Box::new(move |ended| ending.end(ended, missing)),
        };
        let link = Link {
            transfer: session.transfer,
            cipher: session.cipher,
            control: (control.reader, control.writer),
            lanes: session.lanes,
            supply: Some(supply),
            relay: Some(relay),
            quota: Arc::new(KeyQuota(quota)),
        };
        let telling = tokio::spawn(flush_periodically(Arc::clone(&sender_relay)));
        let mut stopped = None;
        let stop = async {
            stopped = Some(tokio::select! {
                cut = stop => {
                    sender_relay.cut_off(cut.refusal());
                    StopCause::CutOff(cut)
                }
                () = lease.superseded() => StopCause::Superseded,
                () = sender_relay.is_over() => StopCause::Unread,
            });
        };
        let observer = Arc::<SenderRelay>::clone(&sender_relay);
        let sent = push.push_over(link, observer, stop).await;
        telling.abort();
        sent.map_err(|error| match (error, stopped) {
            (SessionError::Interrupted, Some(cause)) => cause.into_error(),
            (error, _) => error.into(),
        })
    }

    fn manifest(&self, sender_relay: &Arc<SenderRelay>) -> Option<Manifest> {
        self.fetch.manifest.then(|| {
            let sender_relay = Arc::clone(sender_relay);
            Manifest::with_callback(move |path, root, known| sender_relay.hash(path, root, known))
        })
    }
}

/// Creates the supply of lanes. The receiver dials additional lanes on request. If the transfer was queued, some lanes
/// may have arrived too early and were closed. The supply therefore immediately requests as many lanes as the receiver
/// had already dialed.
fn supply(
    fetch: &Fetch,
    lanes_max: u16,
    has_waited: bool,
    sender_relay: &Arc<SenderRelay>,
) -> LaneSupply {
    let (more, mut wanted) = mpsc::unbounded_channel();
    let sender_relay = Arc::clone(sender_relay);
    tokio::spawn(async move {
        while let Some(more) = wanted.recv().await {
            sender_relay.want_lanes(more);
        }
    });
    let asked = fetch.lanes.dialled.min(lanes_max);
    let number = fetch
        .lanes
        .least
        .map_or(LaneCount::Fixed, |least| LaneCount::Tuned { least });
    let congestion = match number {
        LaneCount::Fixed => LossReaction::default(),
        LaneCount::Tuned { .. } => LossReaction::of_host(None),
    };
    let again = if has_waited { asked } else { 0 };
    if again > 0 {
        more.send(again).expect("the receiver is above");
    }
    LaneSupply {
        more,
        asked,
        again,
        number,
        congestion,
    }
}
