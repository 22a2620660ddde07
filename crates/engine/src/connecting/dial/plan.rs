//! The plan of lanes: how many are dialled when, and how they answer to loss, from what is known of the path
//! so far.
//!
//! `--streams` decides, up to what a rate limit can use; else the number remembered of the path, if that is more
//! than its round trip asks for; else the round trip (`machine`). Most lanes are dialled beside control, before the
//! round trip is known, so that nobody waits a round trip for them. But no more are dialled than the first packs can
//! use, where the end of the scan or a short path shows that within a few milliseconds.

use std::time::Duration;

use zmove_receiver::files_of_process;
use zmove_sender::{LaneNumber, LossAnswer, Need};
use zmove_transport::{ChannelDialler, TransportChoice};
use zmove_wire::limits::LANES_MAX;

use super::Recalled;
use super::machine::{LANES_AT_ONCE, lanes_for, lanes_within, lanes_within_files, quic_lanes};
use crate::connecting::path_memory::Known;
use crate::connecting::settings::DialSettings;

/// The plan of lanes, before anything is known of the path but what was remembered.
pub(super) struct LanePlan {
    /// The number that was asked for; `None` where the tuner chooses it.
    pub(super) fixed: Option<u16>,
    /// QUIC goes first.
    quic_first: bool,
    known: Option<Known>,
    /// The lanes' answer to loss if nothing is remembered of the path.
    answer: LossAnswer,
    /// The number of lanes that the push can use, where that may be less than the path could.
    need: Option<Need>,
    /// Maximum number of lanes by the rate limit and by the descriptors of this process.
    most: u16,
}

impl LanePlan {
    pub(super) fn new(settings: &DialSettings, recalled: &Recalled, need: Option<Need>) -> Self {
        // With a rate limit or a fixed number of lanes, what is known of the path does not change their number.
        let known = recalled
            .known
            .filter(|_| settings.streams.is_none() && settings.limit.is_none());
        let need = need.filter(|_| settings.streams.is_none());
        let quic_first = recalled.quic_first.is_some();
        let most = lanes_within(settings.limit).min(lanes_within_files(files_of_process()));
        let fixed = settings.streams.map(|lanes| lanes.min(most));
        Self {
            fixed,
            quic_first,
            known,
            answer: LossAnswer::of_host(settings.reach.socket.congestion.as_deref()),
            need,
            most,
        }
    }

    /// The number of first lanes to dial beside control, which is being dialled: as many as are known without waiting
    /// for a round trip, but few where it shows at once that few are enough.
    pub(super) async fn early(&self, dialler: &ChannelDialler, transport: TransportChoice) -> u16 {
        let usual = self.at_once(transport);
        let until = tokio::time::Instant::now() + SHOWS_AT_ONCE;
        while self.fixed.is_none() && tokio::time::Instant::now() < until {
            if let Some(lanes) = self.few(usual) {
                return lanes;
            }
            if let Some(round_trip) = dialler.round_trip() {
                return self.count(round_trip, lanes_for(round_trip)).min(usual);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        usual
    }

    /// The number of lanes that the push and its rate can use, if that is known to be less than `usual`.
    pub(super) fn few(&self, usual: u16) -> Option<u16> {
        let needed = self.need.as_ref().and_then(Need::lanes).unwrap_or(u16::MAX);
        Some(needed.min(self.most)).filter(|lanes| *lanes < usual)
    }

    /// How the number of lanes and their congestion control change, unless it is already known that they stay as at
    /// first: so over QUIC, whose congestion control bears loss and whose windows are shared out over the first lanes.
    pub(super) fn tuning(
        self,
        is_fixed: bool,
        least: u16,
        round_trip: Duration,
    ) -> (LaneNumber, LossAnswer) {
        if is_fixed || self.fixed.is_some() || self.most < LANES_MAX {
            return (LaneNumber::Fixed, LossAnswer::default());
        }
        (LaneNumber::Tuned { least }, self.answer(round_trip))
    }

    /// The number of lanes to dial before transport and round trip are known.
    fn at_once(&self, transport: TransportChoice) -> u16 {
        let known = match transport {
            TransportChoice::Quic => Some(quic_lanes()),
            TransportChoice::Auto if self.quic_first => Some(quic_lanes()),
            TransportChoice::Auto | TransportChoice::Tcp => self.known.map(|known| known.lanes),
        };
        self.fixed.or(known).unwrap_or(LANES_AT_ONCE)
    }

    /// The number of lanes at first, where `least` suit the round trip.
    pub(super) fn count(&self, round_trip: Duration, least: u16) -> u16 {
        let known = self.known_of(round_trip).map_or(least, |known| known.lanes);
        self.fixed.unwrap_or(known.max(least))
    }

    /// The lanes' answer to loss at first.
    fn answer(self, round_trip: Duration) -> LossAnswer {
        let was_right = self
            .known_of(round_trip)
            .is_some_and(|known| known.loss_tolerant);
        let LossAnswer { tolerant, usual } = self.answer;
        LossAnswer {
            tolerant: tolerant || was_right && usual.is_some(),
            usual,
        }
    }

    /// The remembered path, if it has a round trip like this one.
    fn known_of(&self, round_trip: Duration) -> Option<Known> {
        self.known.filter(|known| known.suits(round_trip))
    }
}

/// How long most lanes are held back, lest the scan end or the path prove short just after they were dialled.
const SHOWS_AT_ONCE: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_another_path_is_not_used() {
        let round_trip = Duration::from_millis(90);
        let usual = || Some("cubic".to_owned());
        let plan = || LanePlan {
            fixed: None,
            quic_first: false,
            known: Some(Known::new(32, true, round_trip, 1_000_000)),
            answer: LossAnswer {
                tolerant: false,
                usual: usual(),
            },
            need: None,
            most: 64,
        };
        let replaced = LossAnswer {
            tolerant: true,
            usual: usual(),
        };
        assert_eq!(
            (plan().count(round_trip, 8), plan().answer(round_trip)),
            (32, replaced)
        );
        let near = Duration::from_millis(1);
        assert_eq!(
            (plan().count(near, 8), plan().answer(near)),
            (8, plan().answer)
        );
        let pinned = LanePlan {
            answer: LossAnswer::default(),
            ..plan()
        };
        assert_eq!(pinned.answer(round_trip), LossAnswer::default());
    }
}
