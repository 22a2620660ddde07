//! How many lanes and readers a push should have, and how lanes answer to loss: decided tick by tick from what its
//! stages and the kernel report.
//!
//! The conversation looks a few times a second, calls this controller, and applies what is wanted
//! ([`steering`]). The controller is pure: no clock, no socket; every moment comes in with a [`Tick`], so
//! that tests run it on simulated paths.
//!
//! A change is an attempt with a measured baseline ([`attempt`]). It is kept if the rate rises, or, for fewer lanes, if
//! it does not fall; else it is taken back and the next one waits longer. One knob moves at a time, so that a gain has
//! one cause. Once all work is with lanes nothing is tried any more, since rates show nothing then. [`lanes`] and
//! [`readers`] describe what each tries and when.
//!
//! The number of lanes is not tuned with `--streams`, with `--limit`, over QUIC, within one process, where the push can
//! use no more lanes than it has, or over lanes whose connection reports nothing. `--congestion` is kept.
//!
//! **Invariant:** a change that was refused is not tried again before a rest that doubles with each refusal,
//! so nothing swings.

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

/// The limits between which the knobs may move.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Knobs {
    /// The limits of the number of lanes.
    pub(crate) lanes: Knob,
    /// The limits of the number of threads that read.
    pub(crate) readers: Knob,
    /// The lanes' answer to loss from the start.
    pub(crate) congestion: Congestion,
    /// Whether lanes may be given the other congestion control.
    pub(crate) congestion_replaceable: bool,
}

/// One number that is tuned.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Knob {
    /// The number at the start.
    pub(crate) start: usize,
    /// The least number.
    pub(crate) least: usize,
    /// The greatest number.
    pub(crate) most: usize,
}

/// The numbers that a push should have from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WantedKnobs {
    pub(crate) lanes: usize,
    pub(crate) readers: usize,
    pub(crate) congestion: Congestion,
}

/// The lanes' answer to loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Congestion {
    /// That of the congestion control that the system or the user has set.
    #[default]
    AsSet,
    /// That of a congestion control that does not take loss for a sign of a full path.
    LossTolerant,
}

/// The measurements since the tick before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tick {
    /// The time since then.
    pub(crate) elapsed: Duration,
    /// Bytes that the path has carried: acknowledged, or handed over where acknowledgements are not reported.
    pub(crate) bytes_carried: u64,
    /// Bytes that have been read.
    pub(crate) bytes_read: u64,
    /// How the readers spent their time.
    pub(crate) read: StageTimes,
    /// How the lanes spent their time.
    pub(crate) lane: StageTimes,
    /// The number of lanes that are up.
    pub(crate) lanes_up: usize,
    /// Bytes carried since the start that have no receipt: in the receiver's buffers, or parts of unfinished groups.
    pub(crate) bytes_unstored: u64,
    /// Whether no work is left but what lanes have: rates show nothing any more.
    pub(crate) ending: bool,
    /// The share of this host's cores that did nothing, from 0 to 1.
    pub(crate) cores_idle: f64,
    /// The kernel's report on the lanes' connections, if it carries them.
    pub(crate) path: Option<PathTick>,
}

/// The lanes' connections in one tick, times summed over the lanes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PathTick {
    /// The time for which there was data on the wire or waiting for it.
    pub(crate) busy: Duration,
    /// The part of this time for which the receiver's window was full.
    pub(crate) receive_window_limited: Duration,
    /// The part of this time for which this side's socket buffer was too small.
    pub(crate) send_buffer_limited: Duration,
    /// Segments sent again.
    pub(crate) segments_retransmitted: u64,
    /// The most bytes that a segment holds; zero where that is not known.
    pub(crate) segment_bytes: u32,
    /// The smoothed round trip, a mean of the lanes that are up.
    pub(crate) round_trip: Duration,
    /// The shortest round trip that any lane has seen.
    pub(crate) round_trip_min: Duration,
    /// The congestion windows of the lanes that are up together, in bytes; zero where that is not known.
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

    /// Takes the measurements of a tick and returns what is wanted now.
    pub(crate) fn tick(&mut self, tick: &Tick) -> WantedKnobs {
        if tick.ending {
            return self.wanted();
        }
        self.lanes.tick(tick);
        // One knob at a time, so that a gain has one cause.
        if self.lanes.is_settled() {
            self.readers.tick(tick);
        }
        self.wanted()
    }

    /// What has proved right so far, without a change that is only being tried.
    pub(crate) fn proven(&self) -> WantedKnobs {
        self.lanes.proven(self.wanted())
    }

    pub(crate) fn wanted(&self) -> WantedKnobs {
        WantedKnobs {
            lanes: self.lanes.wanted,
            readers: self.readers.wanted,
            congestion: self.lanes.congestion,
        }
    }
}

#[cfg(test)]
mod tests;
