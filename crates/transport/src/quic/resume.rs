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
mod tests {
    use super::*;

    const DATAGRAM: u64 = 1_400;
    const TRIP: Duration = Duration::from_millis(90);
    const INITIAL: u64 = 128 << 10;
    const SAVED: u64 = 8 << 20;

    fn allowance(connections: u16) -> Arc<WindowAllowance> {
        let ends = PathEnds {
            here: [192, 0, 2, 1].into(),
            there: [192, 0, 2, 9].into(),
        };
        Arc::new(WindowAllowance::new(SavedWindow {
            bytes: SAVED,
            round_trip: TRIP,
            ends,
            connections,
        }))
    }

    /// A connection on a path of 90 ms, with more to send than its window permits.
    struct Path {
        resume: Resume,
        allowance: Arc<WindowAllowance>,
        path_state: PathState,
    }

    impl Path {
        fn new(allowance: Arc<WindowAllowance>) -> Self {
            let path_state = PathState {
                now: Instant::now() + Duration::from_secs(60),
                window: INITIAL,
                window_max: 1 << 30,
                window_initial: INITIAL,
                in_flight: INITIAL,
                more_waits: true,
                round_trip: TRIP,
                round_trip_min: TRIP,
                datagram: DATAGRAM,
            };
            Self {
                resume: Resume::new(Some(Arc::clone(&allowance))),
                allowance,
                path_state,
            }
        }

        /// Returns a connection that has jumped to half of the saved window.
        fn jumped() -> Self {
            let mut path = Self::new(allowance(1));
            assert_eq!(path.acked(TRIP, 10 * DATAGRAM), None);
            assert_eq!(path.resume.window(), Some(SAVED / 2));
            path
        }

        /// Returns a connection that has sent all data of its jump and waits for acknowledgments.
        fn validating() -> Self {
            let mut path = Self::jumped();
            path.on_sent(SAVED / 2 - INITIAL);
            path.path_state.in_flight = SAVED / 2;
            let start = path.acked(TRIP, DATAGRAM);
            assert_eq!(
                start,
                Some(Start {
                    window: SAVED / 2,
                    threshold: None
                })
            );
            assert_eq!(path.resume.window(), None, "the usual control's");
            path
        }

        fn on_sent(&mut self, bytes: u64) {
            self.path_state.now += Duration::from_millis(1);
            self.resume.on_sent(bytes, &self.path_state);
        }

        /// Acknowledges bytes that were sent the time `ago` before now.
        fn acked(&mut self, ago: Duration, bytes: u64) -> Option<Start> {
            self.path_state.now += Duration::from_millis(1);
            self.resume.acked(self.path_state.now - ago, bytes);
            self.resume.finish_ack(&self.path_state)
        }

        fn on_congestion(&mut self) -> bool {
            self.resume.on_congestion(false, DATAGRAM)
        }

        fn is_refuted(&self) -> bool {
            self.allowance.outcome().is_refuted
        }
    }

    #[test]
    fn nothing_happens_without_a_saved_window() {
        let mut path = Path {
            resume: Resume::new(None),
            ..Path::new(allowance(1))
        };
        assert_eq!(path.acked(TRIP, 100 * DATAGRAM), None);
        assert_eq!(
            (
                path.resume.phase,
                path.resume.window(),
                path.on_congestion()
            ),
            (ResumePhase::Normal, None, false)
        );
    }

    #[test]
    fn a_saved_window_is_for_the_same_addresses() {
        let peer = SocketAddr::from(([127, 0, 0, 1], 9));
        let ends = PathEnds::towards(peer).unwrap();
        let elsewhere = [192, 0, 2, 1].into();
        let suits = |ends| {
            let saved = SavedWindow {
                bytes: SAVED,
                round_trip: TRIP,
                ends,
                connections: 1,
            };
            WindowAllowance::new(saved).suits(peer)
        };
        assert!(suits(ends));
        assert!(!suits(PathEnds {
            here: elsewhere,
            ..ends
        }));
        assert!(!suits(PathEnds {
            there: elsewhere,
            ..ends
        }));
    }

    #[test]
    fn all_initial_data_must_have_arrived() {
        let mut path = Path::new(allowance(1));
        path.acked(TRIP, 9 * DATAGRAM);
        assert_eq!(
            path.resume.phase,
            ResumePhase::Reconnaissance {
                acked: 9 * DATAGRAM,
                is_confirmed: false
            }
        );
        path.acked(TRIP, DATAGRAM);
        assert_eq!(path.resume.window(), Some(SAVED / 2));
        assert_eq!(
            path.allowance.outcome(),
            Resumption {
                bytes: SAVED / 2,
                is_refuted: false
            }
        );
    }

