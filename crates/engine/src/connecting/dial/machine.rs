//! The number of lanes that suits a path, depending on this host's kernel and cores.
//!
//! On a short path, window sizes do not matter and each lane costs CPU, so the number of lanes equals the number of
//! cores. On a longer path, it is chosen so that the kernel's largest send windows together allow the target rate
//! ([`RATE_TARGET`]). QUIC lanes are not limited by the kernel's windows, but each has a thread, so there are twice as
//! many as cores. All numbers have lower and upper bounds.

use std::time::Duration;

use zmove_disk::cores;
use zmove_transport::ChannelDialer;
use zmove_types::RateLimit;
use zmove_wire::limits::LANES_MAX;

/// Number of lanes that are dialed before the round trip time is known.
pub const LANES_AT_ONCE: u16 = 12;
/// Rate that the windows of all lanes together should allow, in bytes per second: 10 Gbit/s.
pub const RATE_TARGET: f64 = 1.25e9;
/// Round trip time below which a path is local. On local paths, window sizes do not matter and each lane costs CPU.
pub const LOCAL_RTT: Duration = Duration::from_millis(2);

/// Returns the number of lanes that suits a path. The kernel's send windows of all lanes together should fill the path.
/// If windows are no limit, few lanes are enough.
pub(super) fn lanes_for(rtt: Duration) -> u16 {
    lanes_for_machine(rtt, cores(), send_window_max())
}

/// Returns the number of lanes through ssh. ssh gives each of them its own window.
pub(super) fn ssh_lanes(rtt: Duration, dialer: &ChannelDialer) -> u16 {
    let lanes = lanes_for_machine(rtt, cores(), SSH_WINDOW_BYTES);
    dialer.lanes_max().map_or(lanes, |most| lanes.min(most))
}

/// Returns the number of lanes that suits a path on which each connection may have `window_bytes` in flight.
pub fn lanes_for_machine(rtt: Duration, cores: usize, window_bytes: f64) -> u16 {
    let by_cores = u16::try_from(cores.clamp(2, 16)).expect("clamped");
    if rtt < LOCAL_RTT {
        return by_cores;
    }
    let windows = (RATE_TARGET * rtt.as_secs_f64() / window_bytes)
        .ceil()
        .clamp(0.0, 32.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0 to 32"
    )]
    let by_window = windows as u16;
    by_window.max(by_cores).max(LANES_AT_ONCE)
}

/// Returns the number of QUIC lanes. It depends on the cores, because each lane has a thread and kernel windows do not
/// apply.
pub(super) fn quic_lanes() -> u16 {
    u16::try_from((2 * cores()).clamp(4, 8)).expect("clamped")
}

/// Returns the maximum number of useful lanes at a rate limit. Each lane costs a handshake and a path MTU search, about
/// 25 KiB over QUIC, before it carries any data.
pub(super) fn max_lanes_for_rate(limit: Option<RateLimit>) -> u16 {
    limit.map_or(LANES_MAX, |limit| {
        let lanes = limit.bytes_per_second() / LANE_BYTES_PER_SECOND_MIN;
        u16::try_from(lanes)
            .unwrap_or(LANES_MAX)
            .clamp(1, LANES_MAX)
    })
}

/// Returns the maximum number of lanes for which this process has file descriptors. Descriptors for the files that it
/// reads are subtracted first.
pub(super) fn max_lanes_for_descriptors(files: usize) -> u16 {
    let lanes = files.saturating_sub(FILES_BESIDE_LANES) / FILES_PER_LANE;
    u16::try_from(lanes)
        .unwrap_or(LANES_MAX)
        .clamp(1, LANES_MAX)
}

/// Window of a connection that ssh forwards: 64 packets of 32 KiB.
const SSH_WINDOW_BYTES: f64 = 2_097_152.0;

/// Number of descriptors that a transfer needs in addition to its lanes and the files read for them.
const FILES_BESIDE_LANES: usize = 24;
/// Number of descriptors per lane: its connection, and the files and directories read for it.
const FILES_PER_LANE: usize = 4;

/// Minimum rate that a lane reaches on every path, in bytes per second.
const LANE_BYTES_PER_SECOND_MIN: u64 = 250_000;

/// Returns the maximum send window that the kernel's autotuning allows per connection, in bytes.
fn send_window_max() -> f64 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_wmem").unwrap_or_default();
    let bytes = text
        .split_whitespace()
        .nth(2)
        .and_then(|max| max.parse().ok());
    bytes.unwrap_or(4_194_304.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_follow_the_path_and_the_window() {
        let lanes = |ms, cores, mib: u32| {
            lanes_for_machine(
                Duration::from_micros(ms),
                cores,
                f64::from(mib) * 1_048_576.0,
            )
        };
        assert_eq!(lanes(200, 2, 4), 2);
        assert_eq!(lanes(200, 64, 4), 16);
        assert_eq!(lanes(10_000, 2, 4), 12);
        assert_eq!(lanes(90_000, 2, 4), 27);
        assert_eq!(lanes(90_000, 2, 128), 12);
        assert_eq!(lanes(260_000, 2, 4), 32);
    }

    #[test]
    fn few_descriptors_allow_few_lanes() {
        assert_eq!(
            [0, 48, 64, 1024].map(max_lanes_for_descriptors),
            [1, 6, 10, LANES_MAX]
        );
    }

    #[test]
    fn a_low_rate_has_few_lanes() {
        let lanes = |rate: &str| max_lanes_for_rate(Some(rate.parse().expect("a rate")));
        assert_eq!(
            ["1kB", "1MB", "2MB", "1GB"].map(lanes),
            [1, 4, 8, LANES_MAX]
        );
        assert_eq!(max_lanes_for_rate(None), LANES_MAX);
    }
}
