//! The lane plan: how many lanes to dial and when, and how the lanes respond to loss. The plan uses all information
//! about the path that is available so far.
//!
//! `--streams` determines the number of lanes, up to the number that a rate limit can use. Without it, the larger of
//! the remembered number and the number for the round trip (`machine`) is used. Most lanes are dialed together with the
//! control connection, before the round trip is known, which avoids waiting for an extra round trip. Fewer are dialed
//! if a finished scan or a short path shows within a few milliseconds that fewer are enough.

use std::time::Duration;

use zmove_receiver::files_of_process;
use zmove_sender::{LaneCount, LaneDemand, LossReaction};
use zmove_transport::{ChannelDialer, TransportChoice};
use zmove_wire::limits::LANES_MAX;

use super::PathRecall;
use super::machine::{
    LANES_AT_ONCE, lanes_for, max_lanes_for_descriptors, max_lanes_for_rate, quic_lanes,
};
use crate::connecting::path_memory::PathRecord;
use crate::connecting::settings::DialSettings;

/// The lane plan of a session. When the plan is made, the path memory is the only information about the path.
pub(super) struct LanePlan {
    /// Requested number of lanes, or `None` if the tuner chooses it.
    pub(super) fixed: Option<u16>,
    /// Whether QUIC is tried first.
    quic_first: bool,
    known: Option<PathRecord>,
    /// The lanes' response to loss if the path is not remembered.
    answer: LossReaction,
    /// Number of lanes that the push can use, which may be lower than the path allows.
    need: Option<LaneDemand>,
    /// Maximum number of lanes that the rate limit and the descriptors of this process allow.
    max_lanes: u16,
}

impl LanePlan {
    pub(super) fn new(
        settings: &DialSettings,
        recalled: &PathRecall,
        need: Option<LaneDemand>,
    ) -> Self {
        // With a rate limit or a fixed number of lanes, the path memory does not change the number.
        let known = recalled
            .known
            .filter(|_| settings.streams.is_none() && settings.limit.is_none());
        let need = need.filter(|_| settings.streams.is_none());
        let quic_first = recalled.quic_first.is_some();
        let max_lanes =
            max_lanes_for_rate(settings.limit).min(max_lanes_for_descriptors(files_of_process()));
        let fixed = settings.streams.map(|lanes| lanes.min(max_lanes));
        Self {
            fixed,
            quic_first,
            known,
            answer: LossReaction::of_host(settings.reach.socket.congestion.as_deref()),
            need,
            max_lanes,
        }
    }

    /// Returns the number of first lanes to dial together with the control connection. This is the usual number, or a
    /// smaller one if that proves sufficient within a few milliseconds.
    pub(super) async fn initial_lanes(
        &self,
        dialer: &ChannelDialer,
        transport: TransportChoice,
    ) -> u16 {
        if dialer.is_forwarded() {
            // If the far host refuses to forward connections, ssh prints an error for each of them.
            return 1;
        }
        let usual = self.lanes_before_rtt(transport);
        let until = tokio::time::Instant::now() + EARLY_RESULT_WAIT;
        while self.fixed.is_none() && tokio::time::Instant::now() < until {
            if let Some(lanes) = self.sufficient_lanes(usual) {
                return lanes;
            }
            if let Some(round_trip) = dialer.round_trip() {
                return self.count(round_trip, lanes_for(round_trip)).min(usual);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        usual
    }

    /// Returns the number of lanes that the push and its rate limit can use, if that is known to be less than `usual`.
    pub(super) fn sufficient_lanes(&self, usual: u16) -> Option<u16> {
        let needed = self
            .need
            .as_ref()
            .and_then(LaneDemand::lanes)
            .unwrap_or(u16::MAX);
        Some(needed.min(self.max_lanes)).filter(|lanes| *lanes < usual)
    }

    /// Returns whether the number of lanes may change, and how the lanes respond to loss. Both stay fixed over QUIC:
    /// its congestion control tolerates loss, and its windows are distributed over the first lanes.
    pub(super) fn tuning(
        self,
        is_fixed: bool,
        least: u16,
        round_trip: Duration,
    ) -> (LaneCount, LossReaction) {
        if is_fixed || self.fixed.is_some() || self.max_lanes < LANES_MAX {
            return (LaneCount::Fixed, LossReaction::default());
        }
        (LaneCount::Tuned { least }, self.answer(round_trip))
    }

    /// Returns the number of lanes to dial before transport and round trip are known.
    fn lanes_before_rtt(&self, transport: TransportChoice) -> u16 {
        let known = match transport {
            TransportChoice::Quic => Some(quic_lanes()),
            TransportChoice::Auto if self.quic_first => Some(quic_lanes()),
            TransportChoice::Auto | TransportChoice::Tcp => self.known.map(|known| known.lanes),
        };
        self.fixed.or(known).unwrap_or(LANES_AT_ONCE)
    }

    /// Returns the initial number of lanes if `least` lanes suit the round trip.
    pub(super) fn count(&self, round_trip: Duration, least: u16) -> u16 {
        let known = self.known_of(round_trip).map_or(least, |known| known.lanes);
        self.fixed.unwrap_or(known.max(least))
    }

    /// Returns the lanes' initial response to loss.
    fn answer(self, round_trip: Duration) -> LossReaction {
        let was_right = self
            .known_of(round_trip)
            .is_some_and(|known| known.loss_tolerant);
        let LossReaction { tolerant, usual } = self.answer;
        LossReaction {
            tolerant: tolerant || was_right && usual.is_some(),
            usual,
        }
    }

    /// Returns the remembered path if its round trip is similar.
    fn known_of(&self, round_trip: Duration) -> Option<PathRecord> {
        self.known.filter(|known| known.matches_rtt(round_trip))
    }
}

/// How long most lanes are held back. If the scan ends or the path proves short within this time, fewer lanes are
/// dialed.
const EARLY_RESULT_WAIT: Duration = Duration::from_millis(5);

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
            known: Some(PathRecord::new(32, true, round_trip, 1_000_000)),
            answer: LossReaction {
                tolerant: false,
                usual: usual(),
            },
            need: None,
            max_lanes: 64,
        };
        let replaced = LossReaction {
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
            answer: LossReaction::default(),
            ..plan()
        };
        assert_eq!(pinned.answer(round_trip), LossReaction::default());
    }
}
