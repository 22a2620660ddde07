//! Black holes: paths on which full-size packets are lost while small packets arrive.
//!
//! Both hosts may send packets of 9,000 bytes although a link between them carries only 1,500. The router at that link
//! reports this by ICMP ("fragmentation needed"). If a filter drops the report, TCP retransmits the same segment until
//! the connection times out.
//!
//! To detect such a path, the dialer exchanges the same messages on two connections at the same time, one with
//! full-size segments and one with small segments. **Invariant:** a path counts as a black hole only if the small
//! segments arrived in both directions and the full-size segments did not. A path that is slow, lossy or down delays
//! both exchanges alike.

use std::future::pending;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::endpoint::Endpoint;

/// Maximum TCP segment size that every path carries. IPv6 guarantees packets of 1,280 bytes, of which the headers take
/// 60.
pub(crate) const SAFE_SEGMENT_BYTES: u32 = 1_220;

/// The error for a path on which full-size packets are lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "exchange full-size packets with {host} over TCP: they are lost on the path while small ones arrive (a link there \
     has a smaller MTU than both hosts, and the ICMP messages that report it are filtered; see 'zmove doctor {host}')"
)]
pub struct BlackHole {
    /// The host that was dialed.
    pub host: Endpoint,
}

/// The maximum segment size of all connections that are established after it was set. Clones share the value.
#[derive(Clone, Debug, Default)]
pub struct SegmentLimit(Arc<OnceLock<u32>>);

impl SegmentLimit {
    /// Creates a limit of this number of bytes.
    #[must_use]
    pub fn of(bytes: u32) -> Self {
        let limit = Self::default();
        limit.0.get_or_init(|| bytes);
        limit
    }

    /// Returns the limit in bytes, or `None` if no limit is set.
    #[must_use]
    pub fn get(&self) -> Option<u32> {
        self.0.get().copied()
    }

    /// Limits segments to a size that every path carries.
    pub(crate) fn set_safe(&self) {
        self.0.get_or_init(|| SAFE_SEGMENT_BYTES);
    }
}

/// The result of a path check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathVerdict {
    /// Full-size segments arrive in both directions.
    Passes,
    /// Only small segments arrive.
    BlackHole,
    /// The host responded to neither exchange, or refused a connection.
    Unknown,
}

/// Compares an exchange with full-size segments to an exchange with small segments. Each future returns whether its
/// exchange was completed. The full-size exchange may end up to `grace` later than the exchange with small segments.
pub(crate) async fn judge(
    full: impl Future<Output = bool>,
    small: impl Future<Output = bool>,
    grace: Duration,
) -> PathVerdict {
    let mut full = pin!(full);
    let first = async {
        tokio::select! {
            biased;
            is_complete = &mut full => Some(is_complete),
            is_complete = small => (!is_complete).then_some(false),
        }
    };
    let known = match timeout(EXCHANGE_MAX, first).await {
        Ok(Some(is_complete)) => Some(is_complete),
        Ok(None) => timeout(grace, full).await.ok(),
        Err(_neither) => Some(false),
    };
    match known {
        Some(true) => PathVerdict::Passes,
        Some(false) => PathVerdict::Unknown,
        None => PathVerdict::BlackHole,
    }
}

/// Returns the additional time that the exchange with full-size segments gets after the exchange with small segments.
/// This time allows several retransmissions.
pub(crate) fn grace(round_trip: Duration) -> Duration {
    GRACE_MIN + round_trip * GRACE_ROUND_TRIPS
}

/// Resolves once the path is found to be a black hole. Checks the path when no bytes were moved on the lanes for some
/// time, until a check finds that full-size packets arrive. `moved` returns the total number of bytes moved.
pub(crate) async fn watch<Checking: Future<Output = PathVerdict>>(
    moved: impl Fn() -> u64,
    check: impl Fn() -> Checking,
) {
    loop {
        wait_until_stalled(&moved).await;
        match check().await {
            PathVerdict::BlackHole => return,
            PathVerdict::Passes => pending().await,
            PathVerdict::Unknown => sleep(CHECK_PAUSE).await,
        }
    }
}

/// Waits until the number of moved bytes is unchanged for [`STALLED_SAMPLES`] consecutive samples.
async fn wait_until_stalled(moved: impl Fn() -> u64) {
    let mut before = moved();
    let mut still = 0;
    while still < STALLED_SAMPLES {
        sleep(SAMPLE_INTERVAL).await;
        let now = moved();
        still = if now == before { still + 1 } else { 0 };
        before = now;
    }
}

/// Duration of a handshake after which the path is checked.
pub(crate) const HANDSHAKE_LONG: Duration = Duration::from_secs(3);

const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
const STALLED_SAMPLES: u32 = 3;
/// Maximum duration of each of the two exchanges.
const EXCHANGE_MAX: Duration = Duration::from_secs(10);
/// Pause after a check without a result.
const CHECK_PAUSE: Duration = Duration::from_secs(10);
const GRACE_MIN: Duration = Duration::from_secs(3);
const GRACE_ROUND_TRIPS: u32 = 8;

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::Instant;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// An exchange that ends after this number of seconds.
    async fn after(seconds: u32, is_complete: bool) -> bool {
        sleep(SECOND * seconds).await;
        is_complete
    }

    #[tokio::test(start_paused = true)]
    async fn only_small_segments_that_arrive_alone_show_a_black_hole() {
        let grace = 3 * SECOND;
        let cases = [
            // These are healthy paths of any speed, and a path that lost a few segments of the full-size exchange.
            (after(0, true), after(0, true), PathVerdict::Passes),
            (after(9, true), after(9, true), PathVerdict::Passes),
            (after(8, true), after(6, true), PathVerdict::Passes),
            // The full-size exchange is not completed in time.
            (after(60, true), after(1, true), PathVerdict::BlackHole),
            (after(60, true), after(9, true), PathVerdict::BlackHole),
            // The host is down or refuses connections.
            (after(60, true), after(60, true), PathVerdict::Unknown),
            (after(1, false), after(2, true), PathVerdict::Unknown),
            (after(60, true), after(1, false), PathVerdict::Unknown),
            (after(2, false), after(1, true), PathVerdict::Unknown),
        ];
        for (number, (full, small, verdict)) in cases.into_iter().enumerate() {
            assert_eq!(judge(full, small, grace).await, verdict, "case {number}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_path_is_checked_only_while_nothing_moves() {
        let began = Instant::now();
        let moved = || began.elapsed().as_secs().min(5);
        watch(moved, || async { PathVerdict::BlackHole }).await;
        assert_eq!(began.elapsed(), (5 + STALLED_SAMPLES) * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn a_path_that_has_passed_is_not_checked_again() {
        let checks = Cell::new(0);
        let check = || {
            checks.set(checks.get() + 1);
            std::future::ready(if checks.get() < 3 {
                PathVerdict::Unknown
            } else {
                PathVerdict::Passes
            })
        };
        let watched = timeout(3600 * SECOND, watch(|| 0, check)).await;
        assert!(watched.is_err());
        assert_eq!(checks.get(), 3);
    }

    #[test]
    fn a_limit_is_shared_and_stays() {
        let limit = SegmentLimit::default();
        let other = limit.clone();
        assert_eq!(other.get(), None);
        limit.set_safe();
        assert_eq!(other.get(), Some(SAFE_SEGMENT_BYTES));
        let set = SegmentLimit::of(1_400);
        set.set_safe();
        assert_eq!(set.get(), Some(1_400));
    }
}
