//! The receive windows of lanes, which limit the received bytes that are buffered in this process. The key's quota is
//! charged for them.
//!
//! Only QUIC lanes have such windows. **Invariant:** at most [`WIDE_LANES`] of a transfer's current lanes have a wide
//! window. A lane has no window before its transfer has accepted it.

use zmove_transport::{LaneSource, LaneWindow};

use crate::rights::quota::{Charge, Quota};

/// Maximum number of lanes with a wide window. With more lanes, a smaller window per lane is enough.
const WIDE_LANES: usize = 8;

/// Opens the window of a lane of a transfer that already has `others` lanes. The window is as wide as the key's quota
/// allows. Returns the reservation.
pub(crate) fn open_window(
    source: &mut dyn LaneSource,
    others: usize,
    quota: &Quota,
) -> Option<Charge> {
    if !source.has_window() {
        return None;
    }
    let wanted = if others < WIDE_LANES {
        LaneWindow::Wide
    } else {
        LaneWindow::Narrow
    };
    let booked = [wanted, LaneWindow::Narrow].into_iter().find_map(|window| {
        let held = quota.charge_window(usize::try_from(window.bytes()).ok()?)?;
        Some((window, held))
    });
    let (window, held) = match booked {
        Some((window, held)) => (window, Some(held)),
        None => (LaneWindow::Least, None),
    };
    source.open_window(window);
    held
}

#[cfg(test)]
mod tests {
    use zmove_transport::{Fingerprint, Frame, LaneBreaker, LaneError};
    use zmove_types::{BufferPool, ByteCount, Stopwatch};

    use super::*;
    use crate::rights::quota::Quotas;
    use crate::rights::quota::limits::Limits;

    #[derive(Debug)]
    struct Lane(Option<LaneWindow>);

    impl LaneSource for Lane {
        fn has_window(&self) -> bool {
            true
        }

        fn open_window(&mut self, window: LaneWindow) {
            self.0 = Some(window);
        }

        fn receive(
            &mut self,
            _: &BufferPool,
            _: &mut Stopwatch<'_>,
        ) -> Result<Option<Frame>, LaneError> {
            Ok(None)
        }

        fn breaker(&self) -> LaneBreaker {
            LaneBreaker::new(|| ())
        }
    }

    fn opened(others: usize, quota: &Quota) -> (LaneWindow, Option<Charge>) {
        let mut lane = Lane(None);
        let held = open_window(&mut lane, others, quota);
        (lane.0.unwrap(), held)
    }

    #[test]
    fn the_first_lanes_are_wide_and_all_are_booked_on_the_key() {
        // With this limit, 50 MiB are left for windows.
        let limits = Limits {
            memory_per_identity: ByteCount(100 << 20),
            ..Limits::default()
        };
        let quotas = Quotas::default();
        let quota = quotas.of(Fingerprint([1; 32]), &limits);
        let (window, eighth) = opened(7, &quota);
        assert_eq!(window, LaneWindow::Wide);
        let (window, ninth) = opened(8, &quota);
        assert_eq!(window, LaneWindow::Narrow);
        let second = quotas.of(Fingerprint([1; 32]), &limits);
        let (window, wide) = opened(0, &second);
        assert_eq!(window, LaneWindow::Wide);
        let (window, narrow) = opened(0, &second);
        assert_eq!(window, LaneWindow::Narrow, "there is no room for more");
        let (window, none) = opened(0, &second);
        assert!(window == LaneWindow::Least && none.is_none());
        let (window, _held) = opened(0, &quotas.of(Fingerprint([2; 32]), &limits));
        assert_eq!(window, LaneWindow::Wide, "another key has its own");
        drop((eighth, ninth, wide, narrow));
        assert_eq!(opened(0, &second).0, LaneWindow::Wide);
    }
}
