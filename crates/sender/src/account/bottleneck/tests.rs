//! Tests of the bottleneck with tables of synthetic runs. Each run has one limit, and the shares always add up.

use super::*;

/// The shares of a stage's time in which its threads were busy, starved and blocked.
type Did = (f64, f64, f64);

/// Returns the times of `threads` threads that spent `seconds` seconds in these shares.
fn stage(threads: f64, seconds: f64, (busy, starved, blocked): Did) -> StageTimes {
    let part = |share: f64| Duration::from_secs_f64(threads * seconds * share);
    StageTimes {
        busy: part(busy),
        starved: part(starved),
        blocked: part(blocked),
        paced: Duration::ZERO,
    }
}

/// A long push over 8 lanes at a round trip of 90 ms, with 2 readers and 4 writers.
fn long(scan: Did, read: Did, lane: Did, receive: Did, store: Did) -> Times {
    let stages = Stages {
        scan: stage(4.0, 100.0, scan),
        read: stage(2.0, 98.0, read),
        lane: stage(8.0, 98.0, lane),
        receive: stage(8.0, 99.0, receive),
        store: stage(4.0, 100.0, store),
    };
    Times {
        stages,
        ..moments(100.0, 0.4, 98.0, 98.5)
    }
}

/// A push that sends all data early but lasts 10 s.
fn soon_sent(receive: StageTimes, store: StageTimes) -> Times {
    let stages = Stages {
        scan: stage(4.0, 0.5, (0.9, 0.0, 0.1)),
        read: stage(2.0, 1.1, (0.97, 0.02, 0.01)),
        lane: stage(8.0, 1.1, (0.02, 0.97, 0.01)),
        receive,
        store,
    };
    Times {
        stages,
        ..moments(10.0, 0.4, 1.5, 1.6)
    }
}

fn moments(wall: f64, first_byte: f64, handed_over: f64, on_the_wire: f64) -> Times {
    Times {
        wall: Duration::from_secs_f64(wall),
        first_byte: Some(Duration::from_secs_f64(first_byte)),
        handed_over: Some(Duration::from_secs_f64(handed_over)),
        on_the_wire: Some(Duration::from_secs_f64(on_the_wire)),
        round_trip: Duration::from_millis(90),
        lanes: 8,
        ..Times::default()
    }
}

const AHEAD: Did = (0.05, 0.0, 0.95);
const FED: Did = (0.1, 0.0, 0.9);
const IDLE: Did = (0.1, 0.9, 0.0);

#[track_caller]
fn assert_limit(what: &str, times: &Times, limit: Limit, percent_min: u8) {
    let bottleneck = times.bottleneck();
    assert_eq!(bottleneck.limit, limit, "{what}: {bottleneck:?}");
    assert!(bottleneck.percent >= percent_min, "{what}: {bottleneck:?}");
    let sum: u32 = bottleneck
        .shares
        .iter()
        .map(|share| u32::from(*share))
        .sum();
    assert!((97..=103).contains(&sum), "{what}: {bottleneck:?}");
}

#[test]
fn the_stage_that_all_others_wait_for_is_named() {
    let reads = (0.95, 0.0, 0.05);
    let cases = [
        (
            "slow scan",
            long((0.95, 0.0, 0.05), IDLE, IDLE, IDLE, IDLE),
            Limit::Scan,
        ),
        (
            "late answers",
            long((0.05, 0.0, 0.95), IDLE, IDLE, IDLE, IDLE),
            Limit::StartUp,
        ),
        (
            "slow reads",
            long(AHEAD, reads, (0.03, 0.95, 0.02), IDLE, IDLE),
            Limit::SourceReads,
        ),
        (
            "sender CPU",
            long(AHEAD, FED, (0.9, 0.0, 0.1), (0.3, 0.7, 0.0), IDLE),
            Limit::SenderCpu,
        ),
        ("path rate", long(AHEAD, FED, FED, IDLE, IDLE), Limit::Path),
        (
            "loss, some CPU",
            long(AHEAD, FED, (0.2, 0.0, 0.8), (0.2, 0.8, 0.0), IDLE),
            Limit::Path,
        ),
        (
            "receiver CPU",
            long(AHEAD, FED, FED, (0.9, 0.06, 0.04), IDLE),
            Limit::ReceiverCpu,
        ),
        (
            "slow writes",
            long(AHEAD, FED, FED, (0.05, 0.05, 0.9), (0.95, 0.05, 0.0)),
            Limit::TargetWrites,
        ),
        (
            "one busy writer",
            long(AHEAD, FED, FED, (0.05, 0.05, 0.9), (0.3, 0.7, 0.0)),
            Limit::TargetWrites,
        ),
        (
            "all writers busy",
            long(AHEAD, FED, FED, (0.1, 0.9, 0.0), (0.9, 0.1, 0.0)),
            Limit::TargetWrites,
        ),
        (
            "readers wait for receipts",
            long(
                AHEAD,
                FED,
                (0.03, 0.95, 0.02),
                (0.05, 0.05, 0.9),
                (0.9, 0.1, 0.0),
            ),
            Limit::TargetWrites,
        ),
    ];
    for (what, times, limit) in cases {
        assert_limit(what, &times, limit, 60);
    }
}