    #[test]
    fn who_has_nothing_more_to_send_does_not_jump() {
        let mut path = Path::new(allowance(1));
        path.path_state.more_waits = false;
        path.acked(TRIP, 100 * DATAGRAM);
        assert_eq!(path.resume.window(), None);
        path.path_state.more_waits = true;
        path.acked(TRIP, DATAGRAM);
        assert_eq!(path.resume.window(), Some(SAVED / 2), "it may do so later");
    }

    /// This is the state of a lane that has sent its greeting but may not send a large file yet.
    #[test]
    fn who_has_said_little_jumps_with_the_first_that_follows() {
        let mut path = Path::new(allowance(1));
        path.path_state.more_waits = false;
        path.path_state.in_flight = 0;
        path.acked(TRIP, DATAGRAM);
        path.on_sent(10 * DATAGRAM);
        assert_eq!(
            path.resume.window(),
            None,
            "only the handshake has been answered"
        );
        path.path_state.now += TRIP;
        path.acked(TRIP, DATAGRAM);
        path.on_sent(9 * DATAGRAM);
        assert_eq!(path.resume.window(), None, "a little more is no reason");
        path.on_sent(DATAGRAM);
        assert_eq!(path.resume.window(), Some(SAVED / 2));
        assert!(path.on_congestion());
        assert_eq!(
            path.resume.window(),
            Some(5 * DATAGRAM),
            "half of what was under way"
        );
    }

    /// Without this rule, a delay of one millisecond would decide in which of two round trips a lane jumps.
    #[test]
    fn who_has_said_little_jumps_too_when_more_is_under_way_by_then() {
        let jumps = |bytes_sent_early: u64| {
            let mut path = Path::new(allowance(1));
            path.path_state.more_waits = false;
            path.acked(TRIP, DATAGRAM);
            path.on_sent(bytes_sent_early);
            path.path_state.now += TRIP * 3 / 4;
            path.on_sent(20 * DATAGRAM);
            path.path_state.more_waits = true;
            path.path_state.in_flight = 20 * DATAGRAM;
            path.acked(TRIP, DATAGRAM);
            assert_eq!(path.resume.window(), None, "that is of the handshake");
            path.acked(TRIP * 3 / 4, DATAGRAM);
            path.resume.window()
        };
        assert_eq!(jumps(10 * DATAGRAM), Some(SAVED / 2));
        assert_eq!(
            jumps(10 * DATAGRAM + PROBE_BYTES_MAX),
            None,
            "a first window has to arrive"
        );
    }

    #[test]
    fn another_round_trip_is_another_path() {
        let jumps = |round_trip_min| {
            let mut path = Path::new(allowance(1));
            path.path_state.round_trip_min = round_trip_min;
            path.acked(TRIP, 10 * DATAGRAM);
            assert!(!path.is_refuted());
            path.resume.window().is_some()
        };
        assert_eq!(
            [TRIP / 2, TRIP * 10 + Duration::from_millis(1)].map(jumps),
            [false; 2]
        );
        assert_eq!(
            [TRIP / 2 + Duration::from_millis(1), TRIP * 10].map(jumps),
            [true; 2]
        );
    }

    #[test]
    fn congestion_in_reconnaissance_is_the_usual_controls() {
        let mut path = Path::new(allowance(1));
        assert!(!path.on_congestion());
        path.acked(TRIP, 100 * DATAGRAM);
        assert_eq!(
            (path.resume.phase, path.is_refuted()),
            (ResumePhase::Normal, false)
        );
    }

    #[test]
    fn all_connections_together_jump_by_half() {
        let allowance = allowance(4);
        let jumps: Vec<_> = (0..6)
            .filter_map(|_| {
                let mut path = Path::new(Arc::clone(&allowance));
                path.acked(TRIP, 10 * DATAGRAM);
                path.resume.window()
            })
            .collect();
        assert_eq!(jumps, [SAVED / 8; 4]);
        assert_eq!(allowance.outcome().bytes, SAVED / 2);
    }

    #[test]
    fn none_jumps_after_one_has_met_congestion() {
        let allowance = allowance(4);
        let [mut first, mut second] = [(); 2].map(|()| Path::new(Arc::clone(&allowance)));
        first.acked(TRIP, 10 * DATAGRAM);
        assert!(first.on_congestion());
        second.acked(TRIP, 10 * DATAGRAM);
        assert_eq!(
            (second.resume.phase, second.resume.window()),
            (ResumePhase::Normal, None)
        );
    }

    #[test]
    fn a_share_below_the_window_is_no_jump() {
        let mut path = Path::new(allowance(1));
        path.path_state.window = SAVED / 2;
        path.acked(TRIP, 10 * DATAGRAM);
        assert_eq!(
            (path.resume.phase, path.allowance.outcome().bytes),
            (ResumePhase::Normal, 0)
        );
    }

