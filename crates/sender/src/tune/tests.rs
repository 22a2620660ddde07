//! Tests of the controller on simulated paths: which settings it reaches, how soon, and that it keeps them.

use super::*;
use zmove_types::ByteCount;

const MIB: f64 = 1_048_576.0;
const GBIT: f64 = 1e9 / 8.0;
const TICK: Duration = Duration::from_millis(250);
const SEGMENT_BYTES: f64 = 1448.0;
const START_WINDOW_BYTES: f64 = 10.0 * SEGMENT_BYTES;
/// Size of the receiver's buffers, in bytes.
const UNSTORED_MAX: f64 = 256.0 * MIB;

/// A simulated path, the storage on both sides, and the state of the lanes. Rates are in bytes per second.
struct World {
    rate: f64,
    round_trip: Duration,
    /// Size of the bottleneck's queue, in round trips.
    queue: f64,
    /// Share of segments lost.
    loss: f64,
    /// Maximum number of bytes that one lane may have in flight.
    window: f64,
    target: f64,
    /// Rate of one reader. `source` is the maximum rate of all readers together.
    reader: f64,
    source: f64,
    /// Rate at which a lane's slow start ends, if nothing else ends it earlier.
    slow_start_ends: f64,
    /// Rate that a lane reaches in slow start, even if loss allows a lower rate in the long run.
    slow_start_reaches: f64,
    /// Share of the rate above the sustainable rate that remains after each tick.
    lead_left: f64,
    /// Factor by which a lane grows per tick once its slow start is over.
    growth: f64,
    /// Maximum number of lanes that can be dialed successfully.
    lanes_reachable: usize,
    cores_idle: f64,
    /// Rate of each lane, and whether its slow start is over.
    lanes: Vec<(f64, bool)>,
    readers: usize,
    unstored: f64,
    congestion: Congestion,
    losses: f64,
    noise: u64,
}

impl World {
    fn new(rate: f64, round_trip_ms: u64) -> Self {
        Self {
            rate,
            round_trip: Duration::from_millis(round_trip_ms),
            queue: 1.0,
            loss: 0.0,
            window: 128.0 * MIB,
            target: f64::MAX,
            reader: 10.0 * GBIT,
            source: f64::MAX,
            slow_start_ends: f64::MAX,
            slow_start_reaches: 0.0,
            lead_left: 0.8,
            growth: 1.05,
            lanes_reachable: usize::MAX,
            cores_idle: 0.8,
            lanes: Vec::new(),
            readers: 0,
            unstored: 0.0,
            congestion: Congestion::AsSet,
            losses: 0.0,
            noise: 1,
        }
    }

    /// Returns the rate that loss and window allow one lane (CUBIC on long paths, RFC 9438, §5.2).
    fn lane_rate_max(&self) -> f64 {
        let round_trip = self.round_trip.as_secs_f64();
        let by_window = self.window / round_trip;
        if self.loss == 0.0 || self.congestion == Congestion::LossTolerant {
            return by_window;
        }
        let segments = 1.054 * (round_trip / self.loss).powf(0.75);
        by_window.min(segments * SEGMENT_BYTES / round_trip)
    }

    /// Returns the best rate for any number of lanes.
    fn best(&self) -> f64 {
        self.rate
            .min(self.target)
            .min(self.source)
            .min(64.0 * self.lane_rate_max())
    }

