//! Compares the kernel's socket buffers with the bandwidth-delay product of a path.
//!
//! In each round trip, a lane can have at most the size of its send buffer in flight, and at most half of its receive
//! buffer. If these buffers are too small for one lane to fill the path, zmove uses more lanes, up to 64.

use std::time::Duration;

use zmove_types::{ByteCount, ByteRate};
use zmove_wire::limits::LANES_MAX;

use crate::commands::doctor::TransferRole;
use crate::commands::doctor::finding::{Finding, Remedy, Severity};
use crate::commands::doctor::root::Root;
use zmove_engine::{LANES_AT_ONCE, LOCAL_RTT, lanes_for_machine};

/// The three values of `tcp_rmem` or `tcp_wmem`, in bytes: minimum, initial, maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Autotuned([u64; 3]);

/// The paths for which the buffers are checked.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    pub(crate) rate: ByteRate,
    /// Measured round-trip time. If it is `None`, the typical times in [`USUAL`] are used instead.
    pub(crate) round_trip: Option<Duration>,
    pub(crate) cores: usize,
}

/// Typical round-trip times: across a metropolis, across a continent, and around half the world.
const USUAL: [Duration; 3] = [
    Duration::from_millis(10),
    Duration::from_millis(90),
    Duration::from_millis(260),
];

impl Autotuned {
    fn read(root: &Root, name: &str) -> Option<Self> {
        let words = root.sysctl_words(name)?;
        let figures: Vec<_> = words.iter().filter_map(|word| word.parse().ok()).collect();
        figures.try_into().ok().map(Self)
    }
}

/// Checks the kernel's limits on the buffers of connections.
pub(crate) fn judge(root: &Root, paths: &Paths, part: TransferRole) -> Vec<Finding> {
    let send = Autotuned::read(root, SEND);
    let receive = Autotuned::read(root, RECEIVE);
    let mut findings = Vec::from_iter(send.map(|send| paths.lanes(send)));
    findings.push(paths.judge("tcp_wmem", SEND, send.map(|send| (send, send.0[2]))));
    // Half of the receive buffer is for data in flight. The kernel uses the rest.
    let mut receive = paths.judge(
        "tcp_rmem",
        RECEIVE,
        receive.map(|receive| (receive, receive.0[2] / 2)),
    );
    if part == TransferRole::Sender {
        receive.level = receive.level.min(Severity::Note);
        receive.text.push_str("; matters if this host receives");
    }
    findings.extend([
        receive,
        judge_fixed(root, "rmem_max"),
        judge_fixed(root, "wmem_max"),
    ]);
    findings
}

impl Paths {
    fn round_trips(&self) -> Vec<Duration> {
        self.round_trip
            .map_or_else(|| USUAL.into(), |round_trip| vec![round_trip])
    }

    /// Returns the bandwidth-delay product: the number of bytes in flight that fill the path.
    fn product(&self, round_trip: Duration) -> f64 {
        self.rate.0 * round_trip.as_secs_f64()
    }

    /// Returns the number of lanes with this window that fill the path. In a local network, one lane suffices.
    fn lanes_to_fill(&self, round_trip: Duration, window: u64) -> u64 {
        if round_trip < LOCAL_RTT {
            return 1;
        }
        whole((self.product(round_trip) / ByteCount(window.max(1)).as_f64()).ceil())
    }

    /// Returns the finding about lanes. It states the number of lanes with which a push starts, and the rate that the
    /// send buffer allows for each lane.
    fn lanes(&self, send: Autotuned) -> Finding {
        let line = |round_trip: Duration| {
            let window = ByteCount(send.0[2]).as_f64();
            let count = lanes_for_machine(round_trip, self.cores, window);
            let one = ByteRate(window / round_trip.as_secs_f64().max(1e-6));
            let all = ByteRate(one.0 * f64::from(count));
            format!(
                "at {} {count} begin, and send buffers let {one} through each, {all} through all",
                Millis(round_trip)
            )
        };
        let mut lines: Vec<_> = self.round_trips().into_iter().map(line).collect();
        let first = lines.remove(0);
        Finding::ok("lanes", first).with_details(lines)
    }

    /// Compares the largest window that a buffer allows with the window that the paths need.
    fn judge(&self, check: &'static str, name: &str, buffer: Option<(Autotuned, u64)>) -> Finding {
        let Some((figures, window)) = buffer else {
            return Finding::unknown_sysctl(check, name);
        };
        let need = |round_trip| (self.lanes_to_fill(round_trip, window), round_trip);
        let needs: Vec<_> = self.round_trips().into_iter().map(need).collect();
        let largest = ByteCount(figures.0[2]);
        // The path with the longest round-trip time needs the largest window.
        let (lanes, round_trip) = needs[needs.len() - 1];
        let path = format!("{} at {}", self.rate, Millis(round_trip));
        if lanes <= u64::from(LANES_AT_ONCE) {
            return Finding::ok(check, format!("up to {largest}: a few lanes fill {path}"));
        }
        // If no host was given, the round-trip times are only examples. The finding is serious only if even the
        // shortest time needs more lanes than allowed.
        let sure = needs[0].0 > u64::from(LANES_MAX);
        let level = if sure { Severity::Slow } else { Severity::Note };
        let needed = ByteCount(whole(self.product(round_trip)));
        let enough = if lanes <= u64::from(LANES_MAX) {
            format!("takes {lanes} lanes")
        } else {
            let most = ByteCount(window).as_f64() * f64::from(LANES_MAX) / round_trip.as_secs_f64();
            format!("{LANES_MAX} lanes reach {} of it", ByteRate(most))
        };
        let text = format!("up to {largest}: {path} needs {needed} under way, and {enough}");
        let [least, first, _] = figures.0;
        let value = format!("{least} {first} {}", self.wanted(round_trip, figures));
        Finding::new(level, check, text).with_remedy(Remedy::sysctl(name, &value))
    }

