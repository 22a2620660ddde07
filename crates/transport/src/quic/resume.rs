//! Careful Resume (RFC 9959): a connection jumps to the window that an earlier push found on the same path.
//!
//! ```text
//!  phase           event                                         next phase      window
//!  Reconnaissance  congestion, or a different round-trip time    Normal          unchanged
//!                  all initial data acknowledged, more to send   Unvalidated     a share of half of the saved window
//!  Unvalidated     congestion, or a different round-trip time    Retreating      half of the pipe
//!                  all data sent, or some acknowledged,
//!                  or one round trip has passed:
//!                    more in flight than the pipe holds          Validating      bytes in flight
//!                    otherwise                                   Normal          the pipe, or the initial window
//!  Validating      congestion                                    Retreating      half of the pipe
//!                  all unvalidated data acknowledged             Normal          as grown so far
//!  Retreating      all unvalidated data acknowledged             Normal          unchanged; slow start ends at half
//!                                                                                of the pipe
//!  any             persistent congestion                         Normal          set by the regular control
//! ```
//!
//! *Initial data* is the data of the first window (RFC 9002). If a connection had less data to send, it is the data
//! sent in half a round trip after the handshake. Such a connection jumps after it has sent another first window of
//! data. *Congestion* is defined by `tolerant.rs`, which uses this module. The *pipe* is the number of bytes that were
//! in flight before the jump, plus all bytes acknowledged since. quinn paces every window over the round trip.
//!
//! **Invariant:** all connections of a run together jump by at most half of the saved window. Once one of them has met
//! congestion, no other connection jumps ([`WindowAllowance`]). Nothing here relies on data from the peer.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::endpoint::unspecified;

/// The window that an earlier push found on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedWindow {
    /// Bytes acknowledged in one round trip, on all connections together.
    pub bytes: u64,
    /// The shortest round-trip time of that push.
    pub round_trip: Duration,
    /// The path on which the window was found.
    pub ends: PathEnds,
    /// Number of connections that share the window now.
    pub connections: u16,
}

/// The addresses of both ends of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathEnds {
    /// This host's address.
    pub here: IpAddr,
    /// Returns the ends of the path on which packets to `peer` are currently sent.
    ///
    /// # Errors
    /// Returns an error if there is no such path.
    pub there: IpAddr,
}

impl PathEnds {
    /// Returns the ends of the path that packets to `peer` take now.
    ///
    /// # Errors
    /// Returns an error if there is no such path.
    pub fn towards(peer: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(unspecified(peer))?;
        // This sends nothing. The kernel only looks up the route.
        socket.connect(peer)?;
        Ok(Self {
            here: socket.local_addr()?.ip().to_canonical(),
            there: peer.ip().to_canonical(),
        })
    }
}

/// The result of using a saved window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resumption {
    /// Total size of the windows to which connections have jumped, in bytes.
    pub bytes: u64,
    /// Whether a connection met congestion after its jump, which means that the saved window is wrong.
    pub is_refuted: bool,
}

/// The total window to which the connections of a run may jump.
#[derive(Debug)]
pub(super) struct WindowAllowance {
    saved: SavedWindow,
    left: AtomicU64,
    taken: AtomicU64,
    refuted: AtomicBool,
}

impl WindowAllowance {
    pub(super) fn new(saved: SavedWindow) -> Self {
        Self {
            saved,
            left: (saved.bytes / 2).into(),
            taken: 0.into(),
            refuted: false.into(),
        }
    }

    /// Returns whether the saved window belongs to the path to `peer`.
    pub(super) fn suits(&self, peer: SocketAddr) -> bool {
        PathEnds::towards(peer).is_ok_and(|ends| ends == self.saved.ends)
    }

    pub(super) fn outcome(&self) -> Resumption {
        Resumption {
            bytes: self.taken.load(Ordering::Relaxed),
            is_refuted: self.refuted.load(Ordering::Relaxed),
        }
    }

    /// Takes the share of one connection from the allowance. Returns `None` if the share does not exceed `window`, or
    /// if the rest of the allowance is smaller than the share.
    fn take(&self, window: u64) -> Option<u64> {
        let share = self.saved.bytes / 2 / u64::from(self.saved.connections.max(1));
        let rest = |left: u64| (share > window && left >= share).then(|| left - share);
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest)
            .ok()?;
        self.taken.fetch_add(share, Ordering::Relaxed);
        Some(share)
    }

    fn refute(&self) {
        self.left.store(0, Ordering::Relaxed);
        self.refuted.store(true, Ordering::Relaxed);
    }

    /// Returns whether a round-trip time is plausible for the path on which the window was saved.
    fn confirms(&self, round_trip: Duration) -> bool {
        round_trip > self.saved.round_trip / 2
            && round_trip <= self.saved.round_trip * LONGER_TIMES_MAX
    }
}