    /// Advances the simulation by one tick with the wanted settings.
    fn tick(&mut self, wanted: TunedSettings) -> Tick {
        self.congestion = wanted.congestion;
        self.readers = wanted.readers;
        let start = START_WINDOW_BYTES / self.round_trip.as_secs_f64();
        self.lanes
            .resize(wanted.lanes.min(self.lanes_reachable), (start, false));
        let most = self.lane_rate_max();
        let doublings = (TICK.as_secs_f64() / self.round_trip.as_secs_f64()).min(30.0);
        for (lane, started) in &mut self.lanes {
            // A lane that slow start has brought above the rate that loss allows slows down step by step.
            let slow = *started && self.congestion == Congestion::AsSet;
            let growth = if slow { self.growth } else { doublings.exp2() };
            let reaches = if *started {
                *lane * self.lead_left
            } else {
                self.slow_start_reaches
            };
            *lane = (*lane * growth).min(most.max(reaches));
            *started |= *lane >= most.max(self.slow_start_reaches).min(self.slow_start_ends);
        }
        let offered: f64 = self.lanes.iter().map(|(lane, _)| lane).sum();
        let room = self.rate * (1.0 + self.queue);
        if offered > room {
            // The reaction of CUBIC to a full queue.
            let left = if self.congestion == Congestion::AsSet {
                0.7
            } else {
                1.0
            } * room
                / offered;
            self.lanes
                .iter_mut()
                .for_each(|lane| *lane = (lane.0 * left, true));
            self.losses += number(self.lanes.len());
        }
        let offered = offered.min(room);
        let read = self.source.min(self.reader * number(self.readers));
        // The receiver's windows close when its buffers are full.
        let taken = if self.unstored > UNSTORED_MAX {
            self.target
        } else {
            f64::MAX
        };
        let supply = read.min(taken);
        let carried = offered.min(self.rate).min(supply) * self.jitter();
        let stored = (carried - self.target) * TICK.as_secs_f64();
        self.unstored = (self.unstored + stored).max(0.0);
        let standing = if supply > self.rate {
            (offered / self.rate - 1.0).clamp(0.0, self.queue)
        } else {
            0.0
        };
        let windows_full = offered
            >= 0.99 * number(self.lanes.len()) * self.window / self.round_trip.as_secs_f64();
        let waits = Waits {
            source: read < offered.min(self.rate),
            target: taken < f64::MAX,
            windows_full,
        };
        self.report(carried, standing, &waits)
    }

    fn report(&mut self, carried: f64, standing: f64, waits: &Waits) -> Tick {
        let bytes = whole(carried * TICK.as_secs_f64());
        self.losses += carried * TICK.as_secs_f64() / SEGMENT_BYTES * self.loss;
        let segments_retransmitted = whole(self.losses.floor());
        self.losses = self.losses.fract();
        let (lanes, readers) = (TICK * count(self.lanes.len()), TICK * count(self.readers));
        let when = |true_: bool, time: Duration| if true_ { time } else { Duration::ZERO };
        Tick {
            elapsed: TICK,
            bytes_carried: bytes,
            bytes_read: bytes,
            read: StageTimes {
                busy: when(waits.source, readers),
                blocked: when(!waits.source, readers),
                ..StageTimes::default()
            },
            lane: StageTimes {
                starved: when(waits.source, lanes),
                blocked: when(!waits.source, lanes),
                ..StageTimes::default()
            },
            lanes_up: self.lanes.len(),
            bytes_unstored: whole(self.unstored),
            ending: false,
            cores_idle: self.cores_idle,
            path: Some(PathTick {
                busy: lanes,
                receive_window_limited: when(waits.target, lanes),
                send_buffer_limited: when(waits.windows_full, lanes),
                segments_retransmitted,
                segment_bytes: 1448,
                round_trip: self.round_trip.mul_f64(1.0 + standing),
                round_trip_min: self.round_trip,
                congestion_window_bytes: whole(self.congestion_windows()),
            }),
        }
    }

    /// Returns the total congestion window of all lanes, in bytes.
    fn congestion_windows(&self) -> f64 {
        // The congestion window of BBR is twice the data that it sends per round trip.
        let in_use = if self.congestion == Congestion::AsSet {
            1.0
        } else {
            0.5
        };
        self.lanes.iter().map(|(lane, _)| lane).sum::<f64>() * self.round_trip.as_secs_f64()
            / in_use
    }

    /// Returns a factor between 0.96 and 1.04. The sequence of factors is the same in every run.
    fn jitter(&mut self) -> f64 {
        self.noise = self
            .noise
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        0.96 + 0.08 * (ByteCount(self.noise >> 33).as_f64() / 2_f64.powi(31))
    }
}

/// Whether the source, the target or the windows hold up the data.
struct Waits {
    source: bool,
    target: bool,
    windows_full: bool,
}

fn number(of: usize) -> f64 {
    f64::from(count(of))
}

fn count(of: usize) -> u32 {
    u32::try_from(of).unwrap()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small and not negative"
)]
fn whole(number: f64) -> u64 {
    number as u64
}

/// The course of a run, tick by tick.
struct Run {
    rates: Vec<f64>,
    wanted: Vec<TunedSettings>,
}

const KNOBS: Knobs = Knobs {
    lanes: Knob {
        start: 8,
        least: 8,
        most: 64,
    },
    readers: Knob {
        start: 2,
        least: 2,
        most: 16,
    },
    congestion: Congestion::AsSet,
    congestion_replaceable: false,
};