    /// Returns the buffer size that makes a third of the lanes that a push dials at the same time sufficient to fill
    /// the path.
    fn wanted(&self, round_trip: Duration, figures: Autotuned) -> u64 {
        let share = whole(self.product(round_trip) * 3.0 / f64::from(LANES_AT_ONCE));
        share
            .min(WANTED_MAX)
            .next_power_of_two()
            .max(WANTED_MIN)
            .max(figures.0[2])
    }
}

/// Checks the limit on the buffers of UDP sockets. QUIC requests a fixed size for its socket, and the kernel grants at
/// most this limit.
fn judge_fixed(root: &Root, check: &'static str) -> Finding {
    let name = format!("net.core.{check}");
    match root.sysctl::<u64>(&name).map(ByteCount) {
        None => Finding::unknown_sysctl(check, &name),
        Some(allowed) if allowed.0 < QUIC_BYTES => {
            let asked = ByteCount(QUIC_BYTES);
            let text =
                format!("{allowed}: QUIC requests {asked}, which only root gets with this limit");
            Finding::note(check, text).with_remedy(Remedy::sysctl(&name, &QUIC_BYTES.to_string()))
        }
        Some(allowed) => Finding::ok(check, allowed.to_string()),
    }
}

/// Displays a round-trip time in milliseconds.
pub(crate) struct Millis(pub(crate) Duration);

impl std::fmt::Display for Millis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let millis = self.0.as_secs_f64() * 1e3;
        let digits = if millis < 1.0 {
            3
        } else {
            usize::from(millis < 10.0 && millis.fract() > 0.0)
        };
        write!(f, "{millis:.digits$} ms")
    }
}

/// The cast rounds the computed number of bytes down.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates"
)]
fn whole(bytes: f64) -> u64 {
    bytes as u64
}