/// Maximum ratio of a round-trip time to the saved one. A higher ratio means that the path has changed.
const LONGER_TIMES_MAX: u32 = 10;

/// The Careful Resume state of one connection.
#[derive(Clone, Debug)]
pub(super) struct Resume {
    phase: ResumePhase,
    allowance: Option<Arc<WindowAllowance>>,
    /// Bytes in flight at the last acknowledgment, plus the bytes sent since.
    in_flight: u64,
    /// The time of the first acknowledgment, which belongs to the handshake.
    answered: Option<Instant>,
    /// Bytes sent in half a round trip after the first acknowledgment.
    bytes_sent_early: u64,
    /// The send time of the most recently sent packet that was acknowledged.
    newest_acked: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResumePhase {
    Reconnaissance {
        acked: u64,
        is_confirmed: bool,
    },
    Unvalidated {
        jump: u64,
        began: Instant,
        last_sent: Instant,
        pipe: u64,
    },
    Validating {
        last_sent: Instant,
        pipe: u64,
    },
    Retreating {
        last_sent: Instant,
        pipe: u64,
        window: u64,
    },
    Normal,
}

/// The window with which the regular congestion control continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) window: u64,
    /// The window at which slow start ends. `None` means that it ends at the next congestion.
    pub(super) threshold: Option<u64>,
}

/// The state of a connection after an acknowledgment has been processed.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathState {
    pub(super) now: Instant,
    /// The window of the regular congestion control.
    pub(super) window: u64,
    pub(super) window_max: u64,
    /// The window of the first flight.
    pub(super) window_initial: u64,
    pub(super) in_flight: u64,
    /// Whether there is more data to send than the window permits.
    pub(super) more_waits: bool,
    pub(super) round_trip: Duration,
    pub(super) round_trip_min: Duration,
    pub(super) datagram: u64,
}

impl Resume {
    pub(super) fn new(allowance: Option<Arc<WindowAllowance>>) -> Self {
        let phase =
            allowance
                .as_ref()
                .map_or(ResumePhase::Normal, |_| ResumePhase::Reconnaissance {
                    acked: 0,
                    is_confirmed: false,
                });
        Self {
            phase,
            allowance,
            in_flight: 0,
            answered: None,
            bytes_sent_early: 0,
            newest_acked: None,
        }
    }

    /// Returns the window if it differs from the window of the regular congestion control.
    pub(super) const fn window(&self) -> Option<u64> {
        match self.phase {
            ResumePhase::Unvalidated { jump: window, .. }
            | ResumePhase::Retreating { window, .. } => Some(window),
            _ => None,
        }
    }

    /// Records sent bytes. `path_state` does not include these bytes. Its bytes in flight come from
    /// [`in_flight`](Self::in_flight).
    pub(super) fn on_sent(&mut self, bytes: u64, path_state: &PathState) {
        self.in_flight += bytes;
        if self
            .answered
            .is_some_and(|answered| path_state.now <= answered + path_state.round_trip / 2)
        {
            self.bytes_sent_early += bytes;
        }
        match &mut self.phase {
            ResumePhase::Unvalidated { last_sent, .. } => *last_sent = path_state.now,
            ResumePhase::Reconnaissance {
                is_confirmed: true, ..
            } if self.in_flight >= INITIAL_PACKETS * path_state.datagram => {
                self.jump(&PathState {
                    in_flight: self.in_flight,
                    ..*path_state
                });
            }
            _ => {}
        }
    }

    /// Returns the bytes in flight, as estimated between acknowledgments.
    pub(super) const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    pub(super) fn acked(&mut self, sent: Instant, bytes: u64) {
        self.newest_acked = self.newest_acked.max(Some(sent));
        match &mut self.phase {
            ResumePhase::Reconnaissance { acked: sum, .. }
            | ResumePhase::Unvalidated { pipe: sum, .. }
            | ResumePhase::Validating { pipe: sum, .. }
            | ResumePhase::Retreating { pipe: sum, .. } => *sum += bytes,
            ResumePhase::Normal => {}
        }
    }

