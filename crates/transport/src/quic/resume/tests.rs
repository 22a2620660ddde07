//! The allowance of a remembered window.

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