    #[test]
    fn a_short_path_bounds_the_jump() {
        let mut path = Path::new(allowance(1));
        path.path_state.window_max = 1 << 20;
        path.acked(TRIP, 10 * DATAGRAM);
        assert_eq!(path.resume.window(), Some(1 << 20));
    }

    #[test]
    fn congestion_after_the_jump_leaves_half_of_the_pipe() {
        let mut path = Path::jumped();
        path.acked(TRIP, 2 * DATAGRAM);
        assert!(path.on_congestion() && path.is_refuted());
        assert_eq!(path.resume.window(), Some((INITIAL + 2 * DATAGRAM) / 2));
        // Further congestion and acknowledgments do not change the window.
        assert!(path.on_congestion());
        path.acked(TRIP, 100 * DATAGRAM);
        assert_eq!(path.resume.window(), Some((INITIAL + 2 * DATAGRAM) / 2));
    }

    #[test]
    fn a_retreat_is_over_when_the_last_unvalidated_packet_is() {
        let mut path = Path::jumped();
        path.on_sent(SAVED / 4);
        assert!(path.on_congestion());
        let window = path.resume.window().unwrap();
        assert_eq!(path.acked(TRIP, 1_000 * DATAGRAM), None);
        let start = path.acked(Duration::ZERO, DATAGRAM);
        let threshold = Some((INITIAL + 1_001 * DATAGRAM) / 2);
        assert_eq!(
            (start, path.resume.phase),
            (Some(Start { window, threshold }), ResumePhase::Normal)
        );
    }

    #[test]
    fn a_shorter_round_trip_after_the_jump_is_a_retreat() {
        let mut path = Path::jumped();
        path.path_state.round_trip_min = TRIP / 2;
        path.acked(TRIP, DATAGRAM);
        assert!(path.is_refuted() && matches!(path.resume.phase, ResumePhase::Retreating { .. }));
    }

    #[test]
    fn what_is_under_way_is_validated_when_some_has_arrived_or_a_round_trip_is_over() {
        for (waited, ago) in [(Duration::ZERO, Duration::ZERO), (TRIP, TRIP * 2)] {
            let mut path = Path::jumped();
            path.on_sent(SAVED / 4);
            path.path_state.in_flight = SAVED / 4;
            path.path_state.now += waited;
            let start = path.acked(ago, DATAGRAM);
            assert_eq!(
                start,
                Some(Start {
                    window: SAVED / 4,
                    threshold: None
                })
            );
            assert!(matches!(path.resume.phase, ResumePhase::Validating { .. }));
        }
    }

    #[test]
    fn a_jump_that_was_hardly_used_is_taken_back() {
        let mut path = Path::jumped();
        path.on_sent(DATAGRAM);
        path.path_state.in_flight = INITIAL;
        let start = path.acked(Duration::ZERO, 3 * DATAGRAM);
        let window = INITIAL + 3 * DATAGRAM;
        assert_eq!(
            (start, path.resume.phase),
            (
                Some(Start {
                    window,
                    threshold: None
                }),
                ResumePhase::Normal
            )
        );
        assert!(!path.is_refuted());
    }

    #[test]
    fn validated_is_what_has_arrived_to_the_last_packet() {
        let mut path = Path::validating();
        assert_eq!(path.acked(TRIP, 100 * DATAGRAM), None);
        assert!(matches!(path.resume.phase, ResumePhase::Validating { .. }));
        assert_eq!(path.acked(Duration::ZERO, DATAGRAM), None);
        assert_eq!(
            (path.resume.phase, path.on_congestion(), path.is_refuted()),
            (ResumePhase::Normal, false, false)
        );
    }

    #[test]
    fn congestion_while_validating_leaves_half_of_what_has_arrived() {
        let mut path = Path::validating();
        path.acked(TRIP, 500 * DATAGRAM);
        assert!(path.on_congestion() && path.is_refuted());
        assert_eq!(path.resume.window(), Some((INITIAL + 501 * DATAGRAM) / 2));
    }

    #[test]
    fn the_loss_of_everything_is_the_usual_controls_in_each_phase() {
        let mut retreating = Path::jumped();
        assert!(retreating.on_congestion());
        for mut path in [
            Path::new(allowance(1)),
            Path::jumped(),
            Path::validating(),
            retreating,
        ] {
            assert!(!path.resume.on_congestion(true, DATAGRAM));
            assert_eq!(
                (path.resume.phase, path.resume.window()),
                (ResumePhase::Normal, None)
            );
        }
    }
}