fn run(world: &mut World, limits: Knobs, seconds: u64) -> Run {
    let mut tuner = Tuner::new(&limits);
    let mut run = Run {
        rates: Vec::new(),
        wanted: Vec::new(),
    };
    for _ in 0..seconds * 4 {
        let wanted = tuner.wanted();
        let tick = world.tick(wanted);
        run.rates
            .push(zmove_types::ByteRate::new(tick.bytes_carried, tick.elapsed).0);
        run.wanted.push(wanted);
        tuner.tick(&tick);
    }
    run
}

impl Run {
    /// Returns the mean rate between the seconds `from` and `to`.
    fn rate(&self, from: usize, to: usize) -> f64 {
        let part = &self.rates[from * 4..to * 4];
        part.iter().sum::<f64>() / number(part.len())
    }

    /// Returns how often the number of lanes changed between the seconds `from` and `to`.
    fn changes(&self, from: usize, to: usize) -> usize {
        self.wanted[from * 4..to * 4]
            .windows(2)
            .filter(|pair| pair[0].lanes != pair[1].lanes)
            .count()
    }

    fn lanes(&self) -> Vec<usize> {
        let mut lanes: Vec<_> = self.wanted.iter().map(|wanted| wanted.lanes).collect();
        lanes.dedup();
        lanes
    }

    fn last(&self) -> TunedSettings {
        *self.wanted.last().unwrap()
    }
}

/// A path with a round trip of 90 ms and 1 Gbit/s that loses one segment in ten thousand.
fn lossy() -> World {
    World {
        loss: 1e-4,
        ..World::new(GBIT, 90)
    }
}

#[test]
fn loss_is_answered_with_more_lanes_within_seconds() {
    let mut world = lossy();
    let run = run(&mut world, KNOBS, 120);
    let best = world.best();
    assert!(
        run.rate(8, 20) > 0.9 * best,
        "{} of {best}: {:?}",
        run.rate(8, 20),
        run.lanes()
    );
    assert!(
        run.rate(60, 120) > 0.9 * best,
        "{} of {best}: {:?}",
        run.rate(60, 120),
        run.lanes()
    );
    assert!(run.changes(20, 120) <= 6, "{:?}", run.lanes());
}

#[test]
fn a_lane_that_takes_no_notice_of_loss_is_better_than_many() {
    let mut world = lossy();
    let run = run(
        &mut world,
        Knobs {
            congestion_replaceable: true,
            ..KNOBS
        },
        30,
    );
    assert_eq!(
        (run.last().congestion, run.lanes()),
        (Congestion::LossTolerant, vec![8])
    );
    assert!(run.rate(4, 30) > 0.9 * world.best());
}

#[test]
fn lanes_are_added_before_loss_lowers_the_rate() {
    // The number of lanes needed cannot be estimated more accurately than the loss.
    for (congestion_replaceable, least) in [(false, 0.75), (true, 0.92)] {
        let mut world = World {
            slow_start_reaches: GBIT / 8.0,
            lead_left: 0.97,
            ..lossy()
        };
        let run = run(
            &mut world,
            Knobs {
                congestion_replaceable,
                ..KNOBS
            },
            60,
        );
        let lowest = (3..59)
            .map(|second| run.rate(second, second + 1))
            .fold(f64::MAX, f64::min);
        assert!(
            lowest > least * world.best(),
            "{lowest} of {}: {:?}",
            world.best(),
            run.lanes()
        );
    }
}

#[test]
fn a_clean_path_is_left_alone() {
    for (rate, round_trip) in [
        (GBIT, 90),
        (10.0 * GBIT, 90),
        (10.0 * GBIT, 10),
        (25.0 * GBIT, 1),
    ] {
        let mut world = World::new(rate, round_trip);
        let run = run(&mut world, KNOBS, 60);
        assert_eq!(run.lanes(), [8], "{rate} {round_trip}");
    }
    // The queue is empty once windows are cut.
    for round_trip in [90, 260] {
        let mut world = World {
            queue: 0.5,
            ..World::new(GBIT, round_trip)
        };
        let run = run(&mut world, KNOBS, 60);
        assert_eq!(run.lanes(), [8], "{round_trip}");
    }
}

