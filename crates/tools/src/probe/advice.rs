//! Detects evident problems of a network path and suggests remedies, one per line.

use std::time::Duration;

use zmove_sender::{PathReport, ProbeReport, Round};

use super::{best, milliseconds, rate};
use crate::figures::counted;

/// Returns the advice for a probe that was made by a host with `cores` cores. `asked` is the largest number of lanes
/// that the user requested.
pub(super) fn of(report: &ProbeReport, asked: u16, cores: usize) -> Vec<String> {
    let Some(best) = best(report) else {
        return Vec::new();
    };
    let lines = [
        clamped(report, asked),
        few_lanes(report, best),
        lost(best),
        more_lanes(report, best),
        queues(report, best),
        busy(best, cores),
    ];
    lines.into_iter().flatten().collect()
}

fn clamped(report: &ProbeReport, asked: u16) -> Option<String> {
    let most = report.lanes_max;
    (asked > most)
        .then(|| format!("the receiver accepts at most {most} lanes, but {asked} were requested"))
}

/// Returns advice if a single lane, or the smallest number of lanes that was measured, is much slower than the best
/// round.
fn few_lanes(report: &ProbeReport, best: &Round) -> Option<String> {
    let few = report.rounds.iter().min_by_key(|round| round.lanes)?;
    let share = few.steady.bytes_per_second() / best.steady.bytes_per_second().max(1.0);
    if share >= FAR_BELOW {
        return None;
    }
    let why = few.path.as_ref().map_or("", why);
    let few = counted(few.lanes.into(), "lane");
    let many = counted(best.lanes.into(), "lane");
    Some(
        format!("{few} carry {:.0} % of what {many} do{why}", share * 100.0)
            .replace("1 lane carry", "1 lane carries"),
    )
}

fn why(path: &PathReport) -> &'static str {
    let window = path.receive_window_share();
    let buffer = path.send_buffer_share();
    match path.by_quic {
        false if window >= WORTH_SAYING && window >= buffer => {
            ": the receiver's window is too small for the path: raise net.ipv4.tcp_rmem there"
        }
        false if buffer >= WORTH_SAYING => {
            ": the send buffer here is too small for the path: raise net.ipv4.tcp_wmem here"
        }
        _ if path.retransmitted_share() >= LOSS => {
            ": loss makes each lane slow down: --congestion bbr may help"
        }
        _ => ": a push chooses the number automatically",
    }
}

fn lost(best: &Round) -> Option<String> {
    let share = best.path.as_ref()?.retransmitted_share();
    (share >= LOSS).then(|| {
        format!(
            "{:.2} % was retransmitted by {}: the path loses packets, or a queue on it is too short; --congestion bbr \
             may help",
            share * 100.0,
            counted(best.lanes.into(), "lane")
        )
    })
}

/// Returns advice if the round with the largest number of lanes is by far the fastest.
fn more_lanes(report: &ProbeReport, best: &Round) -> Option<String> {
    let fewer = report
        .rounds
        .iter()
        .filter(|round| round.lanes < best.lanes);
    let most = fewer
        .map(|round| round.steady.bytes_per_second())
        .reduce(f64::max)?;
    let last = report.rounds.iter().all(|round| round.lanes <= best.lanes)
        && best.lanes < report.lanes_max;
    (last && best.steady.bytes_per_second() > most * STILL_GROWS).then(|| {
        let more = best.lanes.saturating_mul(2).min(report.lanes_max);
        format!(
            "the rate still grows with the lanes: --streams {},{more} shows whether more help",
            best.lanes
        )
    })
}

fn queues(report: &ProbeReport, best: &Round) -> Option<String> {
    let idle = report.round_trips.min;
    let loaded = best.round_trips.mean();
    (loaded > idle * 2 + QUEUE_MIN).then(|| {
        let idle = milliseconds(idle);
        let loaded = milliseconds(loaded);
        let rate = rate(best);
        format!("the round trip takes {loaded} at {rate} but {idle} when idle: a queue on the path fills up, or a \
                 host responds slowly")
    })
}

