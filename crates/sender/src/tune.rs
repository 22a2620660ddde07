//! Decides how many lanes and readers a push should have and how lanes react to loss. A decision is made at each tick,
//! from the reports of the stages and of the kernel.
//!
//! The session calls this controller a few times a second and applies its decisions ([`steering`]). The controller is
//! pure: it has no clock and no socket. Each [`Tick`] carries the elapsed time, so that tests can run the controller on
//! simulated paths.
//!
//! A change is an attempt with a measured baseline ([`attempt`]). It is kept if the rate rises or, for fewer lanes, if
//! the rate does not fall. Otherwise it is reverted and the next attempt waits longer. One knob moves at a time, so
//! that a gain has one cause. Once lanes hold all remaining work, nothing more is tried, because the rates are no
//! longer meaningful. [`lanes`] and [`readers`] describe when each of them tries a change.
//!
//! The number of lanes is not tuned in these cases:
//!
//! - `--streams` or `--limit` is set.
//! - The lanes use QUIC, or both sides run in one process.
//! - The push can use no more lanes than it has.
//! - The lanes' connections report nothing.
//!
//! A congestion control chosen with `--congestion` is never changed.
//!
//! **Invariant:** a rejected change is not tried again until a rest has passed that doubles with each rejection, so the
//! controller does not oscillate.

use std::time::Duration;

use zmove_types::StageTimes;

mod attempt;
pub(crate) mod congestion_controls;
mod lanes;
mod loss;
pub(crate) mod path;
mod readers;
mod round;
pub(crate) mod steering;

use lanes::LaneTuner;
use readers::ReaderTuner;

/// The limits of the knobs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Knobs {
    /// Limits of the number of lanes.
    pub(crate) lanes: Knob,
    /// Limits of the number of reader threads.
    pub(crate) readers: Knob,
    /// The lanes' reaction to loss at the start.
    pub(crate) congestion: Congestion,
    /// Whether the congestion control of lanes may be changed.
    pub(crate) congestion_replaceable: bool,
}

/// The start value and limits of one tuned number.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Knob {
    /// Value at the start.
    pub(crate) start: usize,
    /// Minimum value.
    pub(crate) least: usize,
    /// Maximum value.
    pub(crate) most: usize,
}

/// The settings that a push should apply from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TunedSettings {
    pub(crate) lanes: usize,
    pub(crate) readers: usize,
    pub(crate) congestion: Congestion,
}

/// The lanes' reaction to loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Congestion {
    /// The reaction of the congestion control that the system or the user has set.
    #[default]
    AsSet,
    /// The reaction of a congestion control that does not interpret loss as congestion.
    LossTolerant,
}

/// The measurements since the previous tick.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tick {
    /// Time since the previous tick.
    pub(crate) elapsed: Duration,
    /// Bytes that the path has carried. These are the acknowledged bytes, or the bytes handed to the lanes if
    /// acknowledgments are not reported.
    pub(crate) bytes_carried: u64,
    /// Bytes that the readers have read.
    pub(crate) bytes_read: u64,
    /// How the readers spent their time.
    pub(crate) read: StageTimes,
    /// How the lanes spent their time.
    pub(crate) lane: StageTimes,
    /// Number of lanes that are up.
    pub(crate) lanes_up: usize,
    /// Bytes carried since the start that the receiver has not settled. These bytes are in the receiver's buffers or
    /// belong to unfinished groups.
    pub(crate) bytes_unstored: u64,
    /// Whether the lanes have taken all remaining work, so that measured rates are no longer meaningful.
    pub(crate) ending: bool,
    /// Idle share of this host's cores, from 0 to 1.
    pub(crate) cores_idle: f64,
    /// The kernel's report on the lanes' connections, if there is one.
    pub(crate) path: Option<PathTick>,
}

/// Measurements of the lanes' connections in one tick. Times are summed over the lanes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PathTick {
    /// Time in which data was in transit or waiting to be sent.
    pub(crate) busy: Duration,
    /// Time within `busy` in which the receiver's window was full.
    pub(crate) receive_window_limited: Duration,
    /// Time within `busy` in which this side's socket buffer was too small.
    pub(crate) send_buffer_limited: Duration,
    /// Number of retransmitted segments.
    pub(crate) segments_retransmitted: u64,
    /// Maximum segment size in bytes, or zero if unknown.
    pub(crate) segment_bytes: u32,
    /// Smoothed round-trip time, averaged over the lanes that are up.
    pub(crate) round_trip: Duration,
    /// Shortest round trip of any lane.
    pub(crate) round_trip_min: Duration,
    /// Total congestion windows of the lanes that are up, in bytes, or zero if unknown.
    pub(crate) congestion_window_bytes: u64,
}

/// The controller of one push.
#[derive(Debug)]
pub(crate) struct Tuner {
    lanes: LaneTuner,
    readers: ReaderTuner,
}

impl Tuner {
    pub(crate) fn new(limits: &Knobs) -> Self {
        Self {
            lanes: LaneTuner::new(limits),
            readers: ReaderTuner::new(limits.readers),
        }
    }

    /// Processes the measurements of a tick and returns the wanted settings.
    pub(crate) fn tick(&mut self, tick: &Tick) -> TunedSettings {
        if tick.ending {
            return self.wanted();
        }
        self.lanes.tick(tick);
        // Only one knob is changed at a time, so that a gain has one cause.
        if self.lanes.is_settled() {
            self.readers.tick(tick);
        }
        self.wanted()
    }

    /// Returns the settings that have proved useful. If a change is still being tried, the result contains the value
    /// from before the change.
    pub(crate) fn proven(&self) -> TunedSettings {
        self.lanes.proven(self.wanted())
    }

    pub(crate) fn wanted(&self) -> TunedSettings {
        TunedSettings {
            lanes: self.lanes.wanted,
            readers: self.readers.wanted,
            congestion: self.lanes.congestion,
        }
    }
}

#[cfg(test)]
mod tests;