#[test]
fn full_windows_are_answered_with_more_lanes() {
    let mut world = World {
        window: 4.0 * MIB,
        ..World::new(10.0 * GBIT, 90)
    };
    let run = run(&mut world, KNOBS, 60);
    let best = world.best();
    assert!(
        run.rate(15, 60) > 0.9 * best,
        "{} of {best}: {:?}",
        run.rate(15, 60),
        run.lanes()
    );
    assert!(run.changes(20, 60) <= 4, "{:?}", run.lanes());
}

/// A path with this round trip, on which each slow start ends at a fiftieth of 1 Gbit/s. After that, windows grow by a
/// twentieth per round trip.
fn early(round_trip_ms: u64) -> World {
    let growth =
        1.05_f64.powf(TICK.as_secs_f64() * 1e3 / number(usize::try_from(round_trip_ms).unwrap()));
    World {
        slow_start_ends: GBIT / 50.0,
        growth,
        ..World::new(10.0 * GBIT, round_trip_ms)
    }
}

#[test]
fn a_slow_start_that_ended_too_early_is_answered_with_more_lanes() {
    let pinned = Knobs {
        lanes: Knob {
            most: 8,
            ..KNOBS.lanes
        },
        ..KNOBS
    };
    let (tuned, alone) = (
        run(&mut early(260), KNOBS, 12),
        run(&mut early(260), pinned, 12),
    );
    assert!(
        tuned.rate(6, 12) > 2.0 * alone.rate(6, 12),
        "{:?}",
        tuned.lanes()
    );
    // On this path the windows open on their own before more lanes are up.
    assert_eq!(run(&mut early(20), KNOBS, 40).lanes(), [8]);
}

#[test]
fn probes_of_bbr_for_the_round_trip_add_no_lanes() {
    let mut tuner = Tuner::new(&Knobs {
        congestion: Congestion::LossTolerant,
        ..KNOBS
    });
    let mut world = World {
        queue: 0.0,
        ..World::new(GBIT, 260)
    };
    for second in 0..60 {
        for quarter in 0..4 {
            let mut tick = world.tick(tuner.wanted());
            // Every ten seconds, each lane sends four segments for half a second.
            if let (0, 0 | 1, Some(path)) = (second % 10, quarter, &mut tick.path) {
                path.congestion_window_bytes = 8 * 4 * 1448;
                tick.bytes_carried /= 10;
            }
            assert_eq!(tuner.tick(&tick).lanes, 8);
        }
    }
}

#[test]
fn more_lanes_that_gain_nothing_go_again_and_the_tries_get_rare() {
    // A traffic shaper with hardly any queue. Its drops look like loss.
    let mut world = World {
        queue: 0.0,
        loss: 1e-6,
        ..World::new(GBIT / 4.0, 90)
    };
    let run = run(&mut world, KNOBS, 300);
    assert!(run.lanes().len() > 1, "it never tried");
    assert!(
        run.changes(0, 60) <= 8 && run.changes(150, 300) <= 4,
        "{:?}",
        run.lanes()
    );
    let over = run.wanted.iter().filter(|wanted| wanted.lanes > 8).count();
    assert!(
        over * 10 < run.wanted.len(),
        "{over} of {}: {:?}",
        run.wanted.len(),
        run.lanes()
    );
}

/// Until the receiver's buffers are full, the path is the limit and more lanes are useful.
#[test]
fn slow_storage_is_no_reason_for_lanes() {
    for loss in [0.0, 1e-4] {
        let mut world = World {
            target: GBIT / 10.0,
            loss,
            ..World::new(GBIT, 90)
        };
        let run = run(&mut world, KNOBS, 120);
        assert_eq!(run.last().lanes, 8, "{:?}", run.lanes());
        let grown = run
            .wanted
            .iter()
            .rposition(|wanted| wanted.lanes > 8)
            .map_or(0, |at| at / 4);
        assert!(
            grown < 90 && run.changes(90, 120) == 0,
            "until {grown} s: {:?}",
            run.lanes()
        );
        assert!(run.rate(20, 120) > 0.9 * world.best());
    }
}

#[test]
fn what_an_earlier_run_needed_is_given_up_where_it_is_too_much() {
    let lanes = Knob {
        start: 64,
        ..KNOBS.lanes
    };
    for target in [f64::MAX, GBIT / 10.0] {
        let mut world = World {
            target,
            ..World::new(GBIT, 90)
        };
        let run = run(&mut world, Knobs { lanes, ..KNOBS }, 180);
        assert!(run.last().lanes <= 16, "{:?}", run.lanes());
        assert!(run.rate(30, 180) > 0.9 * world.best(), "{:?}", run.lanes());
        assert!(
            run.lanes().windows(2).all(|pair| pair[1] < pair[0]),
            "{:?}",
            run.lanes()
        );
    }
}