/// With 50,000 files of 1 KiB, all files are in buffers before a tenth of them have been created. The lanes have
/// therefore only waited for readers.
#[test]
fn after_the_last_data_the_receiver_is_the_limit() {
    let idle = stage(8.0, 1.2, (0.05, 0.95, 0.0));
    let creates = soon_sent(idle, stage(4.0, 9.5, (0.95, 0.05, 0.0)));
    assert_limit("slow creates", &creates, Limit::TargetWrites, 75);
    let one_writer = soon_sent(idle, stage(4.0, 9.5, (0.25, 0.75, 0.0)));
    assert_limit(
        "slow creates in one directory",
        &one_writer,
        Limit::TargetWrites,
        75,
    );
    let decrypts = soon_sent(
        stage(8.0, 9.5, (0.95, 0.05, 0.0)),
        stage(4.0, 9.5, (0.05, 0.95, 0.0)),
    );
    assert_limit("receiver CPU at the end", &decrypts, Limit::ReceiverCpu, 70);
    let flushed = Times {
        flush: Duration::from_secs(8),
        ..soon_sent(idle, stage(4.0, 9.5, (0.05, 0.95, 0.0)))
    };
    assert_limit("slow flush", &flushed, Limit::TargetWrites, 75);
}

#[test]
fn a_rate_that_was_set_is_not_the_path() {
    let mut held = long(AHEAD, FED, (0.05, 0.0, 0.1), IDLE, IDLE);
    held.stages.lane.paced = stage(8.0, 98.0, (0.85, 0.0, 0.0)).busy;
    for rate_limit in [Limit::OwnRate, Limit::AllowedRate] {
        assert_limit(
            "the lower rate",
            &Times { rate_limit, ..held },
            rate_limit,
            60,
        );
    }
    let mut allowed = long(AHEAD, FED, FED, (0.05, 0.15, 0.0), IDLE);
    allowed.stages.receive.paced = stage(8.0, 99.0, (0.8, 0.0, 0.0)).busy;
    assert_limit("--max-rate", &allowed, Limit::AllowedRate, 60);
    // The last data had arrived long before the receiver took it.
    let mut taken_late = soon_sent(
        stage(8.0, 9.5, (0.02, 0.1, 0.0)),
        stage(4.0, 9.5, (0.1, 0.9, 0.0)),
    );
    taken_late.stages.receive.paced = stage(8.0, 9.5, (0.88, 0.0, 0.0)).busy;
    assert_limit("--max-rate at the end", &taken_late, Limit::AllowedRate, 50);
}

#[test]
fn a_socket_that_drains_slowly_is_the_path() {
    let on_the_wire = Some(Duration::from_secs_f64(9.7));
    let receive = stage(8.0, 9.4, (0.02, 0.98, 0.0));
    let times = Times {
        on_the_wire,
        ..soon_sent(receive, stage(4.0, 9.5, (0.02, 0.98, 0.0)))
    };
    assert_limit("drain", &times, Limit::Path, 70);
}

#[test]
fn a_receiver_that_does_not_take_what_drains_is_not_the_path() {
    let on_the_wire = Some(Duration::from_secs_f64(9.0));
    let receive = stage(8.0, 9.4, (0.02, 0.05, 0.93));
    let times = Times {
        on_the_wire,
        ..soon_sent(receive, stage(4.0, 9.5, (0.5, 0.5, 0.0)))
    };
    assert_limit("drain", &times, Limit::TargetWrites, 70);
}

#[test]
fn without_data_nothing_in_particular_is_the_limit() {
    assert_eq!(Times::default().bottleneck(), Bottleneck::default());
    let nothing = Times {
        wall: Duration::from_secs(1),
        ..Times::default()
    };
    assert_limit("nothing sent", &nothing, Limit::StartUp, 100);
    let short = moments(0.4, 0.3, 0.301, 0.301);
    assert_limit("one small file", &short, Limit::StartUp, 90);
}

#[test]
fn while_it_runs_the_sender_says_what_it_can() {
    let second = |read, lane| Times {
        wall: Duration::from_secs(1),
        first_byte: Some(Duration::ZERO),
        stages: Stages {
            read: stage(2.0, 1.0, read),
            lane: stage(8.0, 1.0, lane),
            ..Stages::default()
        },
        ..Times::default()
    };
    let busy = Duration::from_secs(8);
    let window = |seconds| PathReport {
        busy,
        receive_window_limited: Duration::from_secs(seconds),
        ..PathReport::default()
    };
    assert_eq!(Times::default().live_limit(None), "waiting for replies");
    assert_eq!(
        second((0.9, 0.0, 0.1), IDLE).live_limit(Some(&window(0))),
        "source reads"
    );
    assert_eq!(second(FED, FED).live_limit(None), "path or target");
    assert_eq!(second(FED, FED).live_limit(Some(&window(1))), "path");
    assert_eq!(second(FED, FED).live_limit(Some(&window(7))), "target");
    let mut held = Times {
        rate_limit: Limit::OwnRate,
        ..second(FED, (0.1, 0.0, 0.0))
    };
    held.stages.lane.paced = Duration::from_secs(7);
    assert_eq!(held.live_limit(Some(&window(1))), "rate limit");
    // Everything has been sent, and no stage records any time.
    let quiet = second((0.0, 0.0, 0.0), (0.0, 0.0, 0.0));
    assert_eq!(quiet.live_limit(Some(&PathReport::default())), "target");
}