const SEND: &str = "net.ipv4.tcp_wmem";
const RECEIVE: &str = "net.ipv4.tcp_rmem";
/// Size of the socket buffer that QUIC requests for its UDP socket, in bytes.
const QUIC_BYTES: u64 = 8 << 20;
const WANTED_MIN: u64 = 16 << 20;
const WANTED_MAX: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::root::tests::Fake;

    const MIB: u64 = 1 << 20;

    fn paths(gbit: f64, round_trip: Option<Duration>) -> Paths {
        Paths {
            rate: ByteRate(gbit * 1.25e8),
            round_trip,
            cores: 2,
        }
    }

    fn measured(millis: u64) -> Option<Duration> {
        Some(Duration::from_millis(millis))
    }

    /// Creates a host with these maximum TCP buffers, and with the UDP buffers that QUIC requests.
    fn buffers(send: u64, receive: u64) -> Fake {
        let (send, receive) = (
            format!("4096 16384 {send}"),
            format!("4096 131072 {receive}"),
        );
        let fixed = QUIC_BYTES.to_string();
        Fake::of_sysctls(&[
            (SEND, &send),
            (RECEIVE, &receive),
            ("net.core.rmem_max", &fixed),
            ("net.core.wmem_max", &fixed),
        ])
    }

    fn level_and_run(finding: &Finding) -> (Severity, Option<&str>) {
        (
            finding.level,
            finding.mend.first().and_then(|mend| mend.run.as_deref()),
        )
    }

    /// Returns the finding about the send buffer.
    fn send(send: u64, paths: &Paths) -> Finding {
        let findings = judge(&buffers(send, 1 << 30).root(), paths, TransferRole::Either);
        findings
            .into_iter()
            .find(|finding| finding.check == "tcp_wmem")
            .unwrap()
    }

    #[test]
    fn a_send_buffer_is_held_against_the_measured_path() {
        let run = |value: u64| format!("sysctl -w net.ipv4.tcp_wmem=\"4096 16384 {value}\"");
        let cases = [
            (4 * MIB, 10.0, 1, Severity::Ok, None),
            (4 * MIB, 10.0, 10, Severity::Ok, None),
            (4 * MIB, 10.0, 90, Severity::Note, Some(32 * MIB)),
            (4 * MIB, 10.0, 260, Severity::Slow, Some(128 * MIB)),
            (64 * MIB, 10.0, 260, Severity::Ok, None),
            (4 * MIB, 1.0, 90, Severity::Ok, None),
            (64 * MIB, 100.0, 260, Severity::Note, Some(1024 * MIB)),
        ];
        for (bytes, gbit, millis, level, value) in cases {
            let finding = send(bytes, &paths(gbit, measured(millis)));
            let run = value.map(run);
            assert_eq!(
                level_and_run(&finding),
                (level, run.as_deref()),
                "{bytes} {gbit} {millis}"
            );
        }
    }

    #[test]
    fn what_mends_it_does() {
        for gbit in [1.0, 10.0, 100.0] {
            for millis in [5, 20, 90, 260] {
                let paths = paths(gbit, measured(millis));
                let round_trip = Duration::from_millis(millis);
                let wanted = paths.wanted(round_trip, Autotuned([1, 1, 1]));
                let lanes = paths.lanes_to_fill(round_trip, wanted / 2);
                assert!(lanes <= u64::from(LANES_AT_ONCE), "{gbit} {millis}");
            }
        }
    }

    #[test]
    fn the_text_has_the_figures() {
        let text = send(4 * MIB, &paths(10.0, measured(90))).text;
        assert_eq!(
            text,
            "up to 4.00 MiB: 10.0 Gbit/s at 90 ms needs 107 MiB under way, and takes 27 lanes"
        );
        let text = send(4 * MIB, &paths(10.0, measured(260))).text;
        assert!(
            text.ends_with("310 MiB under way, and 64 lanes reach 8.26 Gbit/s of it"),
            "{text}"
        );
    }

    #[test]
    fn paths_that_nobody_has_measured_are_slow_only_if_the_shortest_is() {
        let usual = |bytes| level_and_run(&send(bytes, &paths(10.0, None))).0;
        assert_eq!(usual(64 * MIB), Severity::Ok);
        assert_eq!(usual(4 * MIB), Severity::Note);
        assert_eq!(usual(MIB / 8), Severity::Slow);
    }

    #[test]
    fn lanes_are_told_for_each_round_trip() {
        let findings = judge(
            &buffers(4 * MIB, MIB).root(),
            &paths(10.0, None),
            TransferRole::Either,
        );
        let Finding {
            check,
            text,
            details,
            ..
        } = &findings[0];
        let first = "at 10 ms 12 begin, and send buffers let 3.36 Gbit/s through each, 40.3 Gbit/s through all";
        assert_eq!((*check, text.as_str(), details.len()), ("lanes", first, 2));
        assert!(
            details[0].starts_with("at 90 ms 27 begin")
                && details[1].starts_with("at 260 ms 32 begin")
        );
    }

    #[test]
    fn half_of_a_receive_buffer_counts_and_less_to_who_sends() {
        let receive = |bytes, part| {
            let findings = judge(
                &buffers(1 << 30, bytes).root(),
                &paths(10.0, measured(260)),
                part,
            );
            findings
                .into_iter()
                .find(|finding| finding.check == "tcp_rmem")
                .unwrap()
        };
        let run = "sysctl -w net.ipv4.tcp_rmem=\"4096 131072 134217728\"";
        assert_eq!(
            level_and_run(&receive(6 * MIB, TransferRole::Either)),
            (Severity::Slow, Some(run))
        );
        assert_eq!(
            level_and_run(&receive(6 * MIB, TransferRole::Sender)),
            (Severity::Note, Some(run))
        );
        assert_eq!(
            level_and_run(&receive(48 * MIB, TransferRole::Either)),
            (Severity::Note, Some(run))
        );
        assert_eq!(
            level_and_run(&receive(128 * MIB, TransferRole::Either)),
            (Severity::Ok, None)
        );
    }

    #[test]
    fn quic_needs_buffers_of_its_own() {
        let small = Fake::of_sysctls(&[
            (SEND, "4096 16384 1073741824"),
            (RECEIVE, "4096 131072 1073741824"),
            ("net.core.rmem_max", "212992"),
        ]);
        let findings = judge(
            &small.root(),
            &paths(10.0, measured(90)),
            TransferRole::Either,
        );
        let fixed = findings
            .iter()
            .filter(|finding| finding.level != Severity::Ok)
            .map(level_and_run);
        let run = Some("sysctl -w net.core.rmem_max=8388608");
        assert_eq!(
            fixed.collect::<Vec<_>>(),
            [(Severity::Note, run), (Severity::Note, None)]
        );
    }

    #[test]
    fn facts_are_read_from_the_tree() {
        let fake = Fake::of_sysctls(&[(SEND, "4096\t16384\t4194304"), (RECEIVE, "4096 131072")]);
        assert_eq!(
            Autotuned::read(&fake.root(), SEND),
            Some(Autotuned([4096, 16_384, 4_194_304]))
        );
        assert_eq!(Autotuned::read(&fake.root(), RECEIVE), None);
        let findings = judge(
            &Fake::of(&[]).root(),
            &paths(10.0, measured(90)),
            TransferRole::Either,
        );
        assert!(!findings.is_empty());
        assert!(
            findings
                .iter()
                .all(|finding| finding.level == Severity::Note
                    && finding.text.starts_with("unknown"))
        );
    }
}