    /// Completes the processing of an acknowledgment. Call this after [`acked`](Self::acked) was called for all of its
    /// packets.
    pub(super) fn finish_ack(&mut self, path_state: &PathState) -> Option<Start> {
        self.in_flight = path_state.in_flight;
        match self.phase {
            ResumePhase::Reconnaissance { acked, .. } => {
                self.reconnoitre(acked, path_state);
                None
            }
            ResumePhase::Unvalidated {
                jump,
                began,
                last_sent,
                pipe,
            } => {
                if !self.confirms(path_state.round_trip_min) {
                    self.retreat(last_sent, pipe, path_state.datagram);
                    return None;
                }
                let over = path_state.now.saturating_duration_since(began) > path_state.round_trip;
                let all_sent = path_state.in_flight + path_state.datagram >= jump;
                (over || all_sent || self.has_acked(began))
                    .then(|| self.validate(last_sent, pipe, path_state))
            }
            ResumePhase::Validating { last_sent, .. } if self.has_acked(last_sent) => {
                self.phase = ResumePhase::Normal;
                None
            }
            ResumePhase::Retreating {
                last_sent,
                pipe,
                window,
            } if self.has_acked(last_sent) => {
                self.phase = ResumePhase::Normal;
                Some(Start {
                    window,
                    threshold: Some((pipe / 2).max(window)),
                })
            }
            ResumePhase::Validating { .. }
            | ResumePhase::Retreating { .. }
            | ResumePhase::Normal => None,
        }
    }

    /// Handles congestion: a loss or mark, or persistent congestion. Returns whether this module responds to it instead
    /// of the regular congestion control.
    pub(super) fn on_congestion(&mut self, is_persistent: bool, datagram: u64) -> bool {
        match self.phase {
            ResumePhase::Unvalidated {
                last_sent, pipe, ..
            }
            | ResumePhase::Validating { last_sent, pipe } => {
                self.retreat(last_sent, pipe, datagram);
            }
            ResumePhase::Reconnaissance { .. } => self.phase = ResumePhase::Normal,
            ResumePhase::Retreating { .. } | ResumePhase::Normal => {}
        }
        if is_persistent {
            self.phase = ResumePhase::Normal;
        }
        self.phase != ResumePhase::Normal
    }

    fn reconnoitre(&mut self, acked: u64, path_state: &PathState) {
        let answered = *self.answered.get_or_insert(path_state.now);
        let first_window = INITIAL_PACKETS * path_state.datagram;
        let all_said =
            self.bytes_sent_early < first_window + PROBE_BYTES_MAX && self.has_acked(answered);
        self.phase = ResumePhase::Reconnaissance {
            acked,
            is_confirmed: acked >= first_window || all_said,
        };
        let is_used = acked >= first_window || all_said && path_state.in_flight >= first_window;
        if is_used && path_state.more_waits {
            self.jump(path_state);
        }
    }

    fn jump(&mut self, path_state: &PathState) {
        let suits = self.confirms(path_state.round_trip_min);
        let allowance = self.allowance.as_ref().filter(|_| suits);
        let jump = allowance.and_then(|allowance| allowance.take(path_state.window));
        let began = path_state.now;
        self.phase = jump.map_or(ResumePhase::Normal, |jump| ResumePhase::Unvalidated {
            jump: jump.min(path_state.window_max),
            began,
            last_sent: began,
            pipe: path_state.in_flight,
        });
    }

    fn validate(&mut self, last_sent: Instant, pipe: u64, path_state: &PathState) -> Start {
        let initial = path_state.window_initial;
        let in_flight = path_state.in_flight;
        let limited = in_flight < initial || in_flight <= pipe;
        self.phase = if limited {
            ResumePhase::Normal
        } else {
            ResumePhase::Validating { last_sent, pipe }
        };
        Start {
            window: if limited {
                pipe.max(initial)
            } else {
                in_flight
            },
            threshold: None,
        }
    }

    fn retreat(&mut self, last_sent: Instant, pipe: u64, datagram: u64) {
        self.allowance
            .iter()
            .for_each(|allowance| allowance.refute());
        self.phase = ResumePhase::Retreating {
            last_sent,
            pipe,
            window: (pipe / 2).max(2 * datagram),
        };
    }

    fn confirms(&self, round_trip: Duration) -> bool {
        self.allowance
            .as_ref()
            .is_some_and(|allowance| allowance.confirms(round_trip))
    }

    /// Returns whether a packet sent at or after `on_sent` has been acknowledged.
    fn has_acked(&self, sent: Instant) -> bool {
        self.newest_acked.is_some_and(|newest| newest >= sent)
    }
}

/// Number of packets of initial data that must be acknowledged: the first window of RFC 9002. The rest of the first
/// flight is paced over a whole round trip.
const INITIAL_PACKETS: u64 = 10;
/// Maximum size of an MTU probe in bytes, which is also the maximum size of a datagram. A probe is nearly always in
/// flight at the start.
const PROBE_BYTES_MAX: u64 = 9_000;

#[cfg(test)]
mod tests;