fn busy(best: &Round, cores: usize) -> Option<String> {
    let cores = u32::try_from(cores.max(1)).unwrap_or(u32::MAX);
    let share = best.sender_cpu.as_secs_f64() / (best.steady.time * cores).as_secs_f64().max(1e-9);
    (share >= BUSY).then(|| {
        format!(
            "this host's CPU was busy {:.0} % of the time: it may be the limit",
            share * 100.0
        )
    })
}

/// If the smallest number of lanes reaches less than this fraction of the best rate, the advice mentions it.
const FAR_BELOW: f64 = 0.5;
const WORTH_SAYING: f64 = 0.2;
/// The packet loss that slows down a long path: one segment in a thousand.
const LOSS: f64 = 0.001;
const STILL_GROWS: f64 = 1.25;
const QUEUE_MIN: Duration = Duration::from_millis(20);
const BUSY: f64 = 0.9;

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_sender::Carried;

    fn round(lanes: u16, megabytes: u64, path: PathReport) -> Round {
        let steady = Carried {
            bytes: megabytes * 1_000_000,
            time: Duration::from_secs(1),
        };
        Round {
            lanes,
            steady,
            path: Some(path),
            ..Round::default()
        }
    }

    fn path(window: u64, buffer: u64, retransmitted: u64) -> PathReport {
        PathReport {
            busy: Duration::from_secs(100),
            receive_window_limited: Duration::from_secs(window),
            send_buffer_limited: Duration::from_secs(buffer),
            bytes_sent: 100_000,
            bytes_retransmitted: retransmitted,
            ..PathReport::default()
        }
    }

    fn report(rounds: Vec<Round>) -> ProbeReport {
        ProbeReport {
            lanes_max: 64,
            rounds,
            ..ProbeReport::default()
        }
    }

    #[test]
    fn a_path_that_is_well_has_no_lines() {
        let rounds = [1, 4, 16]
            .map(|lanes| round(lanes, 100, path(0, 0, 0)))
            .into();
        assert_eq!(of(&report(rounds), 16, 2), Vec::<String>::new());
        assert_eq!(of(&report(vec![]), 16, 2), Vec::<String>::new());
    }

    #[test]
    fn one_slow_lane_is_told_with_its_cause() {
        let cases = [
            (path(60, 10, 0), "raise net.ipv4.tcp_rmem there"),
            (path(10, 60, 0), "raise net.ipv4.tcp_wmem here"),
            (path(0, 0, 200), "--congestion bbr may help"),
            (
                PathReport {
                    by_quic: true,
                    ..path(60, 0, 0)
                },
                "a push chooses the number automatically",
            ),
        ];
        for (path, expected) in cases {
            let rounds = vec![
                round(1, 10, path),
                round(4, 100, PathReport::default()),
                round(16, 100, PathReport::default()),
            ];
            let lines = of(&report(rounds), 16, 2);
            assert!(
                lines[0].starts_with("1 lane carries 10 % of what 4 lanes do: "),
                "{lines:?}"
            );
            assert!(
                lines[0].ends_with(expected) && lines.len() == 1,
                "{lines:?}"
            );
        }
    }

    #[test]
    fn loss_growth_queues_and_a_busy_cpu_have_a_line_each() {
        let best = Round {
            sender_cpu: Duration::from_millis(1900),
            ..round(16, 200, path(0, 0, 150))
        };
        let mut report = report(vec![round(1, 110, path(0, 0, 0)), best]);
        report.rounds[1].round_trips = seen(200);
        report.round_trips = seen(50);
        let lines = of(&report, 80, 2);
        let begins = [
            "the receiver accepts at most 64 lanes",
            "0.15 % was retransmitted by 16 lanes",
            "the rate still grows",
            "the round trip takes 200.0 ms",
            "this host's CPU was busy 95 %",
        ];
        assert_eq!(lines.len(), begins.len(), "{lines:?}");
        for (line, begin) in lines.iter().zip(begins) {
            assert!(line.starts_with(begin), "{line}");
        }
    }

    fn seen(millis: u64) -> zmove_sender::RoundTrips {
        zmove_sender::RoundTrips::of(&[Duration::from_millis(millis)])
    }
}