#[test]
fn what_an_earlier_run_needed_is_kept_where_it_is_needed() {
    let lanes = Knob {
        start: 64,
        ..KNOBS.lanes
    };
    let mut world = lossy();
    let run = run(&mut world, Knobs { lanes, ..KNOBS }, 120);
    assert!(run.rate(1, 120) > 0.9 * world.best(), "{:?}", run.lanes());
}

#[test]
fn dials_that_fail_are_done_without() {
    let mut world = World {
        lanes_reachable: 12,
        ..lossy()
    };
    let run = run(&mut world, KNOBS, 60);
    assert_eq!(
        run.wanted[40..].iter().map(|wanted| wanted.lanes).min(),
        Some(12),
        "{:?}",
        run.lanes()
    );
}

#[test]
fn a_loss_tolerant_control_that_gains_nothing_is_put_back() {
    let mut world = World {
        queue: 0.1,
        loss: 1e-5,
        ..World::new(GBIT, 90)
    };
    let run = run(
        &mut world,
        Knobs {
            congestion_replaceable: true,
            ..KNOBS
        },
        60,
    );
    assert_eq!(run.last().congestion, Congestion::AsSet);
    assert!(
        run.wanted
            .iter()
            .any(|wanted| wanted.congestion == Congestion::LossTolerant)
    );
}

/// The remembered congestion control is loss-tolerant, but the path has changed and now loses nothing.
#[test]
fn a_loss_tolerant_control_is_put_back_where_nothing_is_lost() {
    let tolerant = Knobs {
        congestion: Congestion::LossTolerant,
        congestion_replaceable: true,
        ..KNOBS
    };
    let clean = || World {
        window: 16.0 * MIB,
        ..World::new(25.0 * GBIT, 90)
    };
    let mut world = clean();
    let run = run(&mut world, tolerant, 60);
    assert_eq!(run.last().congestion, Congestion::AsSet);
    assert!(run.rate(15, 60) > 0.9 * world.best(), "{:?}", run.lanes());
    let mut lossy = lossy();
    let run = self::run(&mut lossy, tolerant, 60);
    assert!(
        run.wanted
            .iter()
            .all(|wanted| wanted.congestion == Congestion::LossTolerant)
    );
    let asked_for = Knobs {
        congestion_replaceable: false,
        ..tolerant
    };
    let run = self::run(&mut clean(), asked_for, 60);
    assert!(
        run.wanted
            .iter()
            .all(|wanted| wanted.congestion == Congestion::LossTolerant)
    );
}

#[test]
fn a_source_that_needs_depth_gets_readers() {
    let mut world = World {
        reader: GBIT / 10.0,
        source: GBIT,
        ..World::new(10.0 * GBIT, 10)
    };
    let run = run(&mut world, KNOBS, 60);
    assert!(
        run.rate(15, 60) > 0.9 * GBIT,
        "{} readers",
        run.last().readers
    );
    assert_eq!(run.lanes(), [8]);
}

#[test]
fn readers_that_gain_nothing_go_again() {
    let mut world = World {
        reader: GBIT / 2.0,
        source: GBIT,
        ..World::new(10.0 * GBIT, 10)
    };
    let run = run(&mut world, KNOBS, 60);
    assert_eq!(run.last().readers, 2);
    assert!(run.wanted.iter().any(|wanted| wanted.readers == 3));
    let mut busy = World {
        reader: GBIT / 10.0,
        cores_idle: 0.0,
        ..World::new(10.0 * GBIT, 10)
    };
    let run = self::run(&mut busy, KNOBS, 60);
    assert!(run.wanted.iter().all(|wanted| wanted.readers == 2));
}

#[test]
fn nothing_is_known_without_a_kernel_that_tells() {
    let mut tuner = Tuner::new(&KNOBS);
    let mut world = lossy();
    for _ in 0..200 {
        let tick = Tick {
            path: None,
            ..world.tick(tuner.wanted())
        };
        tuner.tick(&tick);
    }
    assert_eq!(tuner.wanted().lanes, 8);
}
